//! The source threads: they read splits in turn, wait for credit, and send records into the stream.
//!
//! A split is held by one thread at a time, so its records stay in order. Its position moves on under the guard of its admission: when nothing is in
//! flight, every position is that of the last admitted record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::{JobError, Meters, SourceMeters};
use crate::connector::{BadRecord, ReadOutcome, Source, SplitReader};
use crate::epoch::entry::Position;
use crate::record::{BatchSize, NO_TIME};
use crate::task::flow::Flow;
use crate::task::refuse::{Refusals, Refused};
use crate::task::route::Router;

/// About the most bytes of one read, for each task that it is divided among: a batch that stays in a core's cache on its way through a function.
const READ_BYTES_MAX: usize = 96 << 10;
/// The most splits open at once.
const OPEN_SPLITS_MAX: usize = 256;
/// The most reads of a split before its thread looks at others.
const READS_PER_TURN: usize = 32;
/// How long a split that had nothing new is left alone.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// A source, as its threads use it.
pub(super) struct SourceSetup {
    pub(super) name: String,
    pub(super) source: Box<dyn Source>,
    pub(super) router: Router,
    pub(super) refusals: Refusals,
    pub(super) meters: Arc<SourceMeters>,
    /// The positions that the next seal takes.
    pub(super) positions: Mutex<BTreeMap<String, SplitPosition>>,
    /// Whether its splits are left alone while much is carried over: see [`crate::graph::Plan::yielding`].
    pub(super) yields: bool,
    /// Whether any of its splits may be read here.
    pub(super) is_read: bool,
    /// Which of its splits are read here.
    pub(super) share: Share,
}

/// Whether a split of a source is read on this host, by its number and its name.
pub(super) type Share = Box<dyn Fn(usize, &str) -> bool + Send + Sync>;

/// Where a split stands, as the log records it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SplitPosition {
    /// Behind the last admitted record.
    at: Position,
    /// Whether the split had ended there: its file may then be removed.
    ended: bool,
    /// The greatest event time up to there, [`NO_TIME`] while there was none.
    #[serde(default = "no_time")]
    time: i64,
    /// Whether this start has found that the split has ended: one that had at an earlier start may have grown.
    #[serde(skip)]
    is_through: bool,
}

fn no_time() -> i64 {
    NO_TIME
}

impl SourceSetup {
    /// Whether only other hosts read it.
    fn is_elsewhere(&self) -> bool {
        !self.is_read && self.positions.lock().is_empty()
    }

    /// The positions of all splits, for the log.
    pub(super) fn recorded(&self) -> BTreeMap<String, Position> {
        let positions = self.positions.lock();
        let record = |position| serde_json::to_value(position).expect("a position is JSON with a flag");
        positions.iter().map(|(split, position)| (split.clone(), Position(record(position)))).collect()
    }
}

impl SplitPosition {
    /// The positions that the log holds.
    pub(super) fn read_all(recorded: &BTreeMap<String, Position>) -> Result<BTreeMap<String, Self>, serde_json::Error> {
        let read =
            |(split, position): (&String, &Position)| Ok((split.clone(), serde_json::from_value(position.0.clone())?));
        recorded.iter().map(read).collect()
    }
}

/// A split that no thread is working on.
struct Waiting {
    source: Arc<SourceSetup>,
    name: String,
    /// Opened when it is first worked on.
    reader: Option<Box<dyn SplitReader>>,
    /// How large its last batch was: the next is likely to be like it.
    size: BatchSize,
    /// Not before this.
    due: Instant,
}

/// The splits of all sources, shared by the source threads.
pub(super) struct Splits {
    sources: Vec<Arc<SourceSetup>>,
    queue: Mutex<Queue>,
    changed: Condvar,
    flow: Arc<Flow>,
    meters: Arc<Meters>,
    started: Instant,
    /// Records admitted since this was last taken, for sealing by count.
    since_seal: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Splits that a thread is working on.
    busy: usize,
    open: usize,
    known: BTreeSet<(String, String)>,
    stopped: bool,
}

impl Splits {
    /// The splits that exist now.
    pub(super) fn new(
        sources: Vec<Arc<SourceSetup>>,
        flow: Arc<Flow>,
        meters: Arc<Meters>,
        started: Instant,
    ) -> Result<Self, JobError> {
        let (queue, changed, since_seal) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        let splits = Self { sources, queue, changed, flow, meters, started, since_seal };
        for source in &splits.sources {
            splits.list(source)?;
            splits.check_recorded(source)?;
        }
        Ok(splits)
    }

