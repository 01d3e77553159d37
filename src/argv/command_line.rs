//! The command line that a tool declares, and the only way from arguments to an argv.
//!
//! Each element of `args` is a template that becomes exactly one argument. The exception is a list,
//! which is alone in its element and becomes one argument per item. Nothing is split, globbed or
//! interpreted. If an argument begins with a value from the model, that value must not begin with a
//! dash, unless the declaration allows it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::parameters::{DEFAULT_STRING_BYTES, Parameter, Parameters, plain_number};
use super::{Diagnostic, injection, pointer_segment};
use crate::domain::{CallError, ErrorKind};
use crate::text::escape::is_deceptive;
use crate::text::suggest::nearest;
use crate::text::template::{Piece, Template};

/// Limit on the arguments of a call together, in bytes, inclusive (ARG-7). The program does not
/// count. Each argument counts one byte more, for its NUL terminator.
pub const ARGV_BYTES_LIMIT: usize = 64 * 1024;

/// Limit on a string that is used only on standard input, in bytes, inclusive.
pub const STDIN_BYTES_LIMIT: usize = 1024 * 1024;

/// The command line of a tool as declared, before it is checked.
#[derive(Debug, Clone, Default)]
pub struct Declaration {
    /// The program as written in the file.
    pub program: String,
    pub args: Vec<String>,
    /// In the order of the file.
    pub optional_args: Vec<(String, Vec<String>)>,
    pub stdin: Option<String>,
    pub parameters: Map<String, Value>,
}

/// A checked command line. Two are equal if they accept the same arguments and render them alike.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandLine {
    parameters: Parameters,
    args: Vec<Template>,
    optional_args: Vec<(String, Vec<Template>)>,
    stdin: Option<Template>,
}

/// The input of a process: its arguments and its standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The arguments after the program.
    pub args: Vec<String>,
    /// The text on standard input; `None` is `/dev/null`.
    pub stdin: Option<String>,
}

impl CommandLine {
    /// Checks a declaration.
    ///
    /// *Errors*: all errors, with pointers relative to the tool.
    pub fn compile(declaration: &Declaration) -> Result<Self, Vec<Diagnostic>> {
        Self::compile_with(declaration, Self::check_unused)
    }

    /// Checks a declaration. `more` adds errors; it gets the names of the parameters in use.
    ///
    /// *Errors*: as [`Self::compile`].
    pub fn compile_with(
        declaration: &Declaration,
        more: impl FnOnce(&Self, &BTreeSet<String>, &mut Vec<Diagnostic>),
    ) -> Result<Self, Vec<Diagnostic>> {
        let mut errors = Vec::new();
        let (parameters, found) = Parameters::compile(&declaration.parameters);
        errors.extend(found);
        let args = templates(&declaration.args, "/args", &mut errors);
        let mut optional_args = Vec::new();
        for (name, texts) in &declaration.optional_args {
            let pointer = format!("/optional_args/{}", pointer_segment(name));
            optional_args.push((name.clone(), templates(texts, &pointer, &mut errors)));
        }
        let stdin =
            declaration.stdin.as_deref().and_then(|text| template(text, "/stdin", &mut errors));
        let Some(parameters) = parameters else { return Err(errors) };
        let command = Self { parameters, args, optional_args, stdin };
        let used = command.check(declaration, &mut errors);
        more(&command, &used, &mut errors);
        if errors.is_empty() { Ok(command) } else { Err(errors) }
    }

    /// Returns the compiled parameters.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Validates arguments and fills in defaults. The caller passes the result to the gate, to the
    /// transcript and to [`Self::render`].
    ///
    /// *Errors*: `invalid_arguments`.
    pub fn validate(
        &self,
        arguments: &Map<String, Value>,
    ) -> Result<Map<String, Value>, CallError> {
        self.parameters.validate(arguments, |name| {
            if self.is_only_in_stdin(name) { STDIN_BYTES_LIMIT } else { DEFAULT_STRING_BYTES }
        })
    }

