//! What is in flight: bounded by credit at the sources, counted so that a drain knows when nothing is left.
//!
//! Every batch is counted before it is put into a mailbox, and taken off only after its effects have been put where they go.
//! So a count of zero, with admission closed, means that every admitted record is processed with all that it caused.
//!
//! What came by a loop (a feedback edge, a `send`, an outcome) is not begun while admission is closed, else a loop that never ends would never let an
//! epoch seal. It is *carried over*: counted apart, kept by its task, part of the epoch, and begun when admission opens again. So are records that have to wait until an
//! operator has come to a time, with what comes behind them to the same task.
//!
//! What is carried over takes no credit either: what goes round may wait for input that has not been read yet, and so may what waits for progress. Where loops have more under
//! way than the credit, input is only slowed down.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// The least credit, in records, however long drains take.
const CREDIT_RECORDS_MIN: u64 = 16;
/// The most credit, in records.
const CREDIT_RECORDS_MAX: u64 = 131_072;
/// The credit at the start, in records, while nothing is known yet.
const CREDIT_RECORDS_START: u64 = 1_024;
/// The most credit before the first drain, in records.
const CREDIT_RECORDS_SETTLED_MAX: u64 = 4_096;
/// The most records of a read.
const READ_RECORDS_MAX: u64 = 1_024;
/// The most bytes in flight at which a source still admits.
const CREDIT_BYTES: u64 = 64 << 20;
/// When this many bytes more have to wait than at the last seal, the next comes early: some of them may go on then.
const WAITING_BYTES_EARLY: u64 = 32 << 20;
/// While this many bytes are carried over, sources that others need not have wait.
const CARRIED_BYTES_CROWDED: u64 = 64 << 20;
/// As long as loops have more under way than the credit, sources admit one read in this time.
const LOOP_PACE: Duration = Duration::from_millis(5);
/// How long a job works before its credit is held against what it gets done.
const SETTLE_AFTER: Duration = Duration::from_millis(100);
/// A host asks others to wait when it has so many times its credit in flight.
const PRESSED_FACTOR: u64 = 2;
/// What a drain should take.
const DRAIN_TARGET_MS: f64 = 3.0;

/// Credit and the count of what is in flight, shared by all threads of a job.
#[derive(Debug, Default)]
pub struct Flow {
    state: Mutex<State>,
    /// Wakes source threads.
    admission: Condvar,
    /// Wakes the coordinator when nothing is in flight.
    drained: Notify,
    /// Whether a clean stop is under way.
    hastened: AtomicBool,
    /// Whether all input has ended.
    input_ended: AtomicBool,
}

/// How something came to be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From a source, as directly as the graph has it.
    Ahead,
    /// By a feedback edge, a `send` or as an outcome.
    Loop,
}

/// Some of what is in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    records: u64,
    bytes: u64,
}

impl Load {
    fn fits(self, credit_records: u64) -> bool {
        self.records < credit_records && self.bytes < CREDIT_BYTES
    }
}

#[derive(Debug)]
struct State {
    ahead: Load,
    looped: Load,
    /// The most bytes in flight, but for loops, since the credit was last adapted.
    peak_bytes: u64,
    batches: u64,
    credit_records: u64,
    open: bool,
    stopped: bool,
    /// Source threads wait in line, so that no split starves another.
    next_ticket: u64,
    served: u64,
    waiting: u64,
    /// When something was last admitted.
    last_admission: Option<Instant>,
    /// Batches admitted or enqueued since the job started.
    moved: u64,
    /// Records worked off since the job started.
    done_records: u64,
    /// Since when the credit is judged by: the first admission, or the last drain.
    judged_since: Option<Instant>,
    /// What [`State::done_records`] was then.
    done_before: u64,
    /// Whether the credit is not to change any more before the first drain.
    is_settled: bool,
    /// What waits for admission to open, in batches and bytes.
    carried: u64,
    carried_bytes: u64,
    /// The bytes that have been found to have to wait since admission was opened.
    waiting_bytes: u64,
    /// Other hosts that have too much to do already.
    pressed: BTreeSet<u16>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            ahead: Load::default(),
            looped: Load::default(),
            peak_bytes: 0,
            batches: 0,
            credit_records: CREDIT_RECORDS_START,
            open: false,
            stopped: false,
            next_ticket: 0,
            served: 0,
            waiting: 0,
            last_admission: None,
            moved: 0,
            done_records: 0,
            judged_since: None,
            done_before: 0,
            is_settled: false,
            carried: 0,
            carried_bytes: 0,
            waiting_bytes: 0,
            pressed: BTreeSet::new(),
        }
    }
}

