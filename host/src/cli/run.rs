//! `wasmill run job.toml`: runs a job to the end of its input, or until a signal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, HumanCount, MultiProgress};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::load::JobArgs;
use super::log::{self, LogFormat};
use super::progress::Progress;
use super::{Failure, print};
use crate::job::{self, Ended, JobError, JobOptions, Meters, Summary};

/// Arguments of `wasmill run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Write the job's figures to this file as a JSON object when it ends.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// How log lines are written.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log: LogFormat,
}

pub(super) fn run(arguments: &RunArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let job = super::load_job(&arguments.job)?;
    let bars = MultiProgress::new();
    log::start(arguments.log, &bars);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Because(1, format!("cannot start: {error}")))?;
    let meters = Arc::new(Meters::default());
    let summary = runtime.block_on(async {
        let stop =
            stop_on_signals().map_err(|error| Failure::Because(1, format!("cannot watch for signals: {error}")))?;
        let progress = Progress::start(Arc::clone(&meters), &bars);
        let summary = job::run(&job.loaded, &job.graph, JobOptions { started, meters, stop }).await;
        drop(progress);
        summary.map_err(|error| match error {
            JobError::Manifest(error) => super::told(&error),
            error => Failure::Because(error.exit_code(), format!("the job stopped: {error}")),
        })
    })?;
    tell(&summary);
    match &arguments.summary {
        Some(path) => write_summary(path, &summary),
        None => Ok(()),
    }
}

fn tell(summary: &Summary) {
    let how = match summary.ended {
        Ended::InputEnded => "input ended",
        Ended::Stopped => "stopped; a new start goes on from here",
    };
    tracing::info!(
        "{how}: {} records in, {} out, {} rejected, {:.2} s, {} records/s, {} of memory at most, epoch {} committed",
        HumanCount(summary.records_in),
        HumanCount(summary.records_out),
        HumanCount(summary.rejected),
        summary.elapsed_s,
        HumanCount((summary.records_in as f64 / summary.elapsed_s.max(1e-9)) as u64),
        HumanBytes(summary.peak_memory_bytes),
        summary.committed_epoch,
    );
}

fn write_summary(path: &Path, summary: &Summary) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(summary).expect("a summary is made of strings and numbers");
    if path == Path::new("-") {
        return print(&format!("{text}\n"));
    }
    std::fs::write(path, format!("{text}\n"))
        .map_err(|error| Failure::Because(1, format!("cannot write the summary to `{}`: {error}", path.display())))
}

/// A receiver that fires at the first SIGINT or SIGTERM. A second one ends the process at once: nothing is lost but the epoch under way.
fn stop_on_signals() -> std::io::Result<oneshot::Receiver<()>> {
    let (sender, receiver) = oneshot::channel();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        let mut sender = Some(sender);
        loop {
            let name = tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            };
            match sender.take() {
                Some(sender) => {
                    tracing::info!("{name}: stopping with a last checkpoint; once more to stop at once");
                    // A job that is ending by itself no longer listens.
                    let _ = sender.send(());
                }
                None => std::process::exit(130),
            }
        }
    });
    Ok(receiver)
}