    /// Renders validated arguments.
    ///
    /// *Errors*: `invalid_arguments` for a missing value, a leading dash, a control character or
    /// too many bytes in all. Except for the last, the message names the parameter.
    pub fn render(&self, arguments: &Map<String, Value>) -> Result<Rendered, CallError> {
        let mut args = Vec::new();
        let mut options_ended = false;
        for template in &self.args {
            self.render_element(template, arguments, &mut options_ended, &mut args)?;
        }
        for (name, templates) in &self.optional_args {
            if arguments.contains_key(name) {
                for template in templates {
                    self.render_element(template, arguments, &mut options_ended, &mut args)?;
                }
            }
        }
        let bytes: usize = args.iter().map(|arg| arg.len() + 1).sum();
        if bytes > ARGV_BYTES_LIMIT {
            return Err(invalid(format!(
                "The arguments have {bytes} bytes in all; the limit is {ARGV_BYTES_LIMIT}. Shorten them."
            )));
        }
        let stdin = match &self.stdin {
            None => None,
            Some(template) => {
                let mut text = String::new();
                for piece in template.pieces() {
                    match piece {
                        Piece::Literal(literal) => text.push_str(literal),
                        Piece::Placeholder(name) => {
                            text.push_str(
                                &arguments.get(name).and_then(scalar).unwrap_or_default(),
                            );
                        }
                    }
                }
                Some(text)
            }
        };
        Ok(Rendered { args, stdin })
    }

    /// Returns a diagnostic for each argument that begins with the placeholder of a parameter whose
    /// schema admits a leading dash: the program could read such a value as an option (ARG-14).
    /// [`Self::render`] rejects such a value unless the parameter allows it. An argument after `--`
    /// or right after a literal option is not reported.
    #[must_use]
    pub fn open_positions(&self) -> Vec<Diagnostic> {
        let mut open = Vec::new();
        let mut options_ended = false;
        let mut look = |templates: &[Template], pointer: &str| {
            let mut after_option = false;
            for (at, template) in templates.iter().enumerate() {
                options_ended |= template.literal() == Some("--");
                if let Some(Piece::Placeholder(name)) = template.pieces().first()
                    && !options_ended
                    && !after_option
                    && self.parameters.get(name).is_some_and(|p| p.dash_possible)
                {
                    open.push(
                        Diagnostic::new(
                            format!("{pointer}/{at}"),
                            format!("a value of `{name}` that begins with a dash would be an option here; a call with such a value is rejected unless the parameter sets `allow_leading_dash`"),
                        )
                        .with_hint("add an enum, a pattern such as ^[a-z0-9][a-z0-9-]*$, or a \"--\" before it"),
                    );
                }
                after_option =
                    template.literal().is_some_and(|text| text.starts_with('-') && text != "--");
            }
        };
        look(&self.args, "/args");
        for (name, templates) in &self.optional_args {
            look(templates, &format!("/optional_args/{}", pointer_segment(name)));
        }
        open
    }

    /// Tells whether a parameter is used only on standard input.
    fn is_only_in_stdin(&self, name: &str) -> bool {
        let in_stdin = self.stdin.iter().any(|text| text.placeholders().any(|place| place == name));
        let is_guard = self.optional_args.iter().any(|(guard, _)| guard == name);
        in_stdin && !is_guard && !self.in_argv(name)
    }

    fn in_argv(&self, name: &str) -> bool {
        self.args
            .iter()
            .chain(self.optional_args.iter().flat_map(|(_, templates)| templates))
            .any(|template| template.placeholders().any(|place| place == name))
    }

    fn render_element(
        &self,
        template: &Template,
        arguments: &Map<String, Value>,
        options_ended: &mut bool,
        out: &mut Vec<String>,
    ) -> Result<(), CallError> {
        if let Some(literal) = template.literal() {
            *options_ended |= literal == "--";
            out.push(literal.to_owned());
            return Ok(());
        }
        if let Some(name) = template.lone_placeholder()
            && let Some(Value::Array(items)) = arguments.get(name)
        {
            for item in items {
                let text = scalar(item).unwrap_or_default();
                self.check_value(name, &text, arguments)?;
                if !*options_ended {
                    self.check_dash(name, &text, arguments)?;
                }
                out.push(text);
            }
            return Ok(());
        }
        let mut element = String::new();
        let mut first = None;
        for piece in template.pieces() {
            let before = element.len();
            match piece {
                Piece::Literal(text) => element.push_str(text),
                Piece::Placeholder(name) => {
                    let text = arguments.get(name).and_then(scalar).ok_or_else(|| {
                        invalid(format!("`{name}` is missing. Add it and call again."))
                    })?;
                    self.check_value(name, &text, arguments)?;
                    element.push_str(&text);
                }
            }
            if before == 0 && !element.is_empty() && first.is_none() {
                first = Some(piece);
            }
        }
        if let Some(Piece::Placeholder(name)) = first
            && !*options_ended
        {
            self.check_dash(name, &element, arguments)?;
        }
        out.push(element);
        Ok(())
    }

