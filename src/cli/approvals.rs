//! `dutyd approvals`, `approve` and `deny`, and the questions that `run --interactive` and `apply`
//! ask at the terminal.

use std::io::{BufRead, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use rustix::termios::{QueueSelector, tcflush};
use serde_json::json;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc};

use super::args::{AnswerArgs, ApprovalsArgs, DenyArgs};
use super::call_view::{CallView, Extent, MARGIN};
use super::client::Client;
use super::context::Context;
use super::error::{CliError, ErrorKind};
use super::output;
use crate::agent::{ApprovalAnswer, ApprovalRequest, Approver};
use crate::domain::PreflightItem;
use crate::text::escape::{for_terminal, one_line};

pub(crate) async fn approvals(
    context: &Context,
    args: &ApprovalsArgs,
) -> Result<ExitCode, CliError> {
    let waiting: Vec<ApprovalRequest> = Client::require(context)?.list("/approvals", &()).await?;
    let extent = Extent::of_flag(args.full);
    output::value(context.form, &waiting, || {
        let texts: Vec<String> = waiting.iter().map(|one| described(one, extent)).collect();
        if texts.is_empty() {
            return "no waiting approvals\n".to_owned();
        }
        output::hanging(&texts.join("\n"), MARGIN)
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
    name: &str,
    approved: bool,
    reason: Option<&str>,
) -> Result<ExitCode, CliError> {
    let is_plain =
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if name.is_empty() || !is_plain {
        return Err(no_approval(name));
    }
    let client = Client::require(context)?;
    let waiting: Vec<ApprovalRequest> = client.list("/approvals", &()).await?;
    let found = find(&waiting, name)?;
    // The daemon tells whether an approval that does not wait was decided.
    let id = found.map_or(name, |request| &request.approval_id);
    let body = json!({"approved": approved, "reason": reason});
    let posted = client.post::<serde::de::IgnoredAny>(&format!("/approvals/{id}"), &body).await;
    posted.map_err(|error| match error.kind {
        ErrorKind::NotFound => no_approval(name),
        ErrorKind::Failed | ErrorKind::Usage | ErrorKind::NoDaemon => error,
    })?;
    let of = found.map_or_else(String::new, |ApprovalRequest { tool, job, .. }| {
        format!(" (tool {tool} of job {job})")
    });
    output::note(&format!("{} {id}{of}", if approved { "approved" } else { "denied" }));
    Ok(ExitCode::SUCCESS)
}

fn no_approval(name: &str) -> CliError {
    CliError::not_found(format!("there is no approval `{}`", one_line(name)))
}

/// Finds a waiting approval by its id or a unique prefix; `last` is the one that was requested last.
/// `None` if no id begins with `name`.
///
/// *Errors*: several ids begin with `name`, or none waits for `last`.
fn find<'a>(
    waiting: &'a [ApprovalRequest],
    name: &str,
) -> Result<Option<&'a ApprovalRequest>, CliError> {
    if name == "last" {
        let newest = waiting.last();
        return if newest.is_some() { Ok(newest) } else { Err(no_approval(name)) };
    }
    if let Some(exact) = waiting.iter().find(|request| request.approval_id == name) {
        return Ok(Some(exact));
    }
    let name = name.to_ascii_lowercase();
    let mut matching = waiting.iter().filter(|request| request.approval_id.starts_with(&name));
    match (matching.next(), matching.next()) {
        (_, Some(_)) => Err(CliError::ambiguous(&name)),
        (found, None) => Ok(found),
    }
}

