//! Other hosts, as tasks reach their tables and as they reach this host's: lookups that go there, and what comes from there.
//!
//! What comes from outside is checked here before anything is done with it.

use std::sync::Arc;
use std::time::Duration;

use super::flow::Flow;
use super::{Asked, Mailbox, Message, TaskUpdates};
use crate::cluster::HostId;
use crate::cluster::link::{
    Delivery, Found, Get, GetAnswer, Link, Load, LookupFault, Read as Wanted, Refusal, RefusalKind, Scan, ServeLookups,
    TakeDeliveries,
};
use crate::epoch::{Attempt, Epoch};
use crate::key::KeyHash;
use crate::lookup::{Directory, LookupError, Page, Part, TableId};
use crate::plugin::{self, Elsewhere, Fetched, Read};
use crate::record::Column;

/// How long to wait before asking again for an epoch that is committed here, and will be there in a moment.
const COMMIT_WAIT: Duration = Duration::from_millis(1);

/// The tables of other hosts, as long as an attempt runs.
#[derive(Clone)]
pub struct Remote {
    link: Link,
    attempt: Attempt,
}

impl Remote {
    /// What other hosts own, over `link`, in `attempt`.
    pub fn new(link: Link, attempt: Attempt) -> Self {
        Self { link, attempt }
    }

    /// Asks the hosts that own some of `keys`; none where this host owns all of them.
    pub(super) fn get(
        &self,
        directory: &Arc<Directory>,
        table: TableId,
        keys: &Column,
        read: Read<'_>,
    ) -> Option<Elsewhere<Vec<Fetched>>> {
        let parts = directory.elsewhere(table, keys);
        if parts.is_empty() {
            return None;
        }
        let ask = |(host, Part { keys, places }): (u16, Part)| {
            let read = match read {
                Read::At(consistency, _) => Wanted::At(consistency),
                Read::AsOfTimes(times) => Wanted::AsOfTimes(places.iter().map(|&place| times[place]).collect()),
            };
            Asking::new(self.clone(), HostId(host), Get { table, keys, read }, places)
        };
        let asked: Vec<Asking> = parts.into_iter().map(ask).collect();
        let directory = Arc::clone(directory);
        Some(Box::pin(async move {
            let mut all = Vec::with_capacity(asked.len());
            for asked in asked {
                all.push(asked.answer(&directory).await?);
            }
            Ok(all)
        }))
    }

    /// Asks all hosts that own some of the table's keys for their pages; none where this host owns all of them.
    pub(super) fn scan(&self, directory: &Arc<Directory>, scan: Scan) -> Option<Elsewhere<Vec<Page>>> {
        let hosts = directory.hosts_elsewhere(scan.table);
        if hosts.is_empty() {
            return None;
        }
        let (remote, directory, epoch) = (self.clone(), Arc::clone(directory), scan.consistency.epoch());
        let ask = move |host: HostId| remote.link.scan(host, remote.attempt, scan.clone());
        let asked: Vec<_> = hosts.iter().map(|&host| (HostId(host), ask(HostId(host)))).collect();
        Some(Box::pin(async move {
            let mut pages = Vec::with_capacity(asked.len());
            for (host, mut asked) in asked {
                pages.push(loop {
                    match settled(asked.await.unwrap_or(Err(LookupFault::Lost)), epoch, &directory).await? {
                        Some(page) => break page,
                        None => asked = ask(host),
                    }
                });
            }
            Ok(pages)
        }))
    }
}

/// What one host has been asked.
struct Asking {
    remote: Remote,
    host: HostId,
    get: Get,
    places: Vec<usize>,
    asked: GetAnswer,
}

impl Asking {
    fn new(remote: Remote, host: HostId, get: Get, places: Vec<usize>) -> Self {
        let asked = remote.link.get(host, remote.attempt, get.clone());
        Self { remote, host, get, places, asked }
    }

    async fn answer(self, directory: &Directory) -> Result<Fetched, plugin::LookupError> {
        let Self { remote, host, get, places, mut asked } = self;
        let epoch = if let Wanted::At(consistency) = get.read { consistency.epoch() } else { None };
        let values = loop {
            match settled(asked.await.unwrap_or(Err(LookupFault::Lost)), epoch, directory).await? {
                Some(values) => break values,
                None => asked = remote.link.get(host, remote.attempt, get.clone()),
            }
        };
        let mut fetched = Fetched { places, ..Fetched::default() };
        for value in values.iter() {
            let value = match value {
                Found::Present(value) => Some(value),
                Found::Absent => None,
                Found::AskAgain | Found::TooLarge => {
                    let text = "a value is too large to travel between hosts".to_owned();
                    return Err(plugin::LookupError::NotAllowed(text));
                }
            };
            fetched.present.push(value.is_some());
            fetched.items.push(value.unwrap_or_default());
        }
        Ok(fetched)
    }
}

/// What a host's answer to a lookup as of the epoch `asked`, if it is of one, comes to; `None` where it is to be asked again. Where the host is lost there is no answer: the attempt ends, and whoever waits with it.
async fn settled<T>(
    answer: Result<T, LookupFault>,
    asked: Option<Epoch>,
    directory: &Directory,
) -> Result<Option<T>, plugin::LookupError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(LookupFault::Lost | LookupFault::Stale) => std::future::pending().await,
        Err(LookupFault::Refused(Refusal { kind: RefusalKind::Gone, text })) => match asked {
            // Committed here, it will be committed there in a moment.
            Some(epoch) if directory.readable().contains(&epoch) => {
                tokio::time::sleep(COMMIT_WAIT).await;
                Ok(None)
            }
            _ => Err(plugin::LookupError::Gone(text)),
        },
        Err(LookupFault::Refused(Refusal { kind: RefusalKind::NotAllowed, text })) => {
            Err(plugin::LookupError::NotAllowed(text))
        }
        Err(LookupFault::Refused(Refusal { kind: RefusalKind::Failed, text })) => Err(plugin::LookupError::Host(text)),
        Err(fault @ LookupFault::TooLarge { .. }) => Err(plugin::LookupError::Host(format!("failed to {fault}"))),
    }
}

