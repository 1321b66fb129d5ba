//! A session: what two hosts have sent each other, numbered, so that everything arrives once and in order even when a connection breaks in between. Pure.
//!
//! Messages are numbered from 1. An [`Outbox`] keeps each until it is acknowledged; after a break it begins again behind the last that the peer says it has received. An [`Inbox`] drops what
//! has come before and refuses what leaves a gap. What belongs to an attempt that has not begun here is kept in it, and not acknowledged until it is handed over.

use std::collections::VecDeque;

use super::Acknowledged;
use super::message::Delivery;
use crate::epoch::Attempt;

/// The messages of one call, unless the first is larger.
const PUSH_BYTES: u64 = 64 << 10;
/// The most messages of one call.
pub(super) const PUSH_MESSAGES_MAX: usize = 256;
/// The bytes that may be sent without being acknowledged; more wait in the outbox.
const WINDOW_BYTES: u64 = 16 << 20;
/// The bytes that may wait for an attempt to begin: more than the window, and one message that is as large as one can be, behind it.
pub(super) const EARLY_BYTES_MAX: u64 = 72 << 20;
/// What is counted for a message besides what it says, so that a great many empty ones come to something.
const MESSAGE_BYTES: u64 = 256;

/// Something for the peer.
pub(super) enum Message {
    Control(Vec<u8>),
    Delivery(Attempt, Delivery),
    /// A delivery of an attempt that is over; it keeps its number.
    Void,
}

/// The bytes that are counted for a delivery.
pub(super) fn delivery_bytes(delivery: &Delivery) -> u64 {
    delivery.load.bytes() as u64 + MESSAGE_BYTES
}

/// The bytes that are counted for a control message.
pub(super) fn control_bytes(message: &[u8]) -> u64 {
    message.len() as u64 + MESSAGE_BYTES
}

struct Outgoing {
    message: Message,
    bytes: u64,
    acknowledged: Option<Acknowledged>,
}

/// What the peer has not acknowledged.
#[derive(Default)]
pub(super) struct Outbox {
    /// The number of the last message that is acknowledged.
    acknowledged: u64,
    waiting: VecDeque<Outgoing>,
    /// How many of those that wait have been sent on the present connection, or are known to have come before it.
    sent: usize,
    sent_bytes: u64,
    bytes: u64,
}

/// What a peer says that cannot be. Completes "the session ends: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Nonsense {
    #[error("it acknowledges message {through}, but only those from {from} to {to} are with it")]
    Acknowledged { through: u64, from: u64, to: u64 },
    #[error("it has sent something of attempt {attempt} after something of attempt {latest}")]
    Attempt { attempt: Attempt, latest: Attempt },
    #[error("it has sent more than {EARLY_BYTES_MAX} bytes of an attempt that has not begun here")]
    Early,
}

impl Outbox {
    pub(super) fn push(&mut self, message: Message, bytes: u64, acknowledged: Option<Acknowledged>) {
        self.bytes += bytes;
        self.waiting.push_back(Outgoing { message, bytes, acknowledged });
    }

    /// The bytes that are not acknowledged.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of the last message that was sent.
    pub(super) fn last_sent(&self) -> u64 {
        self.acknowledged + self.sent as u64
    }

    /// The next messages to be sent, with the number of the first, if there are any and the window allows it. They count as sent.
    pub(super) fn next(&mut self) -> Option<(u64, impl ExactSizeIterator<Item = &Message>)> {
        if self.sent == self.waiting.len() || self.sent_bytes >= WINDOW_BYTES {
            return None;
        }
        let start = self.sent;
        let mut bytes = 0;
        for outgoing in self.waiting.range(start..).take(PUSH_MESSAGES_MAX) {
            if bytes > 0 && bytes + outgoing.bytes > PUSH_BYTES {
                break;
            }
            bytes += outgoing.bytes;
            self.sent += 1;
            self.sent_bytes += outgoing.bytes;
        }
        let first = self.acknowledged + 1 + start as u64;
        Some((first, self.waiting.range(start..self.sent).map(|outgoing| &outgoing.message)))
    }

