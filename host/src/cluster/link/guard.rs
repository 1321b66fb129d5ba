//! What stands between a peer's bytes and the RPC system: the system answers whatever it is sent, and keeps what it is told to.
//!
//! [`Guarded`] lets through only the kinds of messages that two links send each other, so that the system's tables stay small whatever a peer does, and ends the connection when too many answers
//! wait to be written. It also says when nothing more will come, as the system itself first waits until the peer has read all its answers. [`Counted`] counts the bytes on the way, by which a peer is heard.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use capnp::Error;
use capnp::capability::Promise;
use capnp::message::{Builder, HeapAllocator};
use capnp_rpc::rpc_capnp::{call, message, message_target, payload, return_};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::meters::PeerMeters;

/// The bytes that may wait to be written to a peer. One that keeps to its limits does not come near.
const UNSENT_BYTES_MAX: usize = 256 << 20;
/// The messages that may wait to be written to a peer.
const UNSENT_MESSAGES_MAX: usize = 16 << 10;
/// The calls of a peer that may not be done with. One that keeps to its limits does not come near, and starts a new connection where many of its calls have been cancelled.
const QUESTIONS_MAX: usize = 4096;

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

/// What a peer has asked, for as long as the system keeps it: until it has been answered and the peer has said its last word on it.
#[derive(Default)]
struct Asked {
    questions: HashMap<u32, Question>,
    /// The question among them that asks for the first capability.
    bootstrap: Option<u32>,
}

#[derive(Default)]
struct Question {
    is_answered: bool,
    is_finished: bool,
}

/// A network that looks at what passes.
pub(super) struct Guarded<N> {
    inner: N,
    watch: Watch,
}

/// What is known of a connection.
#[derive(Clone, Default)]
struct Watch {
    unsent: Rc<Unsent>,
    asked: Rc<RefCell<Asked>>,
    /// Nothing more will come.
    over: Rc<Notify>,
}

impl<N> Guarded<N> {
    pub(super) fn new(inner: N) -> Self {
        Self { inner, watch: Watch::default() }
    }

    /// Is notified when nothing more will come: the peer has closed its side, the connection has broken, or the peer has said what hosts do not say.
    pub(super) fn over(&self) -> Rc<Notify> {
        Rc::clone(&self.watch.over)
    }
}

impl<N: VatNetwork<Side>> VatNetwork<Side> for Guarded<N> {
    fn connect(&mut self, host: Side) -> Option<Box<dyn Connection<Side>>> {
        let inner = self.inner.connect(host)?;
        Some(Box::new(GuardedConnection { inner, watch: self.watch.clone() }))
    }

    fn accept(&mut self) -> Promise<Box<dyn Connection<Side>>, Error> {
        let (accepted, watch) = (self.inner.accept(), self.watch.clone());
        Promise::from_future(async move {
            let guarded: Box<dyn Connection<Side>> = Box::new(GuardedConnection { inner: accepted.await?, watch });
            Ok(guarded)
        })
    }

    fn drive_until_shutdown(&mut self) -> Promise<(), Error> {
        self.inner.drive_until_shutdown()
    }
}

struct GuardedConnection {
    inner: Box<dyn Connection<Side>>,
    watch: Watch,
}

impl Connection<Side> for GuardedConnection {
    fn get_peer_vat_id(&self) -> Side {
        self.inner.get_peer_vat_id()
    }

