//! Moves a job that does not run to the hosts that its manifest names now: says what goes where.
//!
//! All that an epoch holds follows from the plan: values from the partition of their key, carried-over records from theirs, positions from the host that reads the split. How it is done so that
//! it may be interrupted is [`crate::state::rescale`]'s business. The new directories begin with the epoch behind the one that was moved, of an attempt above all others, and keep the ids of the
//! hosts that the job has or once had, by which their output is known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::JobError;
use super::assemble::{Parts, is_of_job, with_joined};
use crate::connector::source_from;
use crate::disk::RealDisk;
use crate::epoch::decided::CommitRecord;
use crate::epoch::entry::{Carried, Entry, Position, SinkSeal, TableName};
use crate::epoch::{Digest, Epoch, JobId};
use crate::graph::{Dealing, Graph, Plan, SourceNode, StateIdentity, shares};
use crate::key::{KeyHash, Partition};
use crate::manifest::Loaded;
use crate::record::Batch;
use crate::state::rescale::{Arriving, Base, Layout, Leaving, Moving, aside, draw_id};

/// What was moved, or would be. A host's name is empty where the job has no `[cluster]`.
#[derive(Debug)]
pub struct Moved {
    /// The epoch as of which it was.
    pub epoch: Epoch,
    /// The hosts that the state lay on; the same as the new ones, in this order, where there was nothing to do.
    pub from: Vec<String>,
    /// What each of the new hosts has then; none where there was nothing to do.
    pub shares: Vec<Share>,
    /// Where the old directories' files are.
    pub aside: Vec<PathBuf>,
    /// Whether an earlier move, which was interrupted, was completed before.
    pub completed: bool,
}

/// What one of the new hosts has.
#[derive(Debug, Clone, Default)]
pub struct Share {
    /// Its name.
    pub host: String,
    /// Partitions of an operator that is on all hosts.
    pub partitions: usize,
    /// Keys of all tables.
    pub keys: u64,
    /// Those among them that were on another host.
    pub keys_moved: u64,
    /// Splits that have been read from.
    pub splits: usize,
    /// Records that are carried over.
    pub carried: usize,
}

/// Moves the state of a job to the hosts of its manifest. `loaded` is not that of a single host. With `is_dry` nothing is changed but what an interrupted move had decided.
///
/// # Errors
/// When the job runs, was not stopped cleanly, or is not what the state was made for; when a directory is missing or damaged, or the system refuses.
pub async fn rescale(loaded: &Loaded, graph: &Graph, is_dry: bool) -> Result<Moved, JobError> {
    let parts = Parts::new(loaded, graph, Instant::now(), Arc::default()).await?;
    let root = loaded.resolve(&loaded.manifest.job.state);
    let (mut moving, completed) = Moving::begin(Arc::new(RealDisk), &root)?;
    let layout = moving.find(|fingerprint| is_of_job(fingerprint, &graph.job))?;
    let leaving = moving.leave(&layout)?;
    let reloaded: BTreeSet<String> =
        leaving.iter().filter_map(Leaving::last).flat_map(|last| parts.reloaded(&last.components)).collect();
    if !reloaded.is_empty() {
        return Err(misfit(&root, reloaded.into_iter().collect::<Vec<_>>().join("\n")));
    }
    let (now, _) = parts.identity();
    let stored = stored_identity(&leaving[layout.leader], &leaving, &root)?;
    // What is where is to be changed here.
    let placed = stored.clone().placed_as(&now, BTreeMap::new());
    placed.compare(&now).map_err(|problems| misfit(&root, problems.join("\n")))?;

    let epoch = leaving.iter().map(Leaving::epoch).max().unwrap_or(0);
    let from = layout.names();
    let mut moved = Moved { epoch, from, shares: Vec::new(), aside: Vec::new(), completed };
    let is_led_as = layout.hosts.is_empty() || layout.leader == usize::from(graph.hosts.leader());
    if layout.hosts == graph.hosts.names() && is_led_as && stored.is_placed_as(&now) {
        drop(leaving);
        if !is_dry {
            moving.stay(&layout)?;
        }
        return Ok(moved);
    }
    let to = Layout::names_of(graph.hosts.names());
    let mut directories = stored.directories.clone();
    directories.extend(leaving.iter().map(|leaving| (leaving.host().to_owned(), leaving.job().to_string())));
    let known: BTreeSet<String> = directories.keys().cloned().collect();
    for host in &to {
        directories.entry(host.clone()).or_insert_with(|| draw_id().to_string());
    }
    let (plan, sinks) = (&parts.plan, &stored.sinks);
    let division = Division { loaded, graph, plan, leaving: &leaving, to: &to, known: &known, sinks };
    let (entries, tables) = (division.entries(epoch + 1)?, division.tables());
    if is_dry {
        let share = |host: usize| division.copy(host, &entries[host], &tables, None);
        moved.shares = (0..to.len()).map(share).collect::<Result<_, _>>()?;
        return Ok(moved);
    }
    moving.make_room(&moved.from, &to)?;
    let fingerprint = stored.clone().placed_as(&now, directories.clone());
    let fingerprint = serde_json::to_value(fingerprint).expect("an identity is made of strings and numbers");
    let base = |host: usize| {
        let id = u128::from_str_radix(&directories[&to[host]], 16);
        let unreadable = |_| misfit(&root, format!("the recorded id of the host `{}` cannot be read", to[host]));
        Ok(Base {
            job: id.map(JobId).map_err(unreadable)?,
            partitions: graph.partitions,
            fingerprint: fingerprint.clone(),
            entry: entries[host].clone(),
            shared: !graph.hosts.names().is_empty(),
            tables: tables.clone(),
        })
    };
    let written = division.write(&moving, base);
    drop(leaving);
    moved.shares = written.inspect_err(|_| moving.give_up(&to))?;
    moved.aside = moved.from.iter().map(|host| aside(&moving.directory(host), epoch)).collect();
    moving.conclude(epoch, &moved.from, &to)?;
    Ok(moved)
}

