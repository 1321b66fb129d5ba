//! The arguments by which every subcommand names its job, and how it is loaded from them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::graph::{Declared, Graph, Plan};
use crate::manifest::{At, Finding, Loaded, ManifestError, Problem, Tls, listed};

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
    /// Whether the job has this operator.
    pub(super) fn has_operator(&self, operator: &str) -> Result<bool, super::Failure> {
        let job = self.job.load().map_err(|error| super::told(&error))?;
        Ok(job.loaded.manifest.operators.contains_key(operator))
    }

    /// As [`JobArgs::load`]; state and output are those of the host.
    ///
    /// # Errors
    /// As [`JobArgs::load`]; and where a job of several hosts is named without a host, or a host that it does not have.
    pub fn load(&self) -> Result<CheckedJob, ManifestError> {
        let mut job = self.job.load()?;
        let chosen = job.graph.hosts.chosen(self.host.as_deref());
        let host =
            chosen.map_err(|fault| job.loaded.document.refusal(vec![Finding::error(At::value(["job"]), fault)]))?;
        if let Some(name) = job.graph.hosts.name(host) {
            job.loaded = job.loaded.for_host(name);
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
    /// Holds `[cluster.tls]` against the files that are there: those of `host`, or else, since no host needs those of the others, those of any.
    ///
    /// # Errors
    /// [`ManifestError`] with every file that is missing.
    pub fn check_tls(&self, host: Option<u16>) -> Result<(), ManifestError> {
        let Some(tls) = self.loaded.manifest.cluster.as_ref().and_then(|cluster| cluster.tls.as_ref()) else {
            return Ok(());
        };
        let hosts = host.map_or_else(|| (0..self.graph.hosts.count()).collect(), |host| vec![host]);
        let of_hosts: Vec<Tls> =
            hosts.into_iter().filter_map(|host| Some(tls.of_host(self.graph.hosts.name(host)?))).collect();
        let missing = |field: &str, path: fn(&Tls) -> &str| {
            let paths: BTreeSet<&str> = of_hosts.iter().map(path).collect();
            let is_there = paths.iter().any(|path| self.loaded.resolve(path).is_file());
            let at = At::value(["cluster", "tls", field]);
            let finding = Finding::error(at, format!("there is no file {}", listed(paths.iter().copied())));
            (!is_there).then(|| {
                finding.help(
                    "paths are relative to the manifest; each host needs a certificate and its key, and that of the CA",
                )
            })
        };
        let findings: Vec<Finding> = [
            missing("ca", |tls| &tls.ca),
            missing("certificate", |tls| &tls.certificate),
            missing("key", |tls| &tls.key),
        ]
        .into_iter()
        .flatten()
        .collect();
        if findings.is_empty() { Ok(()) } else { Err(self.loaded.document.refusal(findings)) }
    }

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
