//! The tables that an operator uses beside its own, as its tasks reach them: lookups through the [`Directory`], updates and sends through the mailboxes of
//! the tasks that own them.

use std::sync::Arc;

use super::refuse::Refusals;
use super::remote::Remote;
use super::{Asked, Mailbox, Message, TaskUpdates};
use crate::cluster::link::Scan;
use crate::key::KeyHash;
use crate::lookup::{self, Directory, TableId};
use crate::metrics::OperatorMeters;
use crate::plugin::{
    Consistency, Elsewhere, Fetched, LookupError, OtherTables, Outcomes, Page, Read, Readers, TableUpdates, Use,
};
use crate::record::{Batch, BatchSize, Column};
use crate::state::update::{Operands, Updates};
use crate::state::{TablesError, Updated};
use crate::task::flow::Flow;
use crate::task::progress::Progress;

/// A table that an operator uses.
pub struct UsedTable {
    /// The table, in the directory.
    pub id: TableId,
    /// The operator that owns it, by its place in the graph.
    pub owner: usize,
    /// The table, by its place among its owner's.
    pub table: usize,
    /// The owner's tasks.
    pub tasks: Arc<[Mailbox]>,
    /// The task of each partition.
    pub owners: Arc<[u16]>,
    /// What its owner calls it.
    pub name: String,
    /// Its owner's rule for records that fail.
    pub refusals: Refusals,
    /// What its owner counts.
    pub meters: Arc<OperatorMeters>,
    /// Its part that other hosts own, where there are any.
    pub remote: Option<Remote>,
}

/// The tables that an operator uses.
pub struct Others {
    directory: Arc<Directory>,
    tables: Vec<UsedTable>,
    uses: Arc<[Use]>,
    progress: Arc<Progress>,
}

/// What one call's updates come to for the task that made them.
pub struct OwnPart {
    /// The table, by its place among the task's own.
    pub table: usize,
    /// The changes of keys that the task owns.
    pub updates: Updates,
    /// Where their outcomes go.
    pub outcomes: Option<Outcomes>,
}

/// Updates that have been applied to one owner's tables.
pub struct AppliedPart {
    /// The changes.
    pub updates: Updates,
    /// What became of each.
    pub updated: Vec<Updated>,
    /// Where their outcomes go.
    pub outcomes: Option<Outcomes>,
}

impl Others {
    /// The tables of `directory` that an operator uses; `uses` says what it calls them and may do, in the order of `tables`, and `progress` how far their owners have come.
    pub fn new(directory: Arc<Directory>, tables: Vec<UsedTable>, uses: Arc<[Use]>, progress: Arc<Progress>) -> Self {
        Self { directory, tables, uses, progress }
    }

    /// How often the progress of operators has been moved on.
    pub fn progress_moves(&self) -> u64 {
        self.progress.moves()
    }

    /// What the function calls the tables, and what it may do with them.
    pub fn uses(&self) -> Arc<[Use]> {
        Arc::clone(&self.uses)
    }

    /// Sends updates to the tasks that own their keys, each counted in `flow`. What is `own`'s, given as operator and task, is handed back: it is a write
    /// of the task's own state.
    pub fn send_updates(
        &self,
        updates: TableUpdates,
        own: (usize, usize),
        me: &Mailbox,
        flow: &Arc<Flow>,
    ) -> Option<OwnPart> {
        let used = &self.tables[updates.table];
        let mut own_part = None;
        for (task, updates, outcomes) in split_updates(updates.updates, updates.outcomes, used) {
            if (used.owner, task) == own {
                own_part = Some(OwnPart { table: used.table, updates, outcomes });
                continue;
            }
            let asked = outcomes.map(|Outcomes { port, records }| Asked { port, records, to: Mailbox::clone(me) });
            used.tasks[task].post(Message::Updates(Box::new(TaskUpdates { table: used.table, updates, asked })), flow);
        }
        own_part
    }

    /// Applies updates to the tables of whoever owns them: for a round, in which the owners stand still. Returns every owner's part with what became of it.
    ///
    /// # Errors
    /// When state cannot be read.
    pub fn apply_updates(&self, updates: TableUpdates) -> Result<Vec<AppliedPart>, TablesError> {
        let used = &self.tables[updates.table];
        let owners = &self.directory.operator(used.id).tasks;
        let apply = |(task, updates, outcomes): (usize, Updates, Option<Outcomes>)| {
            let updated = owners[task].update(used.table, &updates)?;
            Ok(AppliedPart { updates, updated, outcomes })
        };
        split_updates(updates.updates, updates.outcomes, used).into_iter().map(apply).collect()
    }