fn misfit(root: &Path, problems: String) -> JobError {
    JobError::Identity { directory: root.to_owned(), problems }
}

/// What the state was made for, with what has joined the job on any host.
fn stored_identity(leader: &Leaving, leaving: &[Leaving], root: &Path) -> Result<StateIdentity, JobError> {
    let mut stored: StateIdentity = serde_json::from_value(leader.fingerprint().clone())
        .map_err(|error| misfit(root, format!("its description of the job cannot be read: {error}")))?;
    for leaving in leaving {
        stored = with_joined(stored, leaving.tables(), leaving.last());
    }
    Ok(stored)
}

/// Who gets what.
struct Division<'a> {
    loaded: &'a Loaded,
    graph: &'a Graph,
    plan: &'a Plan,
    leaving: &'a [Leaving],
    /// The new hosts.
    to: &'a [String],
    /// Those that the job has or once had.
    known: &'a BTreeSet<String>,
    /// The exactly-once sinks.
    sinks: &'a BTreeSet<String>,
}

impl Division<'_> {
    fn tables(&self) -> BTreeMap<TableName, BTreeSet<u32>> {
        let mut tables: BTreeMap<TableName, BTreeSet<u32>> = BTreeMap::new();
        for (table, versions) in self.leaving.iter().flat_map(Leaving::tables) {
            tables.entry(table.clone()).or_default().extend(versions);
        }
        tables
    }

    /// The new host of an old one's name, or else the leader.
    fn heir(&self, host: &str) -> usize {
        let same = self.to.iter().position(|to| to == host);
        same.unwrap_or(usize::from(self.graph.hosts.leader()))
    }

    /// The new host of each partition of an operator.
    fn owners(&self, operator: &str) -> Result<Vec<usize>, JobError> {
        let index = self.graph.operators.iter().position(|node| node.name == operator);
        let gone = || {
            JobError::Plan(format!("the state has something of the operator `{operator}`, which is gone: put it back"))
        };
        let planned = &self.plan.operators[index.ok_or_else(gone)?];
        let tasks = &self.plan.tasks[planned.tasks.clone()];
        Ok(planned.owners().iter().map(|task| usize::from(tasks[usize::from(*task)].host)).collect())
    }

    /// The first entry of each new host, without deltas: of `epoch`, the one behind that of the old ones.
    fn entries(&self, epoch: Epoch) -> Result<Vec<Entry>, JobError> {
        let attempt = self.leaving.iter().map(Leaving::attempt).max().unwrap_or(0) + 1;
        let finished = self.leaving.iter().all(|leaving| leaving.last().is_some_and(|last| last.finished));
        let entry = Entry { epoch, attempt, published: epoch - 1, finished, ..Entry::default() };
        let mut entries = vec![entry; self.to.len()];
        self.divide_positions(&mut entries)?;
        for leaving in self.leaving {
            let Some(last) = leaving.last() else { continue };
            let heir = self.heir(leaving.host());
            for (name, count) in &last.totals {
                *entries[heir].totals.entry(name.clone()).or_default() += count;
            }
            for carried in &last.carried {
                self.divide_carried(carried, heir, &mut entries)?;
            }
        }
        // A host that is new to the job has no output: what lies where it is to write is not its own.
        for (entry, _) in entries.iter_mut().zip(self.to).filter(|(_, host)| self.known.contains(*host)) {
            let seal = SinkSeal { exactly_once: true, ..SinkSeal::default() };
            entry.sinks = self.sinks.iter().map(|name| (name.clone(), seal.clone())).collect();
        }
        Ok(entries)
    }

    fn divide_positions(&self, entries: &mut [Entry]) -> Result<(), JobError> {
        let of_leaving = self.leaving.iter().filter_map(Leaving::last).flat_map(|last| &last.positions);
        let mut positions: BTreeMap<&str, BTreeMap<&str, &Position>> = BTreeMap::new();
        for (source, splits) in of_leaving {
            let known = positions.entry(source).or_default();
            for (split, position) in splits {
                if known.insert(split, position).is_some() {
                    return Err(JobError::Input(format!("source `{source}`: two hosts have a position of `{split}`")));
                }
            }
        }
        for node in &self.graph.sources {
            let Some(splits) = positions.get(node.name.as_str()) else { continue };
            let numbers = self.numbers(node)?;
            for entry in &mut *entries {
                entry.positions.insert(node.name.clone(), BTreeMap::new());
            }
            for (split, position) in splits {
                let number = numbers.iter().position(|name| name == split).unwrap_or(0);
                let host = usize::from(node.split_host(number, split));
                let recorded = entries[host].positions.entry(node.name.clone()).or_default();
                recorded.insert((*split).to_owned(), (*position).clone());
            }
        }
        Ok(())
    }

    /// The names of a source's splits in the order of their numbers, where these decide who reads them.
    fn numbers(&self, node: &SourceNode) -> Result<Vec<String>, JobError> {
        if node.dealing == Dealing::ByName {
            return Ok(Vec::new());
        }
        let source = source_from(&self.loaded.manifest.sources[&node.name], self.loaded.directory());
        source.and_then(|source| source.splits()).map_err(|error| JobError::source(&node.name, error))
    }

    /// Records of a keyed operator go with their keys; others stay where they are, or go to the `heir`.
    fn divide_carried(&self, carried: &Carried, heir: usize, entries: &mut [Entry]) -> Result<(), JobError> {
        let Carried { operator, batch } = carried;
        let owners = self.owners(operator)?;
        let index = self.graph.operators.iter().position(|node| *node.name == **operator);
        let planned = index.map(|index| &self.plan.operators[index]);
        let mut parts = vec![Batch::default(); entries.len()];
        for record in 0..batch.len() {
            let host = match planned {
                Some(planned) if planned.is_keyed => {
                    let partition = KeyHash::of(batch.keys.get(record)).partition(self.graph.partitions);
                    owners[usize::from(partition.0)]
                }
                Some(planned) if planned.alone.is_some() => usize::from(self.graph.hosts.leader()),
                _ => heir,
            };
            parts[host].extend_from(batch, record..record + 1);
        }
        for (entry, part) in entries.iter_mut().zip(parts).filter(|(_, part)| !part.is_empty()) {
            entry.carried.push(Carried { operator: Arc::clone(operator), batch: Arc::new(part) });
        }
        Ok(())
    }

    /// Writes the new directories, each with its `base`.
    fn write(&self, moving: &Moving, base: impl Fn(usize) -> Result<Base, JobError>) -> Result<Vec<Share>, JobError> {
        let (hosts, leader) = (self.graph.hosts.names(), usize::from(self.graph.hosts.leader()));
        let mut digests = vec![Digest::default(); self.to.len()];
        let mut shares = vec![Share::default(); self.to.len()];
        // The leader last: its commit record names the entries of all.
        for host in (0..self.to.len()).filter(|host| *host != leader).chain([leader]) {
            let base = base(host)?;
            let (entry, tables) = (base.entry.clone(), base.tables.clone());
            let mut arriving = moving.arrive(&self.to[host], base)?;
            shares[host] = self.copy(host, &entry, &tables, Some(&mut arriving))?;
            digests[host] = arriving.digest();
            let record = CommitRecord { epoch: entry.epoch, attempt: entry.attempt, digests: digests.clone() };
            let is_leading = host == leader && !hosts.is_empty();
            arriving.complete(is_leading.then_some((hosts, &record)))?;
        }
        Ok(shares)
    }

    /// Puts what `host` owns into its new directory, where there is one, and counts it.
    fn copy(
        &self,
        host: usize,
        entry: &Entry,
        tables: &BTreeMap<TableName, BTreeSet<u32>>,
        mut arriving: Option<&mut Arriving>,
    ) -> Result<Share, JobError> {
        let partitions = shares(self.graph.partitions, self.graph.hosts.count()).nth(host);
        let mut share = Share {
            host: self.to[host].clone(),
            partitions: partitions.map_or(0, |range| range.len()),
            splits: entry.positions.values().map(BTreeMap::len).sum(),
            carried: entry.carried.iter().map(|carried| carried.batch.len()).sum(),
            ..Share::default()
        };
        for table in tables.keys() {
            let operator = table.split('/').next().unwrap_or_default();
            let owners = (0..).map(Partition).zip(self.owners(operator)?);
            for (partition, _) in owners.filter(|(_, owner)| *owner == host) {
                let mut holder: Option<&str> = None;
                for leaving in self.leaving {
                    for row in leaving.rows(table, partition)? {
                        let (version, cell) = row?;
                        if let Some(other) = holder.replace(leaving.host()).filter(|other| *other != leaving.host()) {
                            return Err(doubly_owned(table, partition, [other, leaving.host()]));
                        }
                        share.keys += 1;
                        share.keys_moved += u64::from(leaving.host() != share.host);
                        if let Some(arriving) = &mut arriving {
                            arriving.put(table, partition, version, cell)?;
                        }
                    }
                }
            }
        }
        Ok(share)
    }
}

fn doubly_owned(table: &str, partition: Partition, hosts: [&str; 2]) -> JobError {
    let what = format!(
        "the hosts `{}` both have keys of partition {} of `{table}`: their directories are not of one history; put the right ones back",
        hosts.join("` and `"),
        partition.0
    );
    JobError::Input(what)
}
