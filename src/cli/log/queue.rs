//! The queue in front of stderr: logging never waits for a reader of stderr.
//!
//! Only one thread of the daemon writes to stderr, so a full pipe blocks that thread alone. While
//! the queue is full, new lines are dropped and counted; a single line in their place reports the
//! count. The thread writes to a descriptor of its own, because the standard library's handle of
//! stderr stays locked while a write blocks.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Capacity of the queue, in lines.
const LINES: usize = 4096;

/// Limit on the time that a flush may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Interval between attempts to add to a full queue.
const LOOK: Duration = Duration::from_millis(10);

/// Returns the line that reports how many lines were dropped, with its line end.
pub(super) type Note = Box<dyn Fn(u64) -> String + Send>;

/// The sending side; clones share one queue.
#[derive(Clone)]
pub(super) struct Queue {
    entries: SyncSender<Entry>,
    /// Lines dropped since the last line that was queued.
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line {
        bytes: Vec<u8>,
        /// Lines dropped just before this one.
        dropped: u64,
    },
    /// Asks for a reply once everything before this entry is written.
    Flush(SyncSender<()>),
}

impl Queue {
    /// Starts the thread that writes to stderr.
    ///
    /// *Errors*: stderr is closed, or the thread cannot be started.
    pub(super) fn to_stderr(note: Note) -> io::Result<Self> {
        let stderr = rustix::stdio::stderr().as_fd().try_clone_to_owned()?;
        Self::to(std::fs::File::from(stderr), note)
    }

    fn to(out: impl Write + Send + 'static, note: Note) -> io::Result<Self> {
        let (entries, queued) = sync_channel(LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = dropped.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_out(&queued, &counted, out, &note))?;
        Ok(Self { entries, dropped })
    }

    /// Queues a line, or drops and counts it if the queue is full. Never waits.
    pub(super) fn put(&self, line: &[u8]) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let entry = Entry::Line { bytes: line.to_vec(), dropped };
        if self.entries.try_send(entry).is_err() {
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written, at most 1 s.
    pub(super) fn flush(&self) {
        let until = Instant::now() + PATIENCE;
        let (tell, written) = sync_channel(1);
        let mut entry = Entry::Flush(tell);
        loop {
            match self.entries.try_send(entry) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < until => entry = back,
                Err(_) => return,
            }
            std::thread::sleep(LOOK);
        }
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Queues each write as one line, because the formatter writes a line in a single call.
impl Write for Queue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes entries until every [`Queue`] is dropped. A line that cannot be written is lost, because
/// the log has no other place to report the error.
fn write_out(queued: &Receiver<Entry>, dropped: &AtomicU64, mut out: impl Write, note: &Note) {
    let mut put = |bytes: &[u8]| drop(out.write_all(bytes).and_then(|()| out.flush()));
    loop {
        let entry = match queued.try_recv() {
            Ok(entry) => Some(entry),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                // The queue is empty, so no line in it reports the lines that were dropped last.
                tell(dropped.swap(0, Ordering::Relaxed), note, &mut put);
                queued.recv().ok()
            }
        };
        match entry {
            Some(Entry::Line { bytes, dropped }) => {
                tell(dropped, note, &mut put);
                put(&bytes);
            }
            Some(Entry::Flush(done)) => {
                tell(dropped.swap(0, Ordering::Relaxed), note, &mut put);
                let _ = done.try_send(());
            }
            None => return,
        }
    }
}

fn tell(dropped: u64, note: &Note, put: &mut impl FnMut(&[u8])) {
    if dropped > 0 {
        put(note(dropped).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Box::new(|count| format!("dropped {count}\n"))
    }

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_learns_what_it_missed() {
        let (reader, writer) = io::pipe().unwrap();
        let capacity = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        let queue = Queue::to(writer, note()).unwrap();
        queue.put(&vec![b'x'; capacity]);
        let put = LINES + 1000;
        for number in 0..put {
            queue.put(format!("line {number}\n").as_bytes());
        }
        let began = Instant::now();
        queue.flush();
        assert!(began.elapsed() < PATIENCE * 3, "flush must not wait for a reader");
        let mut lines = io::BufRead::lines(io::BufReader::new(reader));
        let (mut kept, mut dropped) = (0, 0);
        while kept + dropped < put {
            let line = lines.next().unwrap().unwrap();
            match line.strip_prefix("dropped ") {
                Some(count) => dropped += count.parse::<usize>().unwrap(),
                None => kept += 1,
            }
        }
        assert!(kept >= LINES - 1 && kept + dropped == put, "{kept} and {dropped}");
        queue.put(b"later\n");
        assert_eq!(lines.next().unwrap().unwrap(), "later");
        drop(queue);
        assert!(lines.next().is_none());
    }

    #[test]
    fn lines_that_are_dropped_are_told_where_they_are_missing() {
        let (entries, queued) = sync_channel(2);
        let dropped = Arc::new(AtomicU64::new(0));
        let queue = Queue { entries, dropped: dropped.clone() };
        for line in ["a\n", "b\n", "dropped\n", "dropped\n"] {
            queue.put(line.as_bytes());
        }
        assert!(
            matches!(queued.try_recv(), Ok(Entry::Line { bytes, dropped: 0 }) if bytes == b"a\n")
        );
        for line in ["e\n", "dropped\n"] {
            queue.put(line.as_bytes());
        }
        drop(queue);
        let mut out = Vec::new();
        write_out(&queued, &dropped, &mut out, &note());
        assert_eq!(String::from_utf8(out).unwrap(), "b\ndropped 2\ne\ndropped 1\n");
    }
}
