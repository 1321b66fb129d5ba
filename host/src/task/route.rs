//! The way on: batches go from a source or an operator's port to the mailboxes of tasks and to sinks.
//!
//! Columns move by reference; they are copied only where records go to different tasks, or one batch to several readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

use super::flow::{Flow, Way};
use super::refuse::{Refusals, Refused};
use super::{Mailbox, Message, TaskError};
use crate::connector::ConnectorError;
use crate::connector::extract::JsonPointer;
use crate::epoch::Epoch;
use crate::epoch::entry::SinkSeal;
use crate::key::KeyHash;
use crate::record::{Batch, BatchSize, Column};

/// What comes into a sink's mailbox.
#[derive(Debug)]
pub enum SinkMessage {
    /// Records to write.
    Records(Batch),
    /// Nothing is in flight: end the epoch.
    Seal {
        /// The epoch that ends.
        epoch: Epoch,
        /// Whether none will follow.
        last: bool,
        /// Where the result goes.
        reply: oneshot::Sender<Result<SinkSeal, ConnectorError>>,
    },
    /// The job has ended.
    End,
}

/// Sends batches to a sink.
#[derive(Debug, Clone)]
pub struct SinkHandle {
    sender: std::sync::mpsc::Sender<SinkMessage>,
    flow: Arc<Flow>,
}

impl SinkHandle {
    /// A handle on the sink that receives from `sender`'s channel.
    pub fn new(sender: std::sync::mpsc::Sender<SinkMessage>, flow: Arc<Flow>) -> Self {
        Self { sender, flow }
    }

    /// Sends a batch. A sink whose thread has ended has reported why already; the batch is then void with its epoch.
    pub fn send(&self, batch: Batch) {
        let (records, bytes) = (batch.len() as u64, batch.byte_len() as u64);
        self.flow.add(Way::Ahead, records, bytes);
        if self.sender.send(SinkMessage::Records(batch)).is_err() {
            self.flow.remove(Way::Ahead, records, bytes);
        }
    }

    /// Tells the sink that the job has ended.
    pub fn end(&self) {
        // One that has ended already need not be told.
        let _ = self.sender.send(SinkMessage::End);
    }

    /// Asks for the end of an epoch.
    pub fn seal(&self, epoch: Epoch, last: bool) -> oneshot::Receiver<Result<SinkSeal, ConnectorError>> {
        let (reply, receiver) = oneshot::channel();
        // A sink that has ended drops `reply`, which the receiver notices.
        let _ = self.sender.send(SinkMessage::Seal { epoch, last, reply });
        receiver
    }
}

/// One reader of a source or port.
#[derive(Debug, Clone)]
pub struct Edge {
    /// How the reader keys its input, where not by the producer's key.
    pub key: Option<Arc<JsonPointer>>,
    /// The rule for records that this key cannot be found in: the reader's.
    pub refusals: Option<Refusals>,
    /// Where the records go.
    pub to: Destination,
    /// Whether it leads back: what comes along it is carried over at a seal.
    pub feedback: bool,
}

/// Where records go.
#[derive(Debug, Clone)]
pub enum Destination {
    /// To the task that owns the key's partition.
    Partitioned {
        /// The mailboxes of the operator's tasks.
        tasks: Arc<[Mailbox]>,
        /// The task of each partition.
        owners: Arc<[u16]>,
    },
    /// To one task, whatever the key: a stateless operator behind another runs where its producer does.
    Task(Mailbox),
    /// To each task in turn: records without a key have no order to keep.
    Spread {
        /// The mailboxes of the operator's tasks.
        tasks: Arc<[Mailbox]>,
        /// How many batches have been sent.
        sent: Arc<AtomicUsize>,
    },
    /// To a sink.
    Sink(SinkHandle),
}

/// The readers of each port of a producer.
#[derive(Debug, Clone)]
pub struct Router {
    ports: Vec<Vec<Edge>>,
    flow: Arc<Flow>,
}

impl Router {
    /// A router for ports whose readers are `ports[port]`.
    pub fn new(ports: Vec<Vec<Edge>>, flow: Arc<Flow>) -> Self {
        Self { ports, flow }
    }

    /// Into how many parts a batch sent on `port` is divided at most.
    pub fn parts(&self, port: usize) -> usize {
        let parts = |edge: &Edge| match &edge.to {
            Destination::Partitioned { tasks, .. } => tasks.len(),
            Destination::Task(_) | Destination::Spread { .. } | Destination::Sink(_) => 1,
        };
        self.ports[port].iter().map(parts).max().unwrap_or(1)
    }

    /// Sends a batch to all readers of `port`.
    ///
    /// # Errors
    /// When a record has no key for a reader that keys it anew, and that reader's `on-error` is "stop".
    pub fn send(&self, port: usize, batch: Batch) -> Result<(), TaskError> {
        self.send_to_all(port, batch, false)
    }

    /// As [`Router::send`], for outcomes of updates: tasks take them as what comes by a loop.
    ///
    /// # Errors
    /// As [`Router::send`].
    pub fn send_looped(&self, port: usize, batch: Batch) -> Result<(), TaskError> {
        self.send_to_all(port, batch, true)
    }

