//! How two hosts find each other: connecting and being connected to, up to the end of the handshake.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capnp_rpc::rpc_twoparty_capnp::Side;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::backoff::{self, Backoff, Dice};
use super::connection::{self, Agreed};
use super::handshake::{self, Frame, HandshakeError, Hello, Identity, Ready};
use super::peer::{Peer, Shared};
use super::tls::{self, Tls};
use super::{HostId, PeerEvent};

/// How long a handshake may take, with TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Strangers at a time. When there is one more, the one that has been a stranger for the longest goes.
const STRANGERS_MAX: usize = 64;
/// The most addresses that a name is tried at.
const ADDRESSES_MAX: usize = 8;
/// The pause after the system has refused a connection, as it does when files run out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// For how long nothing new is told of somebody who has been refused.
const NEWS_PAUSE: Duration = Duration::from_secs(1);

/// This host, as it introduces itself.
pub(super) struct Host {
    pub(super) id: HostId,
    pub(super) name: String,
    pub(super) identity: Identity,
    pub(super) tls: Tls,
    /// A random number of the process.
    pub(super) process: u64,
    pub(super) dice: RefCell<Dice>,
    pub(super) shared: Rc<Shared>,
    /// The other hosts, in the manifest's order.
    pub(super) peers: Vec<Rc<Peer>>,
    pub(super) told: RefCell<Told>,
}

/// What was last told of whom, and when: so that the same is not told again and again, and nobody fills the log.
#[derive(Default)]
pub(super) struct Told(BTreeMap<Option<HostId>, (String, Instant)>);

impl Told {
    fn is_news(&mut self, of: Option<HostId>, reason: &str, now: Instant) -> bool {
        let before = self.0.get(&of);
        let is_news = before.is_none_or(|(said, when)| said != reason && now.duration_since(*when) >= NEWS_PAUSE);
        if is_news {
            self.0.insert(of, (reason.to_owned(), now));
        }
        is_news
    }
}

impl Host {
    fn hello(&self, to: &str) -> Hello {
        let nonce = self.dice.borrow_mut().roll();
        Hello::new(&self.identity, &self.name, to, self.process, nonce)
    }

    /// Tells of a handshake that has failed, unless it is only that nobody is there.
    fn report(&self, peer: Option<HostId>, error: HandshakeError) {
        let error = tls::explained(error);
        let reason = error.to_string();
        if matches!(error, HandshakeError::Io(_)) || !self.told.borrow_mut().is_news(peer, &reason, Instant::now()) {
            tracing::debug!(?peer, %error, "no connection to another host");
            return;
        }
        self.shared.event(PeerEvent::Refused { peer, reason });
    }

    /// Runs a connection that has come about. Returns whether it was of use.
    async fn run(&self, peer: Rc<Peer>, agreed: Agreed) -> bool {
        self.told.borrow_mut().0.remove(&Some(peer.id));
        connection::run(peer, agreed).await
    }
}

