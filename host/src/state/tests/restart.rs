//! Starting again, without crashes and damage.

use super::*;

const KEYS: u32 = 40;

fn run(disk: &CrashDisk, epochs: Epoch, flush_at: Option<Epoch>) {
    let mut job = Job::open(disk).unwrap();
    for _ in 0..epochs {
        let epoch = job.committed() + 1;
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
        if flush_at == Some(epoch) {
            job.opened.store.flush().unwrap();
        }
    }
}

#[test]
fn a_fresh_directory_has_no_last_entry() {
    let job = Job::open(&CrashDisk::new()).unwrap();
    assert_eq!((job.opened.attempt, job.committed(), &job.opened.last), (1, 0, &None));
    assert_eq!(job.opened.tables.len(), 0);
}

#[test]
fn state_comes_back_from_the_log_alone() {
    let disk = CrashDisk::new();
    run(&disk, 3, None);
    let job = Job::open(&disk).unwrap();
    assert_eq!((job.opened.attempt, job.committed()), (2, 3));
    job.check(&state_after(3, KEYS), KEYS);
}

#[test]
fn state_comes_back_from_redb_and_the_log_behind_it() {
    let disk = CrashDisk::new();
    run(&disk, 3, Some(2));
    run(&disk, 3, Some(5));
    run(&disk, 0, None);
    let job = Job::open(&disk).unwrap();
    assert_eq!((job.opened.attempt, job.committed()), (4, 6));
    assert_eq!(job.opened.store.durable_epoch(), 5);
    job.check(&state_after(6, KEYS), KEYS);
    let versions: Vec<u32> = job.opened.tables["operator/table"].iter().copied().collect();
    assert_eq!(versions, [1]);
}

#[test]
fn keys_whose_hash_would_be_negative_as_a_signed_number_are_found_again() {
    let keys: Vec<Vec<u8>> = (0..400).map(key).filter(|key| crate::key::KeyHash::of(key).0 >> 63 == 1).collect();
    let homes: BTreeMap<_, _> =
        keys.iter().map(|key| (crate::key::KeyHash::of(key).partition(PARTITIONS), ())).collect();
    assert_eq!(homes.len(), usize::from(PARTITIONS));
    for flushed in [false, true] {
        let disk = CrashDisk::new();
        let mut job = Job::open(&disk).unwrap();
        keys.iter().for_each(|key| job.apply(key, Some(key)));
        let entry = job.seal();
        job.commit(entry).unwrap();
        if flushed {
            job.opened.store.flush().unwrap();
        }
        drop(job);
        let job = Job::open(&disk).unwrap();
        keys.iter().for_each(|key| assert_eq!(job.get(key).as_ref(), Some(key)));
    }
}

#[test]
fn what_was_not_committed_is_gone() {
    let disk = CrashDisk::new();
    run(&disk, 2, None);
    let job = Job::open(&disk).unwrap();
    apply_epoch(&job, 3, KEYS);
    job.seal();
    drop(job);
    Job::open(&disk).unwrap().check(&state_after(2, KEYS), KEYS);
}

#[test]
fn entries_not_noted_as_published_are_handed_out() {
    let disk = CrashDisk::new();
    let mut job = Job::open(&disk).unwrap();
    for published in [0, 1, 1, 1] {
        let mut entry = job.seal();
        entry.published = published;
        job.commit(entry).unwrap();
        job.opened.store.flush().unwrap();
    }
    drop(job);
    let job = Job::open(&disk).unwrap();
    let epochs: Vec<Epoch> = job.opened.unpublished.iter().map(|entry| entry.epoch).collect();
    assert_eq!(epochs, [2, 3, 4]);
    assert_eq!(job.opened.last.as_ref().map(|last| last.epoch), Some(4));
}

#[test]
fn old_entries_are_removed_once_redb_has_them() {
    let disk = CrashDisk::new();
    run(&disk, 5, Some(4));
    let left: Vec<String> = disk.list(Path::new("/job/state/log")).unwrap();
    assert_eq!(left, ["00000000000000000005.entry"]);
}

#[test]
fn every_key_overwritten_between_seal_and_append_keeps_the_sealed_value() {
    let disk = CrashDisk::new();
    let mut job = Job::open(&disk).unwrap();
    apply_epoch(&job, 1, KEYS);
    let entry = job.seal();
    for number in 0..KEYS {
        job.apply(&key(number), Some(b"later"));
        job.apply(&key(number), Some(b"later still"));
    }
    job.commit(entry).unwrap();
    job.opened.store.flush().unwrap();
    assert_eq!(job.get(&key(3)), Some(b"later still".to_vec()));
    drop(job);
    Job::open(&disk).unwrap().check(&state_after(1, KEYS), KEYS);
}

#[test]
fn another_schema_version_is_refused() {
    let disk = CrashDisk::new();
    run(&disk, 1, None);
    let job = Job::open(&disk).unwrap();
    let spec = [TableSpec { name: "operator/table".into(), schema_version: 2, ordered: true, versioned_span_ms: None }];
    let error = job.opened.store.open_task(0..PARTITIONS, &spec).unwrap_err();
    assert!(matches!(error, StateError::SchemaVersion { stored: 1, declared: 2, .. }), "{error}");
}

#[test]
fn another_number_of_partitions_is_refused() {
    let disk = CrashDisk::new();
    run(&disk, 1, None);
    let error = Job::open_with(&disk, OpenOptions { partitions: 8, ..options(&disk) }).err().unwrap();
    assert!(matches!(error, StateError::PartitionCount { stored: PARTITIONS, declared: 8, .. }), "{error}");
}

#[test]
fn retained_epochs_stay_out_of_redb() {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, OpenOptions { retained: 3, ..options(&disk) }).unwrap();
    for epoch in 1..=5 {
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
        assert_eq!(job.opened.store.flush().unwrap(), epoch.saturating_sub(2));
    }
    drop(job);
    Job::open(&disk).unwrap().check(&state_after(5, KEYS), KEYS);
}
