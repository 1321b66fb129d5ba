//! Plain readers of a running job: HTTP by hand over a socket, and Cap'n Proto by its crate.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use capnp_rpc::RpcSystem;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use serde_json::Value;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};
use wasmill::lookup::generated::query_capnp::{entrance, tables, value};

use crate::harness::{Job, Running};

const WAIT_MAX: Duration = Duration::from_secs(60);

/// Where a running job says that it answers.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    pub http: SocketAddr,
    pub capnp: Option<SocketAddr>,
    pub pid: u64,
}

/// What the state directory announces now.
pub fn announced(job: &Job) -> Option<Serving> {
    let told: Value = serde_json::from_slice(&std::fs::read(job.path("state/serving")).ok()?).expect("JSON");
    let address = |field: &str| told[field].as_str().map(|text| text.parse().expect("an address"));
    Some(Serving { http: address("http")?, capnp: address("capnp"), pid: told["pid"].as_u64()? })
}

/// Waits until the job answers.
pub fn serving(job: &Job, running: &mut Running) -> Serving {
    let start = Instant::now();
    loop {
        match announced(job) {
            Some(serving) if TcpStream::connect(serving.http).is_ok() => return serving,
            _ => assert!(start.elapsed() < WAIT_MAX && running.is_running(), "waited in vain until the job answers"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An answer by HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The body of a good answer.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// The body.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A connection on which one request follows another.
#[derive(Debug)]
pub struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the job listens")
    }

    /// A connection to a job that may have ended: `None` when it has.
    pub fn try_connect(address: SocketAddr) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        Some(Self { stream: BufReader::new(stream) })
    }

    /// Asks with these further headers, each with its line end.
    pub fn ask(&mut self, method: &str, path: &str, headers: &str) -> Answer {
        self.try_ask(method, path, headers).expect("an answer comes")
    }

    /// Sends `body` to a job that may end meanwhile: the status of its answer, or `None` when it has ended.
    pub fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> Option<u16> {
        let headers = format!("{headers}content-length: {}\r\n", body.len());
        let answer = self.try_send("POST", path, &headers, body).ok()?;
        Some(answer.status)
    }

    fn try_ask(&mut self, method: &str, path: &str, headers: &str) -> io::Result<Answer> {
        self.try_send(method, path, headers, &[])
    }

    fn try_send(&mut self, method: &str, path: &str, headers: &str, sent: &[u8]) -> io::Result<Answer> {
        let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
        let request = format!("{method} {path} HTTP/1.1\r\n{host}{headers}\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.stream.get_mut().write_all(sent)?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, head, body: String::from_utf8(body).expect("answers are text") })
    }

    /// Asks a job that may end meanwhile: `None` when it has.
    pub fn get_while_running(&mut self, path: &str) -> Option<Answer> {
        self.try_ask("GET", path, "").ok()
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }
}

/// Runs what asks by Cap'n Proto.
pub fn with_tables<T>(
    address: SocketAddr,
    token: &str,
    ask: impl AsyncFnOnce(tables::Client) -> Result<T, capnp::Error>,
) -> Result<T, capnp::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let stream = tokio::net::TcpStream::connect(address).await.expect("the job listens");
        let (reader, writer) = stream.into_split();
        let network = VatNetwork::new(reader.compat(), writer.compat_write(), Side::Client, Default::default());
        let mut system = RpcSystem::new(Box::new(network), None);
        let entrance: entrance::Client = system.bootstrap(Side::Server);
        tokio::task::spawn_local(system);
        let mut request = entrance.enter_request();
        request.get().set_token(token);
        let tables = request.send().promise.await?.get()?.get_tables()?;
        ask(tables).await
    })
}

/// The values of keys as of an epoch, by Cap'n Proto.
pub async fn values(
    tables: &tables::Client,
    table: &str,
    keys: &[String],
    epoch: u64,
) -> Result<Vec<Option<String>>, capnp::Error> {
    let mut request = tables.get_request();
    request.get().set_table(table);
    request.get().init_consistency().set_as_of(epoch);
    let mut list = request.get().init_keys(keys.len() as u32);
    for (index, key) in (0..).zip(keys) {
        list.set(index, key.as_bytes());
    }
    let response = request.send().promise.await?;
    let told = response.get()?;
    assert_eq!(told.get_epoch(), epoch);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the values of tests are text");
    let value = |told: value::Reader<'_>| match told.which()? {
        value::Absent(()) => Ok(None),
        value::Present(value) => Ok(Some(text(value?))),
    };
    told.get_values()?.iter().map(value).collect()
}
