//! Several hosts as the manifest describes them.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ByteSize, HumanDuration};

/// The hosts that run the job together. Each is started with the same manifest and its own name. Without this table the job runs on one host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Cluster {
    /// The hosts, by name. Partitions are shared out in the order of the names.
    #[schemars(example = serde_json::json!({ "a": { "address": "10.0.0.1:7101" }, "b": { "address": "10.0.0.2:7101" } }))]
    pub hosts: BTreeMap<String, Host>,
    /// The host that decides which epochs count, reads standard input and runs serializable operators. Default: the first by name.
    #[schemars(example = &"b")]
    pub leader: Option<String>,
    /// After how long without a word a host is lost. The others then stop, wait for it, and go on from the last committed epoch.
    #[schemars(example = &"2s")]
    pub lost_after: HumanDuration,
    /// Says that hosts may talk unencrypted and believe whoever connects. Without it, an address that is not of this machine alone needs `[cluster.tls]`.
    #[schemars(example = true)]
    pub insecure: bool,
    /// The most keys of one lookup that travels to another host. It is the default for all `uses`.
    #[schemars(example = 4096, range(min = 1, max = 16384))]
    pub max_batch: u16,
    /// How long a lookup that is not full waits for more keys before it travels. It is the default for all `uses`.
    #[schemars(example = &"1ms")]
    pub linger: HumanDuration,
    /// How much memory a host may use for answers of others that lookups with `bounded` may be given again.
    #[schemars(example = &"256MiB")]
    pub cache: ByteSize,
    /// How hosts make sure of each other.
    pub tls: Option<Tls>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            hosts: BTreeMap::new(),
            leader: None,
            lost_after: HumanDuration(Duration::from_secs(2)),
            insecure: false,
            max_batch: 1024,
            linger: HumanDuration(Duration::from_micros(100)),
            cache: ByteSize(64 << 20),
            tls: None,
        }
    }
}

/// A host of the job. Its state lies in the directory of its name in `job.state`, its output in that in the `path` of each files sink: hosts may share a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Host {
    /// Where the others connect to, and where it listens unless `listen` says otherwise: an IP address or a name, and a port.
    #[schemars(example = &"10.0.0.1:7101")]
    pub address: String,
    /// Where it listens, where that is not what the others connect to: behind a proxy or address translation, or in a container. `0.0.0.0` stands for all addresses of the machine.
    #[schemars(example = &"0.0.0.0:7101")]
    pub listen: Option<String>,
}

impl Host {
    /// The address to listen at.
    #[must_use]
    pub fn listens_at(&self) -> &str {
        self.listen.as_deref().unwrap_or(&self.address)
    }
}

/// Mutual TLS: every host shows a certificate that bears its name as a DNS name and is signed by the CA. In each path, `{host}` stands for the host's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tls {
    /// The certificate of the CA, in PEM, relative to the manifest.
    #[schemars(example = &"ca.pem")]
    pub ca: String,
    /// The host's certificate, in PEM, with those between it and the CA's. It must do for servers and for clients.
    #[schemars(example = &"{host}.pem")]
    pub certificate: String,
    /// The certificate's private key, in PEM.
    #[schemars(example = &"{host}.key")]
    pub key: String,
}

impl Tls {
    /// The same with `host` in the place of `{host}`.
    #[must_use]
    pub fn of_host(&self, host: &str) -> Self {
        let [ca, certificate, key] = [&self.ca, &self.certificate, &self.key].map(|path| path.replace("{host}", host));
        Self { ca, certificate, key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_tls_bear_the_name_of_the_host() {
        let tls = Tls {
            ca: "tls/ca.pem".to_owned(),
            certificate: "tls/{host}.pem".to_owned(),
            key: "/{host}/{host}.key".to_owned(),
        };
        let of_a = tls.of_host("a");
        assert_eq!([&*of_a.ca, &*of_a.certificate, &*of_a.key], ["tls/ca.pem", "tls/a.pem", "/a/a.key"]);
    }
}
