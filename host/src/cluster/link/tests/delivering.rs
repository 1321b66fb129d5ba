//! Deliveries and control messages: once, in order, acknowledged when they are counted; and what happens when they cannot be.

use super::faults::{Relay, Weather};
use super::*;
use crate::cluster::link::message::{PART_BYTES, TableUpdates};
use crate::state::update::{Op, Operands, Updates};

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(30);

/// Two hosts whose connection goes through a relay.
fn apart(seed: Option<u64>, delay: Duration, lost_after: Duration) -> (TestHost, TestHost, Relay) {
    let (mut listeners, mut addresses) = listeners(2);
    let relay = Relay::start(&addresses[0], seed, delay);
    let first = TestHost::start(settings(0, &addresses, lost_after), listeners.remove(0));
    addresses[0].clone_from(&relay.address);
    let second = TestHost::start(settings(1, &addresses, lost_after), listeners.remove(0));
    (first, second, relay)
}

fn text_of(delivery: &Delivery) -> String {
    let Load::Records(records) = &delivery.load else { panic!("no records: {delivery:?}") };
    String::from_utf8(records.values.get(0).to_vec()).unwrap()
}

#[test]
fn hosts_send_each_other_all_kinds_of_loads_and_control_messages_in_order() {
    let hosts = connected(3);
    hosts.iter().for_each(|host| host.begin(1));
    let keys = column(&[b"k", b"l"]);
    let batch = Batch { keys: keys.clone(), values: keys.clone(), times: vec![1, 2] };
    let operands = Operands { items: keys.clone(), present: vec![true, false] };
    let updates = Updates { op: Op::Put, keys, operands, expected: Operands::default(), times: vec![3, 4] };
    let asked = Some(Asked { port: 2, task: 7, records: batch.clone() });
    let loads = [
        Load::Records(batch.clone()),
        Load::Looped(Arc::new(batch.clone())),
        Load::Updates(Box::new(TableUpdates { table: 1, updates, asked })),
        Load::Outcomes { port: 3, records: batch },
    ];
    for from in 0..3 {
        for to in (0..3).filter(|&to| to != from) {
            let (sender, receiver) = (&hosts[usize::from(from)], &hosts[usize::from(to)]);
            for (number, load) in (0..).zip(&loads) {
                sender.send_load(to, 1, 40 + number as u32, number, load.clone());
            }
            sender.link().control(HostId(to), b"over".to_vec()).unwrap();
            for (number, load) in (0..).zip(&loads) {
                let expected = Delivery { task: 40 + number, load: load.clone() };
                assert_eq!(receiver.wait_delivery(), (HostId(from), expected));
            }
            assert_eq!(receiver.wait_control(), b"over");
            assert_eq!([(); 4].map(|()| sender.wait_acknowledged()), [0, 1, 2, 3]);
        }
    }
    let status = hosts[0].link().status();
    assert_eq!(status.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    for peer in status {
        assert!(peer.is_up && peer.is_connected && peer.connections == 1, "{peer:?}");
        assert!(peer.messages_sent == 5 && peer.messages_received == 5 && peer.bytes_sent > 0, "{peer:?}");
    }
}

#[test]
fn a_large_batch_travels_in_parts_and_is_acknowledged_as_a_whole() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    let (mut batch, value) = (Batch::default(), vec![7; 1 << 20]);
    for time in 0..12 {
        batch.push(&[time as u8], &value, time);
    }
    hosts[0].send_load(1, 1, 0, 77, Load::Records(batch.clone()));
    let (mut arrived, mut parts) = (Batch::default(), 0);
    while arrived.len() < batch.len() {
        let (_, delivery) = hosts[1].wait_delivery();
        assert!(delivery.load.bytes() <= PART_BYTES);
        let Load::Records(part) = delivery.load else { panic!("no records") };
        arrived.extend_from(&part, 0..part.len());
        parts += 1;
    }
    assert!(arrived == batch && parts > 1);
    assert_eq!(hosts[0].wait_acknowledged(), 77);
    assert_eq!(hosts[0].link().unacknowledged_bytes(HostId(1)), 0);
    let mut huge = Batch::default();
    huge.push(b"", &vec![0; 50 << 20], 0);
    let refused = hosts[0].link().send(HostId(1), 1, Delivery { task: 0, load: Load::Records(huge) }, Box::new(|| {}));
    assert!(refused.unwrap_err().to_string().contains("may have"));
}

