//! A crash at every step of making a directory, appending, committing, releasing and feeding, with everything unsynced lost, kept or torn.

use super::*;
use crate::disk::crash::Unsynced;
use crate::epoch::Attempt;

const KEYS: u32 = 25;
const EPOCHS: Epoch = 6;

/// What the job knew when it stopped.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    attempt: Attempt,
    /// The last epoch whose commit returned.
    committed: Epoch,
    /// The last epoch whose append was begun.
    begun: Epoch,
}

/// Runs two starts of a job, until the disk stops.
fn run(disk: &CrashDisk, known: &mut Known) -> Result<(), StateError> {
    for last in [EPOCHS / 2, EPOCHS] {
        let mut job = Job::open(disk)?;
        known.attempt = job.opened.attempt;
        while job.committed() < last {
            let epoch = job.committed() + 1;
            apply_epoch(&job, epoch, KEYS);
            let entry = job.seal();
            known.begun = epoch;
            job.commit(entry)?;
            known.committed = epoch;
            if epoch % 2 == 0 {
                job.opened.store.flush()?;
            }
        }
    }
    Ok(())
}

/// Opens what a crash has left, and compares it with what the job knew.
fn check_recovery(after: &CrashDisk, known: Known, context: &str) -> Known {
    let mut job = Job::open(after).unwrap_or_else(|error| panic!("{context}: {error}"));
    let committed = job.committed();
    let expected = known.committed..=known.begun.max(known.committed);
    assert!(expected.contains(&committed), "{context}: epoch {committed}, but {known:?}");
    assert!(job.opened.attempt > known.attempt, "{context}");
    job.check(&state_after(committed, KEYS), KEYS);
    let unpublished: Vec<Epoch> = job.opened.unpublished.iter().map(|entry| entry.epoch).collect();
    assert_eq!(unpublished, if committed == 0 { vec![] } else { vec![committed] }, "{context}");

    // Life goes on behind it.
    apply_epoch(&job, committed + 1, KEYS);
    let entry = job.seal();
    job.commit(entry).unwrap_or_else(|error| panic!("{context}: {error}"));
    job.opened.store.flush().unwrap_or_else(|error| panic!("{context}: {error}"));
    job.check(&state_after(committed + 1, KEYS), KEYS);
    Known { attempt: job.opened.attempt, committed: committed + 1, begun: committed + 1 }
}

#[test]
fn a_crash_at_any_step_leaves_the_last_committed_epoch() {
    let whole = CrashDisk::new();
    run(&whole, &mut Known::default()).unwrap();
    let steps = whole.steps();
    assert!(steps > 100, "{steps}");
    for step in 0..steps {
        let disk = CrashDisk::new();
        disk.stop_after(step);
        let mut known = Known::default();
        // The last steps are redb's as it is closed, where a failure is nobody's.
        let _ = run(&disk, &mut known);
        assert!(disk.is_stopped(), "step {step}");
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn(step), Unsynced::Torn(!step)] {
            check_recovery(&disk.crash(unsynced), known, &format!("step {step}, {unsynced:?}"));
        }
    }
}

#[test]
fn a_crash_during_recovery_leaves_it_as_good_as_before() {
    let whole = CrashDisk::new();
    run(&whole, &mut Known::default()).unwrap();
    for step in (0..whole.steps()).step_by(7) {
        let disk = CrashDisk::new();
        disk.stop_after(step);
        let mut known = Known::default();
        // The last steps are redb's as it is closed, where a failure is nobody's.
        let _ = run(&disk, &mut known);
        assert!(disk.is_stopped(), "step {step}");
        for second in (0..).step_by(3) {
            let after = disk.crash(Unsynced::Torn(step));
            after.stop_after(second);
            let opened = Job::open(&after);
            if opened.is_ok() {
                break;
            }
            check_recovery(&after.crash(Unsynced::Torn(second)), known, &format!("step {step}, then {second}"));
        }
    }
}

#[test]
fn after_a_failed_write_nothing_more_is_taken() {
    let disk = CrashDisk::new();
    let mut job = Job::open(&disk).unwrap();
    let entry = job.seal();
    disk.stop_after(0);
    job.opened.committer.append(&entry).unwrap_err();
    let error = job.opened.committer.append(&entry).unwrap_err();
    assert!(error.to_string().contains("after an earlier failure"), "{error}");
}
