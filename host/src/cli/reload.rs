//! `wasmill reload job.toml OPERATOR new.wasm`: a running job goes on with a new version of an operator's component.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;

use super::load::HostArgs;
use super::stored::running_client;
use super::{Failure, print};
use crate::admin::client::ClientError;
use crate::epoch::Epoch;
use crate::epoch::entry::RunningComponent;
use crate::job::Trial;

/// Arguments of `wasmill reload`.
#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    job: HostArgs,
    /// The operator.
    operator: String,
    /// The new version of its component.
    component: PathBuf,
    /// Try it for as long as so many epochs take: nothing that it does is published before it has stood that. When it fails or refuses more than the version before, the job goes back to where
    /// the trial began, with the version before.
    #[arg(long, value_name = "EPOCHS")]
    trial: Option<u32>,
    /// In its trial it may take so many times the running time for a record that the version before took.
    #[arg(long, value_name = "FACTOR", requires = "trial")]
    slower_than: Option<f64>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Told {
    epoch: Epoch,
    from: RunningComponent,
    to: RunningComponent,
}

pub(super) fn run(arguments: &ReloadArgs) -> Result<(), Failure> {
    let ReloadArgs { job, operator, component, trial, slower_than, json } = arguments;
    let trial = trial.map(|trial| Trial { trial, slower_than: *slower_than });
    let loaded = super::shown(job.load())?.loaded;
    if !loaded.manifest.operators.contains_key(operator) {
        let known = crate::manifest::listed(loaded.manifest.operators.keys().map(String::as_str));
        return Err(Failure::usage(format!("the job has no operator `{operator}`; it has {known}")));
    }
    let bytes = std::fs::read(component)
        .map_err(|error| Failure::usage(format!("cannot read `{}`: {error}", component.display())))?;
    let interval = loaded.manifest.checkpoint.interval.0;
    let answer = running_client(&loaded)?.reload(operator, bytes, trial, interval).map_err(|error| match error {
        ClientError::Refused { code, error } if code == "failed" => Failure::Because(1, error),
        ClientError::Refused { error, .. } => Failure::usage(error),
        silent @ ClientError::Silent { .. } => Failure::Because(1, silent.to_string()),
    })?;
    if *json {
        return print(&format!("{}\n", answer.text));
    }
    let Told { epoch, from, to } = serde_json::from_str(&answer.text)
        .map_err(|error| Failure::Because(1, format!("the job's answer makes no sense: {error}")))?;
    print(&format!("`{operator}` runs {} from epoch {} on; it was {}\n", shown(&to), epoch + 1, shown(&from)))
}

/// `bid-stats 1.2.0 (0a1b2c3d4e5f)`: the digest's beginning tells builds of one version apart.
fn shown(component: &RunningComponent) -> String {
    let RunningComponent { name, version, sha256, .. } = component;
    format!("{name} {version} ({})", sha256.get(..12).unwrap_or(sha256))
}