#[test]
fn deliveries_wait_for_their_attempt_and_control_messages_do_not() {
    let hosts = connected(2);
    hosts[0].begin(5);
    for number in 0..3 {
        hosts[0].send(1, 5, 0, number);
    }
    hosts[0].link().control(HostId(1), b"begin 5".to_vec()).unwrap();
    let heard = hosts[1].wait(Some);
    assert!(matches!(heard, Heard::Control(HostId(0), message) if message == b"begin 5"), "no delivery comes before");
    assert!(hosts[0].link().unacknowledged_bytes(HostId(1)) > 0);
    hosts[1].begin(5);
    assert_eq!([(); 3].map(|()| text_of(&hosts[1].wait_delivery().1)), ["0", "1", "2"]);
    assert_eq!([(); 3].map(|()| hosts[0].wait_acknowledged()), [0, 1, 2]);
}

#[test]
fn what_has_come_too_early_outlives_the_connection_and_comes_once() {
    let (first, second, relay) = apart(None, Duration::ZERO, LONG);
    first.wait_up(1);
    second.wait_up(0);
    first.begin(5);
    let tell = |text: &str| first.link().control(HostId(1), text.as_bytes().to_vec()).unwrap();
    (0..3).for_each(|number| first.send(1, 5, 0, number));
    tell("sent");
    assert_eq!(second.wait_control(), b"sent");
    relay.set(Weather::Cut);
    first.send(1, 5, 0, 3);
    while first.link().status()[0].is_connected {
        std::thread::yield_now();
    }
    relay.set(Weather::Fair);
    tell("sent again");
    assert_eq!(second.wait_control(), b"sent again");
    second.begin(5);
    first.send(1, 5, 0, 4);
    assert_eq!([(); 5].map(|()| text_of(&second.wait_delivery().1)), ["0", "1", "2", "3", "4"]);
    assert_eq!([(); 5].map(|()| first.wait_acknowledged()), [0, 1, 2, 3, 4]);
    assert!(first.link().status()[0].connections > 1);
}

#[test]
fn what_belongs_to_an_attempt_that_is_over_is_dropped_on_either_side() {
    let hosts = connected(2);
    hosts[0].begin(1);
    hosts[1].begin(2);
    // Dropped by the receiver, which knows better. It is acknowledged, as nobody counts on it any more there.
    hosts[0].send(1, 1, 0, 1);
    assert_eq!(hosts[0].wait_acknowledged(), 1);
    // Dropped by the sender.
    hosts[0].link().end();
    hosts[0].begin(2);
    hosts[0].send(1, 1, 0, 2);
    hosts[0].send(1, 2, 0, 3);
    assert_eq!(text_of(&hosts[1].wait_delivery().1), "3");
    assert_eq!(hosts[0].wait_acknowledged(), 3);
    assert_eq!(hosts[0].link().unacknowledged_bytes(HostId(1)), 0);
}

/// Sends both ways while chance breaks connections.
fn check_broken(seed: u64) {
    let (first, second, relay) = apart(Some(seed), Duration::ZERO, LONG);
    let hosts = [&first, &second];
    hosts.iter().for_each(|host| host.begin(1));
    first.wait_up(1);
    second.wait_up(0);
    const COUNT: u64 = 3_000;
    std::thread::scope(|scope| {
        for (host, to) in [(&first, 1), (&second, 0)] {
            let sender = (host.link().clone(), Arc::clone(&host.ears));
            scope.spawn(move || {
                let (link, ears) = sender;
                for number in 0..COUNT {
                    let load = records(&format!("{number}/{}", "x".repeat(number as usize % 700)));
                    let ears = Arc::clone(&ears);
                    let acknowledged = Box::new(move || ears.hear(Heard::Acknowledged(number)));
                    link.send(HostId(to), 1, Delivery { task: 0, load }, acknowledged).unwrap();
                }
            });
        }
    });
    for host in hosts {
        let (mut arrived, mut acknowledged) = (0, 0);
        while arrived < COUNT || acknowledged < COUNT {
            host.wait(|heard| match heard {
                Heard::Delivery(_, delivery) => {
                    assert_eq!(text_of(&delivery).split('/').next(), Some(arrived.to_string().as_str()), "seed {seed}");
                    arrived += 1;
                    Some(())
                }
                Heard::Acknowledged(number) => {
                    assert_eq!(number, acknowledged, "seed {seed}");
                    acknowledged += 1;
                    Some(())
                }
                Heard::Event(PeerEvent::Lost { reason, .. }) => panic!("lost with seed {seed}: {reason}"),
                _ => None,
            });
        }
        assert_eq!(host.link().status()[0].unacknowledged_bytes, 0, "seed {seed}");
    }
    assert!(relay.broken() > 3, "seed {seed}: chance has broken {} connections", relay.broken());
}

#[test]
fn with_connections_that_break_everything_arrives_once_and_in_order() {
    (1..=3).for_each(check_broken);
}