    /// The table number `table` of those that are used.
    pub fn id(&self, table: usize) -> TableId {
        self.tables[table].id
    }

    /// The table number `table` of those that are used.
    pub fn used(&self, table: usize) -> &UsedTable {
        &self.tables[table]
    }

    /// Whether a table can be scanned.
    pub fn is_ordered(&self, table: TableId) -> bool {
        self.directory.is_ordered(table)
    }

    /// Sends records to the function that owns a table: each to the task of its key.
    pub fn send(&self, table: usize, batch: Batch, flow: &Arc<Flow>) {
        let used = &self.tables[table];
        for (task, part) in split_records(batch, used).into_iter().enumerate() {
            if !part.is_empty() {
                used.tasks[task].post(Message::Looped(Arc::new(part)), flow);
            }
        }
    }
}

/// What the flow counts for updates: one record each, and their bytes.
pub(super) fn size_of_updates(updates: &Updates) -> (u64, u64) {
    let bytes =
        updates.keys.bytes().len() + updates.operands.items.bytes().len() + updates.expected.items.bytes().len();
    (updates.keys.len() as u64, bytes as u64)
}

impl UsedTable {
    fn owner_of(&self, key: &[u8]) -> usize {
        let partition = KeyHash::of(key).partition(self.owners.len() as u16);
        usize::from(self.owners[usize::from(partition.0)])
    }
}

/// Updates by the task that owns their keys; each keeps its place among those that go to the same task.
fn split_updates(
    updates: Updates,
    outcomes: Option<Outcomes>,
    used: &UsedTable,
) -> Vec<(usize, Updates, Option<Outcomes>)> {
    if used.tasks.len() == 1 {
        return vec![(0, updates, outcomes)];
    }
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); used.tasks.len()];
    for (index, key) in updates.keys.iter().enumerate() {
        places[used.owner_of(key)].push(index);
    }
    let part = |(task, places): (usize, Vec<usize>)| {
        let part = Updates {
            op: updates.op,
            keys: pick(&updates.keys, &places),
            operands: pick_operands(&updates.operands, &places),
            expected: pick_operands(&updates.expected, &places),
            times: if updates.times.is_empty() { Vec::new() } else { pick_times(&updates.times, &places) },
        };
        let outcomes = outcomes.as_ref().map(|Outcomes { port, records }| Outcomes {
            port: *port,
            records: Batch {
                keys: pick(&records.keys, &places),
                values: pick(&records.values, &places),
                times: pick_times(&records.times, &places),
            },
        });
        (task, part, outcomes)
    };
    places.into_iter().enumerate().filter(|(_, places)| !places.is_empty()).map(part).collect()
}

fn split_records(batch: Batch, used: &UsedTable) -> Vec<Batch> {
    let tasks = used.tasks.len();
    if tasks == 1 {
        return vec![batch];
    }
    let size = BatchSize::of(&batch).part(tasks);
    let mut parts: Vec<Batch> = (0..tasks).map(|_| size.empty_batch()).collect();
    for index in 0..batch.len() {
        let key = batch.keys.get(index);
        parts[used.owner_of(key)].push(key, batch.values.get(index), batch.times[index]);
    }
    parts
}

fn pick(column: &Column, places: &[usize]) -> Column {
    places.iter().map(|&place| column.get(place)).collect()
}

fn pick_times(times: &[i64], places: &[usize]) -> Vec<i64> {
    places.iter().map(|&place| times[place]).collect()
}

/// Operands that an operation does not have stay none.
fn pick_operands(operands: &Operands, places: &[usize]) -> Operands {
    let items = if operands.items.is_empty() { Column::default() } else { pick(&operands.items, places) };
    let present = if operands.present.is_empty() {
        Vec::new()
    } else {
        places.iter().map(|&place| operands.present[place]).collect()
    };
    Operands { items, present }
}

