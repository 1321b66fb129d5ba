//! Somebody who listens in and says it all again.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::faults::Relay;
use super::strangers::Authority;
use super::*;

/// Two hosts whose connection is listened to. `second` has sent three deliveries, which have arrived.
fn overheard(change: impl Fn(&mut LinkSettings, &str)) -> (TestHost, TestHost, Relay, String) {
    let (mut listeners, mut addresses) = listeners(2);
    let address = addresses[0].clone();
    let relay = Relay::start(&address, None, Duration::ZERO);
    let mut host = |own: u16, name| {
        let mut settings = settings(own, &addresses, PATIENCE);
        change(&mut settings, name);
        addresses[0].clone_from(&relay.address);
        TestHost::start(settings, listeners.remove(0))
    };
    let (first, second) = (host(0, "a"), host(1, "b"));
    first.wait_up(1);
    second.wait_up(0);
    [&first, &second].iter().for_each(|host| host.begin(1));
    for number in 0..3 {
        second.send(0, 1, 0, number);
    }
    for number in 0..3 {
        assert_eq!(second.wait_acknowledged(), number);
        assert_eq!(first.wait_delivery().1.load, records(&number.to_string()));
    }
    (first, second, relay, address)
}

/// Says it all again, and waits until the other side has had enough.
fn say_again(relay: &Relay, address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    // The other side may have had enough before.
    let _ = stream.write_all(&relay.overheard()).and_then(|()| stream.shutdown(Shutdown::Write));
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn what_is_said_again_is_not_done_again() {
    let (first, second, relay, address) = overheard(|_, _| ());
    say_again(&relay, &address);
    // It was taken for the second host started anew, which has now come back.
    first.wait(|heard| match heard {
        Heard::Delivery(_, delivery) => panic!("{delivery:?} was taken again"),
        Heard::Event(PeerEvent::Lost { .. }) => Some(()),
        _ => None,
    });
    second.wait_lost(0);
    second.wait_up(0);
    [&first, &second].iter().for_each(|host| host.link().end());
    [&first, &second].iter().for_each(|host| host.begin(2));
    second.send(0, 2, 0, 7);
    assert_eq!(first.wait_delivery().1.load, records("7"));
    assert_eq!(second.wait_acknowledged(), 7);
}

#[test]
fn with_tls_nobody_notices_what_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new(folder.path(), "ca");
    let secure = |settings: &mut LinkSettings, name: &str| settings.security = ca.security(folder.path(), name, "ca");
    let (first, second, relay, address) = overheard(secure);
    say_again(&relay, &address);
    second.send(0, 1, 0, 7);
    assert_eq!(first.wait_delivery().1.load, records("7"));
    for host in [&first, &second] {
        let status = host.link().status();
        assert!(status[0].is_up && status[0].connections == 1, "{status:?}");
    }
}
