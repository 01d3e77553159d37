//! A tool of an MCP server, as a run uses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use serde_json::{Map, Value};

use super::super::ToolContext;
use super::super::call_state::{late, named_file, states, values, variables};
use super::super::exec::digest_of_file;
use super::super::image;
use super::super::output::PROGRAM_VIEW;
use super::connection::Connection;
use super::content::Answered;
use super::error::{McpError, SchemaError};
use super::{Described, shown};
use crate::agent::{
    CallContext, CallOutput, CallState, PreparedCall, ToolDefinition, ToolRunner, ToolSpec,
};
use crate::argv::Parameters;
use crate::config::{CallLimits, McpServer, McpTransport};
use crate::domain::{Binding, CallError, Category, ErrorKind, Image};

/// Maximum bytes of one text argument.
const TEXT_BYTES: usize = 1 << 20;

/// Maximum bytes, in base64, of all images of one answer together: they stay in the history, and
/// providers limit the size of a request.
const SHOWN_BYTES: usize = 5_000_000;

pub(super) struct McpTool {
    /// The name without the server's prefix.
    own_name: String,
    transport: McpTransport,
    digest: String,
    definition: ToolDefinition,
    parameters: Parameters,
    /// The server's names of the parameters that the model sees under another name.
    renamed: BTreeMap<String, String>,
    category: Category,
    connection: Arc<Connection>,
    ctx: Arc<ToolContext>,
}

impl McpTool {
    /// Returns the tool for a run.
    ///
    /// *Errors*: [`SchemaError`].
    pub(super) fn new(
        server: &McpServer,
        name: &str,
        described: &Described,
        category: Category,
        connection: Arc<Connection>,
        ctx: Arc<ToolContext>,
    ) -> Result<Self, SchemaError> {
        let mut schema = super::schema::simplify(&described.schema);
        if !super::schema::is_bounded(&schema) {
            return Err(SchemaError::References);
        }
        // Providers reject a whole request if the arguments of one tool are not an object.
        if let Value::Object(fields) = &mut schema {
            let kind = fields.entry("type").or_insert_with(|| "object".into());
            let is_listed = |kinds: &Vec<Value>| kinds.iter().any(|kind| kind == "object");
            if kind != "object" && !kind.as_array().is_some_and(is_listed) {
                return Err(SchemaError::NotAnObject);
            }
            *kind = "object".into();
        }
        let parameters = Parameters::of_schema(schema.clone()).map_err(SchemaError::Invalid)?;
        let mut offered = super::schema::offered(&schema);
        let renamed = super::schema::rename_properties(&mut offered);
        let clean = |text: &str| shown(&ctx.redactor.text(text));
        let definition = ToolDefinition {
            name: name.to_owned(),
            description: clean(&described.description),
            parameters: super::schema::visible(&offered, &clean),
        };
        Ok(Self {
            own_name: described.name.clone(),
            transport: server.transport.clone(),
            digest: described.digest(),
            definition,
            parameters,
            renamed,
            category,
            connection,
            ctx,
        })
    }
}

impl ToolSpec for McpTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn category(&self) -> Category {
        self.category
    }

    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        let own = |name: &String| self.renamed.get(name).unwrap_or(name).clone();
        let arguments = arguments.iter().map(|(name, value)| (own(name), value.clone())).collect();
        let arguments = self.parameters.check(&arguments, TEXT_BYTES)?;
        Ok(PreparedCall {
            arguments,
            argv: Vec::new(),
            working_dir: self.ctx.working_dir.display().to_string(),
            stdin: None,
            sandboxed: matches!(self.transport, McpTransport::Stdio { .. })
                && self.ctx.programs.sandboxes.are_on(),
            resources: Vec::new(),
            lines: 0,
        })
    }
}

