//! The connections between the hosts of a job.
//!
//! Every host runs one [`Running`] link: a thread that owns the listener, one connection to each other host, their heartbeats, and the answering of their lookups. The rest
//! of the process talks to it by a [`Link`], whose calls never block, and hears from it by [`Listen`] and, as long as an attempt runs, by [`TakeDeliveries`] and [`ServeLookups`].
//!
//! # Sessions
//!
//! Two hosts that have found each other (`handshake`) begin a *session*. All that they send within it is numbered and arrives once and in order (`session`), also when the connection breaks
//! and returns. When nothing is heard of the peer for [`LinkSettings::lost_after`], the session is over: what was not acknowledged is void, and [`PeerEvent::Lost`] says so, once. When the peer is
//! there again, a new session begins with [`PeerEvent::Up`]. Each side learns of the end of a session before anything of the next.
//!
//! A delivery belongs to an attempt. One of an attempt that is over is dropped on either side; one of an attempt that has not begun here yet waits for it. No delivery that may have been lost is
//! ever acknowledged, so that whoever counts it as in flight until then counts it to the end of the attempt.
//!
//! This room knows what travels as columns and bytes. It does not know what tasks do with it, what the epoch protocol says, or where tables are.

mod attempt;
mod backoff;
mod call;
mod connection;
pub mod generated;
mod guard;
mod handshake;
mod lookups;
mod message;
mod meet;
mod meters;
mod peer;
mod serve;
mod session;
#[cfg(test)]
mod tests;
mod thread;
mod tls;
mod wire;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::handshake::Identity;
pub use self::lookups::{
    ANSWER_BYTES_MAX, Found, Get, GetAnswer, KEY_BYTES_MAX, KEYS_MAX, LookupFault, Read, Refusal, RefusalKind, Scan,
    ScanAnswer, ServeLookups, Values,
};
pub use self::message::{Asked, CONTROL_BYTES_MAX, Delivery, HostId, Load, TableUpdates};
pub use self::meters::PeerStatus;

use self::attempt::Attempts;
use self::handshake::Hello;
use self::lookups::Asking;
use self::message::PART_BYTES_MAX;
use self::meters::PeerMeters;
use crate::epoch::Attempt;
use crate::lookup::Page;

/// How often a host says that it is alive, unless told otherwise.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// After how long without a word a host is lost, unless told otherwise.
pub const LOST_AFTER: Duration = Duration::from_secs(2);

/// Why the link cannot be started, or does not take something. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The address cannot be listened at.
    #[error(
        "listen for other hosts at {address}: {error}; end what listens there, or give the host another `address` (or `listen`) in `cluster.hosts`, on all hosts"
    )]
    Bind {
        /// The address.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// A file of the manifest's `[cluster.tls]` is not what it should be.
    #[error("use {} as {what}: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        reason: String,
    },
    /// The certificate cannot be used.
    #[error("set up TLS: {0}")]
    Tls(String),
    /// What this host would say of itself does not fit into what is said.
    #[error(
        "introduce this host to the others: the names of the job and of its hosts and operators must be without control characters and of at most 1024 bytes, and all together of at most 256 KiB"
    )]
    Identity,
    /// The thread could not be started.
    #[error("start the thread of connections to other hosts: {0}")]
    Thread(std::io::Error),
    /// One record or update is too large to travel.
    #[error("send {bytes} bytes to another host: a record, an update or a control message may have {bytes_max}")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
        /// The most there may be.
        bytes_max: usize,
    },
}

/// A host of the job, as the manifest has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostAddress {
    /// Its name, which its certificate must bear as a DNS name.
    pub name: String,
    /// Where others connect to, as `HOST:PORT`.
    pub address: String,
}

/// How hosts trust each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// Not at all: for loopback, or where the manifest says `insecure = true`.
    Plain,
    /// By certificates on both sides (TLS 1.3). The files are in PEM.
    Tls {
        /// Who must have signed the others' certificates.
        ca: PathBuf,
        /// This host's certificate, and those between it and the CA's. It must do for servers and for clients.
        certificate: PathBuf,
        /// The certificate's private key.
        key: PathBuf,
    },
}

/// What a link is told at its start.
#[derive(Debug, Clone)]
pub struct LinkSettings {
    /// All hosts of the job, in the manifest's order. Each later one connects to the earlier ones.
    pub hosts: Vec<HostAddress>,
    /// This host's place among them.
    pub own: HostId,
    /// What both sides of a connection must agree on.
    pub identity: Identity,
    /// How hosts trust each other.
    pub security: Security,
    /// How often this host says that it is alive. [`HEARTBEAT`] is a good value.
    pub heartbeat: Duration,
    /// After how long without a word a peer is lost. [`LOST_AFTER`] is a good value.
    pub lost_after: Duration,
    /// Where the randomness comes from: of sessions' numbers, and of how long to wait before the next try. Different on every start of every host.
    pub seed: u64,
}

