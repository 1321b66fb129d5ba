//! Bounds on a connection that the protocol itself does not have.
//!
//! Answers wait in a queue without an end until the reader takes them. So while too much waits, nothing more is read: whoever does not listen is not heard. And who has not come through the
//! entrance may say only a few words.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes of answers that may wait for a reader before nothing more is read of it.
const UNSENT_BYTES_MAX: u64 = 32 << 20;
/// The bytes that a reader may send before it is admitted.
const STRANGER_BYTES_MAX: u64 = 64 << 10;

/// What both directions of a connection know of each other.
#[derive(Debug, Default)]
pub(super) struct Line {
    is_open: Cell<bool>,
    read: Cell<u64>,
    unsent: Cell<u64>,
    /// Of the reader, while too much waits.
    waiting: RefCell<Option<Waker>>,
}

impl Line {
    /// The reader has been admitted.
    pub(super) fn open(&self) {
        self.is_open.set(true);
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// An answer is on its way, of about this size: not more than what will be written for it.
    pub(super) fn answer(&self, bytes: u64) {
        self.unsent.set(self.unsent.get() + bytes);
    }

    fn wrote(&self, bytes: usize) {
        self.unsent.set(self.unsent.get().saturating_sub(bytes as u64));
        if self.unsent.get() <= UNSENT_BYTES_MAX
            && let Some(waker) = self.waiting.take()
        {
            waker.wake();
        }
    }
}

/// What comes from the reader.
#[derive(Debug)]
pub(super) struct BoundedReader<R> {
    inner: R,
    line: Rc<Line>,
}

impl<R> BoundedReader<R> {
    pub(super) fn new(inner: R, line: Rc<Line>) -> Self {
        Self { inner, line }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.line.unsent.get() > UNSENT_BYTES_MAX {
            self.line.waiting.replace(Some(context.waker().clone()));
            return Poll::Pending;
        }
        if !self.line.is_open() && self.line.read.get() > STRANGER_BYTES_MAX {
            return Poll::Ready(Err(io::Error::other("too much is said at the entrance")));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.line.read.set(self.line.read.get() + (buffer.filled().len() - before) as u64);
        read
    }
}

/// What goes to the reader.
#[derive(Debug)]
pub(super) struct CountingWriter<W> {
    inner: W,
    line: Rc<Line>,
}

impl<W> CountingWriter<W> {
    pub(super) fn new(inner: W, line: Rc<Line>) -> Self {
        Self { inner, line }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for CountingWriter<W> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = written {
            self.line.wrote(written);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    async fn is_pending(future: impl Future) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = tokio::task::yield_now() => true,
        }
    }

    #[test]
    fn nothing_is_read_of_who_does_not_take_its_answers() {
        run(async {
            let line = Rc::new(Line::default());
            line.open();
            let mut reader = BoundedReader::new(&b"question"[..], Rc::clone(&line));
            let mut writer = CountingWriter::new(tokio::io::sink(), Rc::clone(&line));
            let mut byte = [0];
            assert_eq!(reader.read(&mut byte).await.unwrap(), 1);
            line.answer(UNSENT_BYTES_MAX + 2);
            assert!(is_pending(reader.read(&mut byte)).await);
            writer.write_all(b"1").await.unwrap();
            assert!(is_pending(reader.read(&mut byte)).await);
            let (read, written) = tokio::join!(reader.read(&mut byte), writer.write_all(b"2"));
            assert_eq!((read.unwrap(), written.unwrap()), (1, ()), "the write wakes the reader");
        });
    }

    #[test]
    fn a_stranger_says_only_a_few_words() {
        run(async {
            let line = Rc::new(Line::default());
            let mut reader = BoundedReader::new(tokio::io::repeat(7), Rc::clone(&line));
            let mut said = vec![0; STRANGER_BYTES_MAX as usize + 1];
            reader.read_exact(&mut said).await.unwrap();
            assert!(reader.read(&mut said).await.is_err());
            line.open();
            assert!(reader.read(&mut said).await.is_ok());
        });
    }
}
