//! Lookups between two hosts, over loopback.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use super::super::super::link::{
    self, Delivery, HostAddress, Identity, Link, LinkSettings, Listen, LookupFault, PeerEvent, Refusal, RefusalKind,
    Scan, Security, ServeLookups, TakeDeliveries,
};
use super::*;
use crate::lookup::Page;

const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: usize = 1_000;
const CLOSED: usize = 9;

/// Answers lookups from memory, and tells when its peer is there.
struct Owner {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    up: Mutex<Sender<()>>,
}

impl Listen for Owner {
    fn control(&self, _: HostId, _: Vec<u8>) {}

    fn event(&self, event: PeerEvent) {
        if matches!(event, PeerEvent::Up { .. }) {
            let _ = self.up.lock().send(());
        }
    }
}

impl TakeDeliveries for Owner {
    fn take(&self, _: HostId, _: Delivery) -> Result<(), String> {
        Err("nobody sends anything".to_owned())
    }
}

impl ServeLookups for Owner {
    fn get(&self, _: HostId, get: &Get, found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Refusal> {
        if get.table == TableId::new(CLOSED, 0) {
            return Err(Refusal { kind: RefusalKind::NotAllowed, text: "it is closed".to_owned() });
        }
        for (index, key) in get.keys.iter().enumerate() {
            found(index, self.values.get(key).map(Vec::as_slice));
        }
        Ok(())
    }

    fn scan(&self, _: HostId, scan: &Scan) -> Result<Page, Refusal> {
        let mut page = Page::default();
        for (key, value) in self.values.range(scan.from.clone()..).take(scan.limit as usize) {
            page.keys.push(key);
            page.values.push(value);
        }
        Ok(page)
    }
}

struct Host {
    link: link::Running,
    owner: Arc<Owner>,
    up: Receiver<()>,
}

impl Host {
    fn start(own: u16, addresses: &[String], listener: TcpListener, values: BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let address = |(own, address): (u16, &String)| HostAddress { name: own.to_string(), address: address.clone() };
        let settings = LinkSettings {
            hosts: (0..).zip(addresses).map(address).collect(),
            own: HostId(own),
            identity: Identity {
                wasmill: "1".to_owned(),
                job: "job".to_owned(),
                manifest: [7; 32],
                components: Vec::new(),
            },
            security: Security::Plain,
            heartbeat: Duration::from_millis(100),
            lost_after: PATIENCE,
            seed: u64::from(own),
        };
        let (sender, up) = channel();
        let owner = Arc::new(Owner { values, up: Mutex::new(sender) });
        let listen: Arc<dyn Listen> = Arc::<Owner>::clone(&owner);
        let link = link::Running::start(settings, listener, listen).unwrap();
        link.link().begin(1, Arc::<Owner>::clone(&owner), Arc::<Owner>::clone(&owner));
        Self { link, owner, up }
    }

    fn lookups(&self, attempt: u64) -> Running {
        let link: Link = self.link.link().clone();
        let peers = Arc::new(LinkPeers { link, attempt });
        let settings = LookupsSettings { peers, cache_bytes_max: 1 << 20, epoch: 1, meters: Arc::default() };
        Running::start(settings).unwrap()
    }
}

/// Two hosts that are connected: the values of host 1 say so.
fn hosts(more: &[(&str, Vec<u8>)]) -> [Host; 2] {
    let listeners = [0, 1].map(|_| link::Running::bind("127.0.0.1:0").unwrap());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    let mut own = 0..;
    let hosts = listeners.map(|listener| {
        let own = own.next().unwrap();
        let value = |key: usize| (key.to_string().into_bytes(), format!("{key} of {own}").into_bytes());
        let more = more.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.clone()));
        Host::start(own, &addresses, listener, (0..KEYS).map(value).chain(more).collect())
    });
    hosts.iter().for_each(|host| host.up.recv_timeout(PATIENCE).expect("the hosts are connected in time"));
    hosts
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Looks up keys from many tasks at a time, `rounds` times.
fn look_up(lookups: &Lookups, peer: HostId, task: usize, rounds: usize) {
    for round in 0..rounds {
        let keys: Vec<usize> = (0..20).map(|key| (task * 7 + round * 31 + key * 61) % (KEYS + 50)).collect();
        let names: Vec<String> = keys.iter().map(usize::to_string).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let read = if round % 2 == 0 { LIVE } else { Read::Bounded(Staleness::Time(Duration::from_millis(5))) };
        let answer = wait(lookups.get(peer, question(&names, read, Batching::default()))).unwrap();
        let value = |key: &usize| if *key < KEYS { format!("{key} of {}", peer.0) } else { "-".to_owned() };
        assert_eq!(texts(&answer), keys.iter().map(value).collect::<Vec<_>>());
    }
}

