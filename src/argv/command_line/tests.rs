use proptest::prelude::*;
use serde_json::json;

use super::*;

fn command(value: Value) -> Result<CommandLine, Vec<Diagnostic>> {
    let strings = |value: &Value| {
        value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    CommandLine::compile(&Declaration {
        program: value["cmd"].as_str().unwrap_or("tool").to_owned(),
        args: value.get("args").map(strings).unwrap_or_default(),
        optional_args: value
            .get("optional_args")
            .and_then(Value::as_object)
            .map(|map| map.iter().map(|(k, v)| (k.clone(), strings(v))).collect())
            .unwrap_or_default(),
        stdin: value.get("stdin").and_then(Value::as_str).map(str::to_owned),
        parameters: value.get("parameters").and_then(Value::as_object).cloned().unwrap_or_default(),
    })
}

fn render(command: &CommandLine, arguments: Value) -> Result<Rendered, CallError> {
    let arguments = command.validate(arguments.as_object().unwrap())?;
    command.render(&arguments)
}

fn args(command: &CommandLine, arguments: Value) -> Vec<String> {
    render(command, arguments).unwrap().args
}

#[track_caller]
fn refused(command: &CommandLine, arguments: Value, word: &str) {
    let error = render(command, arguments).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArguments);
    assert!(error.message.contains(word), "{}", error.message);
}

fn get() -> CommandLine {
    command(json!({
        "args": ["get", "{{resource}}"],
        "optional_args": {"namespace": ["-n", "{{namespace}}"], "limit": ["--limit={{limit}}"]},
        "parameters": {
            "resource": {"type": "string", "enum": ["pods", "services", "-A"]},
            "namespace": {"type": "string", "optional": true},
            "limit": {"type": "integer", "optional": true},
        },
    }))
    .unwrap()
}

// conforms 000-6.3e
#[test]
fn optional_arguments_come_after_args_in_the_order_of_the_file() {
    assert_eq!(args(&get(), json!({"resource": "pods"})), ["get", "pods"]);
    assert_eq!(
        args(&get(), json!({"limit": 5, "namespace": "shop", "resource": "pods"})),
        ["get", "pods", "-n", "shop", "--limit=5"]
    );
}

// proves ARG-1
#[test]
fn a_value_never_becomes_an_option() {
    refused(
        &get(),
        json!({"resource": "pods", "namespace": "--server=https://evil.example"}),
        "namespace",
    );
    assert_eq!(
        args(&get(), json!({"resource": "-A"})),
        ["get", "-A"],
        "the operator wrote the values of the enum"
    );
    let negative =
        command(json!({"args": ["{{n}}"], "parameters": {"n": {"type": "integer"}}})).unwrap();
    refused(&negative, json!({"n": -5}), "begins with `-`");
    let mixed = command(
        json!({"args": ["{{a}}x"], "parameters": {"a": {"type": "string", "minLength": 0}}}),
    )
    .unwrap();
    refused(&mixed, json!({"a": "-o"}), "`a`");
    let two = command(json!({"args": ["{{a}}{{b}}"], "parameters": {"a": {"type": "string", "minLength": 0}, "b": {"type": "string"}}})).unwrap();
    refused(&two, json!({"a": "", "b": "-rf"}), "`b`");
    let ended =
        command(json!({"args": ["--", "{{a}}"], "parameters": {"a": {"type": "string"}}})).unwrap();
    assert_eq!(args(&ended, json!({"a": "-x"})), ["--", "-x"]);
    let asked = command(json!({"args": ["{{a}}"], "parameters": {"a": {"type": "string", "allow_leading_dash": true}}})).unwrap();
    assert_eq!(args(&asked, json!({"a": "-x"})), ["-x"]);
    let literal =
        command(json!({"args": ["--since={{a}}"], "parameters": {"a": {"type": "string"}}}))
            .unwrap();
    assert_eq!(args(&literal, json!({"a": "-1h"})), ["--since=-1h"]);
    let list = command(json!({"args": ["{{a}}"], "parameters": {"a": {"type": "array", "items": {"type": "string"}}}})).unwrap();
    refused(&list, json!({"a": ["ok", "-x"]}), "begins with `-`");
}

// proves ARG-2, ARG-3
// conforms 000-6.3d
#[test]
fn one_element_is_one_argument() {
    let command = command(
        json!({"args": ["a {{x}} b"], "parameters": {"x": {"type": "string", "multiline": true}}}),
    )
    .unwrap();
    for hostile in
        ["; rm x", "$(id)", "`id`", "a'b\"c", "a\nb", "{{x}} {{y}}", "*", "~", "a  b", "%s", "\\"]
    {
        assert_eq!(args(&command, json!({ "x": hostile })), [format!("a {hostile} b")]);
    }
}