/// What happens to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// It is connected: a session has begun.
    Up {
        /// The peer.
        peer: HostId,
    },
    /// The session is over, and so is the attempt that used it.
    Lost {
        /// The peer.
        peer: HostId,
        /// Completes "the host … is lost: …".
        reason: String,
    },
    /// Somebody has tried to connect, or this host has, and one of the two does not accept the other. It is tried again, less and less often.
    Refused {
        /// Who it is, or says that it is.
        peer: Option<HostId>,
        /// What does not match.
        reason: String,
    },
    /// The thread of connections has ended by a defect of Wasmill's: nothing works any more.
    Broken {
        /// What is known of it.
        reason: String,
    },
}

/// Hears what concerns no attempt. Called on the link's thread, which does nothing else meanwhile: implementations pass on and return.
pub trait Listen: Send + Sync {
    /// A peer has sent this by [`Link::control`].
    fn control(&self, from: HostId, message: Vec<u8>);

    /// Something has happened to a peer.
    fn event(&self, event: PeerEvent);
}

/// Takes what comes for tasks of this host, in one attempt. Called on the link's thread, which does nothing else meanwhile.
pub trait TakeDeliveries: Send + Sync {
    /// Puts the delivery where it goes, once it is counted as in flight. When this returns, the sender is told, and takes it off its own count.
    ///
    /// The delivery comes from outside: a task, table or port that there is not must be an error, and so must keys that the task does not own.
    ///
    /// # Errors
    /// What is wrong with it: the session ends with that reason.
    fn take(&self, from: HostId, delivery: Delivery) -> Result<(), String>;
}

/// Called once a delivery has been counted by the host that it went to. Dropped instead when it is void.
pub type Acknowledged = Box<dyn FnOnce() + Send>;

/// Something for the link's thread to do.
enum Command {
    Send {
        peer: HostId,
        attempt: Attempt,
        delivery: Delivery,
        acknowledged: Option<Acknowledged>,
    },
    Control {
        peer: HostId,
        message: Vec<u8>,
    },
    Get {
        peer: HostId,
        asking: Asking<Get, Values>,
    },
    Scan {
        peer: HostId,
        asking: Asking<Scan, Page>,
    },
    /// An attempt has begun: what is early may be handed over, and what is older is void.
    Begun(Attempt),
    Stop {
        within: Duration,
    },
}

/// How the process talks to other hosts. Cheap to clone; no call blocks or waits for a peer.
///
/// # Panics
/// All methods that take a peer panic when it is no other host of the job.
#[derive(Clone)]
pub struct Link {
    commands: mpsc::UnboundedSender<Command>,
    attempts: Arc<Attempts>,
    meters: Arc<[Arc<PeerMeters>]>,
}

impl Link {
    /// Sends a delivery of an attempt. `acknowledged` is called on the link's thread when the peer has counted it. If the peer is lost before that, or the attempt is over, it never is.
    /// A peer that is not up loses the delivery.
    ///
    /// # Errors
    /// When one of its records or updates is too large to travel.
    pub fn send(
        &self,
        peer: HostId,
        attempt: Attempt,
        delivery: Delivery,
        acknowledged: Acknowledged,
    ) -> Result<(), LinkError> {
        let task = delivery.task;
        let mut parts = delivery.load.into_parts().map_err(|bytes| too_large(bytes, PART_BYTES_MAX))?;
        let last = parts.pop();
        let parts = parts.into_iter().map(|load| (load, None));
        for (load, acknowledged) in parts.chain(last.map(|load| (load, Some(acknowledged)))) {
            let delivery = Delivery { task, load };
            self.meters(peer).queued(session::delivery_bytes(&delivery));
            self.command(Command::Send { peer, attempt, delivery, acknowledged });
        }
        Ok(())
    }

    /// Sends a message of the epoch protocol, in order with everything else that goes to this peer. A peer that is not up, or is lost before it has come, loses it.
    ///
    /// # Errors
    /// When it has more than [`CONTROL_BYTES_MAX`] bytes.
    pub fn control(&self, peer: HostId, message: Vec<u8>) -> Result<(), LinkError> {
        if message.len() > CONTROL_BYTES_MAX {
            return Err(too_large(message.len(), CONTROL_BYTES_MAX));
        }
        self.meters(peer).queued(session::control_bytes(&message));
        self.command(Command::Control { peer, message });
        Ok(())
    }

    /// Looks up keys at a peer. Asked again by itself when the connection breaks and returns. The answer may leave out values when it is full: see [`Found::AskAgain`].
    pub fn get(&self, peer: HostId, attempt: Attempt, get: Get) -> GetAnswer {
        let (answer, answered) = oneshot::channel();
        let (keys, bytes) = (get.keys.len(), get.keys.bytes().len());
        if keys > KEYS_MAX || bytes > KEY_BYTES_MAX {
            // The receiver is in our hand.
            let _ = answer.send(Err(LookupFault::TooLarge { keys, bytes }));
            return answered;
        }
        assert!(usize::from(peer.0) < self.meters.len(), "{peer} is no host of the job");
        self.command(Command::Get { peer, asking: Asking { attempt, question: get, answer } });
        answered
    }