/// What comes to this host's tasks from others, as long as an attempt runs.
pub struct Inbound {
    flow: Arc<Flow>,
    /// All tasks of the job.
    tasks: Vec<Addressee>,
}

/// A task, as far as what comes for it is checked.
pub struct Addressee {
    /// Its mailbox.
    pub mailbox: Mailbox,
    /// The host that it runs on.
    pub host: HostId,
    /// How many tables it has.
    pub tables: usize,
    /// How many ports it emits on.
    pub ports: usize,
    /// Whether records come to it by their keys.
    pub is_keyed: bool,
    /// Its partitions, of `partitions_of_job`.
    pub partitions: std::ops::Range<u16>,
    /// How many partitions the job has.
    pub partitions_of_job: u16,
}

impl Addressee {
    fn check_keys(&self, keys: &Column) -> Result<(), String> {
        let is_own = |key: &[u8]| self.partitions.contains(&KeyHash::of(key).partition(self.partitions_of_job).0);
        match keys.iter().find(|key| self.is_keyed && !is_own(key)) {
            None => Ok(()),
            Some(key) => Err(format!("the key `{}` is another task's", key.escape_ascii())),
        }
    }
}

impl Inbound {
    /// What comes for `tasks`, all of the job in the plan's order, is counted in `flow`.
    pub fn new(flow: Arc<Flow>, tasks: Vec<Addressee>) -> Self {
        Self { flow, tasks }
    }

    fn message(&self, from: HostId, task: &Addressee, load: Load) -> Result<Message, String> {
        match load {
            Load::Records(records) => task.check_keys(&records.keys).map(|()| Message::Records(records)),
            Load::Looped(records) => task.check_keys(&records.keys).map(|()| Message::Looped(records)),
            Load::Outcomes { port, records } => {
                let port = port as usize;
                if port < task.ports {
                    Ok(Message::Outcomes { port, records })
                } else {
                    Err(format!("its task has no port number {port}"))
                }
            }
            Load::Updates(sent) => {
                let table = sent.table as usize;
                if table >= task.tables {
                    return Err(format!("its task has no table number {table}"));
                }
                task.check_keys(&sent.updates.keys)?;
                let asked = sent.asked.map(|asked| {
                    let to = self.tasks.get(asked.task as usize).filter(|to| to.host == from);
                    let to = to.ok_or_else(|| format!("task number {} is none of that host's", asked.task))?;
                    let (port, records, to) = (asked.port as usize, asked.records, to.mailbox.clone());
                    Ok::<_, String>(Asked { port, records, to })
                });
                let (updates, asked) = (sent.updates, asked.transpose()?);
                Ok(Message::Updates(Box::new(TaskUpdates { table, updates, asked })))
            }
        }
    }
}

impl TakeDeliveries for Inbound {
    fn take(&self, from: HostId, delivery: Delivery) -> Result<(), String> {
        let Delivery { task: number, load } = delivery;
        let task = self.tasks.get(number as usize).filter(|task| task.mailbox.is_here());
        let task = task.ok_or_else(|| format!("there is no task number {number} on this host"))?;
        let message = self.message(from, task, load).map_err(|fault| format!("for task number {number}: {fault}"))?;
        task.mailbox.post(message, &self.flow);
        Ok(())
    }
}

/// This host's tables, as other hosts look them up.
pub struct Lookups(pub Arc<Directory>);

impl ServeLookups for Lookups {
    fn get(&self, _: HostId, get: &Get, found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Refusal> {
        let Get { table, keys, read } = get;
        self.0.checked(*table).ok_or_else(unknown)?;
        self.0.check_here(*table, keys).map_err(refusal)?;
        let result = match read {
            Wanted::At(consistency) => self.0.get_many(*table, keys, *consistency, found),
            Wanted::AsOfTimes(times) if times.len() == keys.len() => {
                self.0.get_many_as_of_time(*table, keys, times, found)
            }
            Wanted::AsOfTimes(_) => {
                let text = "there are not as many times as keys".to_owned();
                return Err(Refusal { kind: RefusalKind::Failed, text });
            }
        };
        result.map_err(refusal)
    }

    fn scan(&self, _: HostId, scan: &Scan) -> Result<Page, Refusal> {
        self.0.checked(scan.table).ok_or_else(unknown)?;
        let limit = scan.limit as usize;
        self.0.scan(scan.table, &scan.from, scan.to.as_deref(), limit, scan.consistency).map_err(refusal)
    }
}

fn unknown() -> Refusal {
    Refusal { kind: RefusalKind::Failed, text: "there is no such table".to_owned() }
}

fn refusal(error: LookupError) -> Refusal {
    let kind = match error {
        LookupError::Gone { .. } => RefusalKind::Gone,
        LookupError::NotOrdered { .. } | LookupError::UnknownTable { .. } => RefusalKind::NotAllowed,
        LookupError::Tables(_) | LookupError::Elsewhere { .. } => RefusalKind::Failed,
    };
    Refusal { kind, text: format!("failed to {error}") }
}
