//! Several hosts as the manifest describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HumanDuration;

/// The hosts that run the job together, each by `wasmill run JOB.TOML --host NAME`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// The hosts, by name.
    pub hosts: BTreeMap<String, Host>,
    /// The host that decides when epochs are sealed and which count. Default: the first by name.
    #[serde(default)]
    #[schemars(example = &"a")]
    pub leader: Option<String>,
    /// After how long without a word a host is lost: the others go back to the last committed epoch and wait for it.
    #[serde(default = "default_lost_after")]
    #[schemars(example = &"5s")]
    pub lost_after: HumanDuration,
    /// Whether hosts may talk to each other without TLS over addresses that are not loopback.
    #[serde(default)]
    #[schemars(example = true)]
    pub insecure: bool,
    /// Certificates, by which hosts know each other.
    #[serde(default)]
    pub tls: Option<Tls>,
}

/// One of the hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    /// Where it listens for the others, and they reach it: `HOST:PORT`.
    #[schemars(example = &"10.0.0.2:7101")]
    pub address: String,
}

/// Certificates, in PEM. `{host}` in a path stands for the host's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tls {
    /// The certificate of who has signed the hosts' certificates.
    #[schemars(example = &"tls/ca.pem")]
    pub ca: String,
    /// The host's certificate, whose DNS name is the host's name.
    #[schemars(example = &"tls/{host}.pem")]
    pub certificate: String,
    /// Its private key.
    #[schemars(example = &"tls/{host}.key")]
    pub key: String,
}

fn default_lost_after() -> HumanDuration {
    HumanDuration(Duration::from_secs(2))
}

impl Cluster {
    /// The names of the hosts, the leader first, the others in the order of their names.
    pub fn names(&self) -> Vec<&str> {
        let leader = self.leader.as_deref().or_else(|| self.hosts.keys().next().map(String::as_str));
        let others = self.hosts.keys().map(String::as_str).filter(|name| Some(*name) != leader);
        leader.into_iter().chain(others).collect()
    }
}