#[async_trait]
impl ToolRunner for McpTool {
    async fn state(&self, _: &PreparedCall) -> Result<CallState, CallError> {
        let nothing = BTreeMap::new();
        let (own, unbound) = match &self.transport {
            McpTransport::Stdio { env, program, .. } => (
                env,
                format!(
                    "other files that the MCP server {} reads, and what it does",
                    program.written
                ),
            ),
            McpTransport::Http { url, .. } => {
                (&nothing, format!("what the MCP server at {url} does"))
            }
        };
        let environment = match &self.transport {
            McpTransport::Stdio { .. } => variables(&self.ctx, own),
            McpTransport::Http { .. } => Vec::new(),
        };
        let values = if environment.is_empty() { String::new() } else { values(&self.ctx, own) };
        let (transport, digest, category) = (&self.transport, &self.digest, self.category);
        Ok(CallState {
            identity: format!("{transport:?} {values} {digest} {category}"),
            binding: Binding {
                environment,
                files: self.files().await?,
                unbound: vec![unbound],
                ..Binding::default()
            },
        })
    }

    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let limit = self.ctx.timeout;
        let done = tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                let message = "[ERROR: The run was stopped during this call; its effect is unknown.]";
                return CallOutput::of_error(&CallError::new(ErrorKind::Interrupted, message));
            }
            done = tokio::time::timeout(limit, self.answer(call)) => done,
        };
        let (text, images, has_failed) = match done {
            Err(_) => {
                let message = format!(
                    "[ERROR: The server did not answer within {} ms; the effect of the call is unknown.]",
                    limit.as_millis()
                );
                let mut output = CallOutput::of_error(&CallError::new(ErrorKind::Timeout, message));
                output.timed_out = true;
                return output;
            }
            Ok(Err(error)) => {
                let error = shown(&self.ctx.redactor.text(&error.to_string()));
                return CallOutput::of_error(&CallError::new(ErrorKind::Tool, error));
            }
            Ok(Ok(answered)) => answered,
        };
        let mut collector =
            self.ctx.collector(&context.call_id, CallLimits::default(), PROGRAM_VIEW);
        let collected = collector.push(text.as_bytes()).and_then(|()| collector.finish());
        let kept = self.ctx.keep_images(&context.call_id, &images);
        match collected.and_then(|collected| Ok((collected, kept?))) {
            Ok((mut collected, kept)) => {
                if collected.view.trim().is_empty() {
                    collected.view = "[no output]".to_owned();
                }
                CallOutput {
                    error_kind: has_failed.then_some(ErrorKind::Tool),
                    details: kept.into_iter().collect(),
                    images,
                    ..CallOutput::from(collected)
                }
            }
            Err(error) => {
                let message = format!("The output could not be stored: {error}.");
                CallOutput::of_error(&CallError::new(ErrorKind::Io, message))
            }
        }
    }
}

impl McpTool {
    /// Returns the states of the server's program and of the files that its arguments name, such as
    /// the script of an interpreter.
    async fn files(&self) -> Result<BTreeMap<String, String>, CallError> {
        let McpTransport::Stdio { program, args, .. } = &self.transport else {
            return Ok(BTreeMap::new());
        };
        let host_work = &self.ctx.host_work;
        // A server runs on this host even if the job's tools run elsewhere.
        let working_dir = if self.ctx.programs.execution.is_local() {
            self.ctx.working_dir.as_path()
        } else {
            self.ctx.programs.sandboxes.temporary()
        };
        let (working_dir, args) = (working_dir.display().to_string(), args.clone());
        let named = move || {
            let named = args.iter().filter_map(|arg| named_file(&working_dir, arg));
            named.collect::<Vec<_>>()
        };
        let mut files = states(host_work, host_work.run(named).await.map_err(late)?).await?;
        if let Some(path) = &program.path {
            let digest = digest_of_file(host_work, path.clone()).await?;
            files.insert(path.display().to_string(), digest);
        }
        Ok(files)
    }

    /// Calls the tool and returns the text of the answer, its images, and whether the call failed.
    async fn answer(&self, call: &PreparedCall) -> Result<(String, Vec<Image>, bool), McpError> {
        let answered = self.connection.call(&self.own_name, call.arguments.clone()).await?;
        let Answered { mut text, pictures, has_failed } = answered;
        let images = pictures_of(pictures, &mut text).await;
        Ok((text, images, has_failed))
    }
}

/// Decodes the images of an answer for the model. Leaves out an image that is broken, or that
/// exceeds a limit by itself or with the images before it, and adds a note about it to `text`.
async fn pictures_of(encoded: Vec<String>, text: &mut String) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    for (at, encoded) in encoded.into_iter().enumerate() {
        let read = tokio::task::spawn_blocking(move || {
            let bytes = base64::engine::general_purpose::STANDARD.decode(encoded);
            let bytes = bytes.map_err(|error| error.to_string())?;
            image::attached(bytes).map_err(|error| error.message)
        });
        match read.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(image) => {
                let before: usize = images.iter().map(|image| image.base64.len()).sum();
                if before + image.base64.len() <= SHOWN_BYTES {
                    images.push(image)
                } else {
                    text.push_str(&format!(
                        "\n[picture {} is left out: the pictures are too large together]",
                        at + 1
                    ))
                }
            }
            Err(why) => text.push_str(&format!("\n[picture {}: {}]", at + 1, shown(&why))),
        }
    }
    images
}