    fn check_value(
        &self,
        name: &str,
        text: &str,
        arguments: &Map<String, Value>,
    ) -> Result<(), CallError> {
        let parameter = self.parameters.get(name);
        let multiline = parameter.is_some_and(|p| p.multiline);
        if is_default(parameter, arguments.get(name)) {
            return Ok(());
        }
        match text.chars().find(|c| is_deceptive(*c) && !(multiline && matches!(c, '\n' | '\t'))) {
            None => Ok(()),
            Some(c) => Err(invalid(format!(
                "`{name}` contains the control or invisible character U+{:04X}, which is not allowed. Remove it and call again.",
                u32::from(c)
            ))),
        }
    }

    fn check_dash(
        &self,
        name: &str,
        element: &str,
        arguments: &Map<String, Value>,
    ) -> Result<(), CallError> {
        let parameter = self.parameters.get(name);
        let allowed = parameter.is_some_and(|p| {
            p.allow_leading_dash
                || p.choices.iter().any(|choice| {
                    arguments.get(name).and_then(Value::as_str) == Some(choice)
                        || (p.list && choice == element)
                })
        }) || is_default(parameter, arguments.get(name));
        if element.starts_with('-') && !allowed {
            return Err(invalid(format!(
                "`{name}` begins with `-`, so the program would read it as an option. Send a value without a leading dash."
            )));
        }
        Ok(())
    }

    /// Checks every template and returns the names of the parameters in use.
    fn check(&self, declaration: &Declaration, errors: &mut Vec<Diagnostic>) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for (at, template) in self.args.iter().enumerate() {
            let pointer = format!("/args/{at}");
            self.check_template(template, &pointer, None, declaration, &mut used, errors);
        }
        for (name, templates) in &self.optional_args {
            let pointer = format!("/optional_args/{}", pointer_segment(name));
            match self.parameters.get(name) {
                // An invalid parameter has been reported already.
                None if declaration.parameters.contains_key(name) => {}
                None => errors.push(unknown(declaration, name, &pointer)),
                Some(parameter) if !parameter.optional => errors.push(
                    Diagnostic::new(
                        &pointer,
                        format!("`{name}` is in optional_args but is not optional"),
                    )
                    .with_hint("set `optional: true` on the parameter, or move it to args"),
                ),
                Some(_) => drop(used.insert(name.clone())),
            }
            for (at, template) in templates.iter().enumerate() {
                let (at, guard) = (format!("{pointer}/{at}"), Some(name.as_str()));
                self.check_template(template, &at, guard, declaration, &mut used, errors);
            }
        }
        if let Some(template) = &self.stdin {
            self.check_template(template, "/stdin", None, declaration, &mut used, errors);
        }
        self.check_interpreter(declaration, errors);
        used
    }

    fn check_unused(&self, used: &BTreeSet<String>, errors: &mut Vec<Diagnostic>) {
        for (name, _) in self.parameters.iter().filter(|(name, _)| !used.contains(*name)) {
            errors.push(
                Diagnostic::new(format!("/parameters/{}", pointer_segment(name)), format!("unused parameter `{name}`"))
                    .with_hint(format!("put `{{{{{name}}}}}` into args, optional_args or stdin, or remove the parameter")),
            );
        }
    }

    /// `guard` is the optional parameter whose presence adds this template to the command line.
    fn check_template(
        &self,
        template: &Template,
        pointer: &str,
        guard: Option<&str>,
        declaration: &Declaration,
        used: &mut BTreeSet<String>,
        errors: &mut Vec<Diagnostic>,
    ) {
        for name in template.placeholders() {
            let Some(parameter) = self.parameters.get(name) else {
                // An invalid parameter has been reported already.
                if !declaration.parameters.contains_key(name) {
                    errors.push(unknown(declaration, name, pointer));
                }
                continue;
            };
            used.insert(name.to_owned());
            if parameter.names.is_some() && pointer != "/stdin" && !is_whole(template) {
                errors.push(
                    Diagnostic::new(pointer, format!("the gate checks the path or URL in `{name}`, but the text around it would make the program use a different one"))
                        .with_hint(format!("use `{{{{{name}}}}}` alone, or at the end after text that ends with `=` or `@`")),
                );
            }
            if parameter.optional && parameter.default.is_none() && guard != Some(name) {
                errors.push(
                    Diagnostic::new(pointer, format!("`{name}` is optional and has no default, so this argument would have a hole"))
                        .with_hint(format!("move it to `optional_args: {{{name}: [...]}}`, or give it a default")),
                );
            }
            if parameter.list && pointer == "/stdin" {
                let message = format!("the list `{name}` cannot be written to standard input");
                errors.push(Diagnostic::new(pointer, message));
            } else if parameter.list && template.lone_placeholder().is_none() {
                errors.push(
                    Diagnostic::new(pointer, format!("the list `{name}` must stand alone in its element"))
                        .with_hint(format!("write \"{{{{{name}}}}}\" as a separate element: it becomes one argument per item")),
                );
            }
        }
    }

    fn check_interpreter(&self, declaration: &Declaration, errors: &mut Vec<Diagnostic>) {
        let program = &declaration.program;
        let mut named = BTreeSet::new();
        let mut name = |pointer: &str, template: &Template, errors: &mut Vec<Diagnostic>| {
            for place in template.placeholders() {
                if self.parameters.get(place).is_some_and(|p| !p.unsafe_interpreter)
                    && named.insert((pointer.to_owned(), place.to_owned()))
                {
                    errors.push(
                        Diagnostic::new(pointer, format!("`{place}` would name the program or the code that `{program}` runs"))
                            .with_hint("call a fixed script instead, or set `unsafe_interpreter: true` on the parameter"),
                    );
                }
            }
        };
        for line in self.lines() {
            let templates: Vec<&Template> = line.iter().map(|(_, template)| *template).collect();
            let read = injection::read(program, &templates);
            for (pointer, template) in read.positions.iter().filter_map(|at| line.get(*at)) {
                name(pointer, template, errors);
            }
            if let Some(stdin) = self.stdin.as_ref().filter(|_| read.runs_stdin) {
                name("/stdin", stdin, errors);
            }
        }
    }

    /// Returns these command lines of a call: the one without optional arguments, one for each
    /// entry of `optional_args`, and the one with all entries. Each template comes with its
    /// pointer.
    fn lines(&self) -> Vec<Vec<(String, &Template)>> {
        fn of<'t>(pointer: &str, templates: &'t [Template]) -> Vec<(String, &'t Template)> {
            let numbered = templates.iter().enumerate();
            numbered.map(|(at, template)| (format!("{pointer}/{at}"), template)).collect()
        }
        let fixed = of("/args", &self.args);
        let optional = self.optional_args.iter().map(|(name, templates)| {
            of(&format!("/optional_args/{}", pointer_segment(name)), templates)
        });
        let optional: Vec<_> = optional.collect();
        let mut lines = vec![fixed.clone()];
        lines.extend(optional.iter().map(|one| [fixed.as_slice(), one].concat()));
        lines.extend((optional.len() > 1).then(|| [fixed, optional.concat()].concat()));
        lines
    }

    /// Returns the arguments without placeholders, including those of `optional_args`.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        let optional = self.optional_args.iter().flat_map(|(_, templates)| templates);
        self.args.iter().chain(optional).filter_map(Template::literal)
    }

    /// Returns the script that an interpreter runs, if every call uses the same one.
    #[must_use]
    pub fn script(&self, program: &str) -> Option<&str> {
        injection::read(program, &self.args.iter().collect::<Vec<_>>()).script
    }
}