/// Whether a source may admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Now,
    /// At that time, unless loops have less under way before.
    At(Instant),
    /// Not before something changes.
    Later,
}

impl State {
    /// Whether the source that holds `ticket` may admit.
    fn turn(&self, ticket: u64) -> Turn {
        if self.served != ticket || !self.open || !self.pressed.is_empty() || !self.ahead.fits(self.credit_records) {
            return Turn::Later;
        }
        let due = self.last_admission.map(|last| last + LOOP_PACE);
        match due.filter(|_| !self.looped.fits(self.credit_records)) {
            Some(due) if Instant::now() < due => Turn::At(due),
            _ => Turn::Now,
        }
    }

    fn load(&mut self, way: Way) -> &mut Load {
        match way {
            Way::Ahead => &mut self.ahead,
            Way::Loop => &mut self.looped,
        }
    }

    fn enqueue(&mut self, way: Way, records: u64, bytes: u64) {
        let load = self.load(way);
        load.records += records;
        load.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.ahead.bytes);
        self.batches += 1;
        self.moved += 1;
    }
}

/// Something in flight; dropping it takes it off the count.
#[derive(Debug)]
pub struct InFlight<'a> {
    flow: &'a Flow,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.flow.remove(Way::Ahead, 0, 0);
    }
}

