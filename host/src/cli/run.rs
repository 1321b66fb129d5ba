//! `wasmill run job.toml`: runs a job to the end of its input, or until a signal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, HumanCount, MultiProgress};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::check::{EXIT_INVALID_MANIFEST, print_problems};
use super::load::{HostArgs, JobArgs};
use super::log::{self, LogFormat};
use super::progress::Progress;
use super::{Failure, print, watch};
use crate::admin::{self, Facts};
use crate::job::{self, Ended, JobError, JobOptions, Meters, Outcome, Reloads, Summary};
use crate::manifest::{Loaded, Manifest, ManifestError, Problem, Reload, Severity};

/// Arguments of `wasmill run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    job: HostArgs,
    /// Write the job's figures to this file as a JSON object when it ends, also when it fails; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// How log lines are written.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log: LogFormat,
}

pub(super) fn run(arguments: &RunArgs) -> Result<(), Failure> {
    let bars = MultiProgress::new();
    log::start(arguments.log, &bars);
    match (run_logged(arguments, &bars), arguments.log) {
        // Whoever reads JSON lines finds the reason among them.
        (Err(Failure::Because(code, message)), LogFormat::Json) => {
            tracing::error!("{message}");
            Err(Failure::Told(code))
        }
        (result, _) => result,
    }
}

/// Runs a job whose components are reloaded whenever their files change, whatever the manifest says.
pub(super) fn develop(job: &JobArgs) -> Result<(), Failure> {
    let mut job = job.clone();
    job.set.push("job.reload='watch'".to_owned());
    run(&RunArgs { job: HostArgs { job, host: None }, summary: None, log: LogFormat::Text })
}

fn run_logged(arguments: &RunArgs, bars: &MultiProgress) -> Result<(), Failure> {
    let started = Instant::now();
    let job = arguments.job.load().map_err(|error| told(&error, arguments.log))?;
    log_problems(&job.warnings, arguments.log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Because(1, format!("cannot start: {error}")))?;
    let meters = Arc::new(Meters::default());
    let Outcome { summary, failure } = runtime.block_on(async {
        let stop =
            stop_on_signals().map_err(|error| Failure::Because(1, format!("cannot watch for signals: {error}")))?;
        let progress = Progress::start(Arc::clone(&meters), bars);
        let (asking, reloads) = Reloads::new();
        if job.loaded.manifest.job.reload == Reload::Watch {
            watch::reload_changed(&job.loaded, asking.clone())?;
        }
        let serve = serve(&job.loaded, started, Arc::clone(&meters), asking);
        let outcome = job::run(
            &job.loaded,
            &job.graph,
            JobOptions { started, meters, stop, serve, reloads, host: arguments.job.host.clone() },
        )
        .await;
        drop(progress);
        Ok(outcome)
    })?;
    let written = arguments.summary.as_ref().map_or(Ok(()), |path| write_summary(path, &summary));
    match failure {
        None => {
            tell(&summary);
            written
        }
        Some(failure) => {
            // The exit code is that of the job's own failure.
            if let Err(Failure::Because(_, message)) = written {
                tracing::error!("{message}");
            }
            Err(match failure {
                JobError::Manifest(error) => told(&error, arguments.log),
                error => Failure::Because(error.exit_code(), format!("the job stopped: {error}")),
            })
        }
    }
}

/// How the job lets others ask it, if it does.
fn serve(loaded: &Loaded, started: Instant, meters: Arc<Meters>, reloads: Reloads) -> Option<job::Serve> {
    let Manifest { job, admin, .. } = loaded.manifest.clone();
    let token = admin::read_token(&admin, |file| loaded.resolve(file)).map_err(|error| error.to_string());
    let state = loaded.resolve(&job.state);
    let start = move |directory| {
        let (meters, reloads) = (Arc::clone(&meters), reloads.clone());
        let facts = Facts { job: job.name.clone(), started, directory, meters, reloads };
        let serving = admin::start(&admin, token.clone()?, &state, facts).map_err(|error| error.to_string())?;
        Ok(Box::new(serving) as job::Serving)
    };
    loaded.manifest.admin.enabled.then(|| Box::new(start) as job::Serve)
}

fn told(error: &ManifestError, format: LogFormat) -> Failure {
    log_problems(error.problems(), format);
    Failure::Told(EXIT_INVALID_MANIFEST)
}

/// Problems with the manifest: shown in its text, or as log lines for programs.
fn log_problems(problems: &[Problem], format: LogFormat) {
    if format == LogFormat::Text {
        return print_problems(problems);
    }
    for problem in problems {
        let Problem { severity, message, help, file, .. } = problem;
        let position = problem.position();
        let (line, column) = (position.map(|position| position.line), position.map(|position| position.column));
        match severity {
            Severity::Error => tracing::error!(file, line, column, help, "{message}"),
            Severity::Warning => tracing::warn!(file, line, column, help, "{message}"),
        }
    }
}

fn tell(summary: &Summary) {
    let how = match summary.ended {
        Ended::InputEnded => "input ended",
        Ended::Stopped => "stopped; a new start goes on from here",
        Ended::StoppedShort => {
            "stopped without a last checkpoint, since what was under way did not end within `job.stop-within`; nothing is lost, a new start goes on \
             behind the last committed epoch"
        }
        Ended::OutputClosed => {
            "the reader of standard output has gone; a new start goes on behind the last committed epoch"
        }
        Ended::Failed => "failed",
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
