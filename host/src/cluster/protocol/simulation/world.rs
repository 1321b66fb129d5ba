//! All hosts and what is between them, and every step that can be taken next: by chance (`random`), or all of them one after another (`exhaustive`).

use std::time::Duration;

use super::host::{Host, Lane, Process};
use super::network::{Arrival, Network, Parcel};
use super::oracle::Oracle;
use super::work::{Job, Run};
use super::{LEADER, Verdict};
use crate::cluster::protocol::{Event, HostId, Outcome, Report, Settings};

/// The exit code of a failure that the simulation has happen.
pub(super) const FAILURE_CODE: u8 = 77;

/// What can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A process looks at what it has heard.
    Listen(HostId),
    /// A process does something with its disk.
    Work(HostId, Lane),
    /// A record of the input is admitted.
    Admit(HostId),
    /// A record is processed.
    Process(HostId),
    /// A host says how things stand.
    Report(HostId),
    /// A host wants a seal before its time.
    Hurry(HostId),
    /// A message arrives.
    Message {
        from: HostId,
        to: HostId,
    },
    /// A record, or the acknowledgement of one, arrives.
    Parcel {
        from: HostId,
        to: HostId,
    },
    /// The first host begins a session with the second.
    Connect(HostId, HostId),
    /// The first host notices that its session with the second is over.
    Notice(HostId, HostId),
    Start(HostId),
    Exit(HostId),
    Tick,

    // Faults, and what people do.
    Kill(HostId),
    /// Of each file a bit says whether what was not synced is kept.
    CutPower(HostId, u8),
    /// Nothing goes from the first to the second any more.
    Cut(HostId, HostId),
    Stop(HostId),
    /// Something fails that ends the job.
    Fail(HostId),
    CloseOutput(HostId),
}

impl Step {
    /// Whose turn it is.
    pub(super) fn host(self) -> HostId {
        match self {
            Self::Listen(host) | Self::Work(host, _) | Self::Admit(host) | Self::Process(host) => host,
            Self::Report(host) | Self::Hurry(host) | Self::Message { to: host, .. } | Self::Parcel { to: host, .. } => {
                host
            }
            Self::Connect(host, _) | Self::Notice(host, _) | Self::Start(host) | Self::Exit(host) => host,
            Self::Kill(host) | Self::CutPower(host, _) | Self::Cut(host, _) | Self::Stop(host) => host,
            Self::Fail(host) | Self::CloseOutput(host) => host,
            Self::Tick => LEADER,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) hosts: Vec<Host>,
    pub(super) network: Network,
    oracle: Oracle,
    pub(super) now: Duration,
    settings: Settings,
    /// Whether what a process hears, says and writes takes no time: one step does it all.
    at_once: bool,
}

impl World {
    pub(super) fn new(hosts: u16, settings: Settings, at_once: bool) -> Self {
        let count = usize::from(hosts);
        let hosts = (0..hosts).map(|host| Host::new(HostId(host))).collect();
        let (network, oracle) = (Network::new(count), Oracle::new(count));
        Self { hosts, network, oracle, now: Duration::ZERO, settings, at_once }
    }

    fn ids(&self) -> impl Iterator<Item = HostId> + use<> {
        (0..self.hosts.len()).map(|host| HostId(u16::try_from(host).expect("there are few hosts")))
    }

    fn pairs(&self) -> impl Iterator<Item = (HostId, HostId)> + use<> {
        let hosts = self.hosts.len();
        self.ids().flat_map(move |host| {
            (0..hosts as u16).map(move |peer| (host, HostId(peer))).filter(|(host, peer)| host != peer)
        })
    }

    /// The process of a host that still takes part in the job.
    pub(super) fn running(&self, host: HostId) -> Option<&Process> {
        self.hosts[host.index()].process.as_ref().filter(|process| process.is_running())
    }

    fn hear(&mut self, host: HostId, event: Event) {
        if let Some(process) = &mut self.hosts[host.index()].process {
            process.hear(event);
        }
    }

    /// Whether all hosts have ended because all input has.
    pub(super) fn is_done(&self) -> bool {
        self.hosts.iter().all(|host| host.ended == Some(Outcome::InputEnded))
    }

    fn run(&self, host: HostId) -> Option<&Run> {
        self.running(host).and_then(|process| process.run.as_ref())
    }

    fn run_mut(&mut self, host: HostId) -> Option<&mut Run> {
        self.hosts[host.index()].process.as_mut().and_then(|process| process.run.as_mut())
    }

    /// The steps that can be taken without anybody doing harm: but for ticks, which are always possible, and starts that need a person.
    pub(super) fn steps(&self, job: &Job) -> Vec<Step> {
        let mut steps = Vec::new();
        self.ids().for_each(|host| self.host_steps(host, job, &mut steps));
        self.pairs().for_each(|(from, to)| self.session_steps(from, to, &mut steps));
        steps
    }