impl OtherTables for Others {
    fn get_many(
        &self,
        table: usize,
        keys: &Column,
        _: Readers<'_>,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.directory.get_many(self.tables[table].id, keys, consistency, found).map_err(told)
    }

    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        wait: bool,
        _: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        let used = &self.tables[table];
        let reached = self.progress.of(used.owner);
        if let Some(&asked) = times.iter().max()
            && wait
            && asked > reached
        {
            let name = &self.uses[table].name;
            return Err(LookupError::NotYet(format!(
                "`{name}` is known up to {}, not yet up to {asked}",
                shown(reached)
            )));
        }
        self.directory.get_many_as_of_time(used.id, keys, times, found).map_err(told)
    }

    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        _: Readers<'_>,
        consistency: Consistency,
    ) -> Result<Page, LookupError> {
        self.directory.scan(self.tables[table].id, from, to, limit, consistency).map_err(told)
    }

    fn get_elsewhere(&self, table: usize, keys: &Column, read: Read<'_>) -> Option<Elsewhere<Vec<Fetched>>> {
        self.tables[table].remote.as_ref()?.get(self.tables[table].id, keys, read)
    }

    fn scan_elsewhere(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        consistency: Consistency,
    ) -> Option<Elsewhere<Vec<Page>>> {
        let remote = self.tables[table].remote.as_ref()?;
        let (table, from, to) = (self.tables[table].id, from.to_vec(), to.map(<[u8]>::to_vec));
        // A page has at most as many items as one lookup may have keys.
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        remote.scan(Scan { table, from, to, limit, consistency })
    }
}

fn shown(reached: i64) -> String {
    if reached == i64::MIN { "no time".to_owned() } else { format!("event time {reached}") }
}

/// What the guest is told of an error; one of state on disk is the host's.
fn told(error: lookup::LookupError) -> LookupError {
    let text = format!("failed to {error}");
    match error {
        lookup::LookupError::Gone { .. } => LookupError::Gone(text),
        lookup::LookupError::NotOrdered { .. } | lookup::LookupError::UnknownTable { .. } => {
            LookupError::NotAllowed(text)
        }
        lookup::LookupError::Tables(_) | lookup::LookupError::Elsewhere { .. } => LookupError::Host(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::OnError;
    use crate::state::update::Op;

    fn used(tasks: usize) -> UsedTable {
        let mailboxes: Vec<Mailbox> = (0..tasks as u32).map(|task| Mailbox::here(task).0).collect();
        let owners: Vec<u16> = (0..16).map(|partition| (partition * tasks / 16) as u16).collect();
        let (tasks, owners) = (mailboxes.into(), owners.into());
        let refusals = Refusals::new("operator", "owner", OnError::Stop, None);
        UsedTable {
            id: TableId::default(),
            owner: 0,
            table: 0,
            tasks,
            owners,
            name: "table".to_owned(),
            refusals,
            meters: Arc::default(),
            remote: None,
        }
    }

    #[test]
    fn updates_go_to_the_owners_of_their_keys_in_order_and_none_is_lost() {
        let used = used(3);
        let keys: Vec<String> = (0..200).map(|number| format!("k{}", number % 70)).collect();
        let operands: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let column = |items: &[String]| items.iter().map(String::as_bytes).collect::<Column>();
        let updates = Updates {
            op: Op::Put,
            keys: column(&keys),
            operands: Operands { items: column(&operands), present: Vec::new() },
            expected: Operands::default(),
            times: (1000..1200).collect(),
        };
        let records = Batch { keys: column(&keys), values: column(&operands), times: (0..200).collect() };
        let parts = split_updates(updates, Some(Outcomes { port: 1, records }), &used);
        let mut seen = 0;
        for (task, part, outcomes) in parts {
            let outcomes = outcomes.unwrap().records;
            let order: Vec<i64> = outcomes.times.clone();
            assert!(order.is_sorted());
            for (index, &original) in order.iter().enumerate() {
                let original = original as usize;
                assert_eq!(used.owner_of(part.keys.get(index)), task);
                assert_eq!(part.keys.get(index), keys[original].as_bytes());
                assert_eq!(part.operands.get(index), Some(operands[original].as_bytes()));
                assert_eq!(outcomes.keys.get(index), keys[original].as_bytes());
                assert_eq!(part.times[index], 1000 + original as i64);
                seen += 1;
            }
        }
        assert_eq!(seen, 200);
    }
}
