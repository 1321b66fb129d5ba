//! How one of several hosts finds the others, and what they must agree on.

use std::hash::{BuildHasher, RandomState};

use super::super::JobError;
use super::super::assemble::Parts;
use crate::cluster::HostId;
use crate::cluster::link::{HEARTBEAT, HostAddress, Identity, LinkSettings, Security};
use crate::manifest::{Host, Tls};

/// How this host finds the others, and what they must agree on.
pub(super) fn link_settings(parts: &Parts<'_>, host: &str) -> Result<LinkSettings, JobError> {
    let loaded = parts.loaded;
    let own = parts.plan.hosts.chosen(Some(host)).map_err(JobError::Plan)?;
    let cluster = loaded.manifest.cluster.as_ref().expect("a manifest without it has no host of any name");
    let address = |(name, host): (&String, &Host)| HostAddress { name: name.clone(), address: host.address.clone() };
    let security = cluster.tls.as_ref().map_or(Security::Plain, |tls| {
        let Tls { ca, certificate, key } = tls.of_host(host);
        Security::Tls { ca: loaded.resolve(&ca), certificate: loaded.resolve(&certificate), key: loaded.resolve(&key) }
    });
    let components =
        parts.graph.operators.iter().map(|node| (node.name.clone(), parts.code.functions[&node.name].digest));
    Ok(LinkSettings {
        hosts: cluster.hosts.iter().map(address).collect(),
        own: HostId(own),
        identity: Identity {
            wasmill: env!("CARGO_PKG_VERSION").to_owned(),
            job: loaded.manifest.job.name.clone(),
            manifest: loaded.digest(),
            components: components.collect(),
        },
        security,
        heartbeat: HEARTBEAT.min(cluster.lost_after.0 / 10),
        lost_after: cluster.lost_after.0,
        seed: RandomState::new().hash_one(host),
    })
}