impl Flow {
    /// Waits until a source may put `records` more into the stream, and counts them as admitted. The returned guard holds the drain
    /// back until the source has enqueued them and moved its position on. `None` when the job is stopping.
    pub fn admit(&self, records: u64) -> Option<InFlight<'_>> {
        let mut state = self.state.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting += 1;
        while !state.stopped {
            match state.turn(ticket) {
                Turn::Now => break,
                Turn::At(due) => _ = self.admission.wait_until(&mut state, due),
                Turn::Later => self.admission.wait(&mut state),
            }
        }
        state.waiting -= 1;
        state.served += 1;
        if state.waiting > 0 {
            self.admission.notify_all();
        }
        if state.stopped {
            return None;
        }
        let now = Instant::now();
        state.last_admission = Some(now);
        state.judged_since.get_or_insert(now);
        state.moved += u64::from(records > 0);
        state.batches += 1;
        Some(InFlight { flow: self })
    }

    /// Whether [`Flow::admit`] would return at once, if nobody waits in it.
    #[cfg(test)]
    pub fn would_admit(&self) -> bool {
        let state = self.state.lock();
        state.turn(state.next_ticket) == Turn::Now
    }

    /// Counts a batch that is about to be enqueued.
    pub fn add(&self, way: Way, records: u64, bytes: u64) {
        self.state.lock().enqueue(way, records, bytes);
    }

    /// Takes a batch off the count that [`Flow::add`] has put there, once its effects are enqueued.
    pub fn remove(&self, way: Way, records: u64, bytes: u64) {
        let mut state = self.state.lock();
        let load = state.load(way);
        load.records -= records;
        load.bytes -= bytes;
        state.batches -= 1;
        if way == Way::Ahead {
            state.done_records += records;
        }
        // Waking a thread costs more than a small read: sources are woken for several at once.
        if state.waiting > 0 && state.open && state.ahead.fits((state.credit_records * 3).div_ceil(4)) {
            self.admission.notify_all();
        }
        if state.batches == 0 {
            self.drained.notify_one();
        }
    }

    /// Whether a batch in flight that came by a loop may be begun now. If not it is carried over from here on, off the count of what is in flight. `is_behind`
    /// says whether its task carries something over already: admission may open between two looks at it, and nothing may overtake what came first.
    pub fn begin_looped(&self, records: u64, bytes: u64, is_behind: bool) -> bool {
        let mut state = self.state.lock();
        if state.open && !is_behind {
            return true;
        }
        state.carried += 1;
        state.carried_bytes += bytes;
        drop(state);
        self.remove(Way::Loop, records, bytes);
        false
    }

    /// Records of `bytes` bytes that are in flight are carried over, or join a batch that is: they have to wait for progress. Whoever calls this takes what they came with off the
    /// count of what is in flight, afterwards.
    pub fn carry(&self, bytes: u64, joins: bool) {
        let mut state = self.state.lock();
        state.carried += u64::from(!joins);
        state.carried_bytes += bytes;
        state.waiting_bytes += bytes;
    }

    /// As [`Flow::carry`], for what was carried over and has been begun in vain. Where that is `all` of a batch, nothing has moved.
    pub fn carry_again(&self, bytes: u64, all: bool) {
        let mut state = self.state.lock();
        state.carried += 1;
        state.carried_bytes += bytes;
        state.moved -= u64::from(all);
    }

    /// Whether so much has come to wait that an epoch should be sealed early.
    pub fn wants_seal(&self) -> bool {
        self.state.lock().waiting_bytes >= WAITING_BYTES_EARLY
    }

    /// Whether so much is carried over that sources should wait, if nobody needs them to go on.
    pub fn is_crowded(&self) -> bool {
        self.state.lock().carried_bytes >= CARRIED_BYTES_CROWDED
    }

    /// Whether a batch that is carried over may be begun now. If so it is in flight from here on.
    pub fn begin_carried(&self, records: u64, bytes: u64) -> bool {
        let mut state = self.state.lock();
        if !state.open {
            return false;
        }
        state.carried -= 1;
        state.carried_bytes -= bytes;
        state.enqueue(Way::Loop, records, bytes);
        true
    }

    /// How many batches are carried over, and their bytes.
    pub fn carried(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.carried, state.carried_bytes)
    }

    /// The bytes of what came by loops, or waits for progress: in flight or carried over.
    pub fn looped_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.looped.bytes + state.carried_bytes
    }

    /// Whether no batch is in flight beside `own`: then nothing can come for which waiting would make sense.
    pub fn is_alone(&self, own: usize) -> bool {
        self.state.lock().batches <= own as u64
    }

    /// Closes admission.
    pub fn close(&self) {
        self.state.lock().open = false;
    }

    /// Opens admission.
    pub fn open(&self) {
        let mut state = self.state.lock();
        (state.open, state.waiting_bytes) = (true, 0);
        drop(state);
        self.admission.notify_all();
    }

    /// Whether admission is open.
    pub fn is_open(&self) -> bool {
        self.state.lock().open
    }

    /// A clean stop is under way: nothing should be tried again that is likely to take long and to fail.
    pub fn hasten(&self) {
        self.hastened.store(true, Ordering::Relaxed);
    }

    /// Whether [`Flow::hasten`] was called.
    pub fn is_hastened(&self) -> bool {
        self.hastened.load(Ordering::Relaxed)
    }

    /// Ends all waiting: every source is told to stop.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.admission.notify_all();
    }

    /// Whether [`Flow::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// All input has ended: nothing more comes than what is under way causes.
    pub fn end_input(&self) {
        self.input_ended.store(true, Ordering::Relaxed);
    }

    /// Whether [`Flow::end_input`] was called.
    pub fn has_input_ended(&self) -> bool {
        self.input_ended.load(Ordering::Relaxed)
    }

    /// Waits until nothing is in flight or carried over.
    pub async fn done(&self) {
        // Looked at as one: what is carried over is in flight the moment that it is begun.
        self.wait_until(|state| state.batches == 0 && state.carried == 0).await;
    }

    /// Waits until nothing is in flight. Meaningful only while admission is closed, or when the input has ended.
    pub async fn drained(&self) {
        self.wait_until(|state| state.batches == 0).await;
    }

    async fn wait_until(&self, is_so: impl Fn(&State) -> bool) {
        loop {
            let notified = self.drained.notified();
            if is_so(&self.state.lock()) {
                return;
            }
            notified.await;
        }
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.state.lock().batches == 0
    }

    /// Whether nothing is in flight, [`Flow::moved`], and whether something is carried over: of one moment.
    pub fn standing(&self) -> (bool, u64, bool) {
        let state = self.state.lock();
        (state.batches == 0, state.moved, state.carried > 0)
    }

    /// Whether so much more than the credit is in flight that other hosts have to wait with sending more; `was` says whether they do already.
    pub fn is_pressed(&self, was: bool) -> bool {
        let state = self.state.lock();
        let factor = if was { 1 } else { PRESSED_FACTOR };
        state.ahead.records > factor * state.credit_records || state.ahead.bytes > factor * CREDIT_BYTES
    }

    /// Another host, with this number, has too much to do already, or no longer: as long as one has, sources wait.
    pub fn press(&self, host: u16, is_pressed: bool) {
        let mut state = self.state.lock();
        if is_pressed {
            state.pressed.insert(host)
        } else {
            state.pressed.remove(&host)
        };
        self.admission.notify_all();
    }

    /// A number that grows whenever something is admitted or enqueued.
    pub fn moved(&self) -> u64 {
        self.state.lock().moved
    }

    /// How many records a source should read at once: fewer where functions are slow, since what is read is admitted as a whole.
    pub fn read_records(&self) -> usize {
        (self.state.lock().credit_records / 2).clamp(1, READ_RECORDS_MAX) as usize
    }

    /// To be called now and then: before the first drain, sets the credit to what is worked off within a drain's target. Else that drain would take long in a job with slow
    /// functions, and the first seconds in a job with quick ones.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let Some(since) = state.judged_since.filter(|_| !state.is_settled) else { return };
        let running = since.elapsed();
        state.is_settled = running >= SETTLE_AFTER;
        let pace = worked_off_in_a_drain(state.done_records, running);
        state.credit_records = first_credit(state.credit_records, pace, state.is_settled);
        self.admission.notify_all();
    }

    /// Adapts the credit to how long a drain took, to what has been worked off since the last one, and to the most bytes that were in flight.
    pub fn learn(&self, drained: Duration) {
        let mut state = self.state.lock();
        let pace = state
            .judged_since
            .map_or(0.0, |since| worked_off_in_a_drain(state.done_records - state.done_before, since.elapsed()));
        (state.judged_since, state.done_before, state.is_settled) = (Some(Instant::now()), state.done_records, true);
        let peak = state.peak_bytes;
        state.peak_bytes = state.ahead.bytes;
        let drain_ms = drained.as_secs_f64() * 1_000.0;
        state.credit_records = next_credit(state.credit_records, drain_ms, pace, peak);
        self.admission.notify_all();
    }
}

