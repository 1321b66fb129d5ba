//! Runs the batcher of an attempt, over the connections to the other hosts.
//!
//! It is run by whoever has news for it, a task that asks or the link's thread that brings an answer: handing over to a thread of its own would cost a lone lookup as much again as the network does. Tasks take turns; the
//! link's thread waits for nobody: where a task is at work, that one takes the answer, too. A thread of its own keeps the time of lingers.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::super::link::{Get, GetAnswer, HostId, Link, LookupFault, Scan, ScanAnswer, Values};
use super::batcher::{Action, BatchId, Batcher};
use super::meters::LookupMeters;
use super::{Answer, LookupsError, Now, Question, Read};
use crate::epoch::{Attempt, Epoch};
use crate::lookup::Page;
use crate::time::Clock;

/// Asks other hosts, in one attempt.
pub trait AskPeers: Send + Sync {
    /// Looks up keys at a peer, as [`Link::get`] does.
    fn get(&self, peer: HostId, get: Get) -> GetAnswer;

    /// Lists keys of a peer, as [`Link::scan`] does.
    fn scan(&self, peer: HostId, scan: Scan) -> ScanAnswer;
}

/// Other hosts over their connections.
#[derive(Clone)]
pub struct LinkPeers {
    /// The connections.
    pub link: Link,
    /// The attempt that asks.
    pub attempt: Attempt,
}

impl AskPeers for LinkPeers {
    fn get(&self, peer: HostId, get: Get) -> GetAnswer {
        self.link.get(peer, self.attempt, get)
    }

    fn scan(&self, peer: HostId, scan: Scan) -> ScanAnswer {
        self.link.scan(peer, self.attempt, scan)
    }
}

/// What lookups are started with.
pub struct LookupsSettings {
    /// Who is asked.
    pub peers: Arc<dyn AskPeers>,
    /// The memory for answers that `bounded` reads may be given later.
    pub cache_bytes_max: usize,
    /// The epoch that the attempt begins with.
    pub epoch: Epoch,
    /// Where it is counted.
    pub meters: Arc<LookupMeters>,
}

/// Looks up keys that other hosts own, in one attempt. Cheap to clone; no call waits for a peer.
#[derive(Clone)]
pub struct Lookups(Arc<Shared>);

struct Shared {
    peers: Arc<dyn AskPeers>,
    clock: Clock,
    epoch: AtomicU64,
    meters: Arc<LookupMeters>,
    /// The batches whose answers can be fetched. Whoever has had the work looks here again afterwards.
    arrived: Mutex<Vec<BatchId>>,
    /// `None` at the end.
    work: Mutex<Option<Work>>,
    alarm: Alarm,
}

/// Who waits for an answer.
type Asker = oneshot::Sender<Result<Answer, LookupsError>>;

impl Lookups {
    /// Looks up keys at the host that owns them, another one of the job: the values in the order of the keys.
    ///
    /// # Errors
    /// Of the future: when the host is lost or refuses, a key or a value is too large, or the attempt is over.
    ///
    /// # Panics
    /// When there are not as many event times as keys.
    pub fn get(
        &self,
        peer: HostId,
        question: Question,
    ) -> impl Future<Output = Result<Answer, LookupsError>> + Send + use<> {
        if let Read::AsOfTimes(times) = &question.read {
            assert_eq!(times.len(), question.keys.len(), "there is a time for each key");
        }
        let (asker, answer) = oneshot::channel();
        let asked = self.0.now();
        let mut work = self.0.work.lock();
        // At the end, the asker is dropped, and the answer says so.
        if let Some(work) = &mut *work {
            work.batcher.ask(asked, peer, &question, asker);
        }
        self.0.proceed(work);
        async move { answer.await.unwrap_or(Err(LookupsError::Ended)) }
    }

    /// Lists keys of a host. Pages are neither gathered nor remembered.
    ///
    /// # Errors
    /// Of the future: as [`Lookups::get`].
    ///
    /// # Panics
    /// As [`Link::scan`], with [`LinkPeers`].
    pub fn scan(&self, peer: HostId, scan: Scan) -> impl Future<Output = Result<Page, LookupsError>> + Send + use<> {
        let page = self.0.peers.scan(peer, scan);
        async move { Ok(page.await.map_err(|_| LookupsError::Ended)??) }
    }

    /// Tells which epoch this host works on from now on: before the first question of that epoch.
    pub fn begin_epoch(&self, epoch: Epoch) {
        self.0.epoch.store(epoch, Ordering::SeqCst);
    }

    /// What is counted.
    pub fn meters(&self) -> &LookupMeters {
        &self.0.meters
    }
}

impl Shared {
    fn now(&self) -> Now {
        Now { time: self.clock.now(), epoch: self.epoch.load(Ordering::SeqCst) }
    }

