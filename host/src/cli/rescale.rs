//! `wasmill rescale job.toml`: moves the state of a stopped job to the hosts that its manifest names now.

use super::load::JobArgs;
use super::plan::table;
use super::{Failure, failed, print, tell, told};
use crate::job::{self, JobError, Moved, Share};

/// Moves state to the hosts of the manifest.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RescaleArgs {
    /// The job to move. Below its `job.state`, the state directories of all hosts have to be there, of those that it had and of those that it is to have.
    #[command(flatten)]
    job: JobArgs,
    /// Only say what would be moved. (A move that was interrupted after it was decided is completed all the same.)
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(arguments: &RescaleArgs) -> Result<(), Failure> {
    let job = super::load_job(&arguments.job)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let moved = match runtime.block_on(job::rescale(&job.loaded, &job.graph, arguments.dry_run)) {
        Ok(moved) => moved,
        Err(JobError::Manifest(error)) => return Err(told(&error)),
        Err(error @ JobError::State(_)) => return Err(refused(&error, "failed to ")),
        Err(error) => return Err(refused(&error, "")),
    };
    if moved.completed {
        tell("an earlier move, which was interrupted, has been completed");
    }
    print(&text(&moved, arguments.dry_run))
}

fn refused(error: &JobError, before: &str) -> Failure {
    Failure::Because(error.exit_code(), format!("{before}{error}"))
}

fn text(moved: &Moved, is_dry: bool) -> String {
    let from = named(moved.from.iter().map(String::as_str));
    if moved.shares.is_empty() {
        return format!("nothing to move: the state lies on {from}, as the manifest says\n");
    }
    let to = named(moved.shares.iter().map(|share| share.host.as_str()));
    let mut shown = table(&["host", "partitions", "keys", "from elsewhere", "splits", "carried over"]);
    for share in &moved.shares {
        let Share { host, partitions, keys, keys_moved, splits, carried } = share;
        let counts = [*partitions as u64, *keys, *keys_moved, *splits as u64, *carried as u64];
        let host = if host.is_empty() { "the one host" } else { host };
        shown.add_row([host.to_owned()].into_iter().chain(counts.map(|count| count.to_string())));
    }
    let done = if is_dry { "would be moved" } else { "moved" };
    let mut text = format!("{done} from {from} to {to}, as of epoch {}\n\n{shown}\n", moved.epoch);
    if !moved.aside.is_empty() {
        text += "\nWhat was there before is kept; remove it when it is no longer needed:\n";
        moved.aside.iter().for_each(|path| text += &format!("  {}\n", path.display()));
    }
    text
}

/// Hosts by their names; one without is that of a job without `[cluster]`.
fn named<'a>(hosts: impl Iterator<Item = &'a str>) -> String {
    match hosts.collect::<Vec<_>>().as_slice() {
        [""] => "one host without `[cluster]`".to_owned(),
        hosts => format!("`{}`", hosts.join("`, `")),
    }
}