/// Keeps this host connected to a peer, at its address.
pub(super) async fn keep_connected(host: Rc<Host>, peer: Rc<Peer>, address: String) {
    let dice = Dice::new(host.dice.borrow_mut().roll());
    let mut backoff = Backoff::new(dice);
    loop {
        // Not in a hurry, so that there is one at a time of what cannot be cancelled.
        let resolved: Vec<SocketAddr> = match tokio::net::lookup_host(&address).await {
            Ok(resolved) => resolved.take(ADDRESSES_MAX).collect(),
            Err(error) => {
                host.report(Some(peer.id), HandshakeError::Mismatch(format!("{address} is no address: {error}")));
                Vec::new()
            }
        };
        for at in resolved {
            match tokio::time::timeout(HANDSHAKE_TIME, connect(&host, &peer, at)).await {
                Ok(Ok(agreed)) => {
                    let start = Instant::now();
                    if host.run(Rc::clone(&peer), agreed).await || start.elapsed() >= backoff::LONGEST {
                        backoff.reset();
                    }
                    break;
                }
                Ok(Err(error)) => host.report(Some(peer.id), error),
                Err(_) => tracing::debug!(peer = peer.name, %at, "a handshake took too long"),
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn connect(host: &Host, peer: &Peer, address: SocketAddr) -> Result<Agreed, HandshakeError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut stream = host.tls.connect(stream, &peer.name).await?;
    let hello = host.hello(&peer.name);
    handshake::write(&mut stream, &Frame::Hello(Box::new(hello.clone()))).await?;
    let theirs = match handshake::read(&mut stream).await? {
        Frame::Hello(theirs) => theirs,
        other => return Err(unexpected(other, &peer.name)),
    };
    let mismatch = (theirs.host != peer.name)
        .then(|| format!("at {address}, where `{}` should be, is `{}`", peer.name, theirs.host))
        .or_else(|| hello.mismatch(&theirs));
    if let Some(reason) = mismatch {
        handshake::write(&mut stream, &Frame::Refused(reason.clone())).await?;
        return Err(HandshakeError::Mismatch(reason));
    }
    let own = peer.ready();
    handshake::write(&mut stream, &Frame::Ready(own)).await?;
    let ready = match handshake::read(&mut stream).await? {
        Frame::Ready(ready) => ready,
        other => return Err(unexpected(other, &peer.name)),
    };
    let fresh = handshake::session_of(hello.nonce, theirs.nonce);
    Ok(Agreed { stream, side: Side::Client, own, theirs: ready, fresh, process: theirs.process })
}

fn unexpected(frame: Frame, host: &str) -> HandshakeError {
    match frame {
        Frame::Refused(reason) => HandshakeError::RefusedBy { host: host.to_owned(), reason },
        Frame::Hello(_) | Frame::Ready(_) => HandshakeError::Garbled,
    }
}

/// Those who have connected and are not known yet, in the order in which they came, with how to tell them to go.
#[derive(Default)]
struct Strangers {
    came: u64,
    present: BTreeMap<u64, Rc<Notify>>,
}

impl Strangers {
    /// One more, who is a stranger until told to go. The first goes when there are too many, as those who mean well are not strangers for long.
    fn add(&mut self) -> (u64, Rc<Notify>) {
        if self.present.len() >= STRANGERS_MAX
            && let Some((_, first)) = self.present.pop_first()
        {
            first.notify_one();
        }
        self.came += 1;
        let leave = Rc::new(Notify::new());
        self.present.insert(self.came, Rc::clone(&leave));
        (self.came, leave)
    }
}

/// Lets others connect, for as long as it is polled.
pub(super) async fn be_connected_to(host: Rc<Host>, listener: TcpListener) {
    let strangers = Rc::new(RefCell::new(Strangers::default()));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let (number, leave) = strangers.borrow_mut().add();
                let (host, strangers) = (Rc::clone(&host), Rc::clone(&strangers));
                connections.spawn_local(async move {
                    let mut known = None;
                    let met = tokio::select! {
                        met = tokio::time::timeout(HANDSHAKE_TIME, welcome(&host, stream, &mut known)) => met.ok(),
                        () = leave.notified() => None,
                    };
                    strangers.borrow_mut().present.remove(&number);
                    match met {
                        Some(Ok((peer, agreed))) => _ = host.run(peer, agreed).await,
                        Some(Err(error)) => host.report(known, error),
                        None => tracing::debug!(%from, "a handshake took too long"),
                    }
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be taken");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

/// The handshake with somebody who has connected. `known` becomes who it says that it is.
async fn welcome(
    host: &Host,
    stream: TcpStream,
    known: &mut Option<HostId>,
) -> Result<(Rc<Peer>, Agreed), HandshakeError> {
    stream.set_nodelay(true)?;
    let (mut stream, shown) = host.tls.accept(stream).await?;
    let theirs = match handshake::read(&mut stream).await {
        Ok(Frame::Hello(theirs)) => theirs,
        Ok(_) => return Err(HandshakeError::Garbled),
        Err(error) => {
            // Whoever it is learns of it, in a frame that all versions know.
            if !matches!(error, HandshakeError::Io(_)) {
                handshake::write(&mut stream, &Frame::Refused(error.to_string())).await?;
            }
            return Err(error);
        }
    };
    let hello = host.hello("");
    // Who connects comes later in the list.
    let peer = host.peers.iter().find(|peer| peer.name == theirs.host && peer.id > host.id);
    *known = peer.map(|peer| peer.id);
    let mismatch = match peer {
        Some(_) if !shown.is_of(&theirs.host) => {
            Some(format!("`{}` shows a certificate that does not name it", theirs.host))
        }
        // What differs says more than that a host is not in the list.
        Some(_) => hello.mismatch(&theirs),
        None => hello.mismatch(&theirs).or_else(|| {
            let (them, us) = (&theirs.host, &host.name);
            Some(format!("`{them}` is none of the hosts behind `{us}` in `[cluster]`: only those connect to it"))
        }),
    };
    let (None, Some(peer)) = (&mismatch, peer) else {
        return refuse(&mut stream, mismatch.unwrap_or_default()).await;
    };
    handshake::write(&mut stream, &Frame::Hello(Box::new(hello.clone()))).await?;
    let ready = match handshake::read(&mut stream).await? {
        Frame::Ready(ready) => ready,
        other => return Err(unexpected(other, &theirs.host)),
    };
    if peer.is_taken(theirs.process) {
        return refuse(&mut stream, format!("another process that is `{}` is connected", theirs.host)).await;
    }
    // From here on nothing more comes over the connection before, so that what has been received can be said.
    peer.detach(None);
    let own: Ready = peer.ready();
    handshake::write(&mut stream, &Frame::Ready(own)).await?;
    let fresh = handshake::session_of(theirs.nonce, hello.nonce);
    let agreed = Agreed { stream, side: Side::Server, own, theirs: ready, fresh, process: theirs.process };
    Ok((Rc::clone(peer), agreed))
}

async fn refuse<T>(stream: &mut Box<dyn tls::Stream>, reason: String) -> Result<T, HandshakeError> {
    handshake::write(stream, &Frame::Refused(reason.clone())).await?;
    Err(HandshakeError::Mismatch(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_not_told_again_and_nothing_too_often() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut is_news = |of, reason, ms| told.is_news(of, reason, start + Duration::from_millis(ms));
        let (stranger, peer) = (None, Some(HostId(1)));
        assert!(is_news(stranger, "a", 0) && is_news(peer, "a", 0));
        assert!(!is_news(stranger, "a", 5_000) && !is_news(stranger, "b", 900));
        assert!(is_news(stranger, "b", 1_100) && !is_news(stranger, "a", 1_200) && is_news(peer, "c", 1_200));
    }

    #[test]
    fn the_first_stranger_goes_when_there_are_too_many() {
        let mut strangers = Strangers::default();
        (0..STRANGERS_MAX).for_each(|_| _ = strangers.add());
        assert_eq!(strangers.present.keys().next(), Some(&1));
        strangers.add();
        assert_eq!((strangers.present.keys().next(), strangers.present.len()), (Some(&2), STRANGERS_MAX));
    }
}
