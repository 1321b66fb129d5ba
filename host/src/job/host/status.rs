//! How the hosts of a job are, for people and for those who ask.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::super::JobError;
use super::super::assemble::Parts;
use super::{Process, TELL_EVERY};
use crate::cluster::HostId;
use crate::cluster::link::PeerStatus;
use crate::cluster::lookups::LookupFigures;
use crate::cluster::protocol::{Stage, Status};
use crate::epoch::Attempt;

/// How the hosts of a job are, as one of them knows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// This host.
    pub host: String,
    /// The host that leads.
    pub leader: String,
    /// The attempt that runs here.
    pub attempt: Option<Attempt>,
    /// What is done now: by the whole job, on the leader; else by this host.
    pub stage: &'static str,
    /// The hosts that are waited for.
    pub waiting_for: Vec<String>,
    /// Those that have been waited for for long, with the seconds. Only the leader knows.
    pub slow: Vec<(String, f64)>,
    /// The connections to the other hosts.
    pub peers: Vec<PeerStatus>,
    /// Why a host was not accepted last, by host.
    pub refused: BTreeMap<String, String>,
    /// Lookups of what other hosts own.
    pub lookups: Vec<RemoteLookups>,
}

/// The lookups of a table at another host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RemoteLookups {
    /// The host.
    pub host: String,
    /// The table, `operator.table`.
    pub table: String,
    /// What is counted of them.
    #[serde(flatten)]
    pub figures: LookupFigures,
}

impl Process<'_> {
    /// Tells those who ask how the job stands, while no attempt runs here.
    pub(super) fn serve_status(&mut self) -> Result<(), JobError> {
        self.note_status();
        let serving = self.serve.as_ref().map(|serve| serve(None)).transpose();
        self.serving = serving.map_err(JobError::Serve)?;
        Ok(())
    }

    pub(super) fn remote_lookups(&self, figures: LookupFigures) -> RemoteLookups {
        let Parts { graph, plan, .. } = self.parts;
        let (operator, table) = figures.table.parts();
        let table = format!("{}.{}", graph.operators[operator].name, plan.operators[operator].tables[table].name);
        RemoteLookups { host: self.name(figures.peer).to_owned(), table, figures }
    }

    /// Notes how the hosts are, for those who ask.
    pub(super) fn note_status(&self) {
        let status = self.node.status(self.started.elapsed());
        let name = |host: HostId| self.name(host).to_owned();
        let names = |hosts: &[HostId]| hosts.iter().map(|&host| name(host)).collect();
        *self.parts.meters.cluster.lock() = Some(ClusterStatus {
            host: name(self.settings.own),
            leader: name(HostId(self.parts.plan.hosts.leader())),
            attempt: status.attempt,
            stage: status.stage.name(),
            waiting_for: names(&status.waiting_for),
            slow: status.slow.iter().map(|slow| (name(slow.host), slow.since.as_secs_f64())).collect(),
            peers: self.link.status(),
            refused: self.refused.clone(),
            lookups: self.lookup_meters.figures().into_iter().map(|figures| self.remote_lookups(figures)).collect(),
        });
    }

    /// Says in the log whom the job waits for.
    pub(super) fn tell_waiting(&mut self) {
        let Status { stage, waiting_for, slow, apart, .. } = self.node.status(self.started.elapsed());
        let is_waiting = matches!(stage, Stage::Gathering | Stage::Joining) && !waiting_for.is_empty();
        let waiting = (is_waiting || !slow.is_empty()).then_some((stage, waiting_for));
        if waiting == self.told_waiting || self.last_told.elapsed() < TELL_EVERY {
            return;
        }
        self.last_told = Instant::now();
        if let Some((stage, hosts)) = &waiting {
            let hosts: Vec<&str> = hosts.iter().map(|&host| self.name(host)).collect();
            tracing::info!("waiting for {} ({})", hosts.join(", "), stage.describe());
        }
        for (host, others) in &apart {
            let others: Vec<&str> = others.iter().map(|&host| self.name(host)).collect();
            tracing::info!("{} is not connected to {}", self.name(*host), others.join(", "));
        }
        self.told_waiting = waiting;
    }
}
