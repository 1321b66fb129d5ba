//! A network that fails: connections go through a relay that cuts, holds back or delays what passes, as a test or its seed says.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::super::backoff::Dice;

/// How the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// Everything passes.
    Fair,
    /// Nothing passes, and connections break.
    Cut,
    /// Nothing passes from who connects to who is connected to; the other way is as ever.
    CutThere,
    /// Nothing passes from who is connected to to who connects.
    CutBack,
}

/// The way between two hosts.
pub(super) struct Relay {
    state: Arc<State>,
    pub(super) address: String,
}

struct State {
    target: String,
    weather: Mutex<Weather>,
    /// The weather has changed.
    changed: Condvar,
    /// Everything takes this long.
    delay: Duration,
    /// Where the bytes come from after which connections break, if they do.
    dice: Mutex<Option<Dice>>,
    /// Connections that have been broken by chance.
    broken: AtomicU64,
    /// What who has connected first has said.
    overheard: Mutex<Vec<u8>>,
    connections: AtomicU64,
    is_over: AtomicBool,
}

impl Relay {
    /// A relay to `target`. With a seed, connections break after 100 to 300 thousand bytes.
    pub(super) fn start(target: &str, seed: Option<u64>, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(State {
            target: target.to_owned(),
            weather: Mutex::new(Weather::Fair),
            changed: Condvar::new(),
            delay,
            dice: Mutex::new(seed.map(Dice::new)),
            broken: AtomicU64::new(0),
            overheard: Mutex::default(),
            connections: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(near), Ok(far)) = (stream, TcpStream::connect(&shared.target)) else { continue };
                if *shared.weather.lock() != Weather::Cut {
                    carry(&shared, near, far);
                }
            }
        });
        Self { state, address }
    }

    pub(super) fn set(&self, weather: Weather) {
        *self.state.weather.lock() = weather;
        self.state.changed.notify_all();
    }

    /// How many connections chance has broken.
    pub(super) fn broken(&self) -> u64 {
        self.state.broken.load(Ordering::Relaxed)
    }

    /// What who has connected first has said so far.
    pub(super) fn overheard(&self) -> Vec<u8> {
        self.state.overheard.lock().clone()
    }

    /// Chance breaks no more connections.
    pub(super) fn calm(&self) {
        *self.state.dice.lock() = None;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        self.set(Weather::Cut);
        let _ = TcpStream::connect(&self.address);
    }
}

/// Carries what goes over a connection, both ways.
fn carry(state: &Arc<State>, near: TcpStream, far: TcpStream) {
    let bytes = state.dice.lock().as_mut().map(|dice| 100_000 + dice.roll() % 200_000);
    let left = Arc::new(AtomicU64::new(bytes.unwrap_or(u64::MAX)));
    let pairs = [(&near, &far, Weather::CutThere), (&far, &near, Weather::CutBack)];
    let is_first = state.connections.fetch_add(1, Ordering::Relaxed) == 0;
    for (from, to, against) in pairs {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let (state, left) = (Arc::clone(state), Arc::clone(&left));
        let is_overheard = is_first && against == Weather::CutThere;
        std::thread::spawn(move || carry_one_way(&state, from, to, against, &left, is_overheard));
    }
    // In a cut, connections end even while nobody says anything.
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        let mut weather = state.weather.lock();
        while *weather != Weather::Cut {
            state.changed.wait(&mut weather);
        }
        let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
    });
}

fn carry_one_way(
    state: &State,
    mut from: TcpStream,
    mut to: TcpStream,
    against: Weather,
    left: &AtomicU64,
    is_overheard: bool,
) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if !state.delay.is_zero() {
            std::thread::sleep(state.delay);
        }
        {
            let mut weather = state.weather.lock();
            while *weather == against {
                state.changed.wait(&mut weather);
            }
        }
        // Both ways take from the same.
        let take = |left: u64| Some(if left == u64::MAX { left } else { left.saturating_sub(length as u64) });
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).unwrap_or_default();
        let passes = (length as u64).min(before) as usize;
        if is_overheard {
            state.overheard.lock().extend_from_slice(&buffer[..passes]);
        }
        if to.write_all(&buffer[..passes]).is_err() {
            break;
        }
        if passes < length {
            state.broken.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