    fn host_steps(&self, host: HostId, job: &Job, steps: &mut Vec<Step>) {
        let place = &self.hosts[host.index()];
        let Some(process) = &place.process else {
            return steps.extend(place.ended.is_none().then_some(Step::Start(host)));
        };
        if !process.is_running() {
            return steps.push(Step::Exit(host));
        }
        steps.extend(process.has_heard().then_some(Step::Listen(host)));
        let lanes = [Lane::Own, Lane::Numbers, Lane::Record].into_iter().filter(|lane| process.has_work(*lane));
        steps.extend(lanes.map(|lane| Step::Work(host, lane)));
        let Some(run) = &process.run else { return };
        steps.extend((run.is_open && !run.part.has_ended(&job.inputs[host.index()])).then_some(Step::Admit(host)));
        steps.extend((!run.mailbox.is_empty()).then_some(Step::Process(host)));
        steps.extend(self.has_news(host, job).then_some(Step::Report(host)));
    }

    /// Whether there is something to say unasked.
    fn has_news(&self, host: HostId, job: &Job) -> bool {
        let is_new = |run: &Run| run.reported != Some(without_count(run.report(&job.inputs[host.index()])));
        self.run(host).is_some_and(|run| run.is_open && is_new(run))
    }

    fn session_steps(&self, from: HostId, to: HostId, steps: &mut Vec<Step>) {
        if self.running(to).is_none() {
            return;
        }
        let network = &self.network;
        steps.extend(network.has_message(from, to).then_some(Step::Message { from, to }));
        steps.extend(network.has_parcel(from, to).then_some(Step::Parcel { from, to }));
        steps.extend(network.is_broken(to, from).then_some(Step::Notice(to, from)));
        let can_connect = network.is_free(from, to) && self.running(from).is_some();
        steps.extend((can_connect && (from < to || !self.at_once)).then_some(Step::Connect(from, to)));
    }

    /// Processes that can be killed now.
    pub(super) fn kills(&self) -> impl Iterator<Item = Step> {
        self.ids().filter(|host| self.hosts[host.index()].process.is_some()).map(Step::Kill)
    }

    /// Directions of sessions that can be cut now.
    pub(super) fn cuts(&self) -> impl Iterator<Item = Step> {
        let can_be_cut =
            |(from, to): &(HostId, HostId)| self.network.is_up(*from, *to) && !self.network.is_cut(*from, *to);
        self.pairs().filter(can_be_cut).map(|(from, to)| Step::Cut(from, to))
    }

    /// What ends the job now: somebody asks for it, or something fails.
    pub(super) fn early_ends(&self) -> impl Iterator<Item = Step> {
        let running = self.ids().filter(|host| self.running(*host).is_some());
        running.flat_map(|host| [Step::Stop(host), Step::Fail(host)])
    }

    /// What hosts may do to have an epoch sealed before its time.
    pub(super) fn hurries(&self) -> impl Iterator<Item = Step> {
        let may_hurry = |run: &Run| run.is_open && !run.is_urgent && run.needs_seal();
        let can_hurry = move |host: &HostId| self.run(*host).is_some_and(may_hurry);
        self.ids().filter(can_hurry).map(Step::Hurry)
    }

    /// Starts that need a person: of what has ended, though the job has not.
    pub(super) fn restarts(&self) -> Vec<Step> {
        let ended = self.hosts.iter().filter(|host| host.process.is_none() && host.ended.is_some() && !self.is_done());
        ended.map(|host| Step::Start(host.own)).collect()
    }

    /// Takes a step, which can be taken. An error says what does not hold any more.
    pub(super) fn take(&mut self, step: Step, job: &Job) -> Verdict {
        self.take_one(step, job)?;
        if self.at_once {
            self.settle(job)?;
        }
        self.oracle.check(&self.hosts, job)
    }

    /// Lets every process look at all it has heard, and say how things stand where that is new.
    fn settle(&mut self, job: &Job) -> Verdict {
        loop {
            let has_heard = |host: &HostId| self.running(*host).is_some_and(Process::has_heard);
            if let Some(host) = self.ids().find(has_heard) {
                self.listen(host, job)?;
            } else if let Some(host) = self.ids().find(|host| self.has_news(*host, job)) {
                self.report(host, job);
            } else {
                return Ok(());
            }
        }
    }

