//! `dutyd approvals`, `approve` and `deny`, and the questions that `run --interactive` and `apply`
//! ask at the terminal.

use std::io::{BufRead, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, SecondsFormat, Utc};
use rustix::termios::{QueueSelector, tcflush};
use serde_json::json;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc};

use super::args::{AnswerArgs, DenyArgs};
use super::client::Client;
use super::context::Context;
use super::error::CliError;
use super::output;
use crate::agent::{ApprovalAnswer, ApprovalRequest, Approver};
use crate::domain::PreflightItem;
use crate::text::escape::{for_terminal, one_line};

/// Characters shown of one argument; a longer argument is folded in the middle (WEB-7).
const SHOWN: usize = 400;

pub(crate) async fn approvals(context: &Context) -> Result<ExitCode, CliError> {
    let waiting: Vec<ApprovalRequest> = Client::require(context)?.list("/approvals", &()).await?;
    output::value(context.form, &waiting, || {
        let texts: Vec<String> = waiting.iter().map(described).collect();
        if texts.is_empty() { "no waiting approvals\n".to_owned() } else { texts.join("\n") }
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn approve(context: &Context, args: &AnswerArgs) -> Result<ExitCode, CliError> {
    answer(context, &args.approval, true, None).await
}

pub(crate) async fn deny(context: &Context, args: &DenyArgs) -> Result<ExitCode, CliError> {
    answer(context, &args.approval, false, args.reason.as_deref()).await
}

async fn answer(
    context: &Context,
    id: &str,
    approved: bool,
    reason: Option<&str>,
) -> Result<ExitCode, CliError> {
    let body = json!({"approved": approved, "reason": reason});
    let is_plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if id.is_empty() || !is_plain {
        return Err(CliError::not_found(format!("there is no approval `{}`", one_line(id))));
    }
    let path = format!("/approvals/{id}");
    let _: serde::de::IgnoredAny = Client::require(context)?.post(&path, &body).await?;
    output::note(if approved { "approved" } else { "denied" });
    Ok(ExitCode::SUCCESS)
}

/// Renders an approval request with the argv of the call, or with its arguments if it starts no
/// program.
fn described(request: &ApprovalRequest) -> String {
    let mut text = format!(
        "{}\n  job {}, tool {} ({}): {}\n",
        request.approval_id, request.job, request.tool, request.category, request.reason
    );
    for (at, word) in request.argv.iter().enumerate() {
        text.push_str(&format!("  argv[{at}] {}\n", folded(word)));
    }
    if request.argv.is_empty() {
        for (name, value) in &request.arguments {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!("  {} = {}\n", one_line(name), folded(&value)));
        }
    }
    text.push_str(&format!(
        "  in {}, until {}\n",
        request.working_dir,
        request.expires_at.to_rfc3339_opts(SecondsFormat::Secs, true)
    ));
    for_terminal(&text)
}

fn folded(text: &str) -> String {
    let text = one_line(text).to_string();
    let count = text.chars().count();
    if count <= SHOWN {
        return text;
    }
    let half = SHOWN / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(count - half).collect();
    format!("{head} [… {} characters …] {tail}", count - 2 * half)
}

/// Asks on stderr and reads the answers from standard input.
pub(crate) struct Terminal {
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Terminal {
    /// Starts to read standard input.
    pub(crate) fn new() -> Self {
        let (sender, lines) = mpsc::channel(1);
        // Read in a separate thread: a read that waits for a person must not delay the exit of this
        // process.
        std::thread::spawn(move || hand_over(std::io::stdin().lock(), &sender));
        Self::of(lines)
    }

    fn of(lines: mpsc::Receiver<String>) -> Self {
        Self { lines: Mutex::new(lines) }
    }

    /// Asks a yes-or-no question. The end of the input counts as no.
    pub(crate) async fn yes(&self, question: &str) -> bool {
        let mut lines = self.lines.lock().await;
        // Discard what was typed before the question, in the kernel and in the channel.
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
        while lines.try_recv().is_ok() {}
        loop {
            let _ = write!(std::io::stderr(), "{question} [y/N] ");
            let Some(answer) = lines.recv().await else { return false };
            match answer.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return true,
                "" | "n" | "no" => return false,
                _ => output::note("please answer y or n"),
            }
        }
    }
}

/// Sends each line of the input. Drops a line while another one waits in the channel: both were
/// typed before a question, and neither may answer it.
fn hand_over(input: impl BufRead, sender: &mpsc::Sender<String>) {
    for line in input.lines().map_while(Result::ok) {
        if let Err(TrySendError::Closed(_)) = sender.try_send(line) {
            return;
        }
    }
}

#[async_trait]
impl Approver for Terminal {
    fn expires_at(&self, timeout: Duration) -> DateTime<Utc> {
        use crate::clock::Clock as _;
        crate::clock::SystemClock.now() + timeout
    }

    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer {
        output::note(&format!("\n{}", described(&request)));
        let approved = self.yes("Run this?").await;
        ApprovalAnswer { approved, by: "terminal".to_owned(), reason: None }
    }

    async fn preflight(&self, items: &[PreflightItem]) -> bool {
        for item in items {
            let mark = if item.ok { "ok  " } else { "FAIL" };
            output::note(&for_terminal(&format!("{mark}  {:<24}  {}", item.name, item.detail)));
        }
        items.iter().all(|item| item.ok) || self.yes("Start anyway?").await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::{CallId, Category};

    #[tokio::test]
    async fn a_typo_is_not_an_answer() {
        for (typed, expected) in [
            (&["y"][..], true),
            (&["YES"], true),
            (&["?", "y"], true),
            (&["yse", "n"], false),
            (&[""], false),
            (&[], false),
        ] {
            let (sender, lines) = mpsc::channel(1);
            let terminal = Terminal::of(lines);
            let asked = terminal.yes("Run this?");
            tokio::pin!(asked);
            assert!(futures_util::poll!(&mut asked).is_pending());
            let typing = async {
                for line in typed {
                    let _ = sender.send((*line).to_owned()).await;
                }
                drop(sender);
            };
            let (answer, ()) = tokio::join!(asked, typing);
            assert_eq!(answer, expected, "{typed:?}");
        }
    }

    #[tokio::test]
    async fn lines_typed_before_a_question_do_not_answer_it() {
        let (sender, lines) = mpsc::channel(1);
        hand_over(&b"y\ny\ny\n"[..], &sender);
        let terminal = Terminal::of(lines);
        let asked = terminal.yes("Run this?");
        tokio::pin!(asked);
        assert!(futures_util::poll!(&mut asked).is_pending());
        hand_over(&b"n\n"[..], &sender);
        assert!(!asked.await);
    }

    // proves WEB-7
    #[test]
    fn a_person_sees_what_would_run_and_no_disguise() {
        let long = format!("head{}tail", "x".repeat(5_000));
        let request = ApprovalRequest {
            approval_id: "a-1".to_owned(),
            run_id: "r".to_owned(),
            job: "j".to_owned(),
            call_id: CallId::parse("call_1_1").unwrap(),
            tool: "note".to_owned(),
            category: Category::Write,
            arguments: Map::new(),
            argv: vec![
                "/bin/rm".to_owned(),
                "a\n  argv[2] harmless\u{1b}[2K\u{202e}".to_owned(),
                long,
            ],
            working_dir: "/srv".to_owned(),
            reason: "because".to_owned(),
            expires_at: DateTime::UNIX_EPOCH,
        };
        let told = described(&request);
        assert!(told.contains("argv[0] /bin/rm\n"), "{told}");
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told}");
        assert_eq!(told.lines().filter(|line| line.starts_with("  argv[2]")).count(), 1, "{told}");
        let folded = told.lines().find(|line| line.starts_with("  argv[2]")).unwrap();
        assert!(folded.contains("head") && folded.ends_with("tail"), "{folded}");
        assert!(folded.contains("[… 4608 characters …]"), "{folded}");
    }
}