/// Renders an approval request.
fn described(request: &ApprovalRequest, extent: Extent) -> String {
    let view = CallView {
        argv: &request.argv,
        arguments: &request.arguments,
        working_dir: &request.working_dir,
        binding: &request.binding,
    };
    format!(
        "{}\n  job {}, tool {} ({}): {}\n{}  until {}\n",
        request.approval_id,
        request.job,
        request.tool,
        request.category,
        one_line(&request.reason),
        view.render(extent),
        request.expires_at.format("%Y-%m-%d %H:%M:%S UTC")
    )
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
        self.ask_about(question, None).await
    }

    /// Asks a yes-or-no question; the answer `f` shows the text `full` and asks again. The end of
    /// the input counts as no.
    pub(crate) async fn yes_about(&self, question: &str, full: &str) -> bool {
        self.ask_about(question, Some(full)).await
    }

    async fn ask_about(&self, question: &str, full: Option<&str>) -> bool {
        let choices = if full.is_some() { "y/N, f shows all of it" } else { "y/N" };
        let mut lines = self.lines.lock().await;
        // Discard what was typed before the question, in the kernel and in the channel.
        let _ = tcflush(std::io::stdin(), QueueSelector::IFlush);
        while lines.try_recv().is_ok() {}
        loop {
            let _ = write!(std::io::stderr(), "{question} [{choices}] ");
            let Some(answer) = lines.recv().await else { return false };
            match (answer.trim().to_ascii_lowercase().as_str(), full) {
                ("y" | "yes", _) => return true,
                ("" | "n" | "no", _) => return false,
                ("f" | "full", Some(full)) => output::note(full),
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
        let shown = output::hanging(&described(&request, Extent::Folded), MARGIN);
        output::note(&format!("\n{shown}"));
        let full = output::hanging(&described(&request, Extent::Full), MARGIN);
        let approved = self.yes_about("Run this?", &full).await;
        let by = crate::process::person(nix::unistd::getuid().as_raw()).user;
        ApprovalAnswer { approved, by, reason: None }
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
    use crate::cli::ErrorKind;
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

    // conforms 002-19
    #[tokio::test]
    async fn a_person_decides_about_a_failed_checklist() {
        let item = PreflightItem { name: "model".to_owned(), ok: false, detail: "none".to_owned() };
        for (typed, expected) in [("y", true), ("n", false)] {
            let (sender, lines) = mpsc::channel(1);
            let terminal = Terminal::of(lines);
            let items = [item.clone()];
            let asked = terminal.preflight(&items);
            tokio::pin!(asked);
            assert!(futures_util::poll!(&mut asked).is_pending());
            sender.send(typed.to_owned()).await.unwrap();
            assert_eq!(asked.await, expected, "{typed}");
        }
        let (_sender, lines) = mpsc::channel(1);
        assert!(Terminal::of(lines).preflight(&[PreflightItem { ok: true, ..item }]).await);
    }

    #[tokio::test]
    async fn an_answer_at_the_terminal_names_the_person() {
        let (sender, lines) = mpsc::channel(1);
        let terminal = Terminal::of(lines);
        let asked = terminal.ask(request("a"));
        tokio::pin!(asked);
        assert!(futures_util::poll!(&mut asked).is_pending());
        sender.send("y".to_owned()).await.unwrap();
        let person = crate::process::person(nix::unistd::getuid().as_raw());
        assert_eq!(asked.await.by, person.user);
    }

    fn request(approval_id: &str) -> ApprovalRequest {
        ApprovalRequest {
            approval_id: approval_id.to_owned(),
            run_id: "r".to_owned(),
            job: "j".to_owned(),
            call_id: CallId::parse("call_1_1").unwrap(),
            tool: "note".to_owned(),
            category: Category::Write,
            arguments: Map::new(),
            argv: Vec::new(),
            working_dir: "/srv".to_owned(),
            binding: Default::default(),
            reason: "because".to_owned(),
            expires_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_approval_has_a_prefix_and_the_newest_is_the_last() {
        let waiting = ["01b-call_1_1-x", "01a-call_1_1-y", "01a-call_1_1-y2"].map(request);
        let found = |name: &str| {
            let found = find(&waiting, name);
            found.map(|found| found.map(|request| request.approval_id.as_str()))
        };
        assert_eq!(found("last"), Ok(Some("01a-call_1_1-y2")));
        assert_eq!(found("01B"), Ok(Some("01b-call_1_1-x")));
        assert_eq!(found("01a-call_1_1-y"), Ok(Some("01a-call_1_1-y")), "a whole id");
        assert_eq!(found("01c"), Ok(None));
        assert_eq!(found("01a").map_err(|error| error.kind), Err(ErrorKind::Usage));
        let none = find(&[], "last").map_err(|error| error.kind);
        assert_eq!(none.map(|_| ()), Err(ErrorKind::NotFound));
    }

    // proves WEB-7
    #[test]
    fn a_person_sees_what_would_run_and_no_disguise() {
        let long = format!("head{}tail", "x".repeat(5_000));
        let disguised = "a\n  argv[2] harmless\u{1b}[2K\u{202e}";
        let argv = vec!["/bin/rm".to_owned(), disguised.to_owned(), long];
        let request = ApprovalRequest { argv, ..request("a-1") };
        let told = described(&request, Extent::Folded);
        assert!(told.contains("argv[0] /bin/rm\n"), "{told}");
        assert!(!told.contains(['\u{1b}', '\u{202e}']), "{told}");
        assert_eq!(told.lines().filter(|line| line.starts_with("  argv[2]")).count(), 1, "{told}");
        let folded = told.lines().find(|line| line.starts_with("  argv[2]")).unwrap();
        assert!(folded.contains("head") && folded.ends_with("tail"), "{folded}");
        assert!(folded.contains("[… 4608 characters …]"), "{folded}");
    }
}