    /// Looks for new splits of followed sources.
    pub(super) fn discover(&self) -> Result<(), JobError> {
        self.sources.iter().filter(|source| source.source.is_followed()).try_for_each(|source| self.list(source))
    }

    fn list(&self, source: &Arc<SourceSetup>) -> Result<(), JobError> {
        if source.is_elsewhere() {
            return Ok(());
        }
        let names = source.source.splits().map_err(|error| JobError::source(&source.name, error))?;
        *source.meters.bytes_total.lock() = source.source.total_bytes();
        let mut queue = self.queue.lock();
        let is_own = |(index, name): &(usize, String)| {
            (source.share)(*index, name) || source.positions.lock().contains_key(name)
        };
        for (_, name) in names.into_iter().enumerate().filter(is_own) {
            if queue.known.insert((source.name.clone(), name.clone())) {
                let (source, size, due) = (Arc::clone(source), BatchSize::default(), Instant::now());
                queue.waiting.push_back(Waiting { source, name, reader: None, size, due });
            }
        }
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    /// A split that was read in part and is gone is an error: its rest would be lost without a word.
    fn check_recorded(&self, source: &SourceSetup) -> Result<(), JobError> {
        let queue = self.queue.lock();
        for (name, position) in source.positions.lock().iter() {
            if !position.ended && !queue.known.contains(&(source.name.clone(), name.clone())) {
                return Err(JobError::Input(format!(
                    "source `{}`: `{name}` was being read at the last checkpoint and is no longer there; put it back, \
                     or start from nothing with a new state directory",
                    source.name
                )));
            }
        }
        Ok(())
    }

    /// Whether any source may bring new splits later.
    fn may_grow(&self) -> bool {
        self.sources.iter().any(|source| source.source.is_followed() && !source.is_elsewhere())
    }

    /// How far each source has come in event time, in the order of the sources: [`reached`] of its splits.
    pub(super) fn reached(&self) -> Vec<i64> {
        let queue = self.queue.lock();
        let of_source = |source: &Arc<SourceSetup>| {
            let positions = source.positions.lock();
            let known = queue.known.iter().filter(|(name, _)| *name == source.name);
            // What other hosts read they answer for.
            if !source.is_read && positions.is_empty() {
                return i64::MAX;
            }
            reached(source.source.is_followed(), known.map(|(_, split)| positions.get(split)))
        };
        self.sources.iter().map(of_source).collect()
    }

    /// Whether every split has ended and no new ones can come.
    pub(super) fn have_ended(&self) -> bool {
        let queue = self.queue.lock();
        queue.waiting.is_empty() && queue.busy == 0 && !self.may_grow()
    }

    /// Records admitted since the last call.
    pub(super) fn since_seal(&self) -> &AtomicU64 {
        &self.since_seal
    }

    /// Tells the threads to end.
    pub(super) fn stop(&self) {
        self.queue.lock().stopped = true;
        self.changed.notify_all();
        self.flow.stop();
    }

    /// The work of one source thread: reads until all splits have ended, or the job stops. `ended` is called when the last split has.
    pub(super) fn work(&self, ended: impl Fn()) -> Result<(), JobError> {
        while let Some(mut split) = self.take() {
            // A split that fails stays busy: until the failure is heard of, nobody may take the input to have ended.
            let Some(outcome) = self.read_turn(&mut split)? else { return Ok(()) };
            self.put_back(split, outcome);
        }
        self.changed.notify_all();
        ended();
        Ok(())
    }

    /// What becomes of a split that nobody works on any more: it waits for its next turn, unless it has ended.
    fn put_back(&self, mut split: Waiting, outcome: ReadOutcome) {
        let mut queue = self.queue.lock();
        queue.busy -= 1;
        match outcome {
            ReadOutcome::More => {
                split.due = Instant::now();
                queue.waiting.push_back(split);
            }
            ReadOutcome::Idle => {
                split.due = Instant::now() + IDLE_WAIT;
                if queue.open >= OPEN_SPLITS_MAX && queue.waiting.iter().any(|other| other.reader.is_none()) {
                    // It is opened again, behind its position, when others have had their turn.
                    split.reader = None;
                    queue.open -= 1;
                }
                queue.waiting.push_back(split);
            }
            ReadOutcome::End => queue.open -= 1,
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// One read of the split whose turn it is, for a simulation that has no source threads. Returns whether there was one.
    #[cfg(test)]
    pub(super) fn step(&self) -> Result<bool, JobError> {
        if self.have_ended() {
            return Ok(false);
        }
        let Some(mut split) = self.take() else { return Ok(false) };
        if let Some(outcome) = self.read_once(&mut split)? {
            self.put_back(split, outcome);
        }
        Ok(true)
    }

    /// The next split that may be worked on; `None` when there will be none.
    fn take(&self) -> Option<Waiting> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopped || (queue.waiting.is_empty() && queue.busy == 0 && !self.may_grow()) {
                return None;
            }
            let now = Instant::now();
            let (may_open, is_crowded) = (queue.open < OPEN_SPLITS_MAX, self.flow.is_crowded());
            let may_go_on = |split: &Waiting| !(is_crowded && split.source.yields);
            let may_be_read = |split: &Waiting| may_go_on(split) && (split.reader.is_some() || may_open);
            let ready = queue.waiting.iter().position(|split| split.due <= now && may_be_read(split));
            if let Some(split) = ready.and_then(|index| queue.waiting.remove(index)) {
                queue.busy += 1;
                queue.open += usize::from(split.reader.is_none());
                return Some(split);
            }
            let due = |split: &Waiting| if may_go_on(split) { split.due } else { now + IDLE_WAIT };
            match queue.waiting.iter().map(due).min() {
                Some(due) => {
                    self.changed.wait_until(&mut queue, due.max(now + Duration::from_millis(1)));
                }
                None => self.changed.wait(&mut queue),
            }
        }
    }

    /// Reads several times, as long as there is more at once: threads that take turns after each read wake each other for nothing.
    fn read_turn(&self, split: &mut Waiting) -> Result<Option<ReadOutcome>, JobError> {
        for _ in 1..READS_PER_TURN {
            match self.read_once(split)? {
                Some(ReadOutcome::More) => {}
                outcome => return Ok(outcome),
            }
        }
        self.read_once(split)
    }

    /// Reads once and sends what was read on its way. `None` when the job is stopping.
    fn read_once(&self, split: &mut Waiting) -> Result<Option<ReadOutcome>, JobError> {
        let source = &split.source;
        let failed = |error| JobError::source(&source.name, error);
        if split.reader.is_none() {
            let position = source.positions.lock().get(&split.name).map(|position| position.at.clone());
            let reader = source.source.open(&split.name, position.as_ref()).map_err(failed)?;
            // What lies before the position is not left to read.
            source.meters.bytes_read.lock().insert(split.name.clone(), reader.bytes_read());
            split.reader = Some(reader);
        }
        let reader = split.reader.as_mut().expect("opened just above");
        let (mut batch, mut bad) = (split.size.empty_batch(), Vec::new());
        let bytes_max = READ_BYTES_MAX * source.router.parts(0);
        let outcome = reader.read(self.flow.read_records(), bytes_max, &mut batch, &mut bad).map_err(failed)?;
        split.size = BatchSize::of(&batch);
        let records = (batch.len() + bad.len()) as u64;
        let ended = outcome == ReadOutcome::End;
        if records == 0 && !ended {
            return Ok(Some(outcome));
        }
        let Some(admitted) = self.flow.admit(records) else { return Ok(None) };
        // Once the position moves past records, no epoch may be sealed before they are on their way: not even if a panic comes between.
        let admitted = std::mem::ManuallyDrop::new(admitted);
        let mut positions = source.positions.lock();
        let before = positions.get(&split.name).map_or(NO_TIME, |position| position.time);
        let time = batch.times.iter().copied().fold(before, i64::max);
        let position = SplitPosition { at: reader.position(), ended, time, is_through: ended };
        positions.insert(split.name.clone(), position);
        drop(positions);
        source.meters.bytes_read.lock().insert(split.name.clone(), reader.bytes_read());
        source.meters.records_in.add(records);
        self.meters.first_record.get_or_init(|| self.started.elapsed());
        self.since_seal.fetch_add(records, Ordering::Relaxed);
        refuse(source, &bad)?;
        source.router.send(0, batch)?;
        drop(std::mem::ManuallyDrop::into_inner(admitted));
        Ok(Some(outcome))
    }
}

/// How far a source has come in event time: no record of this time or before is to come any more, as long as each split is in the order of its times. A split that is not read
/// through may bring more of the greatest time that it has had; one that has had none may bring any. Where no split is open it is the end of time, or where the splits
/// that there were have ended, if others may come.
fn reached<'a>(is_followed: bool, splits: impl Iterator<Item = Option<&'a SplitPosition>>) -> i64 {
    let (mut open, mut ended) = (None::<i64>, NO_TIME);
    for split in splits {
        match split {
            Some(split) if split.is_through => ended = ended.max(split.time),
            _ => {
                let time = split.map_or(NO_TIME, |split| split.time);
                open = Some(open.map_or(time, |open| open.min(time)));
            }
        }
    }
    match open {
        Some(time) => time.saturating_sub(1),
        None if is_followed => ended.saturating_sub(1),
        None => i64::MAX,
    }
}

