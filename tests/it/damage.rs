//! Damaged, missing and exchanged files, and manifests that do not fit the state: each start is refused with an error that names the file and
//! the remedy, or the values are right all the same. Never a panic, never a start from nothing; with everything put back, the job goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Dice, Ended, Job, Running, output_files};

const KEYS: u64 = 40;
/// Records of each of the three parts of the input.
const PART: u64 = 1_500;
const WAIT_MAX: Duration = Duration::from_secs(60);
const MANIFEST: &str = r#"
    [job]
    name = "counter"
    workers = 2
    [checkpoint]
    interval = "50ms"
    records = 400
    [sources.in]
    kind = "file"
    path = "in.txt"
    format = "lines"
    key = "."
    [operators.count]
    component = "{guest:misbehaving}"
    inputs = ["in"]
    config = { mode = "count" }
    [sinks.out]
    kind = "files"
    path = "out"
    inputs = ["count"]
    format = "jsonl"
"#;

fn key(number: u64) -> String {
    format!("key-{}", number * number % KEYS)
}

fn part(index: u64) -> String {
    (index * PART..(index + 1) * PART).map(|number| key(number) + "\n").collect()
}

fn add_part(job: &Job, index: u64) {
    let read = fs::read_to_string(job.path("in.txt")).unwrap_or_default();
    job.write("in.txt", read + &part(index));
}

/// What `parts` parts of the input count.
fn counts(parts: u64) -> BTreeMap<String, Value> {
    let mut counts = BTreeMap::<String, u64>::new();
    (0..parts * PART).for_each(|number| *counts.entry(key(number)).or_default() += 1);
    counts.into_iter().map(|(key, count)| (key, count.into())).collect()
}

/// The output as a count for each key, after a check that it rises by one.
fn counts_in_output(job: &Job) -> BTreeMap<String, Value> {
    let mut counts = BTreeMap::new();
    for line in job.output_lines("out") {
        let record: Value = serde_json::from_str(&line).unwrap();
        let (key, count) = (record["key"].as_str().unwrap().to_owned(), record["value"].as_u64().unwrap());
        let before = counts.insert(key, Value::from(count));
        assert_eq!(before.and_then(|before| before.as_u64()).unwrap_or(0) + 1, count, "{line}");
    }
    counts
}

