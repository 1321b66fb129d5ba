//! One host: its process carries out what its [`Node`] tells it, one step at a time, and tells it what came of that.
//!
//! What takes time in a process lies in lines: what it has heard and not looked at, and what it has to write. A step of the world takes one thing from one of them.

use std::collections::VecDeque;
use std::time::Duration;

use super::disk::{Disk, Entry};
use super::work::{Job, Run};
use crate::cluster::protocol::{Action, CommitRecord, Event, HostId, Message, Node, Outcome, Settings};
use crate::epoch::standing::{Decision, Verdict, judge};
use crate::epoch::{Attempt, Epoch};

/// What a host has to do with its disk. Most of it is written first, and synced in a step of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    /// Looks at the state directory.
    Survey,
    RecordAttempt(Attempt),
    /// Commits or drops what is prepared.
    Settle(Decision),
    Publish,
    /// Begins to run behind what is committed.
    Run(Attempt),
    Collect {
        finished: bool,
    },
    Append,
    Commit,
    TellCommitted(Epoch),
    TakeAttempt {
        above: Attempt,
    },
    Decide(CommitRecord),
}

/// Tasks, one after another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Line {
    tasks: VecDeque<Task>,
    /// Whether the first is written, and not synced.
    is_written: bool,
}

impl Line {
    /// Drops what has not begun.
    fn cancel(&mut self) {
        self.tasks.truncate(usize::from(self.is_written));
    }
}

/// The lines of tasks of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Of the member.
    Own,
    /// Of the leader: the numbers of attempts.
    Numbers,
    /// Of the leader: the commit record.
    Record,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) node: Node,
    inbox: VecDeque<Event>,
    own: Line,
    numbers: Line,
    record: Line,
    pub(super) run: Option<Run>,
    /// The entry that was collected last.
    sealed: Option<Entry>,
    pub(super) outcome: Option<Outcome>,
}

/// A host, whether or not its process runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Host {
    pub(super) own: HostId,
    pub(super) disk: Disk,
    pub(super) process: Option<Process>,
    /// What its last process came to; `None` where it was killed.
    pub(super) ended: Option<Outcome>,
}

/// A message, and to whom.
pub(super) type Letter = (HostId, Message);

impl Host {
    pub(super) fn new(own: HostId) -> Self {
        Self { own, disk: Disk::default(), process: None, ended: None }
    }

    /// Starts its process.
    pub(super) fn start(&mut self, leader: HostId, hosts: u16, settings: Settings) {
        let node = if self.own == leader {
            // Nobody acts on a record before it is durable.
            self.disk.record.sync();
            Node::leader(leader, hosts, settings, self.disk.record.read().clone())
        } else {
            Node::member(self.own, leader, hosts)
        };
        let own = Line { tasks: VecDeque::from([Task::Survey]), is_written: false };
        let (inbox, numbers, record) = (VecDeque::new(), Line::default(), Line::default());
        self.process = Some(Process { node, inbox, own, numbers, record, run: None, sealed: None, outcome: None });
        self.ended = None;
    }

    /// Its process is gone.
    pub(super) fn stop(&mut self) {
        self.ended = self.process.take().and_then(|process| process.outcome);
    }
}

impl Process {
    /// Whether it still follows what happens.
    pub(super) fn is_running(&self) -> bool {
        self.outcome.is_none()
    }

    pub(super) fn hear(&mut self, event: Event) {
        if self.is_running() {
            self.inbox.push_back(event);
        }
    }

    pub(super) fn has_heard(&self) -> bool {
        !self.inbox.is_empty() && self.is_running()
    }

    pub(super) fn has_work(&self, lane: Lane) -> bool {
        let line = self.line(lane);
        self.is_running() && !line.tasks.is_empty()
    }

    fn line(&self, lane: Lane) -> &Line {
        match lane {
            Lane::Own => &self.own,
            Lane::Numbers => &self.numbers,
            Lane::Record => &self.record,
        }
    }

    /// Looks at what it has heard first; returns what it sends.
    pub(super) fn listen(&mut self, own: HostId, now: Duration, job: &Job) -> Result<Vec<Letter>, String> {
        let Some(event) = self.inbox.pop_front() else { return Ok(Vec::new()) };
        let mut letters = Vec::new();
        for action in self.node.on(now, event) {
            if let Action::Send { to, message } = action {
                letters.push((to, message));
            } else {
                self.carry_out(own, action, job)?;
            }
        }
        Ok(letters)
    }

    fn carry_out(&mut self, own: HostId, action: Action, job: &Job) -> Result<(), String> {
        let mut own_line = |tasks: &[Task]| self.own.tasks.extend(tasks.iter().cloned());
        match action {
            Action::Send { .. } => {}
            Action::Join { attempt, decision } => {
                own_line(&[Task::RecordAttempt(attempt), Task::Settle(decision), Task::Publish, Task::Run(attempt)])
            }
            Action::Reopen { progress } => running(own, &mut self.run)?.open(&progress),
            Action::Close { epoch } => {
                let run = running(own, &mut self.run)?;
                run.is_open = false;
                if run.epoch != epoch {
                    return Err(format!("{own:?} is to close epoch {epoch} in epoch {}", run.epoch));
                }
            }
            Action::Look { round } => {
                let run = running(own, &mut self.run)?;
                let report = run.report(&job.inputs[own.index()]);
                let attempt = run.attempt;
                self.hear(Event::Report { attempt, round: Some(round), report });
            }
            Action::Collect { finished, .. } => own_line(&[Task::Collect { finished }]),
            Action::Append { .. } => own_line(&[Task::Append]),
            Action::Commit { epoch } => own_line(&[Task::Commit, Task::Publish, Task::TellCommitted(epoch)]),
            Action::EndAttempt { .. } => {
                (self.run, self.sealed) = (None, None);
                self.own.cancel();
                self.own.tasks.push_back(Task::Survey);
            }
            Action::Finish(outcome) => {
                (self.run, self.sealed) = (None, None);
                self.outcome = Some(outcome);
            }
            Action::NextAttempt { above } => self.numbers.tasks.push_back(Task::TakeAttempt { above }),
            Action::Decide(record) => self.record.tasks.push_back(Task::Decide(record)),
        }
        Ok(())
    }

