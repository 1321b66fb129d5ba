//! One connection, from the handshake to its end: the RPC system, heartbeats, and pushing what is to be sent.

use std::cell::Cell;
use std::rc::Rc;

use capnp::message::ReaderOptions;
use capnp_rpc::RpcSystem;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use tokio::io::{BufReader, BufWriter};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::generated::peer_capnp::peer;
use super::guard::{Counted, Guarded};
use super::handshake::Ready;
use super::peer::{Beats, Closing, FAREWELL_TIME, Gone, Peer, Told, said_by};
use super::serve::Served;
use super::tls::Stream;
use super::wire;

/// The largest message that a peer may send.
const MESSAGE_WORDS_MAX: usize = (64 << 20) / 8;
/// How deep the structures of a message may be nested.
const NESTING_MAX: i32 = 16;
/// How many times longer than without a word a peer may be without an answer, which may have to wait behind much else.
const UNANSWERED_TIMES: u32 = 30;
/// The same for the first answer, which waits behind nothing.
const UNANSWERED_TIMES_FIRST: u32 = 4;
const READ_BUFFER_BYTES: usize = 64 << 10;
const WRITE_BUFFER_BYTES: usize = 16 << 10;

/// What the two sides have agreed on.
pub(super) struct Agreed {
    pub(super) stream: Box<dyn Stream>,
    /// Which side of the RPC system this host is.
    pub(super) side: Side,
    pub(super) own: Ready,
    pub(super) theirs: Ready,
    /// The number of the session, if a new one begins.
    pub(super) fresh: u128,
    /// What the other process calls itself.
    pub(super) process: u64,
}

/// Runs a connection to its end. Returns whether it was of use: something has come over it, and the session outlives it.
pub(super) async fn run(peer: Rc<Peer>, agreed: Agreed) -> bool {
    let (reader, writer) = tokio::io::split(Counted::new(agreed.stream, peer.meters.clone()));
    let reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader).compat();
    let writer = BufWriter::with_capacity(WRITE_BUFFER_BYTES, writer).compat_write();
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(Some(MESSAGE_WORDS_MAX)).nesting_limit(NESTING_MAX);
    let network = Guarded::new(VatNetwork::new(reader, writer, agreed.side, options));
    let (over, number) = (network.over(), Rc::new(Cell::new(0)));
    let served: peer::Client = capnp_rpc::new_client(Served::new(Rc::clone(&peer), Rc::clone(&number)));
    let mut system = RpcSystem::new(Box::new(network), Some(served.client));
    let client: peer::Client = system.bootstrap(match agreed.side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    });
    let closing = Rc::new(Closing::default());
    let attached =
        peer.attach(agreed.own, agreed.theirs, agreed.fresh, agreed.process, client.clone(), Rc::clone(&closing));
    let Some(attached) = attached else { return false };
    let (session, heard) = (peer.session(), peer.meters.received.bytes.get());
    number.set(attached);
    let _open = Open::new(&peer);
    let mut connection = Connection { peer, client, number: attached, beats: Rc::default(), tasks: JoinSet::new() };
    connection.drive(system, &closing, &over).await;
    let peer = connection.peer;
    peer.detach(Some(attached));
    peer.session() == session && peer.meters.received.bytes.get() > heard
}

/// Counts a connection for as long as it lives.
struct Open(Rc<Peer>);

impl Open {
    fn new(peer: &Rc<Peer>) -> Self {
        peer.shared.open.set(peer.shared.open.get() + 1);
        Self(Rc::clone(peer))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shared.open.set(self.0.shared.open.get() - 1);
    }
}

struct Connection {
    peer: Rc<Peer>,
    client: peer::Client,
    number: u64,
    beats: Rc<Beats>,
    /// Calls that wait for their answers.
    tasks: JoinSet<()>,
}

