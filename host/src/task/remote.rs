//! Other hosts, as tasks reach their tables and as they reach this host's: lookups that go there, and what comes from there.
//!
//! What comes from outside is checked here before anything is done with it.

use std::sync::Arc;
use std::time::Duration;

use super::flow::Flow;
use super::{Asked, Mailbox, Message, TaskUpdates};
use crate::cluster::HostId;
use crate::cluster::link::{
    self, Delivery, Get, Load, LookupFault, Refusal, RefusalKind, Scan, ServeLookups, TakeDeliveries,
};
use crate::cluster::lookups::{self, Batching, LookupsError, Question, Read as Wanted};
use crate::epoch::Epoch;
use crate::key::KeyHash;
use crate::lookup::{Directory, LookupError, Page, Part, TableId};
use crate::plugin::{self, Elsewhere, Fetched, Read};
use crate::record::Column;

/// How long to wait before asking again for an epoch that is committed here, and will be there in a moment.
const COMMIT_WAIT: Duration = Duration::from_millis(1);

/// The tables of other hosts, as long as an attempt runs.
#[derive(Clone)]
pub struct Remote {
    lookups: lookups::Lookups,
    directory: Arc<Directory>,
    batching: Batching,
}

impl Remote {
    /// What other hosts own of the tables of `directory`, by `lookups`, gathered as `batching` says.
    pub fn new(lookups: lookups::Lookups, directory: Arc<Directory>, batching: Batching) -> Self {
        Self { lookups, directory, batching }
    }

    /// Asks the hosts that own some of `keys`; none where this host owns all of them.
    pub(super) fn get(&self, table: TableId, keys: &Column, read: Read<'_>) -> Option<Elsewhere<Vec<Fetched>>> {
        let parts = self.directory.elsewhere(table, keys);
        if parts.is_empty() {
            return None;
        }
        let ask = |(host, Part { keys, places }): (u16, Part)| {
            let read = match read {
                Read::At(_, Some(staleness)) => Wanted::Bounded(staleness),
                Read::At(consistency, None) => Wanted::At(consistency),
                Read::AsOfTimes(times) => Wanted::AsOfTimes(places.iter().map(|&place| times[place]).collect()),
            };
            let (host, question) = (HostId(host), Question { table, keys, read, batching: self.batching });
            // All hosts are asked before the first answer is waited for.
            let asked = self.lookups.get(host, question.clone());
            (host, question, places, asked)
        };
        let asked: Vec<_> = parts.into_iter().map(ask).collect();
        let remote = self.clone();
        Some(Box::pin(async move {
            let mut all = Vec::with_capacity(asked.len());
            for (host, question, places, asked) in asked {
                let epoch = if let Wanted::At(consistency) = question.read { consistency.epoch() } else { None };
                let mut answer = remote.settled(asked.await, epoch).await?;
                while answer.is_none() {
                    let asked = remote.lookups.get(host, question.clone());
                    answer = remote.settled(asked.await, epoch).await?;
                }
                all.push(Fetched { places, answer: answer.unwrap_or_default() });
            }
            Ok(all)
        }))
    }

    /// Asks all hosts that own some of the table's keys for their pages; none where this host owns all of them.
    pub(super) fn scan(&self, scan: Scan) -> Option<Elsewhere<Vec<Page>>> {
        let hosts = self.directory.hosts_elsewhere(scan.table);
        if hosts.is_empty() {
            return None;
        }
        let asked: Vec<_> =
            hosts.iter().map(|&host| (HostId(host), self.lookups.scan(HostId(host), scan.clone()))).collect();
        let (remote, epoch) = (self.clone(), scan.consistency.epoch());
        Some(Box::pin(async move {
            let mut pages = Vec::with_capacity(asked.len());
            for (host, asked) in asked {
                let mut page = remote.settled(asked.await, epoch).await?;
                while page.is_none() {
                    page = remote.settled(remote.lookups.scan(host, scan.clone()).await, epoch).await?;
                }
                pages.push(page.unwrap_or_default());
            }
            Ok(pages)
        }))
    }

    /// What a host's answer to a lookup as of the epoch `asked`, if it is of one, comes to; `None` where it is to be asked again. Where the host is lost there is no answer: the attempt ends, and
    /// whoever waits with it.
    async fn settled<T>(
        &self,
        answer: Result<T, LookupsError>,
        asked: Option<Epoch>,
    ) -> Result<Option<T>, plugin::LookupError> {
        let fault = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(LookupsError::Ended) => return std::future::pending().await,
            Err(LookupsError::Fault(fault)) => fault,
            Err(error) => {
                return Err(plugin::LookupError::NotAllowed(format!(
                    "failed to look up keys at another host: {error}"
                )));
            }
        };
        let refusal = match fault {
            LookupFault::Lost | LookupFault::Stale => return std::future::pending().await,
            LookupFault::TooLarge { .. } => return Err(plugin::LookupError::Host(format!("failed to {fault}"))),
            LookupFault::Refused(refusal) => refusal,
        };
        match (refusal.kind, asked) {
            // Committed here, it will be committed there in a moment.
            (RefusalKind::Gone, Some(epoch)) if self.directory.readable().contains(&epoch) => {
                tokio::time::sleep(COMMIT_WAIT).await;
                Ok(None)
            }
            (RefusalKind::Gone, _) => Err(plugin::LookupError::Gone(refusal.text)),
            (RefusalKind::NotAllowed, _) => Err(plugin::LookupError::NotAllowed(refusal.text)),
            (RefusalKind::Failed, _) => Err(plugin::LookupError::Host(refusal.text)),
        }
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
pub struct Served(pub Arc<Directory>);

impl ServeLookups for Served {
    fn get(&self, _: HostId, get: &Get, found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Refusal> {
        let Get { table, keys, read } = get;
        self.0.checked(*table).ok_or_else(unknown)?;
        self.0.check_here(*table, keys).map_err(refusal)?;
        let result = match read {
            link::Read::At(consistency) => self.0.get_many(*table, keys, *consistency, found),
            link::Read::AsOfTimes(times) if times.len() == keys.len() => {
                self.0.get_many_as_of_time(*table, keys, times, found)
            }
            link::Read::AsOfTimes(_) => {
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