    /// Does the next step of what it has to do with its disk. With `at_once`, what is written is synced in the same step.
    pub(super) fn work(
        &mut self,
        own: HostId,
        lane: Lane,
        disk: &mut Disk,
        job: &Job,
        at_once: bool,
    ) -> Result<(), String> {
        let line = self.line(lane);
        let Some(task) = line.tasks.front().cloned() else { return Ok(()) };
        if !line.is_written {
            self.write(own, &task, disk)?;
            let is_writing =
                !matches!(task, Task::Survey | Task::Run(_) | Task::Collect { .. } | Task::TellCommitted(_));
            if is_writing && !at_once {
                self.line_mut(lane).is_written = true;
                return Ok(());
            }
        }
        let line = self.line_mut(lane);
        line.is_written = false;
        line.tasks.pop_front();
        self.conclude(own, &task, disk, job)
    }

    fn line_mut(&mut self, lane: Lane) -> &mut Line {
        match lane {
            Lane::Own => &mut self.own,
            Lane::Numbers => &mut self.numbers,
            Lane::Record => &mut self.record,
        }
    }

    fn write(&mut self, own: HostId, task: &Task, disk: &mut Disk) -> Result<(), String> {
        match task {
            Task::RecordAttempt(attempt) if attempt > disk.attempt.read() => disk.attempt.write(*attempt),
            Task::Settle(decision) => match judge(disk.standing(), *decision) {
                Ok(Verdict::Keep) => {}
                Ok(Verdict::Drop) => disk.last.write(None),
                Ok(Verdict::Commit) => {
                    disk.last.sync();
                    disk.prepared().cloned().into_iter().for_each(|prepared| disk.committed.write(prepared));
                }
                Err(misfit) => return Err(format!("{own:?} fails to {misfit}")),
            },
            Task::Publish => disk.publish(),
            Task::Append => match &self.sealed {
                Some(sealed) => disk.last.write(Some(sealed.clone())),
                None => return Err(format!("{own:?} is to append what it has not collected")),
            },
            Task::Commit => match disk.prepared() {
                Some(prepared) => disk.committed.write(prepared.clone()),
                None => return Err(format!("{own:?} is to commit what it has not prepared")),
            },
            Task::TakeAttempt { above } => disk.attempt.write((*disk.attempt.read()).max(*above) + 1),
            Task::Decide(record) => disk.record.write(record.clone()),
            Task::RecordAttempt(_) | Task::Survey | Task::Run(_) | Task::Collect { .. } | Task::TellCommitted(_) => {}
        }
        Ok(())
    }

    fn conclude(&mut self, own: HostId, task: &Task, disk: &mut Disk, job: &Job) -> Result<(), String> {
        let input = &job.inputs[own.index()];
        match task {
            Task::Survey => self.hear(Event::Standing(disk.standing())),
            Task::RecordAttempt(_) => disk.attempt.sync(),
            Task::Settle(_) => {
                disk.last.sync();
                disk.committed.sync();
            }
            Task::Publish => disk.published.sync(),
            Task::Run(attempt) => {
                let committed = disk.committed.read();
                let reach = committed.part.reach(input);
                self.run = Some(Run::new(*attempt, committed));
                self.hear(Event::Joined { attempt: *attempt, reach });
            }
            Task::Collect { finished } => {
                let Some(run) = &mut self.run else { return Err(format!("{own:?} is to collect without a run")) };
                if !run.is_idle() || run.is_open {
                    return Err(format!("{own:?} is to collect with something in flight: {run:?}"));
                }
                let entry = run.seal(*finished);
                let (attempt, epoch) = (run.attempt, entry.id.epoch);
                let (reach, unnoted) = (entry.part.reach(input), entry.part.has_output());
                self.sealed = Some(entry);
                self.hear(Event::Collected { attempt, epoch, reach, unnoted });
            }
            Task::Append => {
                disk.last.sync();
                if let Some(sealed) = self.sealed.take() {
                    let id = sealed.id;
                    self.hear(Event::Appended { attempt: id.attempt, epoch: id.epoch, digest: id.digest });
                }
            }
            Task::Commit => disk.committed.sync(),
            Task::TellCommitted(epoch) => {
                let attempt = self.run.as_ref().map_or(0, |run| run.attempt);
                self.hear(Event::Committed { attempt, epoch: *epoch });
            }
            Task::TakeAttempt { .. } => {
                disk.attempt.sync();
                self.hear(Event::Attempt(*disk.attempt.durable()));
            }
            Task::Decide(record) => {
                disk.record.sync();
                self.hear(Event::Decided(record.epoch));
            }
        }
        Ok(())
    }
}

/// What runs, where it has to.
fn running(own: HostId, run: &mut Option<Run>) -> Result<&mut Run, String> {
    run.as_mut().ok_or_else(|| format!("{own:?} is told to go on without a run"))
}
