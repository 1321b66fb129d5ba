//! A peer as the link's thread knows it: its session, its connection, and since when nothing has been heard of it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};

use super::attempt::{Attempts, Timing};
use super::generated::peer_capnp::peer;
use super::handshake::Ready;
use super::message::Delivery;
use super::meters::PeerMeters;
use super::session::{Arrival, Early, Inbox, Message, Nonsense, Outbox, control_bytes, delivery_bytes};
use super::wire::Received;
use super::{Acknowledged, HostId, Listen, PeerEvent};
use crate::epoch::Attempt;

/// The lookups that a peer is asked at a time; more wait for their turn.
const LOOKUPS_MAX: usize = 32;

/// How long a peer may take to hear why its session ends, or to say why it has ended it.
pub(super) const FAREWELL_TIME: Duration = Duration::from_millis(200);

/// What all peers of a host share.
pub(super) struct Shared {
    pub(super) listen: Arc<dyn Listen>,
    pub(super) attempts: Arc<Attempts>,
    pub(super) heartbeat: Duration,
    pub(super) lost_after: Duration,
    /// Nothing that happens from now on is news.
    pub(super) is_stopping: Cell<bool>,
    /// Turns of reading pages for scans.
    pub(super) scans: Arc<Semaphore>,
    /// Connections that have passed the handshake and are not closed yet.
    pub(super) open: Cell<usize>,
}

impl Shared {
    pub(super) fn event(&self, event: PeerEvent) {
        if !self.is_stopping.get() {
            self.listen.event(event);
        }
    }
}

/// One other host.
pub(super) struct Peer {
    pub(super) id: HostId,
    pub(super) name: String,
    pub(super) shared: Rc<Shared>,
    pub(super) meters: Arc<PeerMeters>,
    state: RefCell<State>,
    /// Something is to be sent.
    pub(super) outgoing: Notify,
    /// The session or the connection has changed.
    pub(super) changed: Notify,
    /// Turns of lookups.
    pub(super) turns: Rc<Semaphore>,
    silence: RefCell<Silence>,
    /// What the other process calls itself, by its last handshake.
    process: Cell<u64>,
}

#[derive(Default)]
struct State {
    session: Option<Session>,
    connection: Option<Connected>,
    /// The number of the last connection.
    connections: u64,
    /// The lookups asked over it.
    calls: Calls,
    /// Deliveries of attempts up to this one are void: some may have been lost with a session.
    void: Attempt,
}

struct Session {
    id: u128,
    outbox: Outbox,
    inbox: Inbox,
}

struct Connected {
    number: u64,
    client: peer::Client,
    closing: Rc<Closing>,
}

/// Tells a connection that it is over.
#[derive(Default)]
pub(super) struct Closing {
    /// What the peer is to be told, if it is to be told something.
    farewell: RefCell<Option<String>>,
    closed: Cell<bool>,
    notify: Notify,
}

impl Closing {
    fn close(&self, farewell: Option<String>) {
        self.closed.set(true);
        self.farewell.replace(farewell);
        self.notify.notify_one();
    }

    /// Waits until the connection is to be closed.
    pub(super) async fn wait(&self) -> Option<String> {
        while !self.closed.get() {
            self.notify.notified().await;
        }
        self.farewell.take()
    }
}

/// What a panic has said.
pub(super) fn said_by(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
    said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// How a lookup gets to the peer.
pub(super) enum Route {
    /// Over this connection.
    Ready { connection: u64, client: peer::Client },
    /// Not at the moment.
    Wait,
    /// The session that it was asked in is over.
    Lost,
}

/// Lookups asked over one connection.
#[derive(Debug, Clone, Copy, Default)]
struct Calls {
    begun: u64,
    /// Those that are answered, or that nobody waits for any more.
    done: u64,
}

/// A lookup asked over a connection, for as long as somebody waits for it.
pub(super) struct Call<'a> {
    peer: &'a Peer,
    connection: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.peer.state.borrow_mut();
        if state.connections == self.connection {
            state.calls.done += 1;
        }
    }
}

/// For how long nothing has been heard of a peer. Time counts only as far as this host was awake to hear: one that stood still itself does not hold it against the others.
#[derive(Debug)]
struct Silence {
    /// The bytes that had come at the last tick.
    heard: u64,
    last_tick: Instant,
    silent: Duration,
}

impl Silence {
    fn tick(&mut self, now: Instant, heard: u64, heartbeat: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.last_tick).min(heartbeat * 2);
        self.last_tick = now;
        self.silent = if heard == self.heard { self.silent + passed } else { Duration::ZERO };
        self.heard = heard;
        self.silent
    }
}

