//! Asking by Cap'n Proto over loopback: right answers, bounds, and bytes that make no sense.

use std::net::SocketAddr;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use super::*;
use crate::lookup::generated::query_capnp::{bound, tables, value};
use crate::lookup::tests::Job;

/// Runs a test with timers and tasks of this thread.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

async fn listen(job: &Job, token: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(serve(listener, Arc::clone(&job.directory), Rc::new(move |said: &str| said == token)));
    address
}

async fn entrance(address: SocketAddr) -> entrance::Client {
    let (reader, writer) = TcpStream::connect(address).await.unwrap().into_split();
    let network = VatNetwork::new(reader.compat(), writer.compat_write(), Side::Client, ReaderOptions::new());
    let mut system = RpcSystem::new(Box::new(network), None);
    let entrance = system.bootstrap(Side::Server);
    tokio::task::spawn_local(system);
    entrance
}

async fn enter(address: SocketAddr, token: &str) -> Result<tables::Client, capnp::Error> {
    let mut request = entrance(address).await.enter_request();
    request.get().set_token(token);
    request.send().promise.await?.get()?.get_tables()
}

/// The epoch that was read, and the values.
async fn get(
    tables: &tables::Client,
    table: &str,
    keys: &[&[u8]],
    as_of: Option<u64>,
) -> Result<(u64, Vec<Option<Vec<u8>>>), capnp::Error> {
    let mut request = tables.get_request();
    request.get().set_table(table);
    let mut list = request.get().init_keys(keys.len() as u32);
    for (index, key) in (0..).zip(keys) {
        list.set(index, key);
    }
    if let Some(epoch) = as_of {
        request.get().init_consistency().set_as_of(epoch);
    }
    let response = request.send().promise.await?;
    let told = response.get()?;
    let values = told.get_values()?.iter().map(|told| match told.which()? {
        value::Absent(()) => Ok(None),
        value::Present(value) => Ok(Some(value?.to_vec())),
    });
    Ok((told.get_epoch(), values.collect::<Result<_, capnp::Error>>()?))
}

fn job() -> Job {
    let mut job = Job::open(2);
    for value in [&b"one"[..], b"two", b"three"] {
        job.write(b"a", Some(value));
        job.write(value, Some(b"x"));
        job.commit();
    }
    job.write(b"a", Some(b"four"));
    job
}

#[test]
fn keys_are_answered_as_of_the_epoch_asked_for() {
    run(async {
        let job = job();
        let tables = enter(listen(&job, "").await, "").await.unwrap();
        let some = |value: &[u8]| Some(value.to_vec());
        let keys: [&[u8]; 3] = [b"a", b"three", b"none"];
        assert_eq!(get(&tables, "o.t", &keys, None).await.unwrap(), (3, vec![some(b"three"), some(b"x"), None]));
        assert_eq!(get(&tables, "o/u", &keys, Some(2)).await.unwrap(), (2, vec![some(b"two"), None, None]));
        let mut request = tables.get_request();
        request.get().set_table("o.t");
        request.get().init_keys(1).set(0, b"a");
        request.get().init_consistency().set_live(());
        let response = request.send().promise.await.unwrap();
        let told = response.get().unwrap();
        let value::Present(live) = told.get_values().unwrap().get(0).which().unwrap() else { panic!("it has a value") };
        assert_eq!((told.get_epoch(), live.unwrap()), (0, &b"four"[..]));
    });
}

#[test]
fn tables_and_ranges_are_told() {
    run(async {
        let job = job();
        let client = enter(listen(&job, "").await, "").await.unwrap();
        let response = client.tables_request().send().promise.await.unwrap();
        let told = response.get().unwrap();
        assert_eq!((told.get_oldest(), told.get_newest()), (2, 3));
        let names: Vec<_> = told
            .get_tables()
            .unwrap()
            .iter()
            .map(|table| {
                (table.get_name().unwrap().to_string().unwrap(), table.get_ordered(), table.get_schema_version())
            })
            .collect();
        let expected =
            [("o.t", true), ("o.u", false), ("o.v", false)].map(|(name, ordered)| (name.to_owned(), ordered, 2));
        assert_eq!(names, expected);

        let (mut from, mut found) = (b"b".to_vec(), Vec::new());
        loop {
            let mut request = client.scan_request();
            request.get().set_table("o.u");
            request.get().set_from(&from);
            request.get().init_to().set_before(b"two");
            request.get().set_limit(1);
            let response = request.send().promise.await.unwrap();
            let page = response.get().unwrap().get_page().unwrap();
            found.extend(page.get_keys().unwrap().iter().map(|key| key.unwrap().to_vec()));
            assert_eq!(page.get_keys().unwrap().len(), page.get_values().unwrap().len());
            match page.get_next().unwrap().which().unwrap() {
                bound::Before(next) => from = next.unwrap().to_vec(),
                bound::End(()) => break,
            }
        }
        assert_eq!(found, [b"one".to_vec(), b"three".to_vec()]);
    });
}