    /// Lists keys of a peer, as [`Link::get`] looks them up.
    pub fn scan(&self, peer: HostId, attempt: Attempt, scan: Scan) -> ScanAnswer {
        let (answer, answered) = oneshot::channel();
        let bytes = scan.from.len() + scan.to.as_ref().map_or(0, Vec::len);
        if bytes > KEY_BYTES_MAX {
            // The receiver is in our hand.
            let _ = answer.send(Err(LookupFault::TooLarge { keys: 2, bytes }));
            return answered;
        }
        assert!(usize::from(peer.0) < self.meters.len(), "{peer} is no host of the job");
        self.command(Command::Scan { peer, asking: Asking { attempt, question: scan, answer } });
        answered
    }

    /// Begins an attempt: what comes of it, or has come early, is handed over from now on. Not to be called from within one of the call-backs.
    ///
    /// # Panics
    /// When an attempt runs, or `attempt` is not greater than every one before.
    pub fn begin(&self, attempt: Attempt, deliveries: Arc<dyn TakeDeliveries>, lookups: Arc<dyn ServeLookups>) {
        self.attempts.begin(attempt, deliveries, lookups);
        self.command(Command::Begun(attempt));
    }

    /// Ends the attempt that runs, if one does. When this returns, none of its call-backs runs, and they are dropped. Not to be called from within one of them.
    pub fn end(&self) {
        self.attempts.end();
    }

    /// The bytes that a peer has been sent, or will be, and has not acknowledged.
    pub fn unacknowledged_bytes(&self, peer: HostId) -> u64 {
        self.meters(peer).unacknowledged_bytes()
    }

    /// How every peer is, in the manifest's order, without this host.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.meters.iter().filter(|meters| !meters.is_own()).map(|meters| meters.status()).collect()
    }

    fn meters(&self, peer: HostId) -> &PeerMeters {
        &self.meters[usize::from(peer.0)]
    }

    fn command(&self, command: Command) {
        // A thread that has ended has said so by an event, or was told to.
        let _ = self.commands.send(command);
    }
}

fn too_large(bytes: usize, bytes_max: usize) -> LinkError {
    LinkError::TooLarge { bytes, bytes_max }
}

/// A running link. Dropping it ends it at once.
pub struct Running {
    link: Link,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Takes the address that a host listens at.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn bind(address: &str) -> Result<TcpListener, LinkError> {
        let error = |error| LinkError::Bind { address: address.to_owned(), error };
        let listener = TcpListener::bind(address).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        Ok(listener)
    }

    /// Starts the link's thread, which connects to the earlier hosts and waits for the later ones.
    ///
    /// # Errors
    /// When TLS cannot be set up from its files, or a thread not be started.
    ///
    /// # Panics
    /// When `settings.own` is not one of the hosts.
    pub fn start(settings: LinkSettings, listener: TcpListener, listen: Arc<dyn Listen>) -> Result<Self, LinkError> {
        let tls = tls::Tls::of(&settings.security)?;
        let own = settings.own;
        let meters = |(id, host): (u16, &HostAddress)| Arc::new(PeerMeters::new(&host.name, HostId(id) == own));
        let meters: Arc<[Arc<PeerMeters>]> = (0..).zip(&settings.hosts).map(meters).collect();
        assert!(usize::from(own.0) < meters.len(), "{own} is no host of the job");
        let (identity, us) = (&settings.identity, &settings.hosts[usize::from(own.0)].name);
        if !settings.hosts.iter().all(|them| Hello::new(identity, us, &them.name, 0, 0).can_travel()) {
            return Err(LinkError::Identity);
        }
        let (commands, received) = mpsc::unbounded_channel();
        let link = Link { commands, attempts: Arc::default(), meters };
        let thread = thread::Start {
            settings,
            tls,
            listener,
            listen,
            commands: received,
            attempts: Arc::clone(&link.attempts),
            meters: Arc::clone(&link.meters),
        };
        let thread = std::thread::Builder::new().name("link".to_owned()).spawn(move || {
            crate::thread::answer_soon();
            thread.run()
        });
        Ok(Self { link, thread: Some(thread.map_err(LinkError::Thread)?) })
    }

    /// A handle.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Ends the link: waits for at most `within` until everything sent so far is acknowledged, then says good-bye to the peers, whose sessions end by it.
    pub fn stop(mut self, within: Duration) {
        self.finish(within);
    }

    fn finish(&mut self, within: Duration) {
        self.link.command(Command::Stop { within });
        if let Some(thread) = self.thread.take() {
            // It reports its own panics.
            let _ = thread.join();
        }
        self.link.end();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
    }
}