impl Peer {
    pub(super) fn new(id: HostId, name: &str, shared: Rc<Shared>, meters: Arc<PeerMeters>) -> Self {
        Self {
            id,
            name: name.to_owned(),
            shared,
            meters,
            state: RefCell::default(),
            outgoing: Notify::new(),
            changed: Notify::new(),
            turns: Rc::new(Semaphore::new(LOOKUPS_MAX)),
            silence: RefCell::new(Silence { heard: 0, last_tick: Instant::now(), silent: Duration::ZERO }),
            process: Cell::new(0),
        }
    }

    pub(super) fn session(&self) -> Option<u128> {
        self.state.borrow().session.as_ref().map(|session| session.id)
    }

    pub(super) fn is_connected_by(&self, connection: u64) -> bool {
        self.state.borrow().connection.as_ref().is_some_and(|connected| connected.number == connection)
    }

    /// The way for a lookup of session `asked_in`.
    pub(super) fn route(&self, asked_in: u128) -> Route {
        let state = self.state.borrow();
        match (&state.session, &state.connection) {
            (Some(session), Some(connected)) if session.id == asked_in => {
                Route::Ready { connection: connected.number, client: connected.client.clone() }
            }
            (Some(session), None) if session.id == asked_in => Route::Wait,
            _ => Route::Lost,
        }
    }

