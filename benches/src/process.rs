//! Running a program and measuring it: elapsed time, CPU time and peak memory, as the kernel accounts them for that one process.
//!
//! The peak is `ru_maxrss`, which starts at the peak of the process that forked: this program must itself stay small (it
//! streams everything), or small peaks would be its own.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How much of a failed program's log is shown.
const LOG_TAIL_BYTES: u64 = 2_000;

/// What one process used from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// From before the start to the end.
    pub elapsed: Duration,
    /// User and system time of all its threads.
    pub cpu: Duration,
    /// The largest resident set.
    pub peak_bytes: u64,
}

/// Runs `command` to its end, its output in the file `log`.
///
/// # Errors
/// When it cannot be started, fails, or is not done within `limit` (it is killed then). The error shows the log's end.
pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Usage> {
    run_child(command.stdin(Stdio::null()), log, limit, None::<fn(ChildStdin) -> io::Result<()>>)
}

/// As [`run`], while `feed` writes to the program's standard input.
///
/// # Errors
/// Those of [`run`] and of `feed`.
pub fn run_fed<F>(command: &mut Command, log: &Path, limit: Duration, feed: F) -> Result<Usage>
where
    F: FnOnce(ChildStdin) -> io::Result<()> + Send,
{
    run_child(command.stdin(Stdio::piped()), log, limit, Some(feed))
}

fn run_child<F>(command: &mut Command, log: &Path, limit: Duration, feed: Option<F>) -> Result<Usage>
where
    F: FnOnce(ChildStdin) -> io::Result<()> + Send,
{
    let output = File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
    command.stdout(output.try_clone()?).stderr(output);
    let name = command.get_program().to_string_lossy().into_owned();
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("failed to start {name}"))?;
    let input = child.stdin.take();
    thread::scope(|scope| {
        let feeding = input.zip(feed).map(|(input, feed)| scope.spawn(move || feed(input)));
        let finished = wait(&mut child, start, limit)?;
        let fed = feeding.map(|thread| thread.join().expect("feeding only writes and returns errors"));
        match finished {
            None => bail!("{name} was not done after {limit:?} and was killed{}", tail_of(log)),
            Some((status, _)) if !status.success() => bail!("{name} failed ({status}){}", tail_of(log)),
            Some((_, usage)) => {
                fed.transpose().with_context(|| format!("failed to write to {name}"))?;
                Ok(usage)
            }
        }
    })
}

/// Waits for the end of `child`; kills it and returns `None` when that is not before `limit`.
fn wait(child: &mut Child, start: Instant, limit: Duration) -> Result<Option<(ExitStatus, Usage)>> {
    let pid = Pid::from_child(child);
    let handle =
        pidfd_open(pid, PidfdFlags::empty()).context("failed to watch a process (Linux 5.3 or newer is needed)")?;
    let timeout = Timespec::try_from(limit.saturating_sub(start.elapsed())).context("the time limit is too long")?;
    let ended =
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)).context("failed to wait for a process")?;
    let elapsed = start.elapsed();
    if ended == 0 {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    }
    let (status, usage) = reap(pid).context("failed to collect a process")?;
    let cpu = duration_of(usage.ru_utime) + duration_of(usage.ru_stime);
    // Linux counts in KiB.
    let peak_bytes = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
    Ok(Some((status, Usage { elapsed, cpu, peak_bytes })))
}

/// `wait4`, which alone reports what one child used; the standard library's `wait` drops it.
fn reap(pid: Pid) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid `rusage`, a struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals of the types that the call fills.
    let reaped = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, &mut usage) };
    if reaped < 0 { Err(io::Error::last_os_error()) } else { Ok((ExitStatus::from_raw(status), usage)) }
}

/// Asks for short turns on a core, so that this thread, which stands for one on another machine, measures how long it waits for others and not for its own turn. Where
/// the system does not grant it, it waits for both.
pub fn take_short_turns() {
    // SAFETY: all of the structure's fields are integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_runtime = 100_000;
    // SAFETY: the system reads the structure, whose first field says how large it is.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

fn duration_of(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// The end of a log, as the end of an error message.
fn tail_of(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        Ok(tail)
    };
    let text = read().unwrap_or_default();
    match String::from_utf8_lossy(&text).trim() {
        "" => String::new(),
        text => format!("; the end of {}:\n{text}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        let usage = run(&mut shell(script), &dir.path().join("log"), LIMIT).unwrap();
        assert!(usage.cpu > Duration::ZERO && usage.peak_bytes > 0);
        assert!(usage.elapsed < LIMIT);
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            run(&mut shell("echo because >&2; exit 3"), &dir.path().join("log"), LIMIT).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("because"), "{error}");
    }

    #[test]
    fn a_program_past_its_limit_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            run(Command::new("sleep").arg("60"), &dir.path().join("log"), Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
    }

    #[test]
    fn a_fed_program_reads_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        run_fed(&mut shell("cat"), &log, LIMIT, |mut input| input.write_all(b"one\ntwo\n")).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"one\ntwo\n");
    }
}