    fn new_outgoing_message(&mut self, first_segment_words: u32) -> Box<dyn OutgoingMessage> {
        let inner = self.inner.new_outgoing_message(first_segment_words);
        Box::new(GuardedMessage { inner, watch: self.watch.clone() })
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, Error> {
        let (received, watch) = (self.inner.receive_incoming_message(), self.watch.clone());
        Promise::from_future(async move {
            let received = received.await.and_then(|received| watch.check(received));
            if !matches!(received, Ok(Some(_))) {
                watch.over.notify_one();
            }
            received
        })
    }

    fn new_stream(&mut self) -> (Box<dyn FlowController>, Promise<(), Error>) {
        self.inner.new_stream()
    }

    fn shutdown(&mut self, result: Result<(), Error>) -> Promise<(), Error> {
        self.inner.shutdown(result)
    }
}

impl Watch {
    fn check(&self, received: Option<Box<dyn IncomingMessage>>) -> Result<Option<Box<dyn IncomingMessage>>, Error> {
        if self.unsent.is_too_much.get() {
            return Err(Error::overloaded("the peer does not read what it is answered".to_owned()));
        }
        if let Some(received) = &received {
            self.asked.borrow_mut().check(received.get_body()?.get_as()?)?;
        }
        Ok(received)
    }
}

fn unusual(what: &str) -> Error {
    Error::failed(format!("hosts do not send each other {what}"))
}

fn check_capabilities(payload: payload::Reader<'_>, capabilities_max: u32) -> Result<(), Error> {
    if payload.get_cap_table()?.len() > capabilities_max { Err(unusual("capabilities")) } else { Ok(()) }
}

impl Asked {
    /// Whether two links say such things to each other.
    fn check(&mut self, message: message::Reader<'_>) -> Result<(), Error> {
        match message.which()? {
            message::Bootstrap(asked) => {
                let question = asked?.get_question_id();
                if self.bootstrap.replace(question).is_some() {
                    return Err(unusual("two requests for a beginning"));
                }
                self.begin(question)
            }
            message::Call(called) => {
                let called = called?;
                check_capabilities(called.get_params()?, 0)?;
                if !matches!(called.get_send_results_to().which()?, call::send_results_to::Caller(())) {
                    return Err(unusual("calls whose results go elsewhere"));
                }
                // A call of what another call will answer would be kept until it does.
                if let message_target::PromisedAnswer(promised) = called.get_target()?.which()?
                    && self.bootstrap != Some(promised?.get_question_id())
                {
                    return Err(unusual("calls of what is not there yet"));
                }
                self.begin(called.get_question_id())
            }
            message::Return(returned) => match returned?.which()? {
                // The first capability is the only one.
                return_::Results(results) => check_capabilities(results?, 1),
                return_::Exception(_) | return_::Canceled(()) => Ok(()),
                _ => Err(unusual("results from elsewhere")),
            },
            message::Finish(finished) => {
                let question = finished?.get_question_id();
                self.bootstrap.take_if(|bootstrap| *bootstrap == question);
                self.settle(question, |question| question.is_finished = true);
                Ok(())
            }
            message::Release(_) | message::Abort(_) => Ok(()),
            _ => Err(unusual("messages of this kind")),
        }
    }

    fn begin(&mut self, question: u32) -> Result<(), Error> {
        if self.questions.insert(question, Question::default()).is_some() {
            return Err(unusual("two questions of one number"));
        }
        if self.questions.len() > QUESTIONS_MAX { Err(unusual("so many calls at a time")) } else { Ok(()) }
    }

    /// Looks at what goes to the peer.
    fn answer(&mut self, message: message::Reader<'_>) -> Result<(), Error> {
        if let message::Return(returned) = message.which()? {
            let returned = returned?;
            let is_last = returned.get_no_finish_needed();
            self.settle(returned.get_answer_id(), |question| {
                question.is_answered = true;
                question.is_finished |= is_last;
            });
        }
        Ok(())
    }