/// A cut that is longer than the stated time, and what comes after it.
fn check_cut(weather: Weather) {
    let (first, second, relay) = apart(None, Duration::ZERO, SHORT);
    for (host, other) in [(&first, 1), (&second, 0)] {
        host.wait_up(other);
        host.begin(1);
    }
    first.send(1, 1, 0, 1);
    assert_eq!(first.wait_acknowledged(), 1);
    assert_eq!(text_of(&second.wait_delivery().1), "1");
    relay.set(weather);
    first.send(1, 1, 0, 2);
    second.send(0, 1, 0, 2);
    first.wait_lost(1);
    second.wait_lost(0);
    relay.set(Weather::Fair);
    for (host, other) in [(&first, 1), (&second, 0)] {
        host.wait_up(other);
        // Nothing of the attempt passes any more, and none of it is acknowledged.
        host.send(other, 1, 0, 3);
        host.link().end();
        host.begin(2);
    }
    first.send(1, 2, 0, 4);
    second.send(0, 2, 0, 5);
    for (host, sent, comes) in [(&first, 4, "5"), (&second, 5, "4")] {
        let (mut acknowledged, mut arrived) = (Vec::new(), Vec::new());
        while acknowledged.is_empty() || arrived.is_empty() {
            host.wait(|heard| {
                match heard {
                    Heard::Acknowledged(number) => acknowledged.push(number),
                    Heard::Delivery(_, delivery) => arrived.push(text_of(&delivery)),
                    _ => {}
                }
                Some(())
            });
        }
        assert_eq!((acknowledged, arrived), (vec![sent], vec![comes.to_owned()]), "{weather:?}");
    }
}

#[test]
fn a_cut_longer_than_the_stated_time_is_a_loss_on_both_sides_whichever_way_it_goes() {
    [Weather::Cut, Weather::CutThere, Weather::CutBack].into_iter().for_each(check_cut);
}

#[test]
fn a_slow_peer_is_not_lost_and_shows_in_the_status() {
    let delay = Duration::from_millis(60);
    let (first, second, _relay) = apart(None, delay, Duration::from_secs(10));
    for (host, other) in [(&first, 1), (&second, 0)] {
        host.wait_up(other);
        host.begin(1);
    }
    for number in 0..5 {
        first.send(1, 1, 0, number);
        assert_eq!(first.wait_acknowledged(), number);
    }
    let status = &first.link().status()[0];
    assert!(status.is_up && status.connections == 1, "{status:?}");
    assert!(status.latest_round_trip_ms >= 60.0, "{status:?}");
}

#[test]
fn a_host_that_is_started_anew_ends_the_session_and_begins_another() {
    let (mut listeners, addresses) = listeners(2);
    let first = TestHost::start(settings(0, &addresses, LONG), listeners.remove(0));
    let again = listeners[0].try_clone().unwrap();
    let second = TestHost::start(settings(1, &addresses, LONG), listeners.remove(0));
    first.wait_up(1);
    second.wait_up(0);
    second.running.stop(Duration::ZERO);
    assert!(first.wait_lost(1).contains("the host has been stopped"));
    let mut anew = settings(1, &addresses, LONG);
    anew.seed = 99;
    let second = TestHost::start(anew, again);
    first.wait_up(1);
    second.wait_up(0);
}

#[test]
fn what_was_sent_before_a_stop_arrives() {
    let mut hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    let (second, first) = (hosts.pop().unwrap(), hosts.pop().unwrap());
    for number in 0..50 {
        first.send(1, 1, 0, number);
    }
    first.link().control(HostId(1), b"the job has ended".to_vec()).unwrap();
    first.running.stop(PATIENCE);
    for number in 0..50 {
        assert_eq!(text_of(&second.wait_delivery().1), number.to_string());
    }
    assert_eq!(second.wait_control(), b"the job has ended");
    assert!(second.wait_lost(0).contains("the host has been stopped"));
}

#[test]
fn a_delivery_that_cannot_be_taken_ends_the_session_on_both_sides_with_the_reason() {
    let hosts = connected(2);
    hosts.iter().for_each(|host| host.begin(1));
    hosts[0].send(1, 1, 100, 1);
    assert!(hosts[1].wait_lost(0).contains("there is no task 100"));
    assert!(hosts[0].wait_lost(1).contains("there is no task 100"));
    hosts[0].wait_up(1);
    hosts[1].wait_up(0);
}

#[test]
fn a_panic_in_a_call_back_ends_its_session_and_no_other() {
    let hosts = connected(3);
    hosts.iter().for_each(|host| host.begin(1));
    hosts[0].send(1, 1, 666, 1);
    assert!(hosts[1].wait_lost(0).contains("a task that panics"));
    hosts[0].wait_lost(1);
    hosts[2].send(1, 1, 0, 2);
    assert_eq!(hosts[2].wait_acknowledged(), 2);
    hosts[0].wait_up(1);
    assert!(hosts[2].link().status().iter().all(|peer| peer.is_up && peer.connections == 1));
}
