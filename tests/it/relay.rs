//! What stands between two hosts and does them harm: a relay of the connections to one host, which delays, swallows, cuts, and drops, doubles or swaps whole messages.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done to the bytes of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Harm {
    /// They come later, and fewer at a time.
    pub delay: Duration,
    /// They never arrive, and nobody is told.
    pub swallow: bool,
    /// What becomes of the next message.
    pub next: Option<Trick>,
}

/// What can become of a whole message. Connections do none of these by themselves; what stands between hosts may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trick {
    /// It does not arrive.
    Drop,
    /// It arrives twice.
    Double,
    /// It arrives behind the one that follows.
    Swap,
}

/// Both directions: what goes to the host, and what comes from it.
pub type Harms = [Harm; 2];

/// A relay in front of a host.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    harms: Mutex<Harms>,
    open: Mutex<Vec<[TcpStream; 2]>>,
    over: AtomicBool,
}

impl Relay {
    /// A relay that does no harm yet.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Shared::default()));
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if own.over.load(Ordering::Relaxed) {
                    return;
                }
                // A host that does not run refuses, as it would without a relay.
                if let Ok(far) = TcpStream::connect(target) {
                    own.carry(near, far);
                }
            }
        });
        Self { address, shared }
    }

    /// Where others connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on does this to all that passes.
    pub fn set(&self, harms: Harms) {
        *self.shared.harms.lock().unwrap() = harms;
    }

    /// Cuts all connections.
    pub fn reset(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.reset();
        // Wakes the one that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn carry(self: &Arc<Self>, near: TcpStream, far: TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be shared");
        [&near, &far].into_iter().for_each(|stream| _ = stream.set_nodelay(true));
        self.open.lock().unwrap().push([clone(&near), clone(&far)]);
        for (direction, from, to) in [(0, clone(&near), clone(&far)), (1, far, near)] {
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                shared.pass(direction, &from, &to);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    }

    /// Passes on one direction of a connection, message by message, to its end.
    fn pass(&self, direction: usize, mut from: &TcpStream, mut to: &TcpStream) {
        let (mut buffer, mut held, mut frames, mut chunk) = (Vec::new(), None::<Vec<u8>>, 0, vec![0; 64 << 10]);
        loop {
            let Ok(read @ 1..) = from.read(&mut chunk) else { return };
            buffer.extend_from_slice(&chunk[..read]);
            let harm = self.harms.lock().unwrap()[direction];
            std::thread::sleep(harm.delay);
            while let Some(length) = message(&buffer, frames) {
                frames += 1;
                let bytes: Vec<u8> = buffer.drain(..length).collect();
                if harm.swallow {
                    continue;
                }
                // The frames by which hosts get to know each other pass as they are.
                let trick = (frames > FRAMES).then(|| self.harms.lock().unwrap()[direction].next.take()).flatten();
                let passed = match trick {
                    None => to.write_all(&bytes),
                    Some(Trick::Drop) => Ok(()),
                    Some(Trick::Double) => to.write_all(&bytes).and_then(|()| to.write_all(&bytes)),
                    Some(Trick::Swap) => {
                        held = Some(bytes);
                        continue;
                    }
                };
                let behind = held.take().map_or(Ok(()), |held| to.write_all(&held));
                if passed.and(behind).is_err() {
                    return;
                }
            }
        }
    }
}

/// The frames at the beginning of a connection, in each direction: `hello` and `ready`.
const FRAMES: usize = 2;

/// The length of the message that the bytes begin with, where it is there as a whole: of a frame, or of a Cap'n Proto message with the table of its segments.
fn message(bytes: &[u8], frames: usize) -> Option<usize> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().unwrap()) as usize);
    let length = if frames < FRAMES {
        11 + number(7)?
    } else {
        let segments = number(0)? + 1;
        let table = (4 + 4 * segments).next_multiple_of(8);
        let words = (0..segments).map(|segment| number(4 + 4 * segment)).sum::<Option<usize>>()?;
        table + 8 * words
    };
    (bytes.len() >= length).then_some(length)
}
