//! What tables say that they take is what they take, also as they grow, shrink and are filled again.

use super::*;

/// No room at all: what may be evicted is.
const NOTHING: u64 = 1 << 20;
/// A slot of a hash table with its control byte, about.
const SLOT_BYTES: u64 = 40;
/// The fewest places of a hash table that holds so many keys: a power of two, of which an eighth stays free.
fn places(keys: u64) -> u64 {
    (keys * 8).div_ceil(7).next_power_of_two()
}

fn open(memory_bytes: u64, disk: &CrashDisk) -> Job {
    Job::open_with(disk, OpenOptions { memory_bytes, partitions: PARTITIONS, ..options(disk) }).unwrap()
}

fn bytes(job: &Job) -> u64 {
    job.tasks.iter().map(|task| task.bytes()).sum()
}

#[test]
fn tables_count_the_free_places_of_their_maps() {
    let disk = CrashDisk::new();
    let job = open(1 << 30, &disk);
    for keys in [100, 1_000, 4_000, 15_000] {
        (0..keys).for_each(|number| job.apply(&key(number), Some(b"a value")));
        // Keys spread evenly over the partitions, about: half of the places are certain.
        let places = places(u64::from(keys) / u64::from(PARTITIONS)) * u64::from(PARTITIONS);
        let cells = u64::from(keys) * (16 + 4 + 7);
        assert!(bytes(&job) >= cells + places / 2 * SLOT_BYTES, "{keys} keys: {} bytes", bytes(&job));
        assert!(bytes(&job) <= 2 * (cells + 2 * places * SLOT_BYTES), "{keys} keys: {} bytes", bytes(&job));
    }
    assert_eq!(job.opened.store.memory().tables_bytes, bytes(&job));
}

#[test]
fn what_tables_count_is_taken_off_again_to_the_last_byte() {
    let disk = CrashDisk::new();
    let mut job = open(NOTHING, &disk);
    for round in 0..3u8 {
        (0..3_000).for_each(|number| job.apply(&key(number + u32::from(round) * 500), Some(&[round; 9])));
        (0..200).for_each(|number| job.apply(&key(number), None));
        let entry = job.seal();
        job.commit(entry).unwrap();
        job.opened.store.flush().unwrap();
        job.tasks.iter().for_each(|task| task.evict());
        assert_eq!((bytes(&job), job.opened.store.memory().tables_bytes), (0, 0), "round {round}");
        // What comes back from disk counts, too.
        assert_eq!(job.get(&key(2_000)), Some(vec![round; 9]));
        assert!(bytes(&job) > 0);
    }
    let Job { opened, tasks } = job;
    drop(tasks);
    assert_eq!(opened.store.memory().tables_bytes, 0);
}

#[test]
fn what_was_loaded_at_the_start_counts_as_if_it_had_been_written() {
    let disk = CrashDisk::new();
    let mut job = open(1 << 30, &disk);
    for (keys, flush) in [(0..2_000, true), (1_500..3_000, false)] {
        keys.for_each(|number| job.apply(&key(number), Some(b"a value")));
        let entry = job.seal();
        job.commit(entry).unwrap();
        if flush {
            job.opened.store.flush().unwrap();
        }
    }
    let written = bytes(&job);
    drop(job);
    let job = open(1 << 30, &disk);
    assert_eq!(bytes(&job), written);
}