#[test]
fn a_commit_is_told_to_who_waits_for_it() {
    run(async {
        let mut job = job();
        let tables = enter(listen(&job, "").await, "").await.unwrap();
        let wait = |after| {
            let mut request = tables.await_epoch_request();
            request.get().set_after(after);
            let response = request.send().promise;
            async move { response.await.unwrap().get().unwrap().get_newest() }
        };
        assert_eq!(wait(2).await, 3);
        let waiting = wait(3);
        // Once a later question is answered, the earlier one waits.
        assert_eq!(wait(0).await, 3);
        job.commit();
        assert_eq!(waiting.await, 4);
    });
}

#[test]
fn what_cannot_be_answered_says_why_and_the_connection_goes_on() {
    run(async {
        let job = job();
        let address = listen(&job, "open sesame").await;
        for wrong in ["", "open sesam"] {
            let refused = enter(address, wrong).await.err().unwrap().to_string();
            assert!(refused.contains("another token"), "{refused}");
        }
        let tables = enter(address, "open sesame").await.unwrap();
        let many: Vec<&[u8]> = vec![b"a"; 10_001];
        let cases = [
            (get(&tables, "o.w", &[], None).await, "there are: o.t, o.u, o.v"),
            (get(&tables, "o.t", &[], Some(1)).await, "only epochs 2 to 3"),
            (get(&tables, "o.t", &many, None).await, "10000 keys"),
        ];
        for (answer, said) in cases {
            let refused = answer.unwrap_err().to_string();
            assert!(refused.contains(said), "`{said}` is not in: {refused}");
        }
        let mut request = tables.scan_request();
        request.get().set_table("o.u");
        request.get().init_consistency().set_live(());
        let refused = request.send().promise.await.err().unwrap().to_string();
        assert!(refused.contains("`o.u`: it is not ordered"), "{refused}");
        assert_eq!(get(&tables, "o.t", &[b"a"], None).await.unwrap().1, [Some(b"three".to_vec())]);
    });
}

#[test]
fn values_that_are_too_large_for_an_answer_are_refused() {
    run(async {
        let mut job = Job::open(1);
        job.write(b"large", Some(&vec![7; 1 << 20]));
        job.commit();
        let tables = enter(listen(&job, "").await, "").await.unwrap();
        let refused = get(&tables, "o.t", &[&b"large"[..]; 20], None).await.unwrap_err().to_string();
        assert!(refused.contains("ask for fewer keys"), "{refused}");
        assert_eq!(get(&tables, "o.t", &[&b"large"[..]; 4], None).await.unwrap().1.len(), 4);
    });
}

/// The bytes that a client sends who enters and looks up a key.
async fn spoken(job: &Job) -> Vec<u8> {
    let address = listen(job, "").await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let told = between.local_addr().unwrap();
    let relay = async {
        let (mut from_client, mut to_client) = between.accept().await.unwrap().0.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(address).await.unwrap().into_split();
        tokio::task::spawn_local(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let (mut spoken, mut piece) = (Vec::new(), [0; 1024]);
        while let Ok(length @ 1..) = from_client.read(&mut piece).await {
            spoken.extend_from_slice(&piece[..length]);
            to_server.write_all(&piece[..length]).await.unwrap();
        }
        spoken
    };
    let ask = async {
        let tables = enter(told, "").await.unwrap();
        get(&tables, "o.t", &[b"a", b"b"], Some(3)).await.unwrap();
    };
    // The client's side is closed when all that belongs to it is dropped, at the end of its own thread's tasks.
    let asked = async { LocalSet::new().run_until(ask).await };
    let (spoken, ()) = tokio::join!(relay, asked);
    spoken
}

/// A connection of which these are all the bytes that come. A panic in it is one of the test.
async fn hear(job: &Job, bytes: &[u8]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let speak = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The other side may have had enough.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let listen = async {
        let (stream, _) = listener.accept().await.unwrap();
        converse(stream, Arc::clone(&job.directory), Rc::new(|_: &str| true)).await;
    };
    tokio::join!(speak, listen);
}

#[test]
fn bytes_that_make_no_sense_end_their_connection_and_nothing_else() {
    run(async {
        let job = job();
        let spoken = spoken(&job).await;
        assert!(spoken.len() > 100);
        hear(&job, &spoken).await;
        hear(&job, b"GET /tables HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        // One segment of 2^32 - 1 words; as many segments.
        hear(&job, &[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]).await;
        hear(&job, &[0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0]).await;
        for end in (0..spoken.len()).step_by(3) {
            hear(&job, &spoken[..end]).await;
        }
        for place in 0..spoken.len() {
            for bit in [1, 0x80] {
                let mut changed = spoken.clone();
                changed[place] ^= bit;
                hear(&job, &changed).await;
            }
        }
        let tables = enter(listen(&job, "").await, "").await.unwrap();
        assert_eq!(get(&tables, "o.t", &[b"a"], None).await.unwrap().1, [Some(b"three".to_vec())]);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_bytes_are_borne(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run(async { hear(&job(), &bytes).await });
    }
}
