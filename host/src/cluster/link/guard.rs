//! What stands between a peer's bytes and the RPC system: the system answers whatever it is sent, and keeps what it is told to.
//!
//! [`Guarded`] lets through only the kinds of messages that two links send each other, so that the system's tables stay small whatever a peer does, and ends the connection when too many answers
//! wait to be written. [`Counted`] counts the bytes on the way, by which a peer is heard.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use capnp::Error;
use capnp::capability::Promise;
use capnp::message::{Builder, HeapAllocator};
use capnp_rpc::rpc_capnp::{call, message, return_};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::meters::PeerMeters;

/// The bytes that may wait to be written to a peer. One that keeps to its limits does not come near.
const UNSENT_BYTES_MAX: usize = 256 << 20;
/// The messages that may wait to be written to a peer.
const UNSENT_MESSAGES_MAX: usize = 16 << 10;
/// How often a peer may ask for the first capability: once, but for some slack.
const BOOTSTRAPS_MAX: u32 = 4;

/// What waits to be written.
#[derive(Default)]
struct Unsent {
    /// Written once the queue has let go of the message.
    waiting: RefCell<VecDeque<(Weak<Builder<HeapAllocator>>, usize)>>,
    bytes: Cell<usize>,
    is_too_much: Cell<bool>,
}

impl Unsent {
    fn add(&self, message: &Rc<Builder<HeapAllocator>>, bytes: usize) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some((_, written)) = waiting.pop_front_if(|(message, _)| message.strong_count() == 0) {
            self.bytes.set(self.bytes.get() - written);
        }
        waiting.push_back((Rc::downgrade(message), bytes));
        self.bytes.set(self.bytes.get() + bytes);
        if self.bytes.get() > UNSENT_BYTES_MAX || waiting.len() > UNSENT_MESSAGES_MAX {
            self.is_too_much.set(true);
        }
    }
}

/// A network that looks at what passes.
pub(super) struct Guarded<N> {
    inner: N,
    unsent: Rc<Unsent>,
}

impl<N> Guarded<N> {
    pub(super) fn new(inner: N) -> Self {
        Self { inner, unsent: Rc::default() }
    }
}

impl<N: VatNetwork<Side>> VatNetwork<Side> for Guarded<N> {
    fn connect(&mut self, host: Side) -> Option<Box<dyn Connection<Side>>> {
        let inner = self.inner.connect(host)?;
        Some(Box::new(GuardedConnection::new(inner, Rc::clone(&self.unsent))))
    }

    fn accept(&mut self) -> Promise<Box<dyn Connection<Side>>, Error> {
        let (accepted, unsent) = (self.inner.accept(), Rc::clone(&self.unsent));
        Promise::from_future(async move {
            let guarded: Box<dyn Connection<Side>> = Box::new(GuardedConnection::new(accepted.await?, unsent));
            Ok(guarded)
        })
    }

    fn drive_until_shutdown(&mut self) -> Promise<(), Error> {
        self.inner.drive_until_shutdown()
    }
}

struct GuardedConnection {
    inner: Box<dyn Connection<Side>>,
    unsent: Rc<Unsent>,
    bootstraps: Rc<Cell<u32>>,
}

impl GuardedConnection {
    fn new(inner: Box<dyn Connection<Side>>, unsent: Rc<Unsent>) -> Self {
        Self { inner, unsent, bootstraps: Rc::default() }
    }
}

impl Connection<Side> for GuardedConnection {
    fn get_peer_vat_id(&self) -> Side {
        self.inner.get_peer_vat_id()
    }

    fn new_outgoing_message(&mut self, first_segment_words: u32) -> Box<dyn OutgoingMessage> {
        let inner = self.inner.new_outgoing_message(first_segment_words);
        Box::new(GuardedMessage { inner, unsent: Rc::clone(&self.unsent) })
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, Error> {
        let (received, unsent) = (self.inner.receive_incoming_message(), Rc::clone(&self.unsent));
        let bootstraps = Rc::clone(&self.bootstraps);
        Promise::from_future(async move {
            let received = received.await?;
            if unsent.is_too_much.get() {
                return Err(Error::overloaded("the peer does not read what it is answered".to_owned()));
            }
            if let Some(received) = &received {
                check(received.get_body()?.get_as()?, &bootstraps)?;
            }
            Ok(received)
        })
    }

    fn new_stream(&mut self) -> (Box<dyn FlowController>, Promise<(), Error>) {
        self.inner.new_stream()
    }

    fn shutdown(&mut self, result: Result<(), Error>) -> Promise<(), Error> {
        self.inner.shutdown(result)
    }
}

/// Whether two links say such things to each other.
fn check(message: message::Reader<'_>, bootstraps: &Cell<u32>) -> Result<(), Error> {
    let unusual = |what: &str| Err(Error::failed(format!("hosts do not send each other {what}")));
    match message.which()? {
        message::Bootstrap(_) => {
            bootstraps.set(bootstraps.get() + 1);
            if bootstraps.get() <= BOOTSTRAPS_MAX { Ok(()) } else { unusual("so many requests for a beginning") }
        }
        message::Call(called) => {
            let called = called?;
            if !called.get_params()?.get_cap_table()?.is_empty() {
                return unusual("capabilities");
            }
            match called.get_send_results_to().which()? {
                call::send_results_to::Caller(()) => Ok(()),
                _ => unusual("calls whose results go elsewhere"),
            }
        }
        message::Return(returned) => match returned?.which()? {
            return_::Results(_) | return_::Exception(_) | return_::Canceled(()) => Ok(()),
            _ => unusual("results from elsewhere"),
        },
        message::Finish(_) | message::Release(_) | message::Abort(_) => Ok(()),
        _ => unusual("messages of this kind"),
    }
}

struct GuardedMessage {
    inner: Box<dyn OutgoingMessage>,
    unsent: Rc<Unsent>,
}

impl OutgoingMessage for GuardedMessage {
    fn get_body(&mut self) -> capnp::Result<capnp::any_pointer::Builder<'_>> {
        self.inner.get_body()
    }

    fn get_body_as_reader(&self) -> capnp::Result<capnp::any_pointer::Reader<'_>> {
        self.inner.get_body_as_reader()
    }

    fn send(self: Box<Self>) -> (Promise<(), Error>, Rc<Builder<HeapAllocator>>) {
        let bytes = self.inner.size_in_words() * size_of::<u64>();
        let (written, message) = self.inner.send();
        self.unsent.add(&message, bytes);
        (written, message)
    }

    fn take(self: Box<Self>) -> Builder<HeapAllocator> {
        self.inner.take()
    }

    fn size_in_words(&self) -> usize {
        self.inner.size_in_words()
    }
}

/// A stream whose bytes are counted.
pub(super) struct Counted<S> {
    inner: S,
    meters: Arc<PeerMeters>,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S, meters: Arc<PeerMeters>) -> Self {
        Self { inner, meters }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.meters.received.bytes.add((buffer.filled().len() - before) as u64);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = written {
            self.meters.sent.bytes.add(written as u64);
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
