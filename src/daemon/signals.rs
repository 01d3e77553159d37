//! Forwards signals to the supervisor as commands.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::command::Command;

/// Turns SIGTERM and SIGINT into a stop, and SIGHUP into a reload, until the supervisor is gone.
/// SIGUSR1, SIGUSR2 and SIGPIPE do nothing: without a handler, they would end the daemon.
///
/// *Errors*: a signal handler cannot be installed.
pub fn watch_signals(
    commands: mpsc::Sender<Command>,
) -> std::io::Result<tokio::task::JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // tokio keeps a handler for the rest of the process, whether or not anyone waits for its signal.
    for ignored in [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::pipe()] {
        drop(signal(ignored)?);
    }
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