    fn settle(&mut self, question: u32, settle: impl FnOnce(&mut Question)) {
        if let Entry::Occupied(mut entry) = self.questions.entry(question) {
            settle(entry.get_mut());
            if entry.get().is_answered && entry.get().is_finished {
                entry.remove();
            }
        }
    }
}

struct GuardedMessage {
    inner: Box<dyn OutgoingMessage>,
    watch: Watch,
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
        let told =
            self.inner.get_body_as_reader().and_then(|body| self.watch.asked.borrow_mut().answer(body.get_as()?));
        debug_assert!(told.is_ok(), "what is sent is well formed");
        let (written, message) = self.inner.send();
        self.watch.unsent.add(&message, bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is checked of a message.
    fn said(fill: impl FnOnce(message::Builder<'_>)) -> Builder<HeapAllocator> {
        let mut message = Builder::new_default();
        fill(message.init_root());
        message
    }

    fn bootstrap(question: u32) -> Builder<HeapAllocator> {
        said(|message| message.init_bootstrap().set_question_id(question))
    }

    /// A call of what question `target` will answer, or of the first capability.
    fn call(question: u32, target: Option<u32>, change: impl FnOnce(call::Builder<'_>)) -> Builder<HeapAllocator> {
        said(|message| {
            let mut call = message.init_call();
            call.set_question_id(question);
            let mut told = call.reborrow().init_target();
            match target {
                Some(target) => told.init_promised_answer().set_question_id(target),
                None => told.set_imported_cap(0),
            }
            change(call);
        })
    }

    fn finish(question: u32) -> Builder<HeapAllocator> {
        said(|message| message.init_finish().set_question_id(question))
    }

    fn answer(asked: &mut Asked, question: u32, is_last: bool) {
        let message = said(|message| {
            let mut returned = message.init_return();
            returned.set_answer_id(question);
            returned.set_no_finish_needed(is_last);
        });
        asked.answer(message.get_root_as_reader().unwrap()).unwrap();
    }

    fn hear(asked: &mut Asked, message: &Builder<HeapAllocator>) -> Result<(), Error> {
        asked.check(message.get_root_as_reader().unwrap())
    }

    #[test]
    fn what_hosts_say_passes() {
        let mut asked = Asked::default();
        let said = [bootstrap(0), call(1, Some(0), |_| ()), call(2, None, |_| ()), finish(0), finish(1), finish(7)];
        said.iter().for_each(|said| hear(&mut asked, said).unwrap());
        answer(&mut asked, 0, false);
        answer(&mut asked, 1, false);
        answer(&mut asked, 2, true);
        assert!(asked.questions.is_empty());
    }

    #[test]
    fn what_hosts_do_not_say_is_refused() {
        let check = |before: &[Builder<HeapAllocator>], said: Builder<HeapAllocator>, reason: &str| {
            let mut asked = Asked::default();
            before.iter().for_each(|said| hear(&mut asked, said).unwrap());
            let refused = hear(&mut asked, &said).unwrap_err().to_string();
            assert!(refused.contains(reason), "`{reason}` is not in: {refused}");
        };
        check(&[bootstrap(0)], bootstrap(1), "two requests for a beginning");
        check(&[call(1, None, |_| ())], call(1, None, |_| ()), "two questions of one number");
        check(&[call(1, None, |_| ())], call(2, Some(1), |_| ()), "calls of what is not there yet");
        check(&[bootstrap(0), finish(0)], call(2, Some(0), |_| ()), "calls of what is not there yet");
        let elsewhere = call(1, None, |call| call.init_send_results_to().set_yourself(()));
        check(&[], elsewhere, "calls whose results go elsewhere");
        let capable = call(1, None, |call| _ = call.init_params().init_cap_table(1));
        check(&[], capable, "capabilities");
        check(&[], said(|message| _ = message.init_return().init_results().init_cap_table(2)), "capabilities");
        check(&[], said(|message| message.init_return().set_take_from_other_question(1)), "results from elsewhere");
        check(&[], said(|message| _ = message.init_disembargo()), "messages of this kind");
        check(&[], said(|message| _ = message.init_resolve()), "messages of this kind");
    }

    #[test]
    fn a_peer_that_leaves_its_calls_unsettled_is_stopped() {
        let mut asked = Asked::default();
        for question in 0..QUESTIONS_MAX as u32 {
            hear(&mut asked, &call(question, None, |_| ())).unwrap();
            // One without the other does not settle it.
            if question.is_multiple_of(2) {
                answer(&mut asked, question, false)
            } else {
                hear(&mut asked, &finish(question)).unwrap()
            }
        }
        assert!(hear(&mut asked, &call(u32::MAX, None, |_| ())).is_err());
    }
}
