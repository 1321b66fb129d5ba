//! Peers that nobody should have: whatever they send, the host goes on, with its other peers and with whoever comes after them.

use capnp::message::ReaderOptions;
use capnp_rpc::RpcSystem;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::LocalSet;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use super::*;
use crate::cluster::link::generated::peer_capnp::peer;
use crate::cluster::link::handshake::{self, Frame, Hello, Ready};
use crate::cluster::link::session::Message;
use crate::cluster::link::wire;

/// A host `a` with a good peer `c`. What is tried on it says that it is `b`.
pub(super) struct Victim {
    pub(super) host: TestHost,
    pub(super) good: TestHost,
    pub(super) address: String,
    addresses: Vec<String>,
    /// Where `b` would listen.
    listener: TcpListener,
}

impl Victim {
    pub(super) fn new(lost_after: Duration) -> Self {
        let (mut listeners, addresses) = listeners(3);
        let host = TestHost::start(settings(0, &addresses, lost_after), listeners.remove(0));
        let mut of_good = settings(2, &addresses, lost_after);
        // It is to hear of `a` only.
        of_good.hosts[1].address = "127.0.0.1:1".to_owned();
        let good = TestHost::start(of_good, listeners.remove(1));
        host.wait_up(2);
        good.wait_up(0);
        [&host, &good].iter().for_each(|host| host.begin(1));
        Self { host, good, address: addresses[0].clone(), addresses, listener: listeners.remove(0) }
    }

    /// Whether the good peer has noticed nothing, and a good `b` is welcome.
    pub(super) fn check_well(self) {
        self.good.send(0, 1, 0, 1);
        assert_eq!(self.good.wait_acknowledged(), 1);
        let status = self.good.link().status();
        assert!(status[0].is_up && status[0].connections == 1, "{status:?}");
        let late = TestHost::start(settings(1, &self.addresses, PATIENCE), self.listener);
        late.wait_up(0);
        late.begin(1);
        late.send(0, 1, 0, 2);
        assert_eq!(late.wait_acknowledged(), 2);
    }
}

pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

pub(super) fn hello(host: &str, to: &str) -> Frame {
    Frame::Hello(Box::new(Hello::new(&identity(), host, to, 1, 2)))
}

/// Connects as `b`, up to the end of the handshake.
pub(super) async fn shake_hands(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    handshake::write(&mut stream, &hello("b", "a")).await.unwrap();
    assert!(matches!(handshake::read(&mut stream).await.unwrap(), Frame::Hello(_)));
    handshake::write(&mut stream, &Frame::Ready(Ready::default())).await.unwrap();
    assert!(matches!(handshake::read(&mut stream).await.unwrap(), Frame::Ready(_)));
    stream
}