fn unknown(declaration: &Declaration, name: &str, pointer: &str) -> Diagnostic {
    let error = Diagnostic::new(pointer, format!("`{name}` is not a parameter of this tool"));
    match nearest(name, declaration.parameters.keys().map(String::as_str)) {
        Some(known) => error.with_hint(format!("did you mean `{known}`?")),
        None => error.with_hint(format!("add `{name}` to parameters")),
    }
}

fn is_default(parameter: Option<&Parameter>, value: Option<&Value>) -> bool {
    parameter.and_then(|p| p.default.as_ref()).is_some_and(|default| Some(default) == value)
}

fn invalid(message: String) -> CallError {
    CallError::new(ErrorKind::InvalidArguments, message)
}

/// Tells whether the program gets the value of the template's placeholder unchanged: alone, or
/// after text that ends with `=` or `@`.
fn is_whole(template: &Template) -> bool {
    match template.pieces() {
        [Piece::Placeholder(_)] => true,
        [Piece::Literal(text), Piece::Placeholder(_)] => text.ends_with(['=', '@']),
        _ => false,
    }
}

/// Formats a scalar as an argument; `None` for null, lists and objects.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => plain_number(number),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn templates(texts: &[String], pointer: &str, errors: &mut Vec<Diagnostic>) -> Vec<Template> {
    texts
        .iter()
        .enumerate()
        // An invalid template keeps its position, so that errors point to the right elements.
        .map(|(at, text)| template(text, &format!("{pointer}/{at}"), errors).unwrap_or_default())
        .collect()
}

fn template(text: &str, pointer: &str, errors: &mut Vec<Diagnostic>) -> Option<Template> {
    if text.contains('\0') {
        errors.push(Diagnostic::new(pointer, "a NUL byte is not allowed in an argument"));
        return None;
    }
    match Template::parse(text) {
        Ok(template) => Some(template),
        Err(error) => {
            errors.push(Diagnostic::new(pointer, error.to_string()));
            None
        }
    }
}

#[cfg(test)]
mod tests;
