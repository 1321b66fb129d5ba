//! What a peer may ask of this host: the methods of `Peer`.
//!
//! Whoever asks for what cannot be is not argued with: the session ends with the reason.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use capnp::Error;

use super::attempt::Timing;
use super::generated::peer_capnp::peer::{
    BeatParams, BeatResults, GetParams, GetResults, LeaveParams, LeaveResults, PushParams, PushResults, ScanParams,
    ScanResults, Server,
};
use super::lookups::{ANSWER_BYTES_MAX, Get, KEY_BYTES_MAX, KEYS_MAX, Read, Refusal, RefusalKind, Scan, State};
use super::peer::Peer;
use super::session::PUSH_MESSAGES_MAX;
use super::wire::{self, NoAnswer};
use crate::epoch::Attempt;
use crate::lookup::Page;
use crate::record::Column;

/// The lookups of a peer that may be under way.
const UNDER_WAY_MAX: usize = 64;
/// The bytes of keys of those that may wait: for an attempt to begin, or for a page to be read.
const WAITING_KEY_BYTES_MAX: usize = 16 << 20;
/// The most bytes of a page that travels.
const PAGE_BYTES_MAX: usize = 48 << 20;
/// The most bytes of a reason that are shown.
const REASON_BYTES_MAX: usize = 4096;

/// This host, as a peer sees it over one connection.
pub(super) struct Served {
    peer: Rc<Peer>,
    /// The connection's number.
    connection: Rc<Cell<u64>>,
    under_way: Rc<Cell<usize>>,
    waiting_bytes: Rc<Cell<usize>>,
    /// The lookups that have come over this connection, and those that were answered.
    asked: Cell<u64>,
    answered: Cell<u64>,
}

/// A number that is raised for as long as this lives.
struct Raised {
    count: Rc<Cell<usize>>,
    by: usize,
}

impl Raised {
    fn new(count: &Rc<Cell<usize>>, by: usize, max: usize) -> Option<Self> {
        let raised = count.get().checked_add(by).filter(|&raised| raised <= max)?;
        count.set(raised);
        Some(Self { count: Rc::clone(count), by })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.count.set(self.count.get() - self.by);
    }
}

impl Served {
    pub(super) fn new(peer: Rc<Peer>, connection: Rc<Cell<u64>>) -> Self {
        Self {
            peer,
            connection,
            under_way: Rc::default(),
            waiting_bytes: Rc::default(),
            asked: Cell::new(0),
            answered: Cell::new(0),
        }
    }

    /// Ends the session for what the peer has said.
    fn nonsense(&self, reason: impl std::fmt::Display) -> Error {
        let reason = format!("what it says makes no sense: {reason}");
        if self.peer.is_connected_by(self.connection.get()) {
            self.peer.end_session(&reason, true);
        }
        Error::failed(reason)
    }

    /// Waits until an attempt runs, and does `act` then. `None` when it is over.
    async fn in_attempt<T>(&self, key_bytes: usize, mut act: impl FnMut() -> Timing<T>) -> Result<Option<T>, Error> {
        let mut waiting = None;
        loop {
            let changed = self.peer.changed.notified();
            match act() {
                Timing::Present(done) => return Ok(Some(done)),
                Timing::Stale => return Ok(None),
                Timing::Early => {
                    if waiting.is_none() {
                        waiting = Some(self.wait_with(key_bytes)?);
                    }
                    changed.await;
                }
            }
        }
    }

    fn wait_with(&self, key_bytes: usize) -> Result<Raised, Error> {
        let raised = Raised::new(&self.waiting_bytes, key_bytes, WAITING_KEY_BYTES_MAX);
        let reason = "its lookups that wait have more than";
        raised.ok_or_else(|| self.nonsense(format_args!("{reason} {WAITING_KEY_BYTES_MAX} bytes of keys")))
    }

    fn place(&self) -> Result<Raised, Error> {
        let place = Raised::new(&self.under_way, 1, UNDER_WAY_MAX);
        place.ok_or_else(|| self.nonsense(format_args!("it has more than {UNDER_WAY_MAX} lookups under way")))
    }
}

impl Server for Served {
    async fn push(self: Rc<Self>, params: PushParams, mut results: PushResults) -> Result<(), Error> {
        let told = params.get()?;
        let (first, messages) = (told.get_first(), told.get_messages().map_err(|error| self.nonsense(error))?);
        if messages.len() as usize > PUSH_MESSAGES_MAX || first.checked_add(u64::from(messages.len())).is_none() {
            return Err(self.nonsense(format_args!("{} messages from number {first} in one call", messages.len())));
        }
        let received = &self.peer.meters.received;
        received.batches.add(1);
        received.messages.add(u64::from(messages.len()));
        for (number, message) in (first..).zip(messages.iter()) {
            let message = wire::read_message(message).map_err(|error| self.nonsense(error))?;
            self.peer.take(self.connection.get(), number, message).map_err(|reason| {
                self.peer.detach(Some(self.connection.get()));
                Error::failed(reason)
            })?;
        }
        results.get().set_through(self.peer.handed_over());
        Ok(())
    }

