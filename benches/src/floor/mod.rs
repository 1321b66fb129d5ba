//! The floor of remote lookups: the same columns of keys and values over raw `capnp-rpc`, one thread a side, from one process to another over loopback.
//!
//! The side that answers copies each value out of a hash map: no lookup can do less.

#[allow(clippy::all, reason = "made by a program")]
#[rustfmt::skip]
mod floor_capnp;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{RpcSystem, new_client};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use self::floor_capnp::floor;
use crate::random::mix;

const KEYS: u64 = 1_000_000;
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
const QUESTIONS: u64 = 512;
/// Between single lookups: as far apart as the records of a job that is asked at the same pace, so that both wake idle cores.
pub const PACE: Duration = Duration::from_millis(2);
const BUFFER_BYTES: usize = 256 << 10;

/// What raw `capnp-rpc` does.
#[derive(Debug, Clone, Copy)]
pub struct Floor {
    /// Lookups a second, in batches, several in flight.
    pub lookups_a_second: f64,
    /// The median of single lookups, one at a time and [`PACE`] apart: there and back.
    pub round_trip: Duration,
}

/// Measures the floor. `program` is this program, which is started once more for the other side.
///
/// # Errors
/// When the other side cannot be started, or a call fails.
pub fn measure(program: &std::path::Path, batch: usize, in_flight: usize, time: Duration) -> Result<Floor> {
    let mut other = Other::start(program)?;
    let measured = on_one_thread(async {
        let client = connect(&other.address).await?;
        // What is asked for is made before the clock starts, in so many batches that their values do not stay in the processor's caches.
        let questions: Rc<[Vec<u8>]> = (0..QUESTIONS).map(|question| keys(question, batch)).collect();
        ask(&client, &questions[0]).await?;
        let mut round_trips = Vec::new();
        let start = Instant::now();
        for question in questions.iter().cycle() {
            let asked = Instant::now();
            ask(&client, &question[..KEY_BYTES]).await?;
            round_trips.push(asked.elapsed());
            tokio::time::sleep(PACE).await;
            if start.elapsed() >= time {
                break;
            }
        }
        round_trips.sort();
        let round_trip = round_trips[round_trips.len() / 2];
        let start = Instant::now();
        let mut askers = JoinSet::new();
        for asker in 0..in_flight {
            let (client, questions) = (client.clone(), Rc::clone(&questions));
            askers.spawn_local(async move {
                let mut asked = 0;
                while start.elapsed() < time {
                    ask(&client, &questions[(asker + asked * in_flight) % questions.len()]).await?;
                    asked += 1;
                }
                anyhow::Ok(asked)
            });
        }
        let mut batches = 0;
        while let Some(asked) = askers.join_next().await {
            batches += asked.context("an asker has panicked")??;
        }
        Ok(Floor { lookups_a_second: batches as f64 * batch as f64 / start.elapsed().as_secs_f64(), round_trip })
    });
    other.process.kill()?;
    other.process.wait()?;
    measured
}

/// The process of the other side.
struct Other {
    process: Child,
    address: String,
}

impl Other {
    fn start(program: &std::path::Path) -> Result<Self> {
        let mut process = Command::new(program).arg("floor").stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("the other side has no output")?;
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address)?;
        Ok(Self { process, address: address.trim().to_owned() })
    }
}

/// Answers whoever connects, until the process is killed.
///
/// # Errors
/// When there is no port to be had.
pub fn serve() -> Result<()> {
    let key = |number: u64| format!("{:016x}", mix(number)).into_bytes();
    let held: HashMap<Vec<u8>, Vec<u8>, foldhash::fast::FixedState> =
        (0..KEYS).map(|number| (key(number), vec![1; VALUE_BYTES])).collect();
    let held = Rc::new(held);
    on_one_thread(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            let server: floor::Client = new_client(Held(Rc::clone(&held)));
            let system = RpcSystem::new(Box::new(network(stream, Side::Server)?), Some(server.client));
            tokio::task::spawn_local(system);
        }
    })
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

async fn connect(address: &str) -> Result<floor::Client> {
    let stream = TcpStream::connect(address).await?;
    let mut system = RpcSystem::new(Box::new(network(stream, Side::Client)?), None);
    let client = system.bootstrap(Side::Server);
    tokio::task::spawn_local(system);
    Ok(client)
}

type Stream = tokio_util::compat::Compat<tokio::io::BufReader<tokio::io::ReadHalf<TcpStream>>>;

fn network(stream: TcpStream, side: Side) -> Result<VatNetwork<Stream>> {
    stream.set_nodelay(true)?;
    let (reader, writer) = tokio::io::split(stream);
    let reader = tokio::io::BufReader::with_capacity(BUFFER_BYTES, reader).compat();
    let writer = tokio::io::BufWriter::with_capacity(BUFFER_BYTES, writer).compat_write();
    Ok(VatNetwork::new(reader, writer, side, capnp::message::ReaderOptions::new()))
}

/// `count` keys that follow from `question`, one behind the other.
fn keys(question: u64, count: usize) -> Vec<u8> {
    let drawn = (0..count as u64).map(|place| mix(mix(question).wrapping_add(place)) % KEYS);
    drawn.map(|number| format!("{:016x}", mix(number))).collect::<String>().into_bytes()
}

/// Asks for keys, and copies their values out.
async fn ask(client: &floor::Client, keys: &[u8]) -> Result<Vec<u8>> {
    let count = keys.len() / KEY_BYTES;
    let mut call = client.get_request();
    let mut asked = call.get().init_keys();
    asked.set_bytes(keys);
    let mut ends = asked.init_ends(count as u32);
    (0..count).for_each(|place| ends.set(place as u32, ((place + 1) * KEY_BYTES) as u32));
    let answer = call.send().promise.await?;
    let values = answer.get()?.get_values()?.get_bytes()?.to_vec();
    ensure!(values.len() == count * VALUE_BYTES, "a lookup has found other values");
    Ok(values)
}

struct Held(Rc<HashMap<Vec<u8>, Vec<u8>, foldhash::fast::FixedState>>);

impl floor::Server for Held {
    async fn get(self: Rc<Self>, params: floor::GetParams, mut results: floor::GetResults) -> capnp::Result<()> {
        let keys = params.get()?.get_keys()?;
        let (bytes, ends) = (keys.get_bytes()?, keys.get_ends()?);
        let mut values = results.get().init_values();
        let mut found = Vec::with_capacity(ends.len() as usize * VALUE_BYTES);
        let mut found_ends = Vec::with_capacity(ends.len() as usize);
        let mut start = 0;
        for end in ends.iter() {
            let key = bytes.get(start..end as usize).ok_or_else(|| capnp::Error::failed("no such key".to_owned()))?;
            found.extend_from_slice(self.0.get(key).map_or(&[][..], Vec::as_slice));
            found_ends.push(found.len() as u32);
            start = end as usize;
        }
        values.set_bytes(&found);
        let mut told = values.init_ends(found_ends.len() as u32);
        (0..).zip(found_ends).for_each(|(place, end)| told.set(place, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_code_is_made_from_the_schema_as_it_is() {
        let digest: String =
            Sha256::digest(include_bytes!("../../floor.capnp")).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(include_str!("floor_capnp.rs").contains(&format!("// Schema: {digest}\n")), "run `cargo xtask capnp`");
    }
}