fn refuse(source: &SourceSetup, bad: &[BadRecord]) -> Result<(), JobError> {
    for record in bad {
        let (place, error) = (Some(record.place.as_str()), record.error.as_str());
        source.refusals.refuse(Refused { key: b"", value: &record.bytes, time: NO_TIME, place, error })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::ConnectorError;
    use crate::manifest::OnError;
    use crate::record::Batch;
    use crate::task::flow::Way;

    fn split(time: i64, ended: bool) -> SplitPosition {
        SplitPosition { at: Position(serde_json::Value::Null), ended, time, is_through: ended }
    }

    fn check(is_followed: bool, splits: &[Option<SplitPosition>], expected: i64) {
        assert_eq!(reached(is_followed, splits.iter().map(Option::as_ref)), expected, "{splits:?}");
    }

    /// Brings one record a read, for ever.
    struct Endless;

    impl Source for Endless {
        fn splits(&self) -> Result<Vec<String>, ConnectorError> {
            Ok(vec!["only".to_owned()])
        }

        fn open(&self, _: &str, _: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError> {
            Ok(Box::new(Self))
        }
    }

    impl SplitReader for Endless {
        fn read(
            &mut self,
            _: usize,
            _: usize,
            batch: &mut Batch,
            _: &mut Vec<BadRecord>,
        ) -> Result<ReadOutcome, ConnectorError> {
            batch.push(b"k", b"v", 7);
            Ok(ReadOutcome::More)
        }

        fn position(&self) -> Position {
            Position(serde_json::Value::Null)
        }
    }

    #[test]
    fn sources_that_nobody_waits_for_make_room_while_much_waits() {
        let flow = Arc::new(Flow::default());
        let source = |name: &str, yields| {
            Arc::new(SourceSetup {
                name: name.to_owned(),
                source: Box::new(Endless),
                router: Router::new(vec![Vec::new()], Arc::clone(&flow)),
                refusals: Refusals::new("source", name, OnError::Stop, None),
                meters: Arc::default(),
                positions: Mutex::default(),
                yields,
                is_read: true,
                share: Box::new(|_, _| true),
            })
        };
        let sources = vec![source("awaited", false), source("waiting", true)];
        let splits = Splits::new(sources.clone(), Arc::clone(&flow), Arc::default(), Instant::now()).unwrap();
        let read = |steps: u64| {
            let before: Vec<u64> = sources.iter().map(|source| source.meters.records_in.get()).collect();
            (0..steps).for_each(|_| assert!(splits.step().unwrap()));
            let after = sources.iter().map(|source| source.meters.records_in.get());
            after.zip(before).map(|(after, before)| after - before).collect::<Vec<_>>()
        };
        flow.open();
        assert_eq!(read(6), [3, 3]);
        flow.carry(1 << 30, false);
        assert_eq!(read(6), [6, 0]);
        assert!(flow.begin_carried(1, 1 << 30));
        flow.remove(Way::Loop, 1, 1 << 30);
        assert_eq!(read(6), [3, 3]);
        assert_eq!(splits.reached(), [6, 6]);
    }

    #[test]
    fn a_source_has_come_as_far_as_its_slowest_open_split() {
        check(false, &[Some(split(30, false)), Some(split(20, false)), Some(split(5, true))], 19);
        check(false, &[Some(split(30, false)), None], NO_TIME);
        check(false, &[Some(split(NO_TIME, false)), Some(split(9, true))], NO_TIME);
        check(false, &[Some(split(30, true)), Some(split(20, true))], i64::MAX);
        check(false, &[], i64::MAX);
    }

    #[test]
    fn a_split_that_had_ended_before_may_have_grown() {
        let recorded = serde_json::to_value(split(30, true)).unwrap();
        let read = SplitPosition::read_all(&[("s".to_owned(), Position(recorded))].into()).unwrap();
        assert!(read["s"].ended);
        check(false, &[Some(read["s"].clone())], 29);
    }

    #[test]
    fn a_followed_source_is_never_through() {
        check(true, &[Some(split(30, true)), Some(split(20, true))], 29);
        check(true, &[], NO_TIME);
        check(true, &[Some(split(30, true)), Some(split(20, false))], 19);
    }

    #[test]
    fn positions_of_earlier_versions_have_no_time() {
        let recorded = Position(serde_json::json!({ "at": 7, "ended": false }));
        let read = SplitPosition::read_all(&[("s".to_owned(), recorded)].into()).unwrap();
        assert_eq!(read["s"], SplitPosition { at: Position(7.into()), ended: false, time: NO_TIME, is_through: false });
    }
}