/// Says this and nothing more, and waits until the other side has had enough.
async fn say(mut stream: TcpStream, bytes: &[u8]) {
    // The other side may have had enough before.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

/// The RPC system of a peer, over whatever it is to speak over.
fn client(
    reader: impl tokio::io::AsyncRead + Unpin + 'static,
    writer: impl tokio::io::AsyncWrite + Unpin + 'static,
) -> peer::Client {
    let network = VatNetwork::new(reader.compat(), writer.compat_write(), Side::Client, ReaderOptions::new());
    let mut system = RpcSystem::new(Box::new(network), None);
    let client = system.bootstrap(Side::Server);
    tokio::task::spawn_local(system);
    client
}

async fn speaking(address: &str) -> peer::Client {
    let (reader, writer) = shake_hands(address).await.into_split();
    client(reader, writer)
}

fn delivery(attempt: Attempt, task: u32, text: &str) -> Message {
    Message::Delivery(attempt, Delivery { task, load: records(text) })
}

fn push(
    client: &peer::Client,
    first: u64,
    messages: &[Message],
) -> impl Future<Output = Result<u64, capnp::Error>> + use<> {
    let mut request = client.push_request();
    request.get().set_first(first);
    let mut list = request.get().init_messages(messages.len() as u32);
    for (index, message) in (0..).zip(messages) {
        wire::write_message(list.reborrow().get(index), message).unwrap();
    }
    let answered = request.send().promise;
    async move { Ok(answered.await?.get()?.get_through()) }
}

fn ask(
    client: &peer::Client,
    attempt: Attempt,
    keys: &Column,
) -> impl Future<Output = Result<(), capnp::Error>> + use<> {
    let mut request = client.get_request();
    request.get().set_attempt(attempt);
    request.get().set_table(1);
    wire::write_column(request.get().init_keys(), keys).unwrap();
    request.get().init_read().set_live(());
    let answered = request.send().promise;
    async move { answered.await.map(drop) }
}

/// What a peer sends that pushes, looks up and scans.
async fn spoken() -> Vec<u8> {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let (reader, writer) = tokio::io::split(near);
    let client = client(reader, writer);
    let pushed = push(&client, 1, &[delivery(1, 3, "text"), Message::Void, Message::Control(b"control".to_vec())]);
    let asked = ask(&client, 1, &column(&[b"some", b"keys"]));
    let mut scan = client.scan_request();
    scan.get().set_attempt(1);
    scan.get().set_from(b"from");
    scan.get().init_to().set_before(b"to");
    let (beat, scan) = (client.beat_request().send().promise, scan.send().promise);
    let mut spoken = Vec::new();
    // Nobody answers: what is said without an answer is said at once.
    while spoken.len() < 400 {
        far.read_buf(&mut spoken).await.unwrap();
    }
    while let Ok(read) = tokio::time::timeout(Duration::from_millis(50), far.read_buf(&mut spoken)).await {
        assert!(read.unwrap() > 0);
    }
    drop((pushed, asked, beat, scan));
    spoken
}

/// The same cases on every run.
fn runner(cases: u32) -> TestRunner {
    TestRunner::new_with_rng(Config::with_cases(cases), TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn bytes_of_strangers_are_borne() {
    let victim = Victim::new(PATIENCE);
    let bytes = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200));
    let mut runner = runner(48);
    let checked = runner.run(&bytes, |(is_known, bytes)| {
        let said = if is_known { [b"WMIL\x01\x00\x01".to_vec(), bytes].concat() } else { bytes };
        run(async { say(TcpStream::connect(&victim.address).await.unwrap(), &said).await });
        Ok(())
    });
    checked.unwrap();
    victim.check_well();
}

#[test]
fn bytes_that_make_no_sense_end_their_connection_and_nothing_else() {
    let victim = Victim::new(PATIENCE);
    let spoken = run(spoken());
    let hear = |bytes: &[u8]| run(async { say(shake_hands(&victim.address).await, bytes).await });
    hear(&spoken);
    victim.host.wait(|heard| matches!(heard, Heard::Control(_, said) if said == b"control").then_some(()));
    hear(b"GET /tables HTTP/1.1\r\nhost: localhost\r\n\r\n");
    // One segment of 2^32 - 1 words; as many segments.
    hear(&[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    hear(&[0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0]);
    let changes = (0..spoken.len(), 0..8_u32, any::<bool>(), prop::collection::vec(any::<u8>(), 0..64));
    let mut runner = runner(160);
    let checked = runner.run(&changes, |(place, bit, is_cut, noise)| {
        let mut changed = spoken.clone();
        changed[place] ^= 1 << bit;
        if is_cut {
            changed.truncate(place);
            changed.extend_from_slice(&noise);
        }
        hear(&changed);
        Ok(())
    });
    checked.unwrap();
    victim.check_well();
}

#[test]
fn replayed_messages_are_dropped_and_reordered_ones_end_the_connection() {
    let victim = Victim::new(PATIENCE);
    run(async {
        let client = speaking(&victim.address).await;
        let messages = ["1", "2", "3", "4"].map(|text| delivery(1, 0, text));
        assert_eq!(push(&client, 1, &messages[..2]).await.unwrap(), 2);
        assert_eq!(push(&client, 1, &messages[..2]).await.unwrap(), 2);
        assert_eq!(push(&client, 2, &messages[1..3]).await.unwrap(), 3);
        assert!(push(&client, 5, &messages[3..]).await.is_err(), "4 is missing");
        assert!(push(&client, 4, &messages[3..]).await.is_err(), "the connection is over");
    });
    for expected in ["1", "2", "3"] {
        assert_eq!(victim.host.wait_delivery(), (HostId(1), Delivery { task: 0, load: records(expected) }));
    }
    victim.check_well();
}

/// The reason for which the session ends when a peer does this.
fn reason(act: impl AsyncFnOnce(&peer::Client)) -> String {
    let victim = Victim::new(PATIENCE);
    let reason = run(async {
        let client = speaking(&victim.address).await;
        act(&client).await;
        victim.host.wait_lost(1)
    });
    victim.check_well();
    reason
}

#[test]
fn what_cannot_be_ends_the_session_with_the_reason() {
    let check = |reason: String, said: &str| assert!(reason.contains(said), "`{said}` is not in: {reason}");
    let message = || delivery(1, 0, "x");
    check(reason(async |client| _ = push(client, 1, &[delivery(1, 4000, "x")]).await), "there is no task 4000");
    check(reason(async |client| _ = push(client, u64::MAX, &[message()]).await), "in one call");
    let many: Vec<Message> = (0..300).map(|_| Message::Void).collect();
    check(reason(async |client| _ = push(client, 1, &many).await), "300 messages from number 1 in one call");
    let long = Message::Control(vec![0; CONTROL_BYTES_MAX + 1]);
    check(reason(async |client| _ = push(client, 1, &[long]).await), "a control message has");
    let keys = column(&vec![&b"k"[..]; KEYS_MAX + 1]);
    check(reason(async |client| _ = ask(client, 1, &keys).await), "a lookup of 16385 keys");
    let early = || {
        async |client: &peer::Client| {
            let asked: Vec<_> = (0..65).map(|_| ask(client, 9, &column(&[b"k"]))).collect();
            futures_util::future::join_all(asked).await;
        }
    };
    check(reason(early()), "more than 64 lookups under way");
    let large = column(&[&vec![0; KEY_BYTES_MAX]]);
    let early = async |client: &peer::Client| {
        let asked: Vec<_> = (0..5).map(|_| ask(client, 9, &large)).collect();
        futures_util::future::join_all(asked).await;
    };
    check(reason(early), "its lookups that wait have more than");
    let back = async |client: &peer::Client| _ = push(client, 1, &[delivery(9, 0, "x"), delivery(8, 0, "x")]).await;
    check(reason(back), "something of attempt 8 after something of attempt 9");
}

#[test]
fn a_peer_that_acknowledges_what_it_was_never_sent_is_lost() {
    /// Acknowledges everything there could be.
    struct Liar;
    impl peer::Server for Liar {
        async fn beat(
            self: std::rc::Rc<Self>,
            _: peer::BeatParams,
            mut results: peer::BeatResults,
        ) -> Result<(), capnp::Error> {
            results.get().set_through(u64::MAX);
            Ok(())
        }
    }
    let victim = Victim::new(PATIENCE);
    let reason = run(async {
        let (reader, writer) = shake_hands(&victim.address).await.into_split();
        let network = VatNetwork::new(reader.compat(), writer.compat_write(), Side::Client, ReaderOptions::new());
        let liar: peer::Client = capnp_rpc::new_client(Liar);
        let system = RpcSystem::new(Box::new(network), Some(liar.client));
        let lost = tokio::task::spawn_blocking(move || (victim.host.wait_lost(1), victim));
        let (ended, lost) = tokio::join!(tokio::task::spawn_local(system), lost);
        // Broken, or closed: both are an end.
        let _ = ended;
        let (reason, victim) = lost.unwrap();
        victim.check_well();
        reason
    });
    assert!(reason.contains("it acknowledges message 18446744073709551615"), "{reason}");
}

#[test]
fn a_peer_that_does_not_read_its_answers_loses_the_connection() {
    let victim = Victim::new(PATIENCE);
    victim.host.ears.values.lock().insert(b"large".to_vec(), vec![1; ANSWER_BYTES_MAX]);
    run(async {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(near);
        let client = client(reader, writer);
        let mut stream = shake_hands(&victim.address).await;
        // One way only: what is asked goes there, and no answer is taken.
        let asked: Vec<_> = (0..150).map(|_| ask(&client, 1, &column(&[b"large"]))).collect();
        let mut piece = [0; 4096];
        while let Ok(read) = far.read(&mut piece).await {
            if stream.write_all(&piece[..read]).await.is_err() {
                return;
            }
            let said = tokio::time::timeout(Duration::from_millis(20), far.read_u8());
            match said.await {
                Ok(Ok(byte)) if stream.write_all(&[byte]).await.is_err() => return,
                Ok(_) => {}
                // All is said. It cannot be seen from here that the other side closes, as there is so much before that.
                Err(_) => {
                    while victim.host.link().status()[0].is_connected {
                        tokio::task::yield_now().await;
                    }
                    return;
                }
            }
        }
        drop(asked);
    });
    victim.check_well();
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let victim = Victim::new(PATIENCE);
    // They are more than there may be strangers at a time.
    let silent: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(&victim.address).unwrap()).collect();
    victim.check_well();
    drop(silent);
}