    async fn beat(self: Rc<Self>, _: BeatParams, mut results: BeatResults) -> Result<(), Error> {
        if !self.peer.is_connected_by(self.connection.get()) {
            return Err(Error::failed("the connection is over".to_owned()));
        }
        let mut told = results.get();
        told.set_through(self.peer.handed_over());
        told.set_received(self.peer.ready().received);
        told.set_asked(self.asked.get());
        told.set_answered(self.answered.get());
        Ok(())
    }

    async fn get(self: Rc<Self>, params: GetParams, mut results: GetResults) -> Result<(), Error> {
        self.asked.set(self.asked.get() + 1);
        let _place = self.place()?;
        let (attempt, get) = read_get(&params).map_err(|error| self.nonsense(error))?;
        drop(params);
        self.peer.meters.lookups_served.add(1);
        let mut answer = Answer::default();
        let act = || {
            self.peer.shared.attempts.with(attempt, |present| {
                answer = Answer::new(get.keys.len());
                present.lookups.get(self.peer.id, &get, &mut |index, value| answer.found(index, value))
            })
        };
        let served = self.in_attempt(get.keys.bytes().len(), act).await?;
        let mut told = results.get().init_answer();
        match served {
            Some(Ok(())) => {
                let (items, states) = answer.finish();
                wire::write_values(told.init_values(), &items, &states)?;
            }
            Some(Err(refusal)) => wire::write_refusal(told.reborrow().init_refused(), &NoAnswer::Refused(refusal)),
            None => wire::write_refusal(told.reborrow().init_refused(), &NoAnswer::Stale),
        }
        self.answered.set(self.answered.get() + 1);
        Ok(())
    }

    async fn scan(self: Rc<Self>, params: ScanParams, mut results: ScanResults) -> Result<(), Error> {
        self.asked.set(self.asked.get() + 1);
        let _place = self.place()?;
        let (attempt, scan) = read_scan(&params).map_err(|error| self.nonsense(error))?;
        drop(params);
        self.peer.meters.lookups_served.add(1);
        let _waiting = self.wait_with(scan.from.len() + scan.to.as_ref().map_or(0, Vec::len))?;
        let attempts = Arc::clone(&self.peer.shared.attempts);
        self.in_attempt(0, || attempts.with(attempt, |_| ())).await?;
        // The turn goes with the reading: who no longer waits for a page has not made room for another while it is still read.
        let turn = Arc::clone(&self.peer.shared.scans).acquire_owned().await.expect("the semaphore is never closed");
        let from = self.peer.id;
        // A page may take a while to be read from disk: others are served meanwhile.
        let scanned = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            attempts.with(attempt, |present| present.lookups.scan(from, &scan))
        });
        let scanned = match scanned.await {
            Ok(Timing::Present(Ok(page))) if page_bytes(&page) > PAGE_BYTES_MAX => Err(failed(format!(
                "a page of {} bytes is too large to travel: ask for fewer keys at a time",
                page_bytes(&page)
            ))),
            Ok(Timing::Present(scanned)) => scanned.map_err(NoAnswer::Refused),
            Ok(Timing::Early | Timing::Stale) => Err(NoAnswer::Stale),
            Err(_) => Err(failed("a defect of wasmill in the reading of a page".to_owned())),
        };
        let mut told = results.get().init_answer();
        match scanned {
            Ok(page) => wire::write_page(told.init_page(), &page)?,
            Err(why) => wire::write_refusal(told.reborrow().init_refused(), &why),
        }
        self.answered.set(self.answered.get() + 1);
        Ok(())
    }

    async fn leave(self: Rc<Self>, params: LeaveParams, _: LeaveResults) -> Result<(), Error> {
        let reason = params.get()?.get_reason()?.to_str()?;
        let shown: String = reason.chars().filter(|char| !char.is_control()).take(REASON_BYTES_MAX).collect();
        if self.peer.is_connected_by(self.connection.get()) {
            self.peer.end_session(&format!("it has ended the session: {shown}"), false);
        }
        Ok(())
    }
}

fn failed(text: String) -> NoAnswer {
    NoAnswer::Refused(Refusal { kind: RefusalKind::Failed, text })
}

fn page_bytes(page: &Page) -> usize {
    let next = page.next.as_ref().map_or(0, Vec::len);
    page.keys.bytes().len() + page.values.bytes().len() + page.keys.len() * 2 * size_of::<u32>() + next
}