    /// A lookup is asked over a connection.
    pub(super) fn call(&self, connection: u64) -> Call<'_> {
        let mut state = self.state.borrow_mut();
        if state.connections == connection {
            state.calls.begun += 1;
        }
        Call { peer: self, connection }
    }

    /// What has gone over the present connection so far, and how many of its lookups are done.
    pub(super) fn gone(&self) -> (Gone, u64) {
        let state = self.state.borrow();
        let messages = state.session.as_ref().map_or(0, |session| session.outbox.last_sent());
        (Gone { messages, calls: state.calls.begun }, state.calls.done)
    }

    /// Whether all that was sent is acknowledged, or void.
    pub(super) fn is_settled(&self) -> bool {
        self.state.borrow().session.as_ref().is_none_or(|session| session.outbox.is_empty())
    }

    // What this host sends.

    pub(super) fn send(&self, attempt: Attempt, delivery: Delivery, acknowledged: Option<Acknowledged>) {
        let bytes = delivery_bytes(&delivery);
        let mut state = self.state.borrow_mut();
        let is_void = attempt <= state.void || self.shared.attempts.is_over(attempt);
        match &mut state.session {
            Some(session) if !is_void => {
                session.outbox.push(Message::Delivery(attempt, delivery), bytes, acknowledged);
                self.outgoing.notify_one();
            }
            _ => self.meters.settled(bytes),
        }
    }

    pub(super) fn control(&self, message: Vec<u8>) {
        let bytes = control_bytes(&message);
        match &mut self.state.borrow_mut().session {
            Some(session) => {
                session.outbox.push(Message::Control(message), bytes, None);
                self.outgoing.notify_one();
            }
            None => self.meters.settled(bytes),
        }
    }

    /// Fills a call with what is to be sent next on a connection: `fill` gets the number of the first message, and the messages.
    pub(super) fn next_push<T>(
        &self,
        connection: u64,
        fill: impl FnOnce(u64, &mut dyn ExactSizeIterator<Item = &Message>) -> T,
    ) -> Option<T> {
        let mut state = self.state.borrow_mut();
        state.connection.as_ref().filter(|connected| connected.number == connection)?;
        let (first, mut messages) = state.session.as_mut()?.outbox.next()?;
        self.meters.sent.batches.add(1);
        self.meters.sent.messages.add(messages.len() as u64);
        Some(fill(first, &mut messages))
    }

    /// The peer has handed over all messages up to number `through`.
    pub(super) fn acknowledged(&self, connection: u64, through: u64) {
        let mut state = self.state.borrow_mut();
        if state.connection.as_ref().is_none_or(|connected| connected.number != connection) {
            return;
        }
        let Some(session) = &mut state.session else { return };
        let acknowledged = session.outbox.acknowledge(through);
        drop(state);
        match acknowledged {
            Ok((bytes, done)) => {
                self.meters.settled(bytes);
                self.outgoing.notify_one();
                done.into_iter().for_each(|done| done());
            }
            Err(nonsense) => self.end_session(&nonsense.to_string(), true),
        }
    }

    // What the peer sends.

    /// Takes message `number` of the session, and does with it what there is to do. An error ends the connection; the session goes on.
    pub(super) fn take(&self, connection: u64, number: u64, message: Received) -> Result<(), String> {
        let mut state = self.state.borrow_mut();
        if state.connection.as_ref().is_none_or(|connected| connected.number != connection) {
            return Err("the connection is over".to_owned());
        }
        let void = state.void;
        let Some(session) = &mut state.session else { return Err("the session is over".to_owned()) };
        match session.inbox.arrive(number) {
            Arrival::Duplicate => return Ok(()),
            Arrival::Gap { expected } => return Err(format!("message {number} has come instead of {expected}")),
            Arrival::New => {}
        }
        match message {
            Received::Void => {}
            Received::Control(message) => {
                drop(state);
                self.shared.listen.control(self.id, message);
            }
            Received::Delivery { attempt, delivery } => {
                let goes_on = match session.inbox.belongs_to(attempt) {
                    Ok(()) if attempt <= void => Ok(None),
                    // What is kept goes first.
                    Ok(()) if session.inbox.has_early() => session.inbox.keep(delivery).map(|()| None),
                    belongs => belongs.map(|()| Some(delivery)),
                };
                drop(state);
                if let Some(delivery) = self.sensible(goes_on)? {
                    self.hand_over(attempt, delivery)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the session where the peer has said what cannot be.
    fn sensible<T>(&self, said: Result<T, Nonsense>) -> Result<T, String> {
        said.map_err(|nonsense| {
            let reason = nonsense.to_string();
            self.end_session(&reason, true);
            reason
        })
    }

    fn hand_over(&self, attempt: Attempt, delivery: Delivery) -> Result<(), String> {
        let mut delivery = Some(delivery);
        let take = |delivery: &mut Option<Delivery>| {
            self.shared.attempts.with(attempt, |present| match delivery.take() {
                // What has been done of it when it panics is not known, but the session is over then.
                Some(delivery) => catch_unwind(AssertUnwindSafe(|| present.deliveries.take(self.id, delivery)))
                    .unwrap_or_else(|panic| Err(format!("a defect of wasmill: {}", said_by(&*panic)))),
                None => Ok(()),
            })
        };
        match (take(&mut delivery), delivery) {
            (Timing::Present(Ok(())) | Timing::Stale, _) | (Timing::Early, None) => Ok(()),
            (Timing::Present(Err(reason)), _) => {
                let reason = format!("what it has sent cannot be taken: {reason}");
                self.end_session(&reason, true);
                Err(reason)
            }
            (Timing::Early, Some(delivery)) => {
                let mut state = self.state.borrow_mut();
                let kept = state.session.as_mut().map_or(Ok(()), |session| session.inbox.keep(delivery));
                drop(state);
                self.sensible(kept)
            }
        }
    }

    /// The number up to which everything that has come is handed over.
    pub(super) fn handed_over(&self) -> u64 {
        self.state.borrow().session.as_ref().map_or(0, |session| session.inbox.handed_over())
    }

    /// An attempt has begun: what has come of it too early is handed over, and what was to be sent of older ones is void.
    pub(super) fn begun(&self, attempt: Attempt) {
        if let Some(session) = &mut self.state.borrow_mut().session {
            self.meters.settled(session.outbox.void(attempt - 1));
        }
        while let Some((early, is_void)) = self.take_early(attempt) {
            if !is_void && self.hand_over(early.attempt, early.delivery).is_err() {
                break;
            }
        }
        self.changed.notify_waiters();
    }

    fn take_early(&self, attempt: Attempt) -> Option<(Early, bool)> {
        let mut state = self.state.borrow_mut();
        let early = state.session.as_mut()?.inbox.take_early(attempt)?;
        let is_void = early.attempt <= state.void;
        Some((early, is_void))
    }

    // Sessions and connections.

    /// What to say of the session when a new connection is made.
    pub(super) fn ready(&self) -> Ready {
        let state = self.state.borrow();
        let ready = |session: &Session| Ready { session: session.id, received: session.inbox.received() };
        state.session.as_ref().map(ready).unwrap_or_default()
    }

    /// Whether a process that calls itself `process` must not take the place of the one that is connected: that one lives.
    pub(super) fn is_taken(&self, process: u64) -> bool {
        let is_other = self.process.get() != process && self.state.borrow().connection.is_some();
        is_other && self.silence.borrow().silent < self.shared.heartbeat * 4
    }

    /// Takes a connection that has passed the handshake, in which this side has said `own` and the other `theirs`; `fresh` is the number of a session if a new one is to begin. Returns the connection's
    /// number; `None` when the session has ended meanwhile.
    pub(super) fn attach(
        &self,
        own: Ready,
        theirs: Ready,
        fresh: u128,
        process: u64,
        client: peer::Client,
        closing: Rc<Closing>,
    ) -> Option<u64> {
        self.detach(None);
        if self.ready() != own {
            return None;
        }
        self.process.set(process);
        if own.session == theirs.session {
            let rewound =
                self.state.borrow_mut().session.as_mut().map(|session| session.outbox.rewind(theirs.received));
            self.sensible(rewound.unwrap_or(Ok(()))).ok()?;
        } else {
            let reason = "it does not know the session any more: it was started anew, or had lost this host";
            self.end_session(reason, false);
        }
        let mut state = self.state.borrow_mut();
        let begins = state.session.is_none();
        let session = Session { id: fresh, outbox: Outbox::default(), inbox: Inbox::default() };
        state.session.get_or_insert(session);
        state.connections += 1;
        state.calls = Calls::default();
        let number = state.connections;
        state.connection = Some(Connected { number, client, closing });
        drop(state);
        self.silence.borrow_mut().silent = Duration::ZERO;
        self.meters.connections.add(1);
        self.meters.is_connected.store(true, Ordering::Relaxed);
        self.meters.is_up.store(true, Ordering::Relaxed);
        if begins {
            self.shared.event(PeerEvent::Up { peer: self.id });
        }
        self.changed.notify_waiters();
        self.outgoing.notify_one();
        Some(number)
    }

    /// The present connection, or only that with the number given, is over; the session waits for another.
    pub(super) fn detach(&self, connection: Option<u64>) {
        let mut state = self.state.borrow_mut();
        let is_meant = |connected: &mut Connected| connection.is_none_or(|number| number == connected.number);
        let Some(connected) = state.connection.take_if(is_meant) else { return };
        drop(state);
        connected.closing.close(None);
        self.meters.is_connected.store(false, Ordering::Relaxed);
        self.meters.beats_wait_since(None);
        self.changed.notify_waiters();
    }

    /// Waits until a connection is over.
    pub(super) async fn until_over(&self, connection: u64) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self.is_connected_by(connection) {
                return;
            }
            changed.await;
        }
    }

    /// A call has failed, so the connection is no good any more. Returns whether it ends by itself; the peer may be about to say why.
    pub(super) async fn give_up(&self, connection: u64) -> bool {
        let over = tokio::time::timeout(2 * FAREWELL_TIME, self.until_over(connection)).await;
        self.detach(Some(connection));
        over.is_ok()
    }

    /// The session is over. With `tell`, so is the peer told, if it is connected.
    pub(super) fn end_session(&self, reason: &str, tell: bool) {
        let mut state = self.state.borrow_mut();
        let (session, connected) = (state.session.take(), state.connection.take());
        let Some(session) = session else { return };
        state.void = self.shared.attempts.latest();
        drop(state);
        if let Some(connected) = connected {
            connected.closing.close(tell.then(|| reason.to_owned()));
        }
        self.meters.settled(session.outbox.bytes());
        self.meters.is_connected.store(false, Ordering::Relaxed);
        self.meters.is_up.store(false, Ordering::Relaxed);
        self.meters.beats_wait_since(None);
        drop(session);
        self.shared.event(PeerEvent::Lost { peer: self.id, reason: reason.to_owned() });
        self.changed.notify_waiters();
    }

    /// To be called once a heartbeat: ends what has been silent for too long.
    pub(super) fn tick(&self) {
        let (heartbeat, lost_after) = (self.shared.heartbeat, self.shared.lost_after);
        let silent = self.silence.borrow_mut().tick(Instant::now(), self.meters.received.bytes.get(), heartbeat);
        if silent >= lost_after {
            self.end_session(&format!("nothing was heard of it for {} ms", lost_after.as_millis()), true);
        } else if silent >= lost_after / 2 {
            // The way may be broken while the host is not: another connection may come through.
            self.detach(None);
        }
    }
}

/// What has gone over a connection: the number of the last message, and of lookups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) messages: u64,
    pub(super) calls: u64,
}

