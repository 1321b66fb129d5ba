//! The figures of a job at its end, as `--summary` writes them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;

use super::{ClusterStatus, Ended, JobError, Meters, SourceMeters};
use crate::metrics::{OwnMetrics, Percentiles};
use crate::state::MemoryUse;

/// A job's figures. Counts are of this start, not of the job's whole life.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// The job's name.
    pub job: String,
    /// How it ended.
    pub ended: Ended,
    /// Why it failed; none of a job that did not.
    pub error: Option<String>,
    /// The process's exit code, as the README documents it.
    pub exit_code: u8,
    /// Records admitted, those included that could not be read.
    pub records_in: u64,
    /// Records received by sinks.
    pub records_out: u64,
    /// Records refused by sources and operators.
    pub rejected: u64,
    /// Wall time from the start of the process's work to the end of the job, in seconds.
    pub elapsed_s: f64,
    /// From the start to the first record admitted, in milliseconds.
    pub first_record_ms: Option<f64>,
    /// Processor time of the whole process, in seconds.
    pub cpu_s: f64,
    /// The part of it that feeding redb took, in seconds.
    pub feed_cpu_s: f64,
    /// The process's peak resident memory.
    pub peak_memory_bytes: u64,
    /// Epochs sealed.
    pub epochs: u64,
    /// The last committed epoch, over the job's whole life.
    pub committed_epoch: u64,
    /// How long admission was closed at each seal.
    pub seal_pause_ms: Percentiles,
    /// The part of it until nothing was in flight.
    pub drain_ms: Percentiles,
    /// From each seal to its published commit.
    pub commit_ms: Percentiles,
    /// Bytes written to the epoch log.
    pub log_bytes: u64,
    /// Seals that had to wait for the commit before.
    pub late_seals: u64,
    /// Times admission stopped because state had outgrown its memory.
    pub memory_stops: u64,
    /// What state takes in memory at the end.
    pub state_memory: StateMemory,
    /// By source.
    pub sources: BTreeMap<String, SourceSummary>,
    /// By operator.
    pub operators: BTreeMap<String, OperatorSummary>,
    /// Records received, by sink.
    pub sinks: BTreeMap<String, u64>,
    /// How the hosts were at the end, as this one knows it, where the job has several.
    pub cluster: Option<ClusterStatus>,
}

/// What state takes in memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StateMemory {
    /// Tables, with their indices.
    pub tables_bytes: u64,
    /// Changes on their way to redb.
    pub backlog_bytes: u64,
    /// redb's cache, at most.
    pub redb_cache_bytes: u64,
    /// What all of it may take.
    pub budget_bytes: u64,
}

impl From<MemoryUse> for StateMemory {
    fn from(memory: MemoryUse) -> Self {
        Self {
            tables_bytes: memory.tables_bytes,
            backlog_bytes: memory.backlog_bytes,
            redb_cache_bytes: memory.redb_cache_bytes,
            budget_bytes: memory.budget_bytes,
        }
    }
}

/// The figures of a source.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SourceSummary {
    /// Records admitted.
    pub records_in: u64,
    /// Records that could not be read.
    pub rejected: u64,
    /// Input bytes consumed.
    pub bytes_read: u64,
}

/// The figures of an operator.
#[derive(Debug, Clone, Serialize)]
pub struct OperatorSummary {
    /// Records handed to the function.
    pub records_in: u64,
    /// Records it emitted.
    pub records_out: u64,
    /// Records refused.
    pub rejected: u64,
    /// Calls that succeeded.
    pub calls: u64,
    /// Updates of its tables by other tasks and operators.
    pub updates: u64,
    /// Records of a serializable operator that ran again, since an earlier one wrote what they read or write.
    pub reruns: u64,
    /// Records that waited for the progress of another operator, with those that came behind them to their task.
    pub waited: u64,
    /// Calls that failed and were undone.
    pub failures: u64,
    /// What the function itself counts.
    pub metrics: OwnMetrics,
}

/// What only the one who ran the job knows.
pub(super) struct RunFigures<'a> {
    pub(super) job: &'a str,
    pub(super) result: Result<Ended, &'a JobError>,
    pub(super) elapsed: Duration,
    pub(super) feed_cpu: Duration,
    pub(super) memory: MemoryUse,
}

impl Summary {
    pub(super) fn of(meters: &Meters, run: RunFigures<'_>) -> Self {
        let durations = meters.durations.lock();
        let (cpu, peak_memory_bytes) = process_usage();
        Self {
            job: run.job.to_owned(),
            ended: run.result.unwrap_or(Ended::Failed),
            error: run.result.err().map(ToString::to_string),
            exit_code: run.result.err().map_or(0, JobError::exit_code),
            records_in: meters.records_in(),
            records_out: meters.records_out(),
            rejected: meters.rejected(),
            elapsed_s: run.elapsed.as_secs_f64(),
            first_record_ms: meters.first_record.get().map(|time| time.as_secs_f64() * 1_000.0),
            cpu_s: cpu.as_secs_f64(),
            feed_cpu_s: run.feed_cpu.as_secs_f64(),
            peak_memory_bytes,
            epochs: meters.sealed.get(),
            committed_epoch: meters.committed_epoch.load(Ordering::Relaxed),
            seal_pause_ms: durations.pause.percentiles(),
            drain_ms: durations.drain.percentiles(),
            commit_ms: durations.commit.percentiles(),
            log_bytes: meters.log_bytes.get(),
            late_seals: meters.late_seals.get(),
            memory_stops: meters.memory_stops.get(),
            state_memory: run.memory.into(),
            sources: meters
                .sources
                .lock()
                .iter()
                .map(|(name, source)| (name.clone(), source_summary(source)))
                .collect(),
            operators: operators(meters),
            sinks: meters.sinks.lock().iter().map(|(name, records)| (name.clone(), records.get())).collect(),
            cluster: meters.cluster.lock().clone(),
        }
    }
}

fn source_summary(source: &SourceMeters) -> SourceSummary {
    SourceSummary {
        records_in: source.records_in.get(),
        rejected: source.refused.get(),
        bytes_read: source.bytes_read(),
    }
}

fn operators(meters: &Meters) -> BTreeMap<String, OperatorSummary> {
    let operators = meters.operators.lock();
    let summary = operators.iter().map(|(name, own)| {
        let summary = OperatorSummary {
            records_in: own.records_in.get(),
            records_out: own.records_out.get(),
            rejected: own.refused.get(),
            calls: own.calls.get(),
            updates: own.updates.get(),
            reruns: own.reruns.get(),
            waited: own.waited.get(),
            failures: own.failures.get(),
            metrics: own.own.lock().clone(),
        };
        (name.clone(), summary)
    });
    summary.collect()
}

/// Processor time and peak resident memory of this process.
fn process_usage() -> (Duration, u64) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    // The kernel's own account; a system without it reports 0.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    (cpu, kib * 1_024)
}
