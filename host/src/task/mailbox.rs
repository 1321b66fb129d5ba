//! Mailboxes: where tasks get their messages. What is sent to a task of another host travels by the link, and is counted here until that host counts it.
//!
//! This file knows what may travel and how it is counted. It knows nothing of what tasks do with it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::flow::{Flow, Way};
use super::others::size_of_updates;
use super::{Asked, Message, TaskError, TaskUpdates};
use crate::cluster::HostId;
use crate::cluster::link::{self, Delivery, Link, Load};
use crate::epoch::Attempt;

/// The sending side of a task's mailbox. It never blocks: what is in flight is bounded at the sources.
#[derive(Debug, Clone)]
pub struct Mailbox {
    /// The task, by its number in the job.
    task: u32,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    Here(mpsc::UnboundedSender<Message>),
    There(Arc<Post>),
}

impl Mailbox {
    /// The mailbox of task number `task`, which runs on this host, and its receiving side.
    pub fn here(task: u32) -> (Self, mpsc::UnboundedReceiver<Message>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { task, place: Place::Here(sender) }, receiver)
    }

    /// The mailbox of task number `task`, which runs on the host that `post` reaches.
    pub fn there(task: u32, post: Arc<Post>) -> Self {
        Self { task, place: Place::There(post) }
    }

    /// Whether the task runs on this host.
    pub fn is_here(&self) -> bool {
        matches!(self.place, Place::Here(_))
    }

    /// Tells a task of this host something that counts for nothing. One that has ended has reported why, and hears nothing any more.
    pub fn tell(&self, message: Message) {
        if let Place::Here(sender) = &self.place {
            let _ = sender.send(message);
        }
    }

    /// Counts records, updates or outcomes in `flow` and puts them into the mailbox.
    pub(super) fn post(&self, message: Message, flow: &Arc<Flow>) {
        let (way, records, bytes) = size_of(&message);
        flow.add(way, records, bytes);
        match &self.place {
            Place::Here(sender) => {
                // A task that has ended has reported why already; the message is then void with its epoch.
                if sender.send(message).is_err() {
                    flow.remove(way, records, bytes);
                }
            }
            Place::There(post) => {
                let flow = Arc::clone(flow);
                post.send(self.task, load(message), Box::new(move || flow.remove(way, records, bytes)));
            }
        }
    }
}

/// The way to the tasks of one other host, as long as an attempt runs.
pub struct Post {
    link: Link,
    host: HostId,
    attempt: Attempt,
    failed: Box<dyn Fn(TaskError) + Send + Sync>,
}

impl Post {
    /// The way to the tasks of `host`. `failed` hears of what is too large to travel: the job cannot go on then.
    pub fn new(link: Link, host: HostId, attempt: Attempt, failed: Box<dyn Fn(TaskError) + Send + Sync>) -> Self {
        Self { link, host, attempt, failed }
    }

    fn send(&self, task: u32, load: Load, acknowledged: link::Acknowledged) {
        let delivery = Delivery { task, load };
        if let Err(error) = self.link.send(self.host, self.attempt, delivery, acknowledged) {
            (self.failed)(TaskError::Storage(format!("failed to {error}")));
        }
    }
}

impl std::fmt::Debug for Post {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Post").field("host", &self.host).field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// How a message is counted: by which way, how many records, how many bytes.
fn size_of(message: &Message) -> (Way, u64, u64) {
    match message {
        Message::Records(batch) | Message::Outcomes { records: batch, .. } => {
            (Way::Ahead, batch.len() as u64, batch.byte_len() as u64)
        }
        Message::Looped(batch) => (Way::Loop, batch.len() as u64, batch.byte_len() as u64),
        Message::Updates(sent) => {
            let (records, bytes) = size_of_updates(&sent.updates);
            (Way::Ahead, records, bytes)
        }
        Message::Hurry | Message::Wake | Message::Relieve(_) | Message::Seal(_) => {
            unreachable!("the coordinator's messages are told, not posted")
        }
    }
}

/// A message as it travels.
fn load(message: Message) -> Load {
    match message {
        Message::Records(batch) => Load::Records(batch),
        Message::Looped(batch) => Load::Looped(batch),
        Message::Updates(sent) => {
            let TaskUpdates { table, updates, asked } = *sent;
            let asked =
                asked.map(|Asked { port, records, to }| link::Asked { port: port as u32, task: to.task, records });
            Load::Updates(Box::new(link::TableUpdates { table: table as u32, updates, asked }))
        }
        Message::Outcomes { port, records } => Load::Outcomes { port: port as u32, records },
        Message::Hurry | Message::Wake | Message::Relieve(_) | Message::Seal(_) => {
            unreachable!("the coordinator's messages are told, not posted")
        }
    }
}
