//! Forwards signals to the supervisor as commands.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::command::Command;

/// Turns SIGTERM and SIGINT into a stop, and SIGHUP into a reload, until the supervisor is gone.
///
/// *Errors*: a signal handler cannot be installed.
pub fn watch_signals(
    commands: mpsc::Sender<Command>,
) -> std::io::Result<tokio::task::JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::spawn(async move {
        loop {
            let command = tokio::select! {
                Some(()) = next(&mut terminate) => Command::Stop,
                Some(()) = next(&mut interrupt) => Command::Stop,
                Some(()) = next(&mut hangup) => Command::Reload(tokio::sync::oneshot::channel().0),
                () = commands.closed() => return,
            };
            if commands.send(command).await.is_err() {
                return;
            }
        }
    }))
}

async fn next(signal: &mut Signal) -> Option<()> {
    signal.recv().await
}
