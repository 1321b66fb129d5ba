//! How two hosts find each other: connecting and being connected to, up to the end of the handshake.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capnp_rpc::rpc_twoparty_capnp::Side;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::backoff::{Backoff, Dice};
use super::connection::{self, Agreed};
use super::handshake::{self, Frame, HandshakeError, Hello, Identity, Ready};
use super::peer::{Peer, Shared};
use super::tls::Tls;
use super::{HostId, PeerEvent};

/// How long a handshake may take, with TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Strangers at a time; more wait until one is known, or gone.
const STRANGERS_MAX: usize = 64;
/// The pause after the system has refused a connection, as it does when files run out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

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
    /// What was last said of whom, so that the same is not said again and again.
    pub(super) said: RefCell<Option<(Option<HostId>, String)>>,
}

impl Host {
    fn hello(&self, to: &str) -> Hello {
        let nonce = self.dice.borrow_mut().roll();
        let (identity, host) = (self.identity.clone(), self.name.clone());
        Hello { identity, host, to: to.to_owned(), process: self.process, nonce }
    }

    /// Tells of a handshake that has failed, unless it is only that nobody is there.
    fn report(&self, peer: Option<HostId>, error: &HandshakeError) {
        // TLS tells its own failures as invalid data.
        let is_news = !matches!(error, HandshakeError::Io(error) if error.kind() != io::ErrorKind::InvalidData);
        let said = (peer, error.to_string());
        if !is_news || self.said.borrow().as_ref() == Some(&said) {
            tracing::debug!(?peer, %error, "no connection to another host");
            return;
        }
        self.said.replace(Some(said));
        self.shared.event(PeerEvent::Refused { peer, reason: error.to_string() });
    }
}

/// Keeps this host connected to a peer, at its address.
pub(super) async fn keep_connected(host: Rc<Host>, peer: Rc<Peer>, address: String) {
    let dice = Dice::new(host.dice.borrow_mut().roll());
    let mut backoff = Backoff::new(dice);
    loop {
        match tokio::time::timeout(HANDSHAKE_TIME, connect(&host, &peer, &address)).await {
            Ok(Ok(agreed)) => {
                backoff.reset();
                host.said.take();
                connection::run(Rc::clone(&peer), agreed).await;
            }
            Ok(Err(error)) => host.report(Some(peer.id), &error),
            Err(_) => tracing::debug!(peer = peer.name, "a handshake took too long"),
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn connect(host: &Host, peer: &Peer, address: &str) -> Result<Agreed, HandshakeError> {
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

/// Lets others connect, for as long as it is polled.
pub(super) async fn be_connected_to(host: Rc<Host>, listener: TcpListener) {
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let permit = Arc::clone(&strangers).acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let host = Rc::clone(&host);
                connections.spawn_local(async move {
                    let mut known = None;
                    match tokio::time::timeout(HANDSHAKE_TIME, welcome(&host, stream, &mut known)).await {
                        Ok(Ok((peer, agreed))) => {
                            drop(permit);
                            connection::run(peer, agreed).await;
                        }
                        Ok(Err(error)) => host.report(known, &error),
                        Err(_) => tracing::debug!(%from, "a handshake took too long"),
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
    let Frame::Hello(theirs) = handshake::read(&mut stream).await? else { return Err(HandshakeError::Garbled) };
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

async fn refuse<T>(stream: &mut Box<dyn super::tls::Stream>, reason: String) -> Result<T, HandshakeError> {
    handshake::write(stream, &Frame::Refused(reason.clone())).await?;
    Err(HandshakeError::Mismatch(reason))
}
