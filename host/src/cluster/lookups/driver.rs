//! Runs the batcher of an attempt: on a thread of its own, over the connections to the other hosts.
//!
//! The thread sleeps until a task asks, an answer is there, or a batch is due. It takes everything that has come before it sends anything.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::oneshot;

use super::super::link::{Get, GetAnswer, HostId, Link, LookupFault, Scan, ScanAnswer, Values};
use super::batcher::{Action, BatchId, Batcher};
use super::meters::LookupMeters;
use super::{Answer, LookupsError, Now, Question, Read};
use crate::epoch::{Attempt, Epoch};
use crate::lookup::Page;
use crate::time::Clock;

/// What has come is looked at this many at a time, before what is due is sent.
const EVENTS_MAX: usize = 256;

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

/// Looks up keys that other hosts own, in one attempt. Cheap to clone; no call blocks.
#[derive(Clone)]
pub struct Lookups(Arc<Shared>);

struct Shared {
    peers: Arc<dyn AskPeers>,
    clock: Clock,
    epoch: AtomicU64,
    meters: Arc<LookupMeters>,
    events: Sender<Event>,
}

/// Who waits for an answer.
type Asker = oneshot::Sender<Result<Answer, LookupsError>>;

/// What the thread is told.
enum Event {
    Asked {
        now: Now,
        peer: HostId,
        question: Question,
        asker: Asker,
    },
    /// The answer to a batch can be fetched.
    Arrived(BatchId),
    Stop,
}

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
        // A thread that has ended drops the asker, and the answer says so.
        let _ = self.0.events.send(Event::Asked { now: self.0.now(), peer, question, asker });
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
}

/// The running lookups of an attempt. Dropping it ends them: whoever waits is told that the attempt is over.
pub struct Running {
    lookups: Lookups,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(settings: LookupsSettings) -> std::io::Result<Self> {
        let LookupsSettings { peers, cache_bytes_max, epoch, meters } = settings;
        let (events, received) = channel();
        let batcher = Batcher::new(cache_bytes_max, Arc::clone(&meters));
        let shared = Shared { peers, clock: Clock::system(), epoch: AtomicU64::new(epoch), meters, events };
        let lookups = Lookups(Arc::new(shared));
        let driver = Driver { shared: Arc::clone(&lookups.0), events: received, batcher, under_way: HashMap::new() };
        let thread = std::thread::Builder::new().name("lookups".to_owned()).spawn(move || driver.run())?;
        Ok(Self { lookups, thread: Some(thread) })
    }

    /// A handle.
    pub fn lookups(&self) -> &Lookups {
        &self.lookups
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.lookups.0.events.send(Event::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Driver {
    shared: Arc<Shared>,
    events: Receiver<Event>,
    batcher: Batcher<Asker>,
    under_way: HashMap<BatchId, GetAnswer>,
}

/// Tells the thread that an answer is there. Called on the thread that brings it.
struct Arrival {
    batch: BatchId,
    shared: Arc<Shared>,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        let _ = self.shared.events.send(Event::Arrived(self.batch));
    }
}

impl Driver {
    fn run(mut self) {
        be_punctual();
        while self.wait() {
            while let Some(action) = self.batcher.next(self.shared.now()) {
                self.act(action);
            }
        }
    }

    /// Takes what has come, or waits for something to come or to be due. False at the end.
    fn wait(&mut self) -> bool {
        let first = match self.batcher.wake_at() {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.events.recv_timeout(due.saturating_sub(self.shared.clock.now())),
        };
        match first {
            Ok(event) => {
                let mut goes_on = self.take(event);
                for _ in 1..EVENTS_MAX {
                    let Ok(event) = self.events.try_recv() else { break };
                    goes_on &= self.take(event);
                }
                goes_on
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Asked { now, peer, question, asker } => self.batcher.ask(now, peer, &question, asker),
            Event::Arrived(batch) => self.fetch(batch),
            Event::Stop => return false,
        }
        true
    }

    fn act(&mut self, action: Action<Asker>) {
        match action {
            Action::Send { peer, batch, get } => {
                self.under_way.insert(batch, self.shared.peers.get(peer, get));
                self.fetch(batch);
            }
            // Who has asked may have gone.
            Action::Complete { asker, answer } => drop(asker.send(answer)),
        }
    }

    /// Hands over the answer to a batch, if it is there; else arranges to be told when it is.
    fn fetch(&mut self, batch: BatchId) {
        let Some(answer) = self.under_way.get_mut(&batch) else { return };
        let waker = Waker::from(Arc::new(Arrival { batch, shared: Arc::clone(&self.shared) }));
        let polled = Pin::new(answer).poll(&mut Context::from_waker(&waker));
        let Poll::Ready(answer) = polled else { return };
        self.under_way.remove(&batch);
        let answer: Result<Values, LookupFault> = answer.unwrap_or(Err(LookupFault::Stale));
        self.batcher.answered(self.shared.now(), batch, answer);
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
