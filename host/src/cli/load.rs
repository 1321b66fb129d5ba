//! The arguments by which every subcommand names its job, and how it is loaded from them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::graph::{Declared, Graph, Plan};
use crate::manifest::{At, Cluster, Finding, Loaded, ManifestError, Problem, did_you_mean, listed};

/// The job to work on.
#[derive(Debug, Clone, clap::Args)]
pub struct JobArgs {
    /// The job's manifest.
    #[arg(value_name = "JOB.TOML")]
    pub manifest: PathBuf,
    /// Sets a value of the manifest, as in `--set sources.bids.path=FILE`; paths are relative to the manifest.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub set: Vec<String>,
}

/// The job to work on, and which of its hosts.
#[derive(Debug, Clone, clap::Args)]
pub struct HostArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Which of the hosts of the manifest's `cluster` this is, or is meant.
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
}

impl HostArgs {
    /// As [`JobArgs::load`]; state and output are those of the host.
    ///
    /// # Errors
    /// As [`JobArgs::load`]; and where a job of several hosts is named without a host, or a host that it does not have.
    pub fn load(&self) -> Result<CheckedJob, ManifestError> {
        let mut job = self.job.load()?;
        let document = &job.loaded.document;
        let hosts = job.loaded.manifest.cluster.as_ref().map(Cluster::names);
        match (&self.host, hosts) {
            (None, None) => {}
            (Some(host), Some(hosts)) if hosts.contains(&host.as_str()) => job.loaded = job.loaded.for_host(host),
            (Some(host), Some(hosts)) => {
                let help = format!("there are {}", listed(hosts.iter().copied()));
                let message = format!("there is no host `{host}`{}", did_you_mean(host, hosts.iter().copied()));
                return Err(document.refusal(vec![Finding::error(At::value(["cluster", "hosts"]), message).help(help)]));
            }
            (None, Some(hosts)) => {
                let message =
                    format!("the job runs on {}: say by `--host` which of them", listed(hosts.iter().copied()));
                return Err(document.refusal(vec![Finding::error(At::value(["cluster", "hosts"]), message)]));
            }
            (Some(host), None) => {
                let message = format!("`--host {host}` names a host, but the manifest has no `cluster`");
                let help = format!("list the hosts, as in `cluster.hosts.{host}.address = \"127.0.0.1:7101\"`");
                return Err(document.refusal(vec![Finding::error(At::value(["job"]), message).help(help)]));
            }
        }
        Ok(job)
    }
}

/// A manifest that is right in itself; its components have not been looked at.
#[derive(Debug, Clone)]
pub struct CheckedJob {
    /// The manifest and its text.
    pub loaded: Loaded,
    /// Its graph.
    pub graph: Graph,
    /// What is probably not as meant.
    pub warnings: Vec<Problem>,
}

impl JobArgs {
    /// Reads the manifest, applies the overrides, and checks everything that can be checked without the components.
    ///
    /// # Errors
    /// [`ManifestError`] with everything that is wrong; its place in the text is shown when it is printed as a [`miette::Report`].
    pub fn load(&self) -> Result<CheckedJob, ManifestError> {
        let loaded = crate::manifest::load(&self.manifest, &self.set)?;
        match crate::graph::check(&loaded.manifest, loaded.directory()) {
            Ok((graph, warnings)) => {
                let warnings = loaded.document.problems(warnings);
                Ok(CheckedJob { loaded, graph, warnings })
            }
            Err(findings) => Err(loaded.document.refusal(findings)),
        }
    }
}

impl CheckedJob {
    /// What each operator's component declares, by operator name. `declare` is given the operator's name and its component's path.
    ///
    /// # Errors
    /// [`ManifestError`] with every component for which `declare` failed, at its place in the manifest.
    pub fn declared(
        &self,
        mut declare: impl FnMut(&str, &Path) -> Result<Declared, String>,
    ) -> Result<BTreeMap<String, Declared>, ManifestError> {
        let mut declared = BTreeMap::new();
        let mut findings = Vec::new();
        for (name, operator) in &self.loaded.manifest.operators {
            let path = self.loaded.resolve(&operator.component);
            match declare(name, &path) {
                Ok(component) => _ = declared.insert(name.clone(), component),
                Err(error) => {
                    let finding = Finding::error(At::value(["operators", name, "component"]), error);
                    let buildable = operator.build.is_some() && !path.exists();
                    let help = format!("build it with `wasmill build {}`", self.loaded.document.file());
                    findings.push(if buildable { finding.help(help) } else { finding });
                }
            }
        }
        if findings.is_empty() { Ok(declared) } else { Err(self.loaded.document.refusal(findings)) }
    }

    /// The job's plan, and warnings.
    ///
    /// # Errors
    /// [`ManifestError`] with everything in which the manifest and the components do not fit each other.
    pub fn plan(
        &self,
        workers: u16,
        declared: &BTreeMap<String, Declared>,
    ) -> Result<(Plan, Vec<Problem>), ManifestError> {
        match Plan::new(&self.graph, workers, declared) {
            Ok((plan, warnings)) => Ok((plan, self.loaded.document.problems(warnings))),
            Err(findings) => Err(self.loaded.document.refusal(findings)),
        }
    }
}