/// What a heartbeat's answer tells of the other side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// What has come there.
    pub(super) come: Gone,
    /// The lookups that were answered.
    pub(super) answered: u64,
}

/// The heartbeats of one connection, and whether something was lost on it. A connection loses nothing by itself and keeps its order, but what stands in between may not.
///
/// What the answer of a heartbeat tells is held against what had gone when the heartbeat before it was sent: within a heartbeat, what is worked on at the same time may overtake each other.
#[derive(Default)]
pub(super) struct Beats(RefCell<Beating>);

#[derive(Default)]
struct Beating {
    /// Those without an answer.
    waiting: VecDeque<(Instant, Gone)>,
    /// What had gone when the last one that is answered was sent.
    gone: Gone,
    /// The answers that the peer had given by then.
    answered: u64,
    has_answered: bool,
}

/// The heartbeats that may be without an answer; more are not sent.
const BEATS_MAX: usize = 64;

impl Beats {
    /// Whether another may be sent, now that so much has gone. If so it counts as sent.
    pub(super) fn send(&self, gone: Gone, meters: &PeerMeters) -> Option<Instant> {
        let waiting = &mut self.0.borrow_mut().waiting;
        if waiting.len() >= BEATS_MAX {
            return None;
        }
        let now = Instant::now();
        waiting.push_back((now, gone));
        meters.beats_wait_since(waiting.front().map(|beat| beat.0));
        Some(now)
    }

