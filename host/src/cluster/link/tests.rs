//! Links between real threads over loopback, with the faults that networks have and peers that nobody should have.

mod delivering;
mod faults;
mod hostile;
mod looking_up;
mod replaying;
mod stalling;
mod strangers;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use super::*;
use crate::lookup::TableId;
use crate::record::{Batch, Column};

/// How long a test waits for what must come before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn identity() -> Identity {
    let components = vec![("count".to_owned(), [1; 32]), ("join".to_owned(), [2; 32])];
    Identity { wasmill: "1.2.3".to_owned(), job: "likes".to_owned(), manifest: [7; 32], components }
}

/// What a host of a test has heard.
enum Heard {
    Event(PeerEvent),
    Control(HostId, Vec<u8>),
    Delivery(HostId, Delivery),
    Acknowledged(u64),
}

/// Hears everything, keeps a table in memory, and can be told to misbehave.
struct Ears {
    heard: Mutex<Sender<Heard>>,
    /// Values by key, the same in every table.
    values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Ears {
    fn hear(&self, heard: Heard) {
        // A test that has seen enough listens no more.
        let _ = self.heard.lock().send(heard);
    }
}

impl Listen for Ears {
    fn control(&self, from: HostId, message: Vec<u8>) {
        self.hear(Heard::Control(from, message));
    }

    fn event(&self, event: PeerEvent) {
        self.hear(Heard::Event(event));
    }
}

impl TakeDeliveries for Ears {
    fn take(&self, from: HostId, delivery: Delivery) -> Result<(), String> {
        match delivery.task {
            666 => panic!("a task that panics"),
            task if task >= 100 => Err(format!("there is no task {task}")),
            _ => {
                self.hear(Heard::Delivery(from, delivery));
                Ok(())
            }
        }
    }
}

impl ServeLookups for Ears {
    fn get(&self, _: HostId, get: &Get, found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Refusal> {
        if get.table == TableId::new(9, 9) {
            return Err(Refusal { kind: RefusalKind::NotAllowed, text: "there is no such table".to_owned() });
        }
        let values = self.values.lock();
        // Backwards, as owners may answer in any order.
        for index in (0..get.keys.len()).rev() {
            found(index, values.get(get.keys.get(index)).map(Vec::as_slice));
        }
        Ok(())
    }

    fn scan(&self, _: HostId, scan: &Scan) -> Result<Page, Refusal> {
        let values = self.values.lock();
        let mut page = Page::default();
        for (key, value) in values.range(scan.from.clone()..) {
            if scan.to.as_ref().is_some_and(|to| key >= to) {
                break;
            }
            if page.keys.len() == scan.limit as usize {
                page.next = Some(key.clone());
                break;
            }
            page.keys.push(key);
            page.values.push(value);
        }
        Ok(page)
    }
}

/// A host of a test.
struct TestHost {
    running: Running,
    ears: Arc<Ears>,
    heard: Receiver<Heard>,
}

impl TestHost {
    fn start(settings: LinkSettings, listener: TcpListener) -> Self {
        let (sender, heard) = channel();
        let ears = Arc::new(Ears { heard: Mutex::new(sender), values: Mutex::default() });
        let listen: Arc<dyn Listen> = Arc::<Ears>::clone(&ears);
        let running = Running::start(settings, listener, listen).unwrap();
        Self { running, ears, heard }
    }

    fn link(&self) -> &Link {
        self.running.link()
    }

    fn begin(&self, attempt: Attempt) {
        self.link().begin(attempt, Arc::<Ears>::clone(&self.ears), Arc::<Ears>::clone(&self.ears));
    }

    /// Waits for something that `wanted` makes a value of; what comes before is left out.
    fn wait<T>(&self, mut wanted: impl FnMut(Heard) -> Option<T>) -> T {
        loop {
            let heard = self.heard.recv_timeout(PATIENCE).expect("what must come has come in time");
            if let Some(value) = wanted(heard) {
                return value;
            }
        }
    }

    /// The next event.
    fn event(&self) -> PeerEvent {
        self.wait(|heard| match heard {
            Heard::Event(event) => Some(event),
            _ => None,
        })
    }

    fn wait_up(&self, id: u16) {
        self.wait(|heard| matches!(heard, Heard::Event(PeerEvent::Up { peer }) if peer == HostId(id)).then_some(()));
    }

    /// Waits until a peer is lost, and says why.
    fn wait_lost(&self, id: u16) -> String {
        self.wait(|heard| match heard {
            Heard::Event(PeerEvent::Lost { peer, reason }) if peer == HostId(id) => Some(reason),
            _ => None,
        })
    }

    fn wait_refused(&self) -> String {
        self.wait(|heard| match heard {
            Heard::Event(PeerEvent::Refused { reason, .. }) => Some(reason),
            _ => None,
        })
    }

    fn wait_control(&self) -> Vec<u8> {
        self.wait(|heard| match heard {
            Heard::Control(_, message) => Some(message),
            _ => None,
        })
    }

    fn wait_delivery(&self) -> (HostId, Delivery) {
        self.wait(|heard| match heard {
            Heard::Delivery(from, delivery) => Some((from, delivery)),
            _ => None,
        })
    }

    fn wait_acknowledged(&self) -> u64 {
        self.wait(|heard| match heard {
            Heard::Acknowledged(number) => Some(number),
            _ => None,
        })
    }

    /// Sends a delivery with one record, whose acknowledgement is heard as `number`.
    fn send(&self, to: u16, attempt: Attempt, task: u32, number: u64) {
        self.send_load(to, attempt, task, number, records(&number.to_string()));
    }

    fn send_load(&self, to: u16, attempt: Attempt, task: u32, number: u64, load: Load) {
        let ears = Arc::clone(&self.ears);
        let acknowledged = Box::new(move || ears.hear(Heard::Acknowledged(number)));
        self.link().send(HostId(to), attempt, Delivery { task, load }, acknowledged).unwrap();
    }
}

fn records(value: &str) -> Load {
    let mut records = Batch::default();
    records.push(b"key", value.as_bytes(), 5);
    Load::Records(records)
}

fn column(items: &[&[u8]]) -> Column {
    items.iter().copied().collect()
}

/// Settings of host `own` among `addresses`, whose names are `a`, `b`, `c`…
fn settings(own: u16, addresses: &[String], lost_after: Duration) -> LinkSettings {
    let host = |(place, address): (u8, &String)| HostAddress {
        name: char::from(b'a' + place).to_string(),
        address: address.clone(),
    };
    LinkSettings {
        hosts: (0..).zip(addresses).map(host).collect(),
        own: HostId(own),
        identity: identity(),
        security: Security::Plain,
        heartbeat: Duration::from_millis(20),
        lost_after,
        seed: 1000 + u64::from(own),
    }
}

/// Listeners on loopback, with their addresses.
fn listeners(count: usize) -> (Vec<TcpListener>, Vec<String>) {
    let listeners: Vec<TcpListener> = (0..count).map(|_| Running::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    (listeners, addresses)
}

/// Hosts that are connected with each other.
fn connected(count: usize) -> Vec<TestHost> {
    let (listeners, addresses) = listeners(count);
    let host = |(own, listener)| TestHost::start(settings(own, &addresses, Duration::from_secs(30)), listener);
    let hosts: Vec<TestHost> = (0..).zip(listeners).map(host).collect();
    for host in &hosts {
        for _ in 1..count {
            assert!(matches!(host.event(), PeerEvent::Up { .. }));
        }
    }
    hosts
}