#[test]
fn a_list_alone_is_one_argument_for_each_item() {
    let list = command(json!({"args": ["ls", "{{names}}"], "parameters": {"names": {"type": "array", "items": {"type": "string"}}}})).unwrap();
    assert_eq!(args(&list, json!({"names": ["a b", "c"]})), ["ls", "a b", "c"]);
    assert_eq!(args(&list, json!({"names": []})), ["ls"]);
    let errors = command(json!({"args": ["--x={{names}}"], "parameters": {"names": {"type": "array", "items": {"type": "string"}}}})).unwrap_err();
    assert!(errors[0].message.contains("stand alone"), "{errors:?}");
}

// proves ARG-6
#[test]
fn control_and_invisible_characters_are_refused() {
    let plain =
        command(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string"}}})).unwrap();
    for hostile in [
        "a\nb",
        "a\tb",
        "a\rb",
        "\u{1b}[2J",
        "a\u{7f}",
        "a\u{9b}",
        "a\u{2028}",
        "a\u{202e}b",
        "a\u{e0041}",
        "a\u{200b}",
    ] {
        refused(&plain, json!({ "x": hostile }), "character U+");
    }
    refused(&plain, json!({"x": "a\0b"}), "NUL");
    let lines = command(
        json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "multiline": true}}}),
    )
    .unwrap();
    assert_eq!(args(&lines, json!({"x": "a\n\tb"})), ["a\n\tb"]);
    refused(&lines, json!({"x": "a\rb"}), "character U+");
    refused(&lines, json!({"x": "a\0b"}), "NUL");
}

// proves ARG-7
#[test]
fn sizes_are_bounded() {
    let plain =
        command(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string"}}})).unwrap();
    assert_eq!(args(&plain, json!({"x": "a".repeat(4096)})).len(), 1);
    refused(&plain, json!({"x": "ä".repeat(2049)}), "4098 bytes");
    let long = command(
        json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "maxLength": 100_000}}}),
    )
    .unwrap();
    assert_eq!(args(&long, json!({"x": "a".repeat(60_000)}))[0].len(), 60_000);
    refused(&long, json!({"x": "a".repeat(70_000)}), "in all");
    let stdin =
        command(json!({"stdin": "{{x}}", "parameters": {"x": {"type": "string"}}})).unwrap();
    let rendered = render(&stdin, json!({"x": "a\n".repeat(400_000)})).unwrap();
    assert_eq!(rendered.stdin.unwrap().len(), 800_000);
    refused(&stdin, json!({"x": "a".repeat(1_100_000)}), "1048576");
}

// proves ARG-8, ARG-9, ARG-10
// conforms 000-6.3f, 000-S6.9
#[test]
fn a_value_that_its_schema_rejects_is_not_put_into_an_argument() {
    refused(&get(), json!({"resource": "nodes"}), "not valid");
    refused(&get(), json!({"resource": "pods; rm -rf ~"}), "not valid");
    let x = json!({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3});
    let bounded = command(json!({"args": ["{{x}}"], "parameters": {"x": x}})).unwrap();
    assert_eq!(args(&bounded, json!({"x": "abc"})), ["abc"]);
    for wrong in ["abcd", "a b", "a;b"] {
        refused(&bounded, json!({ "x": wrong }), "not valid");
    }
}

#[test]
fn types_are_not_bent() {
    let numbers = command(json!({"args": ["{{n}}", "{{f}}", "{{b}}"], "parameters": {
        "n": {"type": "integer", "minimum": 0}, "f": {"type": "number", "default": 0.5}, "b": {"type": "boolean", "default": true},
    }}))
    .unwrap();
    assert_eq!(args(&numbers, json!({"n": 5})), ["5", "0.5", "true"]);
    assert_eq!(
        args(&numbers, serde_json::from_str(r#"{"n": 1.0, "f": 1e2, "b": false}"#).unwrap()),
        ["1", "100", "false"]
    );
    for wrong in [
        json!({}),
        json!({"n": "5"}),
        json!({"n": 5, "b": "true"}),
        json!({"n": null}),
        json!({"n": 5, "x": 1}),
        json!({"n": [5]}),
    ] {
        refused(&numbers, wrong, "not valid");
    }
    refused(&numbers, serde_json::from_str(r#"{"n": 1, "f": 1e300}"#).unwrap(), "plain decimal");
    let text =
        command(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string"}}})).unwrap();
    refused(&text, json!({"x": ""}), "must not be empty");
    let empty = command(
        json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "minLength": 0}}}),
    )
    .unwrap();
    assert_eq!(args(&empty, json!({"x": ""})), [""]);
    refused(&text, json!({"x": "k=[redacted:KEY]"}), "redaction marker");
}

// proves ARG-11, ARG-13
#[test]
fn declarations_with_mistakes_are_refused_all_at_once() {
    let errors = command(json!({
        "cmd": "sh",
        "args": ["-c", "{{code}}", "{{nmae}}", "{{open"],
        "optional_args": {"code": ["{{maybe}}"]},
        "parameters": {"code": {"type": "string"}, "name": {"type": "string"}, "maybe": {"type": "string", "optional": true}},
    }))
    .unwrap_err();
    let found: Vec<(&str, &str)> =
        errors.iter().map(|f| (f.pointer.as_str(), f.message.as_str())).collect();
    for (pointer, word) in [
        ("/args/3", "never closed"),
        ("/args/2", "not a parameter"),
        ("/optional_args/code", "not optional"),
        ("/optional_args/code/0", "hole"),
        ("/parameters/name", "unused parameter"),
        ("/args/1", "would name the program"),
    ] {
        assert!(
            found.iter().any(|(p, m)| *p == pointer && m.contains(word)),
            "{pointer} {word} in {found:#?}"
        );
    }
    let errors = command(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "patern": "a", "format": "colour", "pattern": "(?m)a"}}})).unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(command(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "$ref": "http://h/x"}}})).is_err());
    assert!(
        command(
            json!({"args": ["{{x}}"], "parameters": {"x": {"type": "integer", "default": "a"}}})
        )
        .is_err()
    );
}

