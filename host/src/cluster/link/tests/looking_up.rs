//! Lookups at other hosts.

use super::faults::Relay;
use super::*;
use crate::lookup::Consistency;

const LIVE: Read = Read::At(Consistency::Live);

fn table() -> TableId {
    TableId::new(1, 2)
}

fn get(keys: &[&[u8]]) -> Get {
    Get { table: table(), keys: column(keys), read: LIVE }
}

fn put(host: &TestHost, key: &str, value: &[u8]) {
    host.ears.values.lock().insert(key.as_bytes().to_vec(), value.to_vec());
}

#[test]
fn keys_are_answered_in_their_order_many_lookups_at_a_time() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    (0..1_000).for_each(|number| put(&hosts[1], &number.to_string(), format!("value {number}").as_bytes()));
    let asked: Vec<(u32, GetAnswer)> = (0..200)
        .map(|number: u32| {
            let (key, absent) = (number.to_string(), format!("no {number}"));
            (number, hosts[0].link().get(HostId(1), 1, get(&[key.as_bytes(), absent.as_bytes()])))
        })
        .collect();
    for (number, answer) in asked {
        let values = answer.blocking_recv().unwrap().unwrap();
        let expected = format!("value {number}");
        assert_eq!(values.iter().collect::<Vec<_>>(), [Found::Present(expected.as_bytes()), Found::Absent]);
    }
    assert_eq!(hosts[1].link().status()[0].lookups_served, 200);
}

#[test]
fn a_connection_outlives_any_number_of_lookups() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    put(&hosts[1], "k", b"v");
    // More than may be unsettled at a time.
    for _ in 0..180 {
        let asked: Vec<GetAnswer> = (0..100).map(|_| hosts[0].link().get(HostId(1), 1, get(&[b"k"]))).collect();
        for answer in asked {
            assert_eq!(answer.blocking_recv().unwrap().unwrap().get(0), Found::Present(b"v"));
        }
    }
    assert_eq!(hosts[0].link().status()[0].connections, 1);
}

#[test]
fn lookups_that_nobody_waits_for_any_more_make_room_for_others() {
    let hosts = connected(2);
    hosts[0].begin(1);
    put(&hosts[1], "k", b"v");
    // They wait there for an attempt to begin, and fill all turns.
    for _ in 0..300 {
        let asked: Vec<GetAnswer> = (0..20).map(|_| hosts[0].link().get(HostId(1), 1, get(&[b"k"]))).collect();
        hosts[0].link().control(HostId(1), b"asked".to_vec()).unwrap();
        hosts[1].wait_control();
        drop(asked);
    }
    hosts[1].begin(1);
    let answer = hosts[0].link().get(HostId(1), 1, get(&[b"k"])).blocking_recv().unwrap().unwrap();
    assert_eq!(answer.get(0), Found::Present(b"v"));
    let status = hosts[0].link().status();
    assert!(status[0].is_up, "{status:?}");
}

#[test]
fn a_full_answer_is_asked_for_again_and_a_value_too_large_fails_alone() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    let (half, huge) = (vec![1; ANSWER_BYTES_MAX / 2 + 1], vec![2; ANSWER_BYTES_MAX + 1]);
    put(&hosts[1], "a", &half);
    put(&hosts[1], "b", &half);
    put(&hosts[1], "c", &huge);
    put(&hosts[1], "d", b"small");
    let ask = |keys: &[&[u8]]| hosts[0].link().get(HostId(1), 1, get(keys)).blocking_recv().unwrap().unwrap();
    let values = ask(&[b"a", b"b", b"c", b"d"]);
    let expected = [Found::AskAgain, Found::Present(&half), Found::TooLarge, Found::Present(b"small")];
    assert!(values.iter().eq(expected));
    assert!(ask(&[b"a"]).get(0) == Found::Present(&half));
}