    fn send_to_all(&self, port: usize, batch: Batch, looped: bool) -> Result<(), TaskError> {
        if batch.is_empty() {
            return Ok(());
        }
        // A port that came with a reload leads nowhere yet.
        let Some((last, others)) = self.ports.get(port).and_then(|edges| edges.split_last()) else { return Ok(()) };
        for edge in others {
            self.send_along(edge, batch.clone(), looped)?;
        }
        self.send_along(last, batch, looped)
    }

    fn send_along(&self, edge: &Edge, batch: Batch, looped: bool) -> Result<(), TaskError> {
        let looped = looped || edge.feedback;
        let batch = match &edge.key {
            Some(extractor) => rekey(batch, extractor, edge.refusals.as_ref())?,
            None => batch,
        };
        match &edge.to {
            Destination::Sink(sink) if !batch.is_empty() => sink.send(batch),
            Destination::Sink(_) => {}
            Destination::Task(mailbox) => self.post(mailbox, batch, looped),
            Destination::Spread { tasks, sent } => {
                self.post(&tasks[sent.fetch_add(1, Ordering::Relaxed) % tasks.len()], batch, looped);
            }
            Destination::Partitioned { tasks, .. } if tasks.len() == 1 => self.post(&tasks[0], batch, looped),
            Destination::Partitioned { tasks, owners } => {
                for (task, bucket) in partition(&batch, owners, tasks.len()).into_iter().enumerate() {
                    self.post(&tasks[task], bucket, looped);
                }
            }
        }
        Ok(())
    }

    fn post(&self, mailbox: &Mailbox, batch: Batch, looped: bool) {
        if batch.is_empty() {
            return;
        }
        let message = if looped { Message::Looped(Arc::new(batch)) } else { Message::Records(batch) };
        mailbox.post(message, &self.flow);
    }
}

/// One bucket a task: each record goes to the owner of its key's partition, and keeps its place among those that go there.
fn partition(batch: &Batch, owners: &[u16], tasks: usize) -> Vec<Batch> {
    let size = BatchSize::of(batch).part(tasks);
    let mut buckets: Vec<Batch> = (0..tasks).map(|_| size.empty_batch()).collect();
    let partitions = owners.len() as u16;
    for index in 0..batch.len() {
        let key = batch.keys.get(index);
        let partition = KeyHash::of(key).partition(partitions);
        buckets[usize::from(owners[usize::from(partition.0)])].push(key, batch.values.get(index), batch.times[index]);
    }
    buckets
}

/// The batch with the keys that `extractor` finds in its values, less the records in which it finds none.
fn rekey(batch: Batch, extractor: &JsonPointer, refusals: Option<&Refusals>) -> Result<Batch, TaskError> {
    let mut keys = Column::with_capacity(batch.len(), batch.len() * 16);
    let mut refused = Vec::new();
    for index in 0..batch.len() {
        if let Err(error) = extractor.key_into(batch.values.get(index), &mut keys) {
            if let Some(refusals) = refusals {
                let (key, value, time) = (batch.keys.get(index), batch.values.get(index), batch.times[index]);
                let error = format!("no key to be had from it: {error}");
                refusals.refuse(Refused { key, value, time, place: None, error: &error })?;
            }
            refused.push(index);
        }
    }
    if refused.is_empty() {
        return Ok(Batch { keys, values: batch.values, times: batch.times });
    }
    let mut kept = Batch { keys, ..Batch::default() };
    let mut start = 0;
    for end in refused.into_iter().chain([batch.len()]) {
        kept.values.extend_from(&batch.values, start..end);
        kept.times.extend_from_slice(&batch.times[start..end]);
        start = end + 1;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(records: &[(&str, &str)]) -> Batch {
        let mut batch = Batch::default();
        for (time, (key, value)) in records.iter().enumerate() {
            batch.push(key.as_bytes(), value.as_bytes(), time as i64);
        }
        batch
    }

    #[test]
    fn partitioning_loses_nothing_keeps_order_and_follows_the_owners() {
        let records: Vec<(String, String)> = (0..500).map(|i| ((i % 37).to_string(), format!("value {i}"))).collect();
        let records: Vec<(&str, &str)> = records.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let owners = [0, 0, 1, 1, 2];
        let buckets = partition(&batch(&records), &owners, 3);
        assert_eq!(buckets.iter().map(Batch::len).sum::<usize>(), records.len());
        for (task, bucket) in buckets.iter().enumerate() {
            assert!(bucket.times.is_sorted());
            for index in 0..bucket.len() {
                let partition = KeyHash::of(bucket.keys.get(index)).partition(5);
                assert_eq!(usize::from(owners[usize::from(partition.0)]), task);
                let original = records[bucket.times[index] as usize];
                assert_eq!(
                    (bucket.keys.get(index), bucket.values.get(index)),
                    (original.0.as_bytes(), original.1.as_bytes())
                );
            }
        }
    }
}
