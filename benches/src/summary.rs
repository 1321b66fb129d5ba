//! What `wasmill run --summary FILE` writes, as far as the benchmarks read it.
//!
//! Its own types, not the host's: a benchmark that shared them could not notice that the file's form had changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The summary of one run of a job. Unknown fields are left out; those in `Option` may be missing.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Summary {
    /// Records admitted from all sources.
    pub records_in: u64,
    /// Records handed to all sinks.
    pub records_out: u64,
    /// Records refused or failed on.
    pub rejected: u64,
    /// Epochs committed.
    pub epochs: u64,
    /// How long admission stopped at each seal, in milliseconds.
    #[serde(default)]
    pub seal_pause_ms: Quantiles,
    /// From each seal to its commit, in milliseconds.
    #[serde(default)]
    pub commit_ms: Quantiles,
    /// From the start of the process to the first record admitted, in milliseconds.
    pub first_record_ms: Option<f64>,
    /// CPU seconds of feeding redb.
    pub feed_cpu_s: Option<f64>,
    /// Figures by operator.
    #[serde(default)]
    pub operators: BTreeMap<String, serde_json::Value>,
    /// How the hosts were at the end, where there are several.
    pub cluster: Option<ClusterSummary>,
}

/// How the hosts of a job were at the end, as one of them knows it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClusterSummary {
    /// Its lookups of what others own, by host and table.
    pub lookups: Vec<Lookups>,
}

/// A host's lookups of one table at one other host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Lookups {
    /// Keys asked for.
    pub keys_asked: u64,
    /// Keys that travelled.
    pub keys_sent: u64,
    /// Batches sent.
    pub batches: u64,
    /// From a question to its answer, in milliseconds.
    pub latency_ms: Quantiles,
}

/// A distribution, by three of its quantiles; none when nothing was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// Ninety-nine of a hundred are no larger.
    pub p99: Option<f64>,
    /// The largest.
    pub max: Option<f64>,
}

impl Summary {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it is missing or is no summary.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("failed to read the summary {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("failed to understand the summary {}", path.display()))
    }

    fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_whatever_else_it_says() {
        let summary = Summary::parse(
            r#"{"records_in": 5, "records_out": 4, "rejected": 1, "elapsed_s": 1.5, "cpu_s": 2, "epochs": 3,
                "peak_memory_bytes": 1000, "seal_pause_ms": {"p50": 1, "p99": 2.5, "max": 3, "p999": 4},
                "commit_ms": {"p50": null, "p99": null, "max": null}, "first_record_ms": 41.5,
                "operators": {"stats": {"records_in": 5}}, "new": [],
                "cluster": {"host": "a", "lookups": [{"keys_asked": 3, "keys_sent": 2, "batches": 1, "latency_ms": {"p50": 0.5}}]}}"#,
        )
        .unwrap();
        assert_eq!((summary.records_in, summary.records_out, summary.rejected, summary.epochs), (5, 4, 1, 3));
        assert_eq!(summary.seal_pause_ms, Quantiles { p50: Some(1.0), p99: Some(2.5), max: Some(3.0) });
        assert_eq!(summary.commit_ms, Quantiles::default());
        assert_eq!((summary.first_record_ms, summary.feed_cpu_s), (Some(41.5), None));
        assert_eq!(summary.operators["stats"]["records_in"], 5);
        let latency_ms = Quantiles { p50: Some(0.5), p99: None, max: None };
        let lookups = vec![Lookups { keys_asked: 3, keys_sent: 2, batches: 1, latency_ms }];
        assert_eq!(summary.cluster, Some(ClusterSummary { lookups }));
    }

    #[test]
    fn a_summary_without_its_counts_is_refused() {
        let error = Summary::parse(r#"{"records_in": 5}"#).unwrap_err().to_string();
        assert!(error.contains("records_out"), "{error}");
    }
}