#[test]
fn pages_are_listed_to_the_end() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    for key in ["a", "b", "c", "d", "e"] {
        put(&hosts[1], key, key.as_bytes());
    }
    let (mut from, mut found) = (b"b".to_vec(), Vec::new());
    loop {
        let scan = Scan { table: table(), from, to: Some(b"e".to_vec()), limit: 2, consistency: Consistency::AsOf(3) };
        let page = hosts[0].link().scan(HostId(1), 1, scan).blocking_recv().unwrap().unwrap();
        found.extend(page.keys.iter().map(<[u8]>::to_vec));
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(found, [b"b", b"c", b"d"]);
}

#[test]
fn lookups_wait_for_their_attempt_and_stale_ones_say_so() {
    let hosts = connected(2);
    put(&hosts[1], "k", b"v");
    let early = hosts[0].link().get(HostId(1), 7, get(&[b"k"]));
    hosts[0].link().control(HostId(1), b"asked".to_vec()).unwrap();
    hosts[1].wait_control();
    hosts[1].begin(7);
    assert_eq!(early.blocking_recv().unwrap().unwrap().get(0), Found::Present(b"v"));
    let stale = hosts[0].link().get(HostId(1), 6, get(&[b"k"]));
    assert_eq!(stale.blocking_recv().unwrap(), Err(LookupFault::Stale));
    hosts[1].link().end();
    let over = hosts[0].link().get(HostId(1), 7, get(&[b"k"]));
    assert_eq!(over.blocking_recv().unwrap(), Err(LookupFault::Stale));
}

#[test]
fn refusals_come_with_their_words_and_too_much_is_refused_here() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    let ask = |get: Get| hosts[0].link().get(HostId(1), 1, get).blocking_recv().unwrap().unwrap_err();
    let refusal = Refusal { kind: RefusalKind::NotAllowed, text: "there is no such table".to_owned() };
    assert_eq!(ask(Get { table: TableId::new(9, 9), ..get(&[b"k"]) }), LookupFault::Refused(refusal));
    let many = vec![&b"k"[..]; KEYS_MAX + 1];
    assert!(matches!(ask(get(&many)), LookupFault::TooLarge { .. }));
    let fine = hosts[0].link().get(HostId(1), 1, Get { read: Read::AsOfTimes(vec![3]), ..get(&[b"k"]) });
    assert_eq!(fine.blocking_recv().unwrap().unwrap().get(0), Found::Absent);
}

#[test]
fn lookups_are_asked_again_when_connections_break_and_fail_when_the_peer_is_lost() {
    let (mut listeners, mut addresses) = listeners(2);
    let relay = Relay::start(&addresses[0], Some(5), Duration::ZERO);
    let first = TestHost::start(settings(0, &addresses, Duration::from_secs(30)), listeners.remove(0));
    addresses[0].clone_from(&relay.address);
    let second = TestHost::start(settings(1, &addresses, Duration::from_secs(30)), listeners.remove(0));
    first.wait_up(1);
    second.wait_up(0);
    [&first, &second].iter().for_each(|host| host.begin(1));
    put(&first, "k", &[7; 500]);
    let keys = vec![&b"k"[..]; 8];
    let answers: Vec<GetAnswer> = (0..400).map(|_| second.link().get(HostId(0), 1, get(&keys))).collect();
    for answer in answers {
        assert!(answer.blocking_recv().unwrap().unwrap().iter().all(|found| found == Found::Present(&[7; 500])));
    }
    assert!(relay.broken() > 3, "{}", relay.broken());
    relay.calm();
    first.link().end();
    // Of an attempt that has not begun there: it waits until the host leaves.
    let waiting = second.link().get(HostId(0), 2, get(&[b"k"]));
    first.running.stop(Duration::ZERO);
    assert_eq!(waiting.blocking_recv().unwrap(), Err(LookupFault::Lost));
    let gone = second.link().get(HostId(0), 2, get(&[b"k"]));
    assert_eq!(gone.blocking_recv().unwrap(), Err(LookupFault::Lost));
}
