//! A tool of an MCP server, as a run uses it.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use serde_json::{Map, Value};

use super::super::ToolContext;
use super::super::image;
use super::super::output::PROGRAM_VIEW;
use super::connection::{Answered, Connection};
use super::error::{McpError, SchemaError};
use super::{Described, shown};
use crate::agent::{CallContext, CallOutput, PreparedCall, ToolDefinition, ToolRunner, ToolSpec};
use crate::argv::Parameters;
use crate::config::{McpServer, McpTransport};
use crate::domain::{CallError, Category, ErrorKind, Image};

/// Maximum bytes of one text argument.
const TEXT_BYTES: usize = 1 << 20;

/// Maximum bytes, in base64, of all images of one answer together: they stay in the history, and
/// providers limit the size of a request.
const SHOWN_BYTES: usize = 5_000_000;

pub(super) struct McpTool {
    /// The name without the server's prefix.
    own_name: String,
    /// The transport of the server, as text for [`ToolRunner::state`].
    server: String,
    digest: String,
    is_process: bool,
    definition: ToolDefinition,
    parameters: Parameters,
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
        if !super::schema::is_bounded(&described.schema) {
            return Err(SchemaError::References);
        }
        let mut schema = described.schema.clone();
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
        let clean = |text: &str| shown(&ctx.redactor.text(text));
        let definition = ToolDefinition {
            name: name.to_owned(),
            description: clean(&described.description),
            parameters: super::schema::visible(&schema, &clean),
        };
        Ok(Self {
            own_name: described.name.clone(),
            server: format!("{:?}", server.transport),
            digest: described.digest(),
            is_process: matches!(server.transport, McpTransport::Stdio { .. }),
            definition,
            parameters,
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
        let arguments = self.parameters.check(arguments, TEXT_BYTES)?;
        Ok(PreparedCall {
            arguments,
            argv: Vec::new(),
            working_dir: self.ctx.working_dir.display().to_string(),
            stdin: None,
            sandboxed: self.is_process && self.ctx.programs.sandboxes.are_on(),
            resources: Vec::new(),
            lines: 0,
        })
    }
}

#[async_trait]
impl ToolRunner for McpTool {
    async fn state(&self, _: &PreparedCall) -> Result<String, CallError> {
        Ok(format!("{} {} {}", self.server, self.digest, self.category))
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
        let mut collector = self.ctx.collector(&context.call_id, None, PROGRAM_VIEW);
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
                match before + image.base64.len() <= SHOWN_BYTES {
                    true => images.push(image),
                    false => text.push_str(&format!(
                        "\n[picture {} is left out: the pictures are too large together]",
                        at + 1
                    )),
                }
            }
            Err(why) => text.push_str(&format!("\n[picture {}: {}]", at + 1, shown(&why))),
        }
    }
    images
}
