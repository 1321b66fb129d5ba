//! A job on several hosts of this machine, each a process: starting them, and what each says of itself at its end.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::job::{remove, settle};
use crate::manifest::Manifest;
use crate::summary::Summary;

/// The names of hosts, in the order in which they are used. The first leads.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A job on several hosts, in a directory of its own.
#[derive(Debug)]
pub struct Cluster {
    wasmill: PathBuf,
    dir: PathBuf,
    hosts: usize,
    /// Whether each host has one core for itself.
    pinned: bool,
}

/// A host's process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: &'static str,
}

impl Process {
    /// Kills it, without a word.
    ///
    /// # Errors
    /// When it has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The section of a manifest that names `hosts` hosts, with `linger`. Their ports are free, and below those that systems give out by themselves: nobody takes one while a host is started anew.
pub fn section(hosts: usize, linger: &str) -> String {
    const PORTS: Range<u16> = 10_000..30_000;
    let free = PORTS.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let mut text = format!("\n[cluster]\nlinger = \"{linger}\"\n");
    for (name, port) in NAMES[..hosts].iter().zip(free) {
        text += &format!("hosts.{name}.address = \"127.0.0.1:{port}\"\n");
    }
    text
}

impl Cluster {
    /// A job without state: `dir` is emptied first.
    ///
    /// # Errors
    /// When the directory cannot be emptied and made.
    pub fn create(wasmill: &Path, dir: PathBuf, hosts: usize) -> Result<Self> {
        remove(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        Ok(Self { wasmill: wasmill.to_owned(), dir, hosts, pinned: false })
    }

    /// Another job on as many hosts, in a directory within this one's.
    ///
    /// # Errors
    /// Those of [`Cluster::create`].
    pub fn beside(&self, name: &str) -> Result<Self> {
        Self::create(&self.wasmill, self.dir.join(name), self.hosts)
    }

    /// Gives each host one core for itself.
    pub fn pinned(mut self) -> Self {
        self.pinned = true;
        self
    }

    /// A path in the job's directory.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    /// Runs the job on all its hosts to the end of its input; the time goes from the start of the first to the end of the last. The hosts' summaries come in their order.
    ///
    /// # Errors
    /// When a host fails, or they are not done within `limit`.
    pub fn run(&self, manifest: &Manifest, limit: Duration) -> Result<(Duration, Vec<Summary>)> {
        self.write(manifest)?;
        settle();
        let start = Instant::now();
        let mut processes = (0..self.hosts).map(|host| self.start(host, Stdio::null())).collect::<Result<Vec<_>>>()?;
        let elapsed = self.wait(&mut processes, start, limit)?;
        Ok((elapsed, self.summaries()?))
    }

    /// Waits for the end of all hosts.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub fn wait(&self, processes: &mut [Process], start: Instant, limit: Duration) -> Result<Duration> {
        for process in processes {
            let status = loop {
                match process.child.try_wait()? {
                    Some(status) => break status,
                    None if start.elapsed() > limit => bail!("host {} was not done after {limit:?}", process.name),
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let log = self.log(process.name);
            ensure!(status.success(), "host {} failed ({status}); see {}", process.name, log.display());
        }
        Ok(start.elapsed())
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// Those of writing.
    pub fn write(&self, manifest: &Manifest) -> Result<()> {
        Ok(fs::write(self.dir.join("job.toml"), manifest.text())?)
    }

    /// Starts a host.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, host: usize, input: Stdio) -> Result<Process> {
        let name = NAMES[host];
        let _ = fs::remove_file(self.summary(name));
        let mut command = match self.pinned {
            true => {
                let mut command = Command::new("taskset");
                command.args(["-c", &host.to_string()]).arg(&self.wasmill);
                command
            }
            false => Command::new(&self.wasmill),
        };
        command.current_dir(&self.dir).args(["run", "job.toml", "--summary"]).arg(self.summary(name));
        if self.hosts > 1 {
            command.args(["--host", name]);
        }
        let log = File::options().create(true).append(true).open(self.log(name))?;
        let child = command.stdin(input).stdout(log.try_clone()?).stderr(log).spawn();
        Ok(Process { child: child.with_context(|| format!("failed to start host {name}"))?, name })
    }

    /// What the hosts say at their end, in their order.
    ///
    /// # Errors
    /// When a summary is missing.
    pub fn summaries(&self) -> Result<Vec<Summary>> {
        let summaries = NAMES[..self.hosts].iter().map(|name| {
            let summary = Summary::read(&self.summary(name))?;
            ensure!(
                summary.rejected == 0,
                "{} records were rejected; see {}",
                summary.rejected,
                self.log(name).display()
            );
            Ok(summary)
        });
        summaries.collect()
    }

    /// Takes standard input's other end of a process that was started with one.
    ///
    /// # Errors
    /// When it was not.
    pub fn input(process: &mut Process) -> Result<std::process::ChildStdin> {
        process.child.stdin.take().context("the host has no standard input")
    }

    /// Frees the disk.
    ///
    /// # Errors
    /// Those of removing.
    pub fn remove(self) -> Result<()> {
        remove(&self.dir)
    }

    fn summary(&self, name: &str) -> PathBuf {
        self.dir.join(format!("summary-{name}.json"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("log-{name}.txt"))
    }
}
