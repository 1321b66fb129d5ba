//! The driver of lookups, over owners that the test holds in its hand.

use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::oneshot;

use super::super::super::link::{GetAnswer, LookupFault, Scan, ScanAnswer};
use super::*;
use crate::lookup::Page;

/// How long a test waits for what must come before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const AT_ONCE: Batching = Batching { keys_max: 100, linger: Duration::ZERO };

type Answering = oneshot::Sender<Result<Values, LookupFault>>;

/// What is asked comes to the test, which answers.
struct Held(Sender<(HostId, Get, Answering)>);

impl AskPeers for Held {
    fn get(&self, peer: HostId, get: Get) -> GetAnswer {
        let (answering, answer) = oneshot::channel();
        let _ = self.0.send((peer, get, answering));
        answer
    }

    fn scan(&self, _: HostId, scan: Scan) -> ScanAnswer {
        let (answering, answer) = oneshot::channel();
        let page = Page { next: Some(scan.from), ..Page::default() };
        answering.send(Ok(page)).unwrap();
        answer
    }
}

fn start() -> (Running, Receiver<(HostId, Get, Answering)>) {
    let (sender, asked) = channel();
    let (peers, meters) = (Arc::new(Held(sender)), Arc::default());
    let settings = LookupsSettings { peers, cache_bytes_max: 1 << 20, epoch: 1, meters };
    (Running::start(settings).unwrap(), asked)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("what must come has come in time") })
}

/// Answers the next batch with `mark`, and says what it has asked.
fn serve(asked: &Receiver<(HostId, Get, Answering)>, mark: &str) -> Vec<String> {
    let (peer, get, answering) = asked.recv_timeout(PATIENCE).expect("a batch has come in time");
    assert_eq!(peer, PEER);
    let _ = answering.send(Ok(echo(&get, mark)));
    names(&get)
}

#[test]
fn a_batch_goes_when_it_is_full_and_its_values_come_back_in_the_order_of_the_keys() {
    let (running, asked) = start();
    let ask = |keys: &[&str]| running.lookups().get(PEER, question(keys, LIVE, Batching::new(3, HOUR)));
    let (first, second) = (ask(&["a", "b"]), ask(&["c", "a"]));
    let keys = serve(&asked, "!");
    assert!(keys == ["a", "b", "c"], "{keys:?}");
    assert_eq!(texts(&wait(first).unwrap()), ["a!", "b!"]);
    assert_eq!(texts(&wait(second).unwrap()), ["c!", "a!"]);
}

#[test]
fn a_batch_that_is_not_full_goes_when_its_linger_is_over_and_not_before() {
    let (running, asked) = start();
    let linger = Duration::from_millis(20);
    let start = std::time::Instant::now();
    let answer = running.lookups().get(PEER, question(&["a"], LIVE, Batching::new(3, linger)));
    assert_eq!(serve(&asked, "!"), ["a"]);
    assert!(start.elapsed() >= linger);
    assert_eq!(texts(&wait(answer).unwrap()), ["a!"]);
}

#[test]
fn many_threads_get_each_its_own_values() {
    let (running, asked) = start();
    let owner = std::thread::spawn(move || {
        while let Ok((_, get, answering)) = asked.recv() {
            let _ = answering.send(Ok(echo(&get, "!")));
        }
    });
    let askers: Vec<_> = (0..4)
        .map(|asker| {
            let lookups = running.lookups().clone();
            std::thread::spawn(move || {
                for number in 0..200 {
                    let keys: Vec<String> = (0..5).map(|key| (asker + number * key).to_string()).collect();
                    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                    let batching = Batching::new(12, Duration::from_micros(10));
                    let values = texts(&wait(lookups.get(PEER, question(&keys, LIVE, batching))).unwrap());
                    assert!(values.iter().eq(keys.iter().map(|key| format!("{key}!")).collect::<Vec<_>>().iter()));
                }
            })
        })
        .collect();
    askers.into_iter().for_each(|asker| asker.join().unwrap());
    assert_eq!(running.lookups().meters().figures()[0].questions, 800);
    drop(running);
    owner.join().unwrap();
}

#[test]
fn the_end_of_an_attempt_is_told_to_all_who_wait_and_to_those_who_come_later() {
    let (running, asked) = start();
    let lookups = running.lookups().clone();
    let waiting = lookups.get(PEER, question(&["a"], LIVE, AT_ONCE));
    let (_, _, held) = asked.recv_timeout(PATIENCE).unwrap();
    let lingering = lookups.get(PEER, question(&["b"], LIVE, Batching::new(3, HOUR)));
    drop(running);
    assert!(held.is_closed());
    let later = lookups.get(PEER, question(&["c"], LIVE, AT_ONCE));
    for answer in [wait(waiting), wait(lingering), wait(later)] {
        assert_eq!(answer.unwrap_err(), LookupsError::Ended);
    }
}

#[test]
fn faults_come_to_those_concerned_also_when_nobody_answers_any_more() {
    let (running, asked) = start();
    let first = running.lookups().get(PEER, question(&["a"], LIVE, AT_ONCE));
    let (_, _, answering) = asked.recv_timeout(PATIENCE).unwrap();
    answering.send(Err(LookupFault::Lost)).unwrap();
    assert_eq!(wait(first).unwrap_err(), LookupsError::Fault(LookupFault::Lost));
    let second = running.lookups().get(PEER, question(&["a"], LIVE, AT_ONCE));
    drop(asked.recv_timeout(PATIENCE).unwrap());
    assert_eq!(wait(second).unwrap_err(), LookupsError::Fault(LookupFault::Stale));
}

#[test]
fn what_is_remembered_is_forgotten_with_its_epoch_and_with_its_attempt() {
    let bounded = Read::Bounded(Staleness::Epochs(0));
    let (running, asked) = start();
    let ask = |running: &Running| running.lookups().get(PEER, question(&["a"], bounded.clone(), AT_ONCE));
    let first = ask(&running);
    serve(&asked, "1");
    assert_eq!(texts(&wait(first).unwrap()), ["a1"]);
    assert_eq!(texts(&wait(ask(&running)).unwrap()), ["a1"]);
    running.lookups().begin_epoch(2);
    let second = ask(&running);
    serve(&asked, "2");
    assert_eq!(texts(&wait(second).unwrap()), ["a2"]);
    let (running, asked) = start();
    let third = ask(&running);
    serve(&asked, "3");
    assert_eq!(texts(&wait(third).unwrap()), ["a3"]);
}

#[test]
fn scans_go_straight_through() {
    let (running, _asked) = start();
    let (from, consistency) = (b"from".to_vec(), Consistency::Live);
    let scan = Scan { table: table(), from: from.clone(), to: None, limit: 3, consistency };
    assert_eq!(wait(running.lookups().scan(PEER, scan)).unwrap().next, Some(from));
}