    /// Whether any was answered.
    pub(super) fn has_answered(&self) -> bool {
        self.0.borrow().has_answered
    }

    /// For how long the oldest has been without an answer.
    pub(super) fn waiting(&self) -> Option<Duration> {
        self.0.borrow().waiting.front().map(|beat| beat.0.elapsed())
    }

    /// One is answered, when so many lookups were done here. Says whether something was lost. They are answered in order: what is older is lost, or its answer.
    pub(super) fn answered(&self, sent: Instant, told: Told, done: u64, meters: &PeerMeters) -> bool {
        let beating = &mut *self.0.borrow_mut();
        let Some(place) = beating.waiting.iter().position(|beat| beat.0 == sent) else { return false };
        let Some((_, gone)) = beating.waiting.drain(..=place).next_back() else { return false };
        beating.has_answered = true;
        meters.beat_answered(sent.elapsed());
        meters.beats_wait_since(beating.waiting.front().map(|beat| beat.0));
        let before = std::mem::replace(&mut beating.gone, gone);
        let owed = std::mem::replace(&mut beating.answered, told.answered);
        told.come.messages < before.messages || told.come.calls < before.calls || done < owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_a_heartbeat_later_is_lost() {
        let meters = PeerMeters::new("b", false);
        let gone = |messages, calls| Gone { messages, calls };
        let lost = |beats: &Beats, at: Gone, come: Gone, answered, done| {
            let sent = beats.send(at, &meters).expect("few are waiting");
            beats.answered(sent, Told { come, answered }, done, &meters)
        };
        let beats = Beats::default();
        assert!(!lost(&beats, gone(5, 1), gone(4, 0), 0, 0), "it may be on its way");
        assert!(!lost(&beats, gone(5, 1), gone(5, 1), 1, 0));
        assert!(!lost(&beats, gone(9, 3), gone(7, 2), 2, 1), "the second answer may be on its way");
        assert!(lost(&beats, gone(9, 3), gone(8, 3), 2, 2), "a message");
        assert!(lost(&beats, gone(9, 3), gone(9, 2), 2, 2), "a lookup");
        assert!(!lost(&beats, gone(9, 3), gone(9, 3), 3, 2));
        assert!(lost(&beats, gone(9, 3), gone(9, 3), 3, 2), "an answer");
    }

    #[test]
    fn a_heartbeat_that_is_overtaken_is_not_waited_for() {
        let (beats, meters) = (Beats::default(), PeerMeters::new("b", false));
        let first = beats.send(Gone::default(), &meters).unwrap();
        std::thread::yield_now();
        let second = beats.send(Gone::default(), &meters).unwrap();
        assert!(first < second && beats.waiting().is_some());
        let told = Told { come: Gone::default(), answered: 0 };
        assert!(!beats.answered(second, told, 0, &meters));
        assert_eq!(beats.waiting(), None);
        assert!(!beats.answered(first, told, 0, &meters));
    }

    #[test]
    fn silence_ends_with_any_byte_and_does_not_count_while_this_host_stood_still() {
        let heartbeat = Duration::from_millis(100);
        let start = Instant::now();
        let mut silence = Silence { heard: 0, last_tick: start, silent: Duration::ZERO };
        let mut tick = |ms, heard| silence.tick(start + Duration::from_millis(ms), heard, heartbeat).as_millis();
        assert_eq!(tick(100, 0), 100);
        assert_eq!(tick(200, 0), 200);
        assert_eq!(tick(9_000, 0), 400);
        assert_eq!(tick(9_100, 1), 0);
        assert_eq!(tick(9_150, 1), 50);
    }
}