// proves ARG-14
#[test]
fn open_positions_are_named() {
    let open = |value: Value| command(value).unwrap().open_positions().len();
    assert_eq!(open(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string"}}})), 1);
    assert_eq!(open(json!({"args": ["-n", "{{x}}"], "parameters": {"x": {"type": "string"}}})), 0);
    assert_eq!(open(json!({"args": ["--", "{{x}}"], "parameters": {"x": {"type": "string"}}})), 0);
    assert_eq!(
        open(
            json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "pattern": "[a-z0-9-]+"}}})
        ),
        1
    );
    assert_eq!(
        open(
            json!({"args": ["{{x}}"], "parameters": {"x": {"type": "string", "pattern": "[a-z][a-z-]*"}}})
        ),
        0
    );
    assert_eq!(open(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "integer"}}})), 1);
    assert_eq!(
        open(json!({"args": ["{{x}}"], "parameters": {"x": {"type": "integer", "minimum": 0}}})),
        0
    );
}

proptest! {
    #[test]
    fn whatever_is_rendered_is_the_value_itself(value in ".{0,60}") {
        let command = command(json!({"args": ["pre", "{{x}}", "--o={{x}}"], "parameters": {"x": {"type": "string"}}})).unwrap();
        if let Ok(rendered) = render(&command, json!({ "x": value })) {
            prop_assert_eq!(&rendered.args, &["pre".to_owned(), value.clone(), format!("--o={value}")]);
            prop_assert!(!value.starts_with('-') && !value.is_empty());
            prop_assert!(!value.chars().any(is_deceptive));
        }
    }
}

// proves ENV-3
#[test]
fn what_is_no_parameter_cannot_be_set() {
    for name in ["env", "cwd", "working_dir", "user", "timeout", "stdin"] {
        let mut arguments = json!({"resource": "pods"});
        arguments[name] = json!("x");
        refused(&get(), arguments, &format!("('{name}' was unexpected)"));
    }
}

#[test]
fn a_wrong_parameter_hides_no_wrong_placeholder() {
    for (value, expected) in [
        (
            json!({"args": ["{{nmae}}", "{{name}}"], "parameters": {"name": {"type": "strin"}}}),
            vec!["/parameters/name", "/args/0"],
        ),
        (
            json!({"args": ["{{a", "{{b}}", "{{a}}"], "parameters": {"a": {"type": "string"}}}),
            vec!["/args/0", "/args/1"],
        ),
    ] {
        let found: Vec<String> =
            command(value).unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_schema_that_no_value_satisfies_is_refused() {
    for schema in [
        json!({"type": "string", "enum": []}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
        json!({"type": "integer", "exclusiveMinimum": 5, "maximum": 5}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"type": "array", "items": {"type": "string", "enum": []}}),
        json!({"type": "integer", "enum": ["a"]}),
    ] {
        let declared = json!({"args": ["{{x}}"], "parameters": {"x": schema.clone()}});
        assert!(command(declared).is_err(), "{schema}");
    }
    let one = json!({"args": ["{{x}}"], "parameters": {"x": {"type": "integer", "minimum": 5, "maximum": 5}}});
    assert!(command(one).is_ok());
}

#[test]
fn only_what_is_used_on_standard_input_alone_may_be_long() {
    let long = |bytes: usize| Map::from_iter([("f".to_owned(), json!("x".repeat(bytes)))]);
    let parameters = json!({"f": {"type": "string", "optional": true}});
    let guard = command(json!({"optional_args": {"f": ["--f"]}, "parameters": parameters.clone()}));
    let guard = guard.unwrap();
    assert!(guard.validate(&long(4096)).is_ok() && guard.validate(&long(4097)).is_err());
    let stdin = json!({"stdin": "{{f}}", "parameters": {"f": {"type": "string"}}});
    let stdin = command(stdin).unwrap();
    assert!(
        stdin.validate(&long(1 << 20)).is_ok() && stdin.validate(&long((1 << 20) + 1)).is_err()
    );
}