fn wait_until(what: &str, job: &mut Running, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX && job.is_running(), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A job that has run to the end of its first part, and was killed when it had committed the second: redb holds the first part, the log the rest. A third
/// part waits.
fn killed_job() -> Job {
    let job = Job::new(MANIFEST);
    add_part(&job, 0);
    job.run().succeeded();
    add_part(&job, 1);
    job.write_manifest(&MANIFEST.replace("kind = \"file\"", "kind = \"file\"\nfollow = true"));
    let mut running = job.start();
    wait_until("the second part is published", &mut running, || job.output_lines("out").len() as u64 == 2 * PART);
    running.kill();
    job.write_manifest(MANIFEST);
    assert_eq!(job.state("count"), counts(2));
    add_part(&job, 2);
    job
}

/// A copy of what a job keeps.
struct Kept {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Kept {
    fn new(job: &Job) -> Self {
        let mut files = BTreeMap::new();
        for folder in ["state", "state/log", "out"] {
            for entry in job.path(folder).read_dir().unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file())
            {
                files.insert(Path::new(folder).join(entry.file_name()), fs::read(entry.path()).unwrap());
            }
        }
        Self { files }
    }

    fn restore(&self, job: &Job) {
        for folder in ["state", "out"] {
            fs::remove_dir_all(job.path(folder)).unwrap();
        }
        self.files.iter().for_each(|(name, bytes)| job.write(name.to_str().unwrap(), bytes));
    }

    /// The files that a start needs.
    fn needed(&self) -> Vec<&Path> {
        let newest = self.files.keys().filter(|name| name.starts_with("state/log")).max().unwrap();
        let others = ["state/committed", "state/state.redb", "state/job.json"].map(Path::new);
        others.into_iter().chain([newest.as_path()]).collect()
    }
}

/// With what the job had before in place again, it goes on to the right end.
fn check_goes_on(job: &Job) {
    job.run().succeeded();
    assert_eq!(counts_in_output(job), counts(3));
    assert_eq!(job.state("count"), counts(3));
}

/// Runs the job on changed files. It is refused with the name of `file` and a remedy, or the values are right all the same. Returns whether it was
/// refused. Afterwards everything is as before.
fn check_changed(job: &Job, kept: &Kept, file: &Path, context: &str) -> bool {
    let ended = job.run();
    let refused = !ended.status.success();
    if refused {
        let ended = ended.failed(3, &[file.to_str().unwrap()]);
        check_remedy(&ended, context);
        assert_eq!(counts_in_output(job), counts(2), "{context}: output was touched");
    } else {
        assert_eq!(counts_in_output(job), counts(3), "{context}");
        assert_eq!(job.state("count"), counts(3), "{context}");
    }
    kept.restore(job);
    refused
}

fn check_remedy(ended: &Ended, context: &str) {
    let remedies = ["restore", "put back", "put it back", "start with an empty", "start anew", "use the newer program"];
    assert!(remedies.iter().any(|remedy| ended.stderr.contains(remedy)), "{context}: no remedy in {}", ended.stderr);
}

#[test]
fn one_flipped_bit_is_refused_or_does_no_harm() {
    let job = killed_job();
    let kept = Kept::new(&job);
    let mut dice = Dice(20_261_130);
    for file in kept.needed() {
        let whole = &kept.files[file];
        let mut refused = 0;
        // The first and the last byte, and some in between.
        let places = [0, whole.len() as u64 - 1].into_iter().chain((0..10).map(|_| dice.roll(whole.len() as u64)));
        for place in places.collect::<Vec<_>>() {
            let mut bytes = whole.clone();
            bytes[place as usize] ^= 1 << dice.roll(8);
            job.write(file.to_str().unwrap(), &bytes);
            refused += u32::from(check_changed(&job, &kept, file, &format!("{}, byte {place}", file.display())));
        }
        assert!(refused > 0, "no damage to {} was noticed", file.display());
    }
    check_goes_on(&job);
}

#[test]
fn a_deleted_or_truncated_file_is_refused() {
    let job = killed_job();
    let kept = Kept::new(&job);
    for file in kept.needed() {
        let whole = &kept.files[file];
        for length in [0, 1, whole.len() / 3, whole.len() - 1] {
            job.write(file.to_str().unwrap(), &whole[..length]);
            let context = format!("{} cut to {length} bytes", file.display());
            // `committed` is two records: what one of them says is found out where that is certain.
            assert!(check_changed(&job, &kept, file, &context) || file.ends_with("committed"), "{context}");
        }
        fs::remove_file(job.path(file)).unwrap();
        let shown = job.command(["state", "scan", "job.toml", "count"]);
        check_remedy(&shown.failed(3, &[file.to_str().unwrap()]), "state scan");
        assert!(check_changed(&job, &kept, file, "deleted"), "{} was missing", file.display());
    }
    check_goes_on(&job);
}

#[test]
fn a_deleted_log_or_state_never_starts_from_nothing() {
    let job = killed_job();
    let kept = Kept::new(&job);
    fs::remove_dir_all(job.path("state/log")).unwrap();
    assert!(check_changed(&job, &kept, Path::new("state"), "no log"));
    // Without any state the job would start anew, but its output says that it has run.
    fs::remove_dir_all(job.path("state")).unwrap();
    job.run().failed(3, &["starts from nothing, but the directory holds output already", "restore the job's state"]);
    kept.restore(&job);
    check_goes_on(&job);
}

#[test]
fn exchanged_state_directories_are_refused() {
    let (job, other) = (killed_job(), killed_job());
    let exchange = || {
        fs::rename(job.path("state"), job.path("state.own")).unwrap();
        fs::rename(other.path("state"), job.path("state")).unwrap();
        fs::rename(job.path("state.own"), other.path("state")).unwrap();
    };
    let named = MANIFEST.replace("\"counter\"", "\"another\"");
    other.write_manifest(&named);
    // The name was changed after the state was made.
    other.run().failed(3, &["state", "belongs to the job `counter`, but this is the job `another`", "job.state"]);
    other.write_manifest(MANIFEST);
    check_goes_on(&other);
    exchange();
    // Of two jobs of one name, the output tells: its directory bears the mark of its job.
    for job in [&job, &other] {
        let ended = job.run();
        check_remedy(&ended.failed(3, &["out/.wasmill-job` says that the output there is that of job"]), "exchanged");
    }
    exchange();
    let (kept, others) = (Kept::new(&job), Kept::new(&other));
    for file in kept.needed().into_iter().filter(|file| !file.starts_with("state/log")) {
        job.write(file.to_str().unwrap(), &others.files[file]);
        // Where `job.json` is another's, everything else is.
        let named = if file.ends_with("job.json") { Path::new("state/") } else { file };
        assert!(check_changed(&job, &kept, named, "of another job"));
    }
    check_goes_on(&job);
}

#[test]
fn a_manifest_that_does_not_fit_the_state_is_refused() {
    let job = killed_job();
    let check = |from: &str, to: &str, fragments: &[&str]| {
        let changed = MANIFEST.replace(from, to);
        assert_ne!(changed, MANIFEST);
        job.write_manifest(&changed);
        job.run().failed(3, fragments);
        assert_eq!(counts_in_output(&job), counts(2));
    };
    let renamed = MANIFEST.replace("[operators.count]", "[operators.tally]").replace("[\"count\"]", "[\"tally\"]");
    job.write_manifest(&renamed);
    job.run().failed(3, &["the operator `count`", "renamed to `tally`", "empty state directory"]);
    check("workers = 2", "workers = 2\npartitions = 64", &["128 partitions", "put it back"]);
    check("\"counter\"", "\"accountant\"", &["belongs to the job `counter`, but this is the job `accountant`"]);
    check("[sinks.out]", "[sinks.elsewhere]", &["exactly-once sink `out`", "renamed to `elsewhere`"]);
    let renamed = MANIFEST.replace("[sources.in]", "[sources.input]").replace("[\"in\"]", "[\"input\"]");
    job.write_manifest(&renamed);
    job.run().failed(3, &["the source `in`, whose positions the state holds", "renamed to `input`"]);
    job.write_manifest(MANIFEST);
    check_goes_on(&job);
}

#[test]
fn what_joined_the_job_later_may_not_be_renamed_either() {
    let job = killed_job();
    let added = |operator: &str, sink: &str, source: &str| {
        format!(
            "{MANIFEST}\n[sources.{source}]\nkind = \"file\"\npath = \"more.txt\"\nformat = \"lines\"\nkey = \".\"
            [operators.{operator}]\ncomponent = \"{{guest:misbehaving}}\"\ninputs = [\"{source}\"]\nconfig = {{ mode = \"count\" }}
            [sinks.{sink}]\nkind = \"files\"\npath = \"more\"\ninputs = [\"{operator}\"]\n"
        )
    };
    job.write("more.txt", part(0));
    job.write_manifest(&added("later", "more", "late"));
    job.run().succeeded();
    for (manifest, fragment) in [
        (added("renamed", "more", "late"), "the operator `later`"),
        (added("later", "renamed", "late"), "the exactly-once sink `more`"),
        (added("later", "more", "renamed"), "the source `late`"),
    ] {
        job.write_manifest(&manifest);
        job.run().failed(3, &[fragment, "renamed to `renamed`"]);
    }
    job.write_manifest(MANIFEST);
    job.run().failed(3, &["the operator `later`", "the exactly-once sink `more`", "the source `late`", "put it back"]);
    job.write_manifest(&added("later", "more", "late"));
    check_goes_on(&job);
    assert_eq!(job.state("later"), counts(1));
}

#[test]
fn a_second_process_is_refused_and_the_first_goes_on() {
    let job = killed_job();
    job.write_manifest(&MANIFEST.replace("kind = \"file\"", "kind = \"file\"\nfollow = true"));
    let mut running = job.start();
    wait_until("the third part is published", &mut running, || job.output_lines("out").len() as u64 == 3 * PART);
    job.command(["run", "job.toml"]).failed(3, &["state", "the job is running in another process; stop it first"]);
    let asked = job.command(["state", "tables", "job.toml"]).succeeded();
    assert!(asked.stdout.contains("count/counts"), "the running job is asked: {}", asked.stdout);
    running.signal(Signal::TERM);
    running.wait().succeeded();
    job.write_manifest(MANIFEST);
    check_goes_on(&job);
}

#[test]
fn the_output_directory_of_another_run_is_refused() {
    let (job, other) = (killed_job(), Job::new(MANIFEST));
    other.write("in.txt", part(0) + &part(1) + &part(2));
    let file = output_files(&job.path("out")).remove(0);
    let name = format!("out/{}", file.file_name().unwrap().to_str().unwrap());
    other.write(&name, fs::read(&file).unwrap());
    other.run().failed(3, &["out`", "holds output already", "move it away, choose another `path`"]);
    fs::remove_file(other.path(name)).unwrap();
    check_goes_on(&other);
}

/// Moves all visible output away; returns its lines.
fn move_output_away(job: &Job, to: &str) -> Vec<String> {
    fs::create_dir(job.path(to)).unwrap();
    for file in output_files(&job.path("out")) {
        fs::rename(&file, job.path(to).join(file.file_name().unwrap())).unwrap();
    }
    job.output_lines(to)
}

#[test]
fn output_may_be_moved_away_as_soon_as_a_job_has_ended_cleanly() {
    let job = Job::new(MANIFEST);
    let mut lines = Vec::new();
    for part in 0..3 {
        add_part(&job, part);
        if part == 1 {
            // By a signal.
            job.write_manifest(&MANIFEST.replace("kind = \"file\"", "kind = \"file\"\nfollow = true"));
            let mut running = job.start();
            wait_until("the part is published", &mut running, || job.output_lines("out").len() as u64 == PART);
            running.signal(Signal::TERM);
            running.wait().succeeded();
            job.write_manifest(MANIFEST);
        } else {
            job.run().succeeded();
        }
        lines.extend(move_output_away(&job, &format!("taken-{part}")));
        assert_eq!(job.output_lines("out"), [""; 0]);
    }
    // A start with nothing to do adds no epoch.
    let before = job.newest_epoch();
    job.run().succeeded();
    assert_eq!(job.newest_epoch(), before);
    job.write("out/all.jsonl", lines.join("\n"));
    assert_eq!(counts_in_output(&job), counts(3));
    assert_eq!(job.state("count"), counts(3));
}

#[test]
fn exchanged_state_directories_are_refused_where_all_output_was_moved_away() {
    let jobs = [Job::new(MANIFEST), Job::new(MANIFEST)];
    for job in &jobs {
        add_part(job, 0);
        job.run().succeeded();
        move_output_away(job, "taken");
    }
    let exchange = || {
        let [first, second] = &jobs;
        fs::rename(first.path("state"), first.path("state.own")).unwrap();
        fs::rename(second.path("state"), first.path("state")).unwrap();
        fs::rename(first.path("state.own"), second.path("state")).unwrap();
    };
    exchange();
    for job in &jobs {
        add_part(job, 1);
        check_remedy(&job.run().failed(3, &["out/.wasmill-job"]), "exchanged");
        assert_eq!(job.output_lines("out"), [""; 0]);
    }
    exchange();
    jobs.iter().for_each(|job| _ = job.run().succeeded());
}

#[test]
fn output_that_must_be_published_and_is_not_what_it_was_is_refused() {
    let job = killed_job();
    let kept = Kept::new(&job);
    let last = output_files(&job.path("out")).pop().unwrap();
    let name = last.strip_prefix(job.path("")).unwrap();
    let check = |content: Option<&[u8]>| {
        match content {
            Some(content) => fs::write(&last, content).unwrap(),
            None => fs::remove_file(&last).unwrap(),
        }
        let ended = job.run();
        check_remedy(&ended.failed(3, &[name.to_str().unwrap()]), "output");
        kept.restore(&job);
    };
    let whole = &kept.files[name];
    let mut other = whole.clone();
    other[whole.len() / 2] ^= 1;
    check(None);
    check(Some(b""));
    check(Some(&whole[..whole.len() - 1]));
    check(Some(&other));
    check_goes_on(&job);
}