    /// Does what there is to do.
    fn proceed<'a>(self: &'a Arc<Self>, mut work: MutexGuard<'a, Option<Work>>) {
        loop {
            let arrived = std::mem::take(&mut *self.arrived.lock());
            let mut complete = Vec::new();
            if let Some(work) = &mut *work {
                arrived.into_iter().for_each(|batch| work.fetch(self, batch));
                while let Some(action) = work.batcher.next(self.now()) {
                    match action {
                        Action::Send { peer, batch, get } => work.send(self, peer, batch, get),
                        Action::Complete { asker, answer } => complete.push((asker, answer)),
                    }
                }
                if let Some(due) = work.batcher.wake_at() {
                    self.alarm.set(due);
                }
            }
            drop(work);
            for (asker, answer) in complete {
                // Who has asked may have gone.
                let _ = asker.send(answer);
            }
            // What has come while nobody else could take it.
            if self.arrived.lock().is_empty() {
                return;
            }
            let Some(again) = self.work.try_lock() else { return };
            work = again;
        }
    }

    fn arrived(self: &Arc<Self>, batch: BatchId) {
        self.arrived.lock().push(batch);
        if let Some(work) = self.work.try_lock() {
            self.proceed(work);
        }
    }

    fn end(&self) {
        let work = self.work.lock().take();
        drop(work);
        self.alarm.end();
    }
}

/// The running lookups of an attempt. Dropping it ends them: whoever waits is told that the attempt is over.
pub struct Running {
    lookups: Lookups,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts lookups.
    ///
    /// # Errors
    /// When their thread cannot be started.
    pub fn start(settings: LookupsSettings) -> std::io::Result<Self> {
        let LookupsSettings { peers, cache_bytes_max, epoch, meters } = settings;
        let work = Work { batcher: Batcher::new(cache_bytes_max, Arc::clone(&meters)), under_way: HashMap::new() };
        let shared = Arc::new(Shared {
            peers,
            clock: Clock::system(),
            epoch: AtomicU64::new(epoch),
            meters,
            arrived: Mutex::default(),
            work: Mutex::new(Some(work)),
            alarm: Alarm::default(),
        });
        let lookups = Lookups(Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("lookups".to_owned()).spawn(move || {
            crate::thread::answer_soon();
            keep_time(&shared);
        })?;
        Ok(Self { lookups, thread: Some(thread) })
    }

    /// A handle.
    pub fn lookups(&self) -> &Lookups {
        &self.lookups
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lookups.0.end();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// What there is to work with.
struct Work {
    batcher: Batcher<Asker>,
    under_way: HashMap<BatchId, GetAnswer>,
}

impl Work {
    fn send(&mut self, shared: &Arc<Shared>, peer: HostId, batch: BatchId, get: Get) {
        self.under_way.insert(batch, shared.peers.get(peer, get));
        self.fetch(shared, batch);
    }

    /// Hands over the answer to a batch, if it is there; else arranges to be told when it is.
    fn fetch(&mut self, shared: &Arc<Shared>, batch: BatchId) {
        let Some(answer) = self.under_way.get_mut(&batch) else { return };
        let waker = Waker::from(Arc::new(Arrival { batch, shared: Arc::clone(shared) }));
        let polled = Pin::new(answer).poll(&mut Context::from_waker(&waker));
        let Poll::Ready(answer) = polled else { return };
        self.under_way.remove(&batch);
        let answer: Result<Values, LookupFault> = answer.unwrap_or(Err(LookupFault::Stale));
        self.batcher.answered(shared.now(), batch, answer);
    }
}

/// Tells that an answer is there. Called on the thread that brings it.
struct Arrival {
    batch: BatchId,
    shared: Arc<Shared>,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        self.shared.arrived(self.batch);
    }
}

/// When to look what is due.
#[derive(Default)]
struct Alarm {
    setting: Mutex<Setting>,
    changed: Condvar,
}

#[derive(Default)]
struct Setting {
    due: Option<Duration>,
    is_over: bool,
}

impl Alarm {
    /// Rings at `due`, or before.
    fn set(&self, due: Duration) {
        let mut setting = self.setting.lock();
        if setting.due.is_none_or(|earlier| due < earlier) {
            setting.due = Some(due);
            self.changed.notify_one();
        }
    }

    fn end(&self) {
        self.setting.lock().is_over = true;
        self.changed.notify_one();
    }

    /// Waits until it rings. False at the end.
    fn wait(&self, clock: &Clock) -> bool {
        let mut setting = self.setting.lock();
        while !setting.is_over {
            let left = setting.due.map(|due| due.saturating_sub(clock.now()));
            match left {
                None => self.changed.wait(&mut setting),
                Some(Duration::ZERO) => {
                    setting.due = None;
                    return true;
                }
                Some(left) => {
                    self.changed.wait_for(&mut setting, left);
                }
            }
        }
        false
    }
}

fn keep_time(shared: &Arc<Shared>) {
    be_punctual();
    while shared.alarm.wait(&shared.clock) {
        shared.proceed(shared.work.lock());
    }
}

/// Has this thread woken at the time that it asks for. By default the kernel lets it sleep up to 50 µs longer, half as much again as a usual linger. Where this cannot be had, batches
/// go somewhat later.
fn be_punctual() {
    const SLACK_NS: &str = "1000";
    let Ok(own) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(thread) = own.file_name() else { return };
    let _ = std::fs::write(std::path::Path::new("/proc").join(thread).join("timerslack_ns"), SLACK_NS);
}
