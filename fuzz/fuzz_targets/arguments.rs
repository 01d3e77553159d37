//! Renders arbitrary arguments into a command line. They must be rejected, or the value of `text`
//! must be rendered unchanged and no value may become an option.
#![no_main]

use std::sync::LazyLock;

use dutyd::argv::{ARGV_BYTES_LIMIT, CommandLine, Declaration, parse_arguments};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

static COMMAND: LazyLock<CommandLine> = LazyLock::new(|| {
    let parameters = json!({
        "text": {"type": "string"},
        "lines": {"type": "string", "multiline": true, "optional": true},
        "count": {"type": "number", "optional": true},
        "names": {"type": "array", "items": {"type": "string"}, "default": []},
    });
    CommandLine::compile(&Declaration {
        program: "tool".into(),
        args: vec!["run".into(), "{{text}}".into(), "--x={{text}}".into(), "{{names}}".into()],
        optional_args: vec![("lines".into(), vec!["{{lines}}".into()]), ("count".into(), vec!["{{count}}".into()])],
        stdin: None,
        parameters: parameters.as_object().cloned().unwrap_or_default(),
    })
    .expect("the declaration is valid")
});

fuzz_target!(|text: &str| {
    let Ok(arguments) = parse_arguments(text) else { return };
    let Ok(valid) = COMMAND.validate(&arguments) else { return };
    let Ok(rendered) = COMMAND.render(&valid) else { return };
    let value = valid.get("text").and_then(Value::as_str).expect("`text` is required");
    assert_eq!(rendered.args.first().map(String::as_str), Some("run"));
    assert_eq!(rendered.args.get(1).map(String::as_str), Some(value));
    assert_eq!(rendered.args.get(2), Some(&format!("--x={value}")));
    assert!(rendered.args.iter().enumerate().all(|(at, arg)| at == 2 || !arg.starts_with('-')), "a value became an option");
    assert!(rendered.args.iter().all(|arg| !arg.contains('\0')));
    assert!(rendered.args.iter().map(|arg| arg.len() + 1).sum::<usize>() <= ARGV_BYTES_LIMIT);
});
