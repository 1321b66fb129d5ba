//! Damaged, missing, truncated and exchanged files: each gives the right values or an error with the file's name, never other values, an older epoch, or a panic.

use std::path::PathBuf;

use super::*;

const KEYS: u32 = 60;
const COMMITTED: Epoch = 6;
const TRIALS: u64 = 300;

/// A state at epoch 6, with redb at epoch 4.
fn example() -> CrashDisk {
    example_with(KEYS)
}

fn example_with(keys: u32) -> CrashDisk {
    let disk = CrashDisk::new();
    let mut job = Job::open(&disk).unwrap();
    for epoch in 1..=COMMITTED {
        apply_epoch(&job, epoch, keys);
        let entry = job.seal();
        job.commit(entry).unwrap();
        if epoch == 4 {
            job.opened.store.flush().unwrap();
        }
    }
    drop(job);
    disk
}

/// As a copy on another disk.
fn copy(disk: &CrashDisk) -> CrashDisk {
    disk.crash(crate::disk::crash::Unsynced::Kept)
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

fn entry_path(epoch: Epoch) -> PathBuf {
    path(&format!("log/{epoch:020}.entry"))
}

/// Opens a damaged state: an error that names a file is returned, the right values are `None`.
fn open_damaged(disk: &CrashDisk, context: &str) -> Option<String> {
    match Job::open(disk) {
        Ok(job) => {
            assert_eq!(job.committed(), COMMITTED, "{context}");
            job.check(&state_after(COMMITTED, KEYS), KEYS);
            None
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(DIRECTORY), "{context}: {text}");
            Some(text)
        }
    }
}

/// Flips one bit in each trial; returns in how many the damage was noticed.
fn flip_bits(name: &Path) -> u64 {
    let whole = example();
    let length = whole.length(name).unwrap().expect("the file is there");
    let mut noticed = 0;
    for trial in 0..TRIALS {
        let random = xxhash_rust::xxh3::xxh3_64(&trial.to_le_bytes());
        let (at, bit) = ((random >> 3) % length, random % 8);
        let disk = copy(&whole);
        disk.damage(name, |bytes| bytes[at as usize] ^= 1 << bit);
        noticed += u64::from(open_damaged(&disk, &format!("{}, byte {at}, bit {bit}", name.display())).is_some());
    }
    noticed
}

#[test]
fn a_flipped_bit_in_any_needed_entry_is_noticed() {
    assert_eq!(flip_bits(&entry_path(5)), TRIALS);
    assert_eq!(flip_bits(&entry_path(6)), TRIALS);
}

#[test]
fn a_flipped_bit_in_the_committed_file_never_leads_to_an_older_epoch() {
    // A damaged slot of the last epoch is restored from the entry; one of the epoch before is an error.
    let noticed = flip_bits(&path("committed"));
    assert!((TRIALS / 4..TRIALS).contains(&noticed), "{noticed}");
}

#[test]
fn a_flipped_bit_in_redb_gives_the_right_values_or_an_error() {
    assert!(flip_bits(&path("state.redb")) > 0);
}

#[test]
fn a_flipped_bit_in_small_files_gives_the_right_values_or_an_error() {
    flip_bits(&path("attempt"));
    assert!(flip_bits(&path("job.json")) > TRIALS / 2);
}

#[test]
fn a_flipped_bit_in_an_uncommitted_entry_drops_it_and_nothing_else() {
    let whole = example();
    let mut job = Job::open(&whole).unwrap();
    let entry = job.seal();
    job.opened.committer.append(&entry).unwrap();
    drop(job);
    let length = whole.length(&entry_path(COMMITTED + 1)).unwrap().unwrap();
    assert_eq!(Job::open(&copy(&whole)).unwrap().committed(), COMMITTED + 1);
    for at in 0..length {
        let disk = copy(&whole);
        disk.damage(&entry_path(COMMITTED + 1), |bytes| bytes[at as usize] ^= 0x10);
        assert_eq!(open_damaged(&disk, &format!("byte {at}")), None);
    }
}