    fn take_one(&mut self, step: Step, job: &Job) -> Verdict {
        match step {
            Step::Listen(host) => self.listen(host, job)?,
            Step::Work(host, lane) => self.work(host, lane, job)?,
            Step::Admit(host) | Step::Process(host) => self.go_on(step, host, job),
            Step::Report(host) => self.report(host, job),
            Step::Hurry(host) => self.run_mut(host).into_iter().for_each(|run| run.is_urgent = true),
            Step::Message { from, to } => match self.network.next_message(from, to) {
                Some(Arrival::Begin) => self.hear(to, Event::Connected(from)),
                Some(Arrival::Message(message)) => self.hear(to, Event::Received { from, message }),
                None => {}
            },
            Step::Parcel { from, to } => self.parcel(from, to)?,
            Step::Connect(host, peer) => {
                self.network.begin(host, peer);
                self.hear(host, Event::Connected(peer));
            }
            Step::Notice(host, peer) => {
                self.network.leave(host, peer);
                self.hear(host, Event::Lost(peer));
            }
            Step::Start(host) => {
                let hosts = u16::try_from(self.hosts.len()).expect("there are few hosts");
                self.hosts[host.index()].start(LEADER, hosts, self.settings);
            }
            Step::Exit(host) | Step::Kill(host) => self.stop(host),
            Step::CutPower(host, mask) => {
                self.stop(host);
                let mut files = 0..;
                self.hosts[host.index()].disk.cut_power(|| mask & (1 << files.next().unwrap_or(0)) != 0);
            }
            // A process that is late is not told of the time more than once.
            Step::Tick if self.running(LEADER).is_none_or(Process::has_heard) => {}
            Step::Tick => self.hear(LEADER, Event::Tick),
            Step::Cut(from, to) => self.network.cut(from, to),
            Step::Stop(host) => {
                self.oracle.allow(Outcome::Stopped);
                self.hear(host, Event::Stop);
            }
            Step::Fail(host) => self.fail(host, Outcome::failed(host, FAILURE_CODE, "the simulation has it fail")),
            Step::CloseOutput(host) => self.fail(host, Outcome::OutputClosed),
        }
        Ok(())
    }

    fn fail(&mut self, host: HostId, outcome: Outcome) {
        self.oracle.allow(outcome.clone());
        self.hear(host, Event::Over(outcome));
    }

    fn listen(&mut self, host: HostId, job: &Job) -> Verdict {
        let Some(process) = &mut self.hosts[host.index()].process else { return Ok(()) };
        for (to, message) in process.listen(host, self.now, job)? {
            self.network.send(host, to, message);
        }
        self.oracle.check_progress(&self.hosts, job)?;
        match self.hosts[host.index()].process.as_ref().and_then(|process| process.outcome.clone()) {
            Some(outcome) => self.oracle.check_outcome(&self.hosts, host, &outcome),
            None => Ok(()),
        }
    }

    fn work(&mut self, host: HostId, lane: Lane, job: &Job) -> Verdict {
        let Host { process: Some(process), disk, .. } = &mut self.hosts[host.index()] else { return Ok(()) };
        let had_run = process.run.is_some();
        process.work(host, lane, disk, job, self.at_once)?;
        while self.at_once && process.has_work(lane) {
            process.work(host, lane, disk, job, true)?;
        }
        match &process.run {
            Some(run) if !had_run => self.oracle.check_joined(host, run.attempt),
            _ => Ok(()),
        }
    }

    fn go_on(&mut self, step: Step, host: HostId, job: &Job) {
        let Some(run) = self.run_mut(host) else { return };
        let (attempt, epoch) = (run.attempt, run.epoch);
        let sent = if let Step::Admit(_) = step { run.admit(host, job) } else { run.process(host, job) };
        if let Some((to, record)) = sent {
            self.network.send_parcel(host, to, Parcel::Record { attempt, epoch, record });
        }
    }

    fn report(&mut self, host: HostId, job: &Job) {
        let Some(run) = self.run_mut(host) else { return };
        let report = run.report(&job.inputs[host.index()]);
        run.reported = Some(without_count(report));
        let attempt = run.attempt;
        self.hear(host, Event::Report { attempt, round: None, report });
    }

    fn parcel(&mut self, from: HostId, to: HostId) -> Verdict {
        let Some(parcel) = self.network.next_parcel(from, to) else { return Ok(()) };
        self.oracle.check_taken(&self.hosts[to.index()], &parcel)?;
        let Some(run) = self.run_mut(to) else { return Ok(()) };
        match parcel {
            Parcel::Record { attempt, record, .. } if attempt == run.attempt => {
                run.take(record);
                self.network.send_parcel(to, from, Parcel::Taken { attempt });
            }
            Parcel::Taken { attempt } if attempt == run.attempt => run.unacknowledged -= 1,
            // What belongs to an attempt that is over goes nowhere.
            Parcel::Record { .. } | Parcel::Taken { .. } => {}
        }
        Ok(())
    }

    /// The process of a host is gone, and its sessions with it.
    fn stop(&mut self, host: HostId) {
        self.hosts[host.index()].stop();
        self.ids().filter(|peer| *peer != host).for_each(|peer| self.network.leave(host, peer));
        if self.hosts.iter().all(|host| host.process.is_none()) {
            self.oracle.forget();
        }
    }

    /// What the hosts are doing, for people.
    pub(super) fn status(&self) -> String {
        let line = |host: &Host| match &host.process {
            Some(process) => format!("{:?} {:?} {:?}\n", host.own, process.node.status(self.now), process.run),
            None => format!("{:?} ended: {:?}\n", host.own, host.ended),
        };
        self.hosts.iter().map(line).collect()
    }

    /// What must hold when the job has ended.
    pub(super) fn check_end(&self, job: &Job) -> Verdict {
        self.oracle.check_end(&self.hosts, job)
    }
}

/// A report but for the number that grows with everything, which nobody is told unasked.
fn without_count(report: Report) -> Report {
    Report { moved: 0, ..report }
}
