//! The link's thread: everything of a host's connections runs on it, in a runtime of its own.

use std::cell::{Cell, RefCell};
use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::MissedTickBehavior;

use super::attempt::Attempts;
use super::backoff::Dice;
use super::meet::{self, Host};
use super::meters::PeerMeters;
use super::peer::{Peer, Shared};
use super::tls::Tls;
use super::{Command, HostId, LinkSettings, Listen, PeerEvent, call};

/// The pages that are read at a time for scans.
const SCANS_MAX: usize = 2;
/// How often it is looked whether everything is acknowledged, at the end.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);
/// How long peers may take to hear that this host leaves.
const LEAVE_TIME: Duration = Duration::from_millis(500);

/// What the thread is started with.
pub(super) struct Start {
    pub(super) settings: LinkSettings,
    pub(super) tls: Tls,
    pub(super) listener: TcpListener,
    pub(super) listen: Arc<dyn Listen>,
    pub(super) commands: UnboundedReceiver<Command>,
    pub(super) attempts: Arc<Attempts>,
    pub(super) meters: Arc<[Arc<PeerMeters>]>,
}

impl Start {
    pub(super) fn run(self) {
        let listen = Arc::clone(&self.listen);
        let broken = match std::panic::catch_unwind(AssertUnwindSafe(|| self.block_on())) {
            Ok(Ok(())) => return,
            Ok(Err(reason)) => reason,
            Err(_) => "the thread of connections has panicked".to_owned(),
        };
        listen.event(PeerEvent::Broken { reason: broken });
    }

    fn block_on(self) -> Result<(), String> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // Pages are read on these threads, and for each peer at most one name is resolved.
        let runtime = runtime.enable_all().max_blocking_threads(SCANS_MAX + self.settings.hosts.len()).build();
        let runtime = runtime.map_err(|error| format!("no runtime could be made: {error}"))?;
        let ended = LocalSet::new().block_on(&runtime, self.main());
        // A page that is being read is waited for where the attempt is ended. A name that is being resolved is not.
        runtime.shutdown_background();
        ended
    }

    async fn main(self) -> Result<(), String> {
        let listener = tokio::net::TcpListener::from_std(self.listener)
            .map_err(|error| format!("the listener cannot be used: {error}"))?;
        let Self { settings, tls, listen, mut commands, attempts, meters, .. } = self;
        let shared = Rc::new(Shared {
            listen,
            attempts,
            heartbeat: settings.heartbeat,
            lost_after: settings.lost_after,
            is_stopping: Cell::new(false),
            scans: Arc::new(Semaphore::new(SCANS_MAX)),
            open: Cell::new(0),
        });
        let ids = (0..).map(HostId).zip(&settings.hosts).zip(meters.iter());
        let peers = ids
            .filter(|((id, _), _)| *id != settings.own)
            .map(|((id, host), meters)| Rc::new(Peer::new(id, &host.name, Rc::clone(&shared), Arc::clone(meters))));
        let mut dice = Dice::new(settings.seed);
        let host = Rc::new(Host {
            id: settings.own,
            name: settings.hosts[usize::from(settings.own.0)].name.clone(),
            identity: settings.identity,
            tls,
            process: dice.roll(),
            dice: RefCell::new(dice),
            peers: peers.collect(),
            shared,
            told: RefCell::default(),
        });
        // None of these ends by itself.
        let mut duties = JoinSet::new();
        duties.spawn_local(meet::be_connected_to(Rc::clone(&host), listener));
        duties.spawn_local(tick(Rc::clone(&host)));
        for peer in host.peers.iter().filter(|peer| peer.id < host.id) {
            let address = settings.hosts[usize::from(peer.id.0)].address.clone();
            duties.spawn_local(meet::keep_connected(Rc::clone(&host), Rc::clone(peer), address));
        }
        let mut lookups = JoinSet::new();
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    None => break,
                    Some(Command::Stop { within }) => {
                        stop(&host, within).await;
                        break;
                    }
                    Some(command) => obey(&host, command, &mut lookups),
                },
                Some(_) = lookups.join_next(), if !lookups.is_empty() => {}
                Some(ended) = duties.join_next() => {
                    let reason = ended.err().map(|error| error.to_string()).unwrap_or_default();
                    return Err(format!("a duty of the thread of connections has ended: {reason}"));
                }
            }
        }
        Ok(())
    }
}

async fn tick(host: Rc<Host>) {
    let mut heartbeat = tokio::time::interval(host.shared.heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        heartbeat.tick().await;
        for peer in &host.peers {
            peer.tick();
        }
    }
}

fn obey(host: &Host, command: Command, lookups: &mut JoinSet<()>) {
    // The handle has looked whether there is such a host; what is meant for this one goes nowhere.
    let to = |id: HostId| host.peers.iter().find(|peer| peer.id == id);
    match command {
        Command::Send { peer, attempt, delivery, acknowledged } => {
            if let Some(peer) = to(peer) {
                peer.send(attempt, delivery, acknowledged);
            }
        }
        Command::Control { peer, message } => {
            if let Some(peer) = to(peer) {
                peer.control(message);
            }
        }
        Command::Get { peer, asking } => {
            if let Some(peer) = to(peer) {
                lookups.spawn_local(call::get(Rc::clone(peer), asking));
            }
        }
        Command::Scan { peer, asking } => {
            if let Some(peer) = to(peer) {
                lookups.spawn_local(call::scan(Rc::clone(peer), asking));
            }
        }
        Command::Begun(attempt) => host.peers.iter().for_each(|peer| peer.begun(attempt)),
        // The loop sees to it.
        Command::Stop { .. } => {}
    }
}

async fn stop(host: &Host, within: Duration) {
    let start = Instant::now();
    while !host.peers.iter().all(|peer| peer.is_settled()) && start.elapsed() < within {
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
    host.shared.is_stopping.set(true);
    for peer in &host.peers {
        peer.end_session("the host has been stopped", true);
    }
    let until = Instant::now() + LEAVE_TIME;
    while host.shared.open.get() > 0 && Instant::now() < until {
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}
