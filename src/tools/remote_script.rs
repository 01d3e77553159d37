//! Runs our own scripts on the execution target of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ToolContext;
use super::environment::{CONNECT, TargetError, nonce};
use crate::process::ProcessSpec;
use crate::text::escape::one_line;
use crate::text::redact::Redactor;

/// Frames the output of a script, to separate it from the client's own messages. `$0` is the nonce,
/// a word that cannot be guessed.
const FRAME: &str =
    "exec 2>/dev/null; printf '\\n%s\\n' \"$0\"; ( SCRIPT ); c=$?; printf '%s %s\\n' \"$0\" \"$c\"";

/// Maximum bytes of the answer in [`missing_programs`].
const MAX_SAID: usize = 1 << 20;

/// Returns the programs of `wanted` that are missing on the execution target.
///
/// *Errors*: [`TargetError`]; also if the working directory cannot be entered.
pub async fn missing_programs(
    ctx: &ToolContext,
    wanted: &[&str],
) -> Result<Vec<String>, TargetError> {
    const LOOK: &str = "for p do command -v \"$p\" >/dev/null 2>&1 || echo \"$p\"; done";
    let asked = Asked {
        script: LOOK,
        arguments: wanted,
        stdin: None,
        working_dir: &ctx.working_dir,
        time: CONNECT,
        most: MAX_SAID,
    };
    let (code, output) = ask(ctx, &asked, &CancellationToken::new()).await?;
    match code {
        0 => Ok(String::from_utf8_lossy(&output).lines().map(str::to_owned).collect()),
        _ => Err(TargetError::ShellExit(code)),
    }
}

/// A script of ours for the execution target.
pub(super) struct Asked<'a> {
    pub(super) script: &'a str,
    pub(super) arguments: &'a [&'a str],
    pub(super) stdin: Option<String>,
    pub(super) working_dir: &'a Path,
    pub(super) time: Duration,
    /// Maximum bytes of the answer, which is the standard output of the script.
    pub(super) most: usize,
}

/// Runs a script on the execution target and returns its exit code and standard output.
///
/// *Errors*: [`TargetError`].
pub(super) async fn ask(
    ctx: &ToolContext,
    asked: &Asked<'_>,
    cancel: &CancellationToken,
) -> Result<(i32, Vec<u8>), TargetError> {
    let nonce = nonce();
    let framed = FRAME.replace("SCRIPT", asked.script);
    let words = ["sh", "-c", &framed, &nonce];
    let spec = ProcessSpec {
        program: PathBuf::from("sh"),
        argv: words.iter().chain(asked.arguments).map(|word| (*word).to_owned()).collect(),
        env: ctx.programs.env.clone(),
        working_dir: asked.working_dir.to_path_buf(),
        stdin: asked.stdin.clone(),
        timeout: asked.time,
        sandbox: None,
    };
    let spec = ctx.programs.execution.process(spec, &[]);
    let mut output = Vec::new();
    let mut keep = |chunk: &[u8]| {
        output.extend_from_slice(chunk);
        if output.len() > asked.most + 64 * 1024 {
            Err(std::io::Error::other("it is larger than the limit for one answer"))
        } else {
            Ok(())
        }
    };
    let exit = ctx.programs.spawner.run(&spec, cancel, &mut keep).await;
    let exit = exit?;
    if let Some(found) = framed_in(&output, &nonce) {
        return Ok(found);
    }
    let said = said(&ctx.redactor, &output, 300);
    Err(match (exit.cancelled, exit.timed_out) {
        (true, _) => TargetError::Cancelled,
        (_, true) => TargetError::Timeout,
        _ if said.is_empty() => TargetError::Incomplete,
        _ => TargetError::Message(said),
    })
}

/// Returns output for use in an error: redacted, then on one line, then cut to `characters`.
pub(super) fn said(redactor: &Redactor, output: &[u8], characters: usize) -> String {
    let output = String::from_utf8_lossy(output);
    one_line(redactor.text(&output).trim()).chars().take(characters).collect()
}

/// Returns the exit code, which follows the second nonce, and the bytes between the two nonces;
/// `None` if the output is incomplete.
fn framed_in(output: &[u8], nonce: &str) -> Option<(i32, Vec<u8>)> {
    let first = format!("\n{nonce}\n");
    let start = memchr::memmem::find(output, first.as_bytes())? + first.len();
    let end = memchr::memmem::rfind(output, nonce.as_bytes()).filter(|end| *end >= start)?;
    let code = output.get(end + nonce.len()..)?;
    let code = String::from_utf8_lossy(code.get(..code.len().min(8))?).into_owned();
    let code = code.split_whitespace().next()?.parse().ok()?;
    Some((code, output.get(start..end)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves SEC-2
    #[test]
    fn output_is_cut_only_after_secrets_are_removed() {
        let secret =
            crate::text::redact::Secret { name: "K".into(), value: "s3cret\ns3cret".into() };
        let redactor = Redactor::new(&[secret]);
        assert_eq!(said(&redactor, b"\nno: s3cret\ns3cret\n", 8), "no: [red");
        assert_eq!(said(&redactor, b" a\tb ", 300), "a\\tb");
    }

    #[test]
    fn an_answer_is_told_from_what_is_said_around_it() {
        let found = |text: &str| framed_in(text.as_bytes(), "NONCE");
        assert_eq!(found("Warning: x\n\nNONCE\na\nNONCE 3\nbye"), Some((3, b"a\n".to_vec())));
        assert_eq!(found("\nNONCE\nNONCE 0\n"), Some((0, Vec::new())));
        for cut in ["", "NONCE 0", "\nNONCE\nabc", "\nNONCE\nabc\nNONCE", "\nNONCE\nNONCE x\n"] {
            assert_eq!(found(cut), None, "{cut:?}");
        }
    }
}