    /// The peer has handed over all messages up to number `through`: their bytes, and who wants to know it.
    pub(super) fn acknowledge(&mut self, through: u64) -> Result<(u64, Vec<Acknowledged>), Nonsense> {
        let to = self.last_sent();
        if through > to {
            return Err(Nonsense::Acknowledged { through, from: self.acknowledged, to });
        }
        // What is acknowledged already may be so again: answers overtake each other.
        let count = through.saturating_sub(self.acknowledged) as usize;
        let mut done = Vec::new();
        let mut bytes = 0;
        for outgoing in self.waiting.drain(..count) {
            bytes += outgoing.bytes;
            done.extend(outgoing.acknowledged);
        }
        self.acknowledged += count as u64;
        self.sent -= count;
        self.sent_bytes -= bytes;
        self.bytes -= bytes;
        Ok((bytes, done))
    }

    /// A new connection: everything behind number `received` is to be sent again.
    pub(super) fn rewind(&mut self, received: u64) -> Result<(), Nonsense> {
        let to = self.acknowledged + self.waiting.len() as u64;
        if received < self.acknowledged || received > to {
            return Err(Nonsense::Acknowledged { through: received, from: self.acknowledged, to });
        }
        self.sent = (received - self.acknowledged) as usize;
        self.sent_bytes = self.waiting.range(..self.sent).map(|outgoing| outgoing.bytes).sum();
        Ok(())
    }

    /// All attempts up to `over` are over: their deliveries are void. Returns their bytes.
    pub(super) fn void(&mut self, over: Attempt) -> u64 {
        let mut voided = 0;
        for (place, outgoing) in self.waiting.iter_mut().enumerate() {
            if matches!(outgoing.message, Message::Delivery(attempt, _) if attempt <= over) {
                outgoing.message = Message::Void;
                outgoing.acknowledged = None;
                voided += outgoing.bytes;
                if place < self.sent {
                    self.sent_bytes -= outgoing.bytes;
                }
                outgoing.bytes = 0;
            }
        }
        self.bytes -= voided;
        voided
    }
}

/// What is to be done with a message that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is the next.
    New,
    /// It has come before.
    Duplicate,
    /// One before it has not come.
    Gap {
        /// The number that should have come.
        expected: u64,
    },
}

/// What has come from the peer.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The number of the last message that has come.
    received: u64,
    /// The latest attempt that a delivery was of. Nothing of an earlier one comes behind it.
    attempt: Attempt,
    /// All of one attempt.
    early: VecDeque<Early>,
    early_bytes: u64,
}

/// A delivery of an attempt that has not begun.
#[derive(Debug)]
pub(super) struct Early {
    number: u64,
    pub(super) attempt: Attempt,
    pub(super) delivery: Delivery,
}

impl Inbox {
    /// What to do with message `number`. If it is new, it counts as received.
    pub(super) fn arrive(&mut self, number: u64) -> Arrival {
        let expected = self.received + 1;
        match number.cmp(&expected) {
            std::cmp::Ordering::Less => Arrival::Duplicate,
            std::cmp::Ordering::Greater => Arrival::Gap { expected },
            std::cmp::Ordering::Equal => {
                self.received = number;
                Arrival::New
            }
        }
    }

    /// The number of the last message that has come.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The number up to which everything is handed over.
    pub(super) fn handed_over(&self) -> u64 {
        self.early.front().map_or(self.received, |early| early.number - 1)
    }

    /// The message that has come last is a delivery of `attempt`. Where that is a later one than before, the peer has ended those before it, and what is kept of them is void.
    pub(super) fn belongs_to(&mut self, attempt: Attempt) -> Result<(), Nonsense> {
        if attempt < self.attempt {
            return Err(Nonsense::Attempt { attempt, latest: self.attempt });
        }
        if attempt > self.attempt {
            self.attempt = attempt;
            self.early.clear();
            self.early_bytes = 0;
        }
        Ok(())
    }

    /// The delivery that has come last is kept for later.
    pub(super) fn keep(&mut self, delivery: Delivery) -> Result<(), Nonsense> {
        self.early_bytes += delivery_bytes(&delivery);
        if self.early_bytes > EARLY_BYTES_MAX {
            return Err(Nonsense::Early);
        }
        self.early.push_back(Early { number: self.received, attempt: self.attempt, delivery });
        Ok(())
    }