fn read_get(params: &GetParams) -> Result<(Attempt, Get), Error> {
    let told = params.get()?;
    let (keys, read) = (told.get_keys()?, wire::read_read(told.get_read()?)?);
    let (count, bytes) = (keys.get_ends()?.len() as usize, keys.get_bytes()?.len());
    if count > KEYS_MAX || bytes > KEY_BYTES_MAX {
        return Err(Error::failed(format!("a lookup of {count} keys of {bytes} bytes")));
    }
    let keys = wire::read_column(keys)?;
    if let Read::AsOfTimes(times) = &read
        && times.len() != keys.len()
    {
        return Err(Error::failed(format!("a lookup of {count} keys as of {} times", times.len())));
    }
    Ok((told.get_attempt(), Get { table: wire::table_of(told.get_table()), keys, read }))
}

fn read_scan(params: &ScanParams) -> Result<(Attempt, Scan), Error> {
    let told = params.get()?;
    let Read::At(consistency) = wire::read_read(told.get_read()?)? else {
        return Err(Error::failed("a scan as of event times".to_owned()));
    };
    let (from, to) = (told.get_from()?.to_vec(), wire::read_bound(told.get_to()?)?);
    let bytes = from.len() + to.as_ref().map_or(0, Vec::len);
    if bytes > KEY_BYTES_MAX {
        return Err(Error::failed(format!("a scan between keys of {bytes} bytes")));
    }
    let table = wire::table_of(told.get_table());
    Ok((told.get_attempt(), Scan { table, from, to, limit: told.get_limit(), consistency }))
}

/// The values of a lookup as they are found, in whatever order.
#[derive(Default)]
struct Answer {
    bytes: Vec<u8>,
    /// Of each key, and where its value ends and begins in `bytes`.
    found: Vec<(State, usize, usize)>,
    /// Whether they have been found in the order of the keys, so far up to this one.
    next: usize,
    is_in_order: bool,
}

impl Answer {
    fn new(keys: usize) -> Self {
        Self { bytes: Vec::new(), found: vec![(State::Absent, 0, 0); keys], next: 0, is_in_order: true }
    }

    fn found(&mut self, index: usize, value: Option<&[u8]>) {
        self.is_in_order &= index >= self.next;
        self.next = index + 1;
        let (Some(place), Some(value)) = (self.found.get_mut(index), value) else { return };
        let start = self.bytes.len();
        let state = match (value.len(), start + value.len()) {
            (length, _) if length > ANSWER_BYTES_MAX => State::TooLarge,
            (_, end) if end > ANSWER_BYTES_MAX => State::AskAgain,
            _ => State::Present,
        };
        if state == State::Present {
            self.bytes.extend_from_slice(value);
        }
        *place = (state, start, self.bytes.len());
    }

    fn finish(self) -> (Column, Vec<State>) {
        let states = self.found.iter().map(|(state, _, _)| *state).collect();
        if self.is_in_order {
            let ends = self.found.iter().scan(0, |end, (_, _, own)| {
                *end = (*own).max(*end);
                Some(*end as u32)
            });
            let ends = ends.collect();
            let items = Column::from_parts(self.bytes, ends).expect("values found in order end in order");
            return (items, states);
        }
        let mut items = Column::with_capacity(self.found.len(), self.bytes.len());
        for (_, start, end) in &self.found {
            items.push(&self.bytes[*start..*end]);
        }
        (items, states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::link::lookups::{Found, Values};

    fn check(found: &[(usize, Option<&[u8]>)], expected: &[Found<'_>]) {
        let mut answer = Answer::new(expected.len());
        for (index, value) in found {
            answer.found(*index, *value);
        }
        let (items, states) = answer.finish();
        assert_eq!(Values::new(items, states).iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn values_come_back_in_the_order_of_the_keys_whatever_order_they_are_found_in() {
        let (a, b) = (&b"a"[..], &b"bb"[..]);
        let expected = [Found::Present(a), Found::Absent, Found::Present(b), Found::Absent];
        check(&[(0, Some(a)), (1, None), (2, Some(b)), (3, None)], &expected);
        check(&[(2, Some(b)), (3, None), (0, Some(a)), (1, None)], &expected);
        check(&[(0, Some(a)), (2, Some(b))], &expected);
        check(&[(2, Some(b)), (0, Some(a))], &expected);
        check(&[(7, Some(a))], &[Found::Absent]);
    }

    #[test]
    fn a_full_answer_leaves_values_out_and_one_too_large_is_alone_in_that() {
        let (half, huge) = (vec![1; ANSWER_BYTES_MAX / 2 + 1], vec![2; ANSWER_BYTES_MAX + 1]);
        check(
            &[(0, Some(&huge)), (1, Some(&half)), (2, Some(&half)), (3, Some(b"x"))],
            &[Found::TooLarge, Found::Present(&half), Found::AskAgain, Found::Present(b"x")],
        );
    }
}