/// What is worked off within a drain's target where `done` records are within `time`.
fn worked_off_in_a_drain(done: u64, time: Duration) -> f64 {
    done as f64 * DRAIN_TARGET_MS / 1_000.0 / time.as_secs_f64().max(0.001)
}

/// The credit before the first drain, where `pace` records are worked off in the time that a drain should take. Too short a time to judge by only raises it.
fn first_credit(credit: u64, pace: f64, is_enough: bool) -> u64 {
    let least = if is_enough { CREDIT_RECORDS_MIN } else { credit };
    (pace as u64).clamp(least, CREDIT_RECORDS_SETTLED_MAX.max(least))
}

/// The credit after a drain of `drain_ms` under `credit` records that, with what operators made of them, took `peak_bytes` at most. Since the drain before, `pace` records were worked
/// off in each time that a drain should take: a drain that took long for another reason than too many records, as when the machine was busy, does not bring the credit far below.
fn next_credit(credit: u64, drain_ms: f64, pace: f64, peak_bytes: u64) -> u64 {
    let factor = (DRAIN_TARGET_MS / drain_ms.max(0.01)).clamp(0.25, 1.25);
    let least = CREDIT_RECORDS_MIN.max((pace / 2.0) as u64).min(credit);
    let by_time = ((credit as f64 * factor).ceil() as u64).clamp(least, CREDIT_RECORDS_MAX);
    match peak_bytes {
        0..=CREDIT_BYTES => by_time,
        // Operators emit more than they get: fewer records may be under way, down to one at a time.
        _ => by_time.min((credit as f64 * CREDIT_BYTES as f64 / peak_bytes as f64) as u64).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_falls_fast_rises_slowly_and_stays_in_its_bounds() {
        assert_eq!(next_credit(8_000, 10.0 * DRAIN_TARGET_MS, 0.0, 0), 2_000);
        assert_eq!(next_credit(8_000, DRAIN_TARGET_MS, 0.0, 0), 8_000);
        assert_eq!(next_credit(8_000, 0.1, 0.0, 0), 10_000);
        assert_eq!(next_credit(CREDIT_RECORDS_MIN, 1e9, 0.0, 0), CREDIT_RECORDS_MIN);
        assert_eq!(next_credit(CREDIT_RECORDS_MAX, 0.0, 0.0, 0), CREDIT_RECORDS_MAX);
        assert_eq!(next_credit(8_000, DRAIN_TARGET_MS, 0.0, 4 * CREDIT_BYTES), 2_000);
        assert_eq!(next_credit(2, DRAIN_TARGET_MS, 0.0, 100 * CREDIT_BYTES), 1);
        assert_eq!(next_credit(1, 0.1, 0.0, 0), 2);
    }

    #[test]
    fn a_drain_that_took_long_for_another_reason_leaves_credit_for_what_is_worked_off() {
        assert_eq!(next_credit(8_000, 10.0 * DRAIN_TARGET_MS, 7_000.0, 0), 3_500);
        assert_eq!(next_credit(1_000, 10.0 * DRAIN_TARGET_MS, 7_000.0, 0), 1_000);
    }

    #[test]
    fn a_source_waits_while_admission_is_closed_and_is_released_by_a_stop() {
        let flow = Flow::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| flow.admit(5).is_some());
            flow.stop();
            assert!(!waiting.join().unwrap());
        });
    }

    #[test]
    fn the_guard_of_an_admission_holds_the_drain_back() {
        let flow = Flow::default();
        flow.open();
        let guard = flow.admit(3).unwrap();
        flow.add(Way::Ahead, 3, 30);
        drop(guard);
        assert!(!flow.is_idle());
        flow.remove(Way::Ahead, 3, 30);
        assert!(flow.is_idle());
    }

    #[test]
    fn what_came_by_a_loop_is_carried_over_while_admission_is_closed() {
        let flow = Flow::default();
        flow.open();
        flow.add(Way::Loop, 3, 30);
        assert!(flow.begin_looped(3, 30, false));
        flow.close();
        assert!(!flow.begin_looped(3, 30, false));
        assert!(flow.is_idle());
        assert_eq!(flow.carried(), (1, 30));
        assert!(!flow.begin_carried(3, 30));
        flow.open();
        assert!(flow.begin_carried(3, 30));
        assert!(!flow.is_idle());
        assert_eq!(flow.carried(), (0, 0));
        flow.remove(Way::Loop, 3, 30);
    }

    #[test]
    fn the_credit_settles_at_what_is_worked_off_in_time() {
        let pace = worked_off_in_a_drain(100_000, Duration::from_millis(100));
        assert_eq!(pace, 1_000.0 * DRAIN_TARGET_MS);
        assert_eq!(first_credit(CREDIT_RECORDS_START, pace, false), pace as u64);
        assert_eq!(first_credit(CREDIT_RECORDS_START, 1e9, true), CREDIT_RECORDS_SETTLED_MAX);
        assert_eq!(first_credit(CREDIT_RECORDS_START, 2.0, false), CREDIT_RECORDS_START);
        assert_eq!(first_credit(CREDIT_RECORDS_START, 2.0, true), CREDIT_RECORDS_MIN);
    }

    #[test]
    fn less_is_read_at_once_where_credit_is_small() {
        let flow = Flow::default();
        let reads = |credit| {
            flow.state.lock().credit_records = credit;
            flow.read_records()
        };
        assert_eq!([1, 16, 1_000, CREDIT_RECORDS_MAX].map(reads), [1, 8, 500, READ_RECORDS_MAX as usize]);
    }

    #[test]
    fn what_came_by_a_loop_does_not_overtake_what_is_carried_over() {
        let flow = Flow::default();
        flow.add(Way::Loop, 1, 10);
        flow.add(Way::Loop, 2, 20);
        assert!(!flow.begin_looped(1, 10, false));
        flow.open();
        assert!(!flow.begin_looped(2, 20, true));
        assert_eq!((flow.carried(), flow.is_idle()), ((2, 30), true));
        assert!(flow.begin_carried(1, 10) && flow.begin_carried(2, 20));
        assert_eq!(flow.carried(), (0, 0));
    }

    #[test]
    fn what_waits_is_carried_over_at_any_time_and_calls_for_a_seal_in_the_end() {
        let flow = Flow::default();
        flow.open();
        flow.add(Way::Ahead, 3, 30);
        flow.carry(20, false);
        flow.carry(WAITING_BYTES_EARLY - 20, true);
        assert!(!flow.is_idle());
        flow.remove(Way::Ahead, 3, 30);
        assert!(flow.is_idle());
        assert_eq!(flow.carried(), (1, WAITING_BYTES_EARLY));
        assert!(flow.wants_seal() && !flow.is_crowded());
        flow.carry(CARRIED_BYTES_CROWDED - WAITING_BYTES_EARLY, false);
        assert!(flow.is_crowded());
        flow.close();
        flow.open();
        assert!(!flow.wants_seal() && flow.is_crowded());
    }

    #[test]
    fn what_is_begun_in_vain_has_not_moved() {
        let flow = Flow::default();
        flow.open();
        flow.add(Way::Ahead, 3, 30);
        flow.carry(30, false);
        flow.remove(Way::Ahead, 3, 30);
        let moved = flow.moved();
        let again = |left: u64, all: bool| {
            let (_, bytes) = flow.carried();
            assert!(flow.begin_carried(3, bytes));
            flow.carry_again(left, all);
            flow.remove(Way::Loop, 3, bytes);
            (flow.carried(), flow.moved() - moved)
        };
        assert_eq!(again(30, true), ((1, 30), 0));
        assert_eq!(again(10, false), ((1, 10), 1));
        assert!(flow.is_idle());
    }

    #[test]
    fn sources_wait_until_what_is_in_flight_falls_below_the_credit() {
        let flow = Flow::default();
        flow.open();
        flow.add(Way::Ahead, CREDIT_RECORDS_START, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| flow.admit(1).is_some());
            assert!(!flow.would_admit());
            flow.remove(Way::Ahead, CREDIT_RECORDS_START, 1);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn what_goes_round_slows_input_down_and_does_not_stop_it() {
        let flow = Flow::default();
        flow.open();
        flow.add(Way::Loop, CREDIT_RECORDS_START, 1);
        let start = Instant::now();
        drop(flow.admit(1));
        drop(flow.admit(1));
        assert!(start.elapsed() >= LOOP_PACE);
        flow.remove(Way::Loop, CREDIT_RECORDS_START, 1);
        assert_eq!(flow.state.lock().turn(2), Turn::Now);
    }

    #[test]
    fn nothing_is_done_as_long_as_something_is_carried_over() {
        let flow = Flow::default();
        let is_done = || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                tokio::select! { biased; () = flow.done() => true, () = std::future::ready(()) => false }
            })
        };
        flow.add(Way::Loop, 3, 30);
        assert!(!flow.begin_looped(3, 30, false));
        assert!(flow.is_idle() && !is_done());
        flow.open();
        assert!(flow.begin_carried(3, 30));
        assert!(!is_done());
        flow.remove(Way::Loop, 3, 30);
        assert!(is_done());
    }
}