impl Connection {
    async fn drive(&mut self, system: RpcSystem<Side>, closing: &Closing, over: &Notify) {
        // As a task of its own: what panics in it, or in the call-backs of this host, ends the connection and not the thread.
        let mut systems = JoinSet::new();
        systems.spawn_local(system);
        let mut heartbeat = tokio::time::interval(self.peer.shared.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                farewell = closing.wait() => {
                    if let Some(reason) = farewell {
                        self.say_farewell(&reason).await;
                    }
                    return;
                }
                Some(ended) = systems.join_next() => return self.ended(ended),
                () = over.notified() => {
                    // What has come is worked on. What waits to be written to a peer that may not read it is not waited for.
                    if let Ok(Some(ended)) = tokio::time::timeout(FAREWELL_TIME, systems.join_next()).await {
                        self.ended(ended);
                    }
                    return;
                }
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Err(error) = done {
                        self.defect(error);
                    }
                }
                () = self.peer.outgoing.notified() => self.push(),
                _ = heartbeat.tick() => {
                    self.beat();
                    self.push();
                }
            }
        }
    }

    fn ended(&self, ended: Result<Result<(), capnp::Error>, JoinError>) {
        match ended {
            Ok(Ok(())) => tracing::debug!(peer = self.peer.name, "the connection has ended"),
            Ok(Err(error)) => tracing::debug!(peer = self.peer.name, %error, "the connection broke"),
            Err(error) => self.defect(error),
        }
    }

    /// A panic: what has been done of a call is not known, so the session cannot go on.
    fn defect(&self, error: JoinError) {
        if !error.is_panic() {
            return;
        }
        let said = said_by(&*error.into_panic());
        self.peer.end_session(&format!("a defect of wasmill in its connection: {said}"), false);
    }

    fn push(&mut self) {
        let client = self.client.clone();
        let fill = |first, messages: &mut dyn ExactSizeIterator<Item = &super::session::Message>| {
            let mut request = client.push_request();
            let mut told = request.get();
            told.set_first(first);
            let mut list = told.init_messages(messages.len() as u32);
            for (index, message) in (0..).zip(messages) {
                wire::write_message(list.reborrow().get(index), message)?;
            }
            Ok::<_, capnp::Error>(request)
        };
        while let Some(request) = self.peer.next_push(self.number, fill) {
            let request = match request {
                Ok(request) => request,
                Err(error) => return self.peer.end_session(&format!("a message cannot be written: {error}"), true),
            };
            let (peer, number) = (Rc::clone(&self.peer), self.number);
            let answered = request.send().promise;
            self.tasks.spawn_local(async move {
                match answered.await.and_then(|answered| Ok(answered.get()?.get_through())) {
                    Ok(through) => peer.acknowledged(number, through),
                    // What was sent is sent again over the next connection, unless the peer has ended the session.
                    Err(_) => _ = peer.give_up(number).await,
                }
            });
        }
    }

    fn beat(&mut self) {
        let times = if self.beats.has_answered() { UNANSWERED_TIMES } else { UNANSWERED_TIMES_FIRST };
        if self.beats.waiting().is_some_and(|waiting| waiting > self.peer.shared.lost_after * times) {
            let reason = "it says something now and then, but has answered nothing for a long time";
            return self.peer.end_session(reason, true);
        }
        let Some(sent) = self.beats.send(self.peer.gone().0, &self.peer.meters) else { return };
        let answered = self.client.beat_request().send().promise;
        let (peer, number, beats) = (Rc::clone(&self.peer), self.number, Rc::clone(&self.beats));
        self.tasks.spawn_local(async move {
            let told = answered.await.and_then(|answered| {
                let told = answered.get()?;
                let come = Gone { messages: told.get_received(), calls: told.get_asked() };
                Ok((told.get_through(), Told { come, answered: told.get_answered() }))
            });
            match told {
                Ok((through, told)) => {
                    peer.acknowledged(number, through);
                    if peer.is_connected_by(number) && beats.answered(sent, told, peer.gone().1, &peer.meters) {
                        tracing::warn!(peer = peer.name, "something was lost on the way; connecting again");
                        peer.detach(Some(number));
                    }
                }
                Err(_) => _ = peer.give_up(number).await,
            }
        });
    }

    async fn say_farewell(&self, reason: &str) {
        let mut request = self.client.leave_request();
        request.get().set_reason(reason);
        let _ = tokio::time::timeout(FAREWELL_TIME, request.send().promise).await;
    }
}
