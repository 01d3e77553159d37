//! Receives signals, and forwards them to the supervisor as commands.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::command::Command;

/// The signals of the daemon: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration. SIGUSR1,
/// SIGUSR2 and SIGPIPE do nothing: without a handler, they would end the daemon.
///
/// tokio keeps a signal that arrives before [`Self::forward`].
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the handlers, for the rest of the process.
    ///
    /// *Errors*: a handler cannot be installed.
    pub fn install() -> std::io::Result<Self> {
        // tokio keeps a handler after its `Signal` is dropped.
        for ignored in
            [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::pipe()]
        {
            drop(signal(ignored)?);
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a request to stop. *Cancel*: safe; a request that was not returned stays.
    pub async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Turns the signals into commands until the supervisor is gone.
    pub fn forward(mut self, commands: mpsc::Sender<Command>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let command = tokio::select! {
                    _ = self.terminate.recv() => Command::Stop,
                    _ = self.interrupt.recv() => Command::Stop,
                    _ = self.hangup.recv() => {
                        Command::Reload(tokio::sync::oneshot::channel().0)
                    }
                    () = commands.closed() => return,
                };
                if commands.send(command).await.is_err() {
                    return;
                }
            }
        })
    }
}