    /// Whether something is kept.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The first that is kept, if it is of `attempt` or an earlier one.
    pub(super) fn take_early(&mut self, attempt: Attempt) -> Option<Early> {
        let early = self.early.pop_front_if(|early| early.attempt <= attempt)?;
        self.early_bytes -= delivery_bytes(&early.delivery);
        Some(early)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::cluster::link::message::{Load, PART_BYTES_MAX};
    use crate::record::Batch;

    fn delivery(text: &str) -> Delivery {
        let mut records = Batch::default();
        records.push(b"", text.as_bytes(), 0);
        Delivery { task: 0, load: Load::Records(records) }
    }

    fn text_of(message: &Message) -> String {
        match message {
            Message::Control(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Message::Delivery(_, Delivery { load: Load::Records(records), .. }) => {
                String::from_utf8(records.values.get(0).to_vec()).unwrap()
            }
            _ => "void".to_owned(),
        }
    }

    fn control(outbox: &mut Outbox, text: &str) {
        outbox.push(Message::Control(text.as_bytes().to_vec()), text.len() as u64, None);
    }

    fn sent(outbox: &mut Outbox) -> Option<(u64, Vec<String>)> {
        outbox.next().map(|(first, messages)| (first, messages.map(text_of).collect()))
    }

    #[test]
    fn what_is_not_received_is_sent_again_and_what_is_acknowledged_is_not() {
        let mut outbox = Outbox::default();
        for text in ["a", "b", "c"] {
            control(&mut outbox, text);
        }
        assert_eq!(sent(&mut outbox), Some((1, vec!["a".into(), "b".into(), "c".into()])));
        assert_eq!(sent(&mut outbox), None);
        assert_eq!(outbox.acknowledge(1).unwrap().0, 1);
        outbox.rewind(2).unwrap();
        assert_eq!(sent(&mut outbox), Some((3, vec!["c".into()])));
        control(&mut outbox, "d");
        assert_eq!(sent(&mut outbox), Some((4, vec!["d".into()])));
        assert_eq!(outbox.acknowledge(4).unwrap().0, 3);
        assert_eq!(outbox.acknowledge(2).unwrap().0, 0, "an answer that is overtaken says nothing new");
        assert!(outbox.is_empty() && outbox.bytes() == 0);
    }

    #[test]
    fn what_was_never_sent_cannot_be_acknowledged() {
        let mut outbox = Outbox::default();
        control(&mut outbox, "a");
        assert!(outbox.acknowledge(1).is_err());
        assert!(outbox.rewind(2).is_err());
        sent(&mut outbox);
        outbox.acknowledge(1).unwrap();
        assert!(outbox.rewind(0).is_err());
        assert!(outbox.acknowledge(u64::MAX).is_err());
    }

    #[test]
    fn the_window_holds_messages_back_until_others_are_acknowledged() {
        let mut outbox = Outbox::default();
        let large = (WINDOW_BYTES / 2) as usize;
        for _ in 0..3 {
            outbox.push(Message::Control(Vec::new()), large as u64, None);
        }
        assert_eq!([sent(&mut outbox).unwrap().0, sent(&mut outbox).unwrap().0], [1, 2]);
        assert_eq!(sent(&mut outbox), None);
        outbox.acknowledge(1).unwrap();
        assert_eq!(sent(&mut outbox).unwrap().0, 3);
    }

    #[test]
    fn void_deliveries_keep_their_numbers_and_are_never_acknowledged_to_who_sent_them() {
        let (mut outbox, called) = (Outbox::default(), Arc::new(AtomicU64::new(0)));
        for attempt in [1, 2] {
            let called = Arc::clone(&called);
            let acknowledged: Acknowledged = Box::new(move || _ = called.fetch_add(attempt, Ordering::Relaxed));
            outbox.push(Message::Delivery(attempt, delivery("x")), 10, Some(acknowledged));
        }
        assert_eq!(outbox.void(1), 10);
        assert_eq!(sent(&mut outbox), Some((1, vec!["void".into(), "x".into()])));
        let (bytes, done) = outbox.acknowledge(2).unwrap();
        done.into_iter().for_each(|done| done());
        assert_eq!((bytes, called.load(Ordering::Relaxed)), (10, 2));
    }

    #[test]
    fn early_deliveries_are_received_but_not_handed_over() {
        let mut inbox = Inbox::default();
        for number in 1..=4 {
            assert_eq!(inbox.arrive(number), Arrival::New);
            if number == 2 || number == 3 {
                inbox.belongs_to(5).unwrap();
                inbox.keep(delivery("x")).unwrap();
            }
        }
        assert_eq!((inbox.received(), inbox.handed_over()), (4, 1));
        assert!(inbox.take_early(4).is_none());
        assert!(inbox.take_early(5).is_some());
        assert_eq!(inbox.handed_over(), 2);
        assert!(inbox.take_early(6).is_some());
        assert_eq!(inbox.handed_over(), 4);
        assert_eq!(inbox.arrive(4), Arrival::Duplicate);
        assert_eq!(inbox.arrive(6), Arrival::Gap { expected: 5 });
        assert_eq!(inbox.received(), 4);
    }

    #[test]
    fn what_is_kept_of_an_attempt_is_dropped_when_a_later_one_comes_and_nothing_of_it_may_come_behind() {
        let mut inbox = Inbox::default();
        for (number, attempt) in [(1, 5), (2, 5), (3, 6)] {
            assert_eq!(inbox.arrive(number), Arrival::New);
            inbox.belongs_to(attempt).unwrap();
            inbox.keep(delivery("x")).unwrap();
        }
        assert_eq!((inbox.handed_over(), inbox.early_bytes), (2, delivery_bytes(&delivery("x"))));
        assert_eq!(inbox.take_early(6).map(|early| early.attempt), Some(6));
        assert_eq!(inbox.belongs_to(5), Err(Nonsense::Attempt { attempt: 5, latest: 6 }));
    }

    #[test]
    fn what_waits_for_its_attempt_is_bounded_however_little_there_is_in_it() {
        let mut inbox = Inbox::default();
        let kept = (1..=u64::MAX).take_while(|&number| {
            assert_eq!(inbox.arrive(number), Arrival::New);
            inbox.keep(Delivery { task: 0, load: Load::Records(Batch::default()) }).is_ok()
        });
        assert_eq!(kept.count() as u64, EARLY_BYTES_MAX / MESSAGE_BYTES);
    }

    #[test]
    fn a_peer_that_keeps_to_the_window_is_never_too_early() {
        let mut outbox = Outbox::default();
        let largest = PART_BYTES_MAX as u64 + MESSAGE_BYTES;
        for bytes in [WINDOW_BYTES - 1, largest, 1] {
            outbox.push(Message::Control(Vec::new()), bytes, None);
        }
        while outbox.next().is_some() {}
        assert!(outbox.sent_bytes > WINDOW_BYTES && outbox.sent_bytes <= EARLY_BYTES_MAX);
        assert_eq!(outbox.sent, 2);
    }

    /// What chance does to a session between two hosts.
    #[derive(Debug, Clone)]
    enum Step {
        Send,
        Push,
        /// A push arrives, maybe again.
        Arrive {
            again: bool,
        },
        Acknowledge,
        /// The connection breaks and returns: what is under way is gone.
        Break,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Send),
            Just(Step::Push),
            any::<bool>().prop_map(|again| Step::Arrive { again }),
            Just(Step::Acknowledge),
            Just(Step::Break)
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order_whatever_breaks(steps in steps()) {
            let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
            let (mut count, mut arrived) = (0, Vec::new());
            let mut under_way: VecDeque<(u64, Vec<String>)> = VecDeque::new();
            let mut take = |inbox: &mut Inbox, (first, texts): (u64, Vec<String>)| {
                for (number, text) in (first..).zip(texts) {
                    match inbox.arrive(number) {
                        Arrival::New => arrived.push(text),
                        Arrival::Duplicate => {}
                        Arrival::Gap { expected } => panic!("{number} instead of {expected}"),
                    }
                }
            };
            for step in steps.into_iter().chain([Step::Break]) {
                match step {
                    Step::Send => {
                        control(&mut outbox, &count.to_string());
                        count += 1;
                    }
                    Step::Push => under_way.extend(sent(&mut outbox)),
                    Step::Arrive { again } => {
                        if let Some(push) = under_way.pop_front() {
                            take(&mut inbox, push.clone());
                            if again {
                                take(&mut inbox, push);
                            }
                        }
                    }
                    Step::Acknowledge => _ = outbox.acknowledge(inbox.handed_over()).unwrap(),
                    Step::Break => {
                        under_way.clear();
                        outbox.rewind(inbox.received()).unwrap();
                    }
                }
            }
            while let Some(push) = sent(&mut outbox) {
                take(&mut inbox, push);
            }
            outbox.acknowledge(inbox.handed_over()).unwrap();
            prop_assert!(outbox.is_empty());
            prop_assert_eq!(arrived, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
        }
    }
}