#[test]
fn a_missing_or_truncated_file_is_an_error_that_names_it() {
    let whole = example();
    for name in [entry_path(5), entry_path(6), path("committed"), path("state.redb"), path("attempt"), path("job.json")]
    {
        let disk = copy(&whole);
        disk.remove(&name).unwrap();
        let error = open_damaged(&disk, "removed").expect("a missing file is noticed");
        assert!(error.contains(&name.display().to_string()), "{error}");
        let length = whole.length(&name).unwrap().unwrap();
        for cut in [0, 1, length / 2, length - 1] {
            let disk = copy(&whole);
            disk.set_length(&name, cut).unwrap();
            let context = format!("{} cut to {cut} of {length}", name.display());
            let noticed = open_damaged(&disk, &context);
            // Half of `committed` and half of `attempt` are whole slots; which epoch that means is found out, or is an error.
            assert!(noticed.is_some() || name.ends_with("attempt") || name.ends_with("committed"), "{context}");
        }
    }
}

#[test]
fn removed_directories_do_not_start_from_nothing() {
    let whole = example();
    let names = || whole.files().into_iter().filter(|path| path.starts_with(DIRECTORY));
    for kept in names() {
        let disk = copy(&whole);
        for name in names().filter(|name| *name != kept) {
            disk.remove(&name).unwrap();
        }
        let error = open_damaged(&disk, &format!("only {} left", kept.display()));
        assert!(error.is_some(), "only {} left", kept.display());
    }
}

#[test]
fn a_file_of_another_jobs_state_is_an_error() {
    let (whole, other) = (example(), example());
    for name in [entry_path(5), entry_path(6), path("committed"), path("state.redb"), path("attempt"), path("job.json")]
    {
        let disk = copy(&whole);
        disk.plant(&name, other.read(&name).unwrap());
        assert!(open_damaged(&disk, "exchanged").is_some(), "{}", name.display());
    }
}

#[test]
fn an_older_copy_of_a_file_of_the_same_job_is_an_error() {
    let disk = example();
    let older = copy(&disk);
    let mut job = Job::open(&disk).unwrap();
    for epoch in COMMITTED + 1..=COMMITTED + 4 {
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
        job.opened.store.flush().unwrap();
    }
    drop(job);
    for name in [path("committed"), path("state.redb")] {
        let mixed = copy(&disk);
        mixed.plant(&name, older.read(&name).unwrap());
        let error = Job::open(&mixed).err().expect("an older file is noticed").to_string();
        assert!(error.contains(DIRECTORY), "{error}");
    }
    // An older log under a newer redb.
    let mixed = copy(&older);
    mixed.plant(&path("state.redb"), disk.read(&path("state.redb")).unwrap());
    let error = Job::open(&mixed).err().expect("a newer redb is noticed").to_string();
    assert!(error.contains("it holds epoch 10, but the last committed one is 6"), "{error}");
}

#[test]
fn exchanged_entries_of_one_job_are_an_error() {
    let whole = example();
    let disk = copy(&whole);
    disk.plant(&entry_path(5), whole.read(&entry_path(6)).unwrap());
    disk.plant(&entry_path(6), whole.read(&entry_path(5)).unwrap());
    let error = open_damaged(&disk, "exchanged").unwrap();
    assert!(error.contains("it holds the entry of epoch 5"), "{error}");
}

#[test]
fn an_entry_of_another_history_is_an_error() {
    let disk = example();
    let mut histories = [copy(&disk), copy(&disk)];
    for (history, value) in histories.iter_mut().zip([b"one", b"two"]) {
        let mut job = Job::open(history).unwrap();
        for _ in 0..2 {
            job.apply(&key(1), Some(value));
            let entry = job.seal();
            job.commit(entry).unwrap();
        }
    }
    let [one, two] = histories;
    one.plant(&entry_path(COMMITTED + 1), two.read(&entry_path(COMMITTED + 1)).unwrap());
    let error = Job::open(&one).err().unwrap().to_string();
    assert!(error.contains("another history"), "{error}");
}