#[test]
fn two_hosts_look_up_at_each_other_from_many_threads() {
    let hosts = hosts(&[]);
    let running = hosts.each_ref().map(|host| host.lookups(1));
    std::thread::scope(|scope| {
        for task in 0..4 {
            for (own, running) in running.iter().enumerate() {
                scope.spawn(move || look_up(running.lookups(), HostId(1 - own as u16), task, 50));
            }
        }
    });
    for running in &running {
        let [figures] = <[_; 1]>::try_from(running.lookups().meters().figures()).unwrap();
        assert_eq!((figures.questions, figures.keys_asked, figures.failures), (200, 4_000, 0));
        assert!(figures.keys_cached > 0 && figures.batches < figures.questions, "{figures:?}");
    }
}

#[test]
fn values_beyond_one_answer_come_in_several_and_one_too_large_fails_its_question() {
    let part = vec![5; ANSWER_BYTES_MAX / 2 + 1];
    let hosts = hosts(&[
        ("p", part.clone()),
        ("q", part.clone()),
        ("r", part.clone()),
        ("huge", vec![0; ANSWER_BYTES_MAX + 1]),
    ]);
    let running = hosts[0].lookups(1);
    let ask = |keys: &[&str]| running.lookups().get(PEER, question(keys, LIVE, Batching::default()));
    let (large, huge, small) = (ask(&["p", "q", "1", "r"]), ask(&["2", "huge"]), ask(&["3"]));
    let answer = wait(large).unwrap();
    assert!(answer.iter().eq([Some(&part[..]), Some(&part), Some(b"1 of 1"), Some(&part)]));
    assert!(matches!(wait(huge), Err(LookupsError::ValueTooLarge { key }) if key == "huge"));
    assert_eq!(texts(&wait(small).unwrap()), ["3 of 1"]);
}

#[test]
fn refusals_and_stale_attempts_and_pages_come_through() {
    let hosts = hosts(&[]);
    let running = hosts[0].lookups(1);
    let closed = Question { table: TableId::new(CLOSED, 0), ..question(&["1"], LIVE, Batching::default()) };
    let (closed, open) =
        (running.lookups().get(PEER, closed), running.lookups().get(PEER, question(&["1"], LIVE, Batching::default())));
    assert!(matches!(wait(closed), Err(LookupsError::Fault(LookupFault::Refused(_)))));
    assert_eq!(texts(&wait(open).unwrap()), ["1 of 1"]);
    let scan = Scan { table: table(), from: b"998".to_vec(), to: None, limit: 2, consistency: Consistency::Live };
    assert_eq!(wait(running.lookups().scan(PEER, scan)).unwrap().keys, column(&["998", "999"]));
    // The other host has gone on to the next attempt.
    let other = &hosts[1];
    other.link.link().end();
    other.link.link().begin(2, Arc::<Owner>::clone(&other.owner), Arc::<Owner>::clone(&other.owner));
    let stale = running.lookups().get(PEER, question(&["1"], LIVE, Batching::default()));
    assert_eq!(wait(stale).unwrap_err(), LookupsError::Fault(LookupFault::Stale));
}
