//! Runs an example job from the beginning to its end, in a folder of its own, shows what came out, and checks it where `examples` knows how.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::examples::{EXAMPLES, Example, Inputs, Ran};
use crate::guests;
use crate::results::{View, show, show_last_lines};
use crate::workspace::{Profile, Workspace};

const DEFAULT: &str = "flight-delays";
/// The manifest of an example that has only one.
const MANIFEST: &str = "job.toml";
const ROWS: usize = 10;

/// What is shown of an example's result. Of one without a view, the last lines of each sink are shown.
const VIEWS: [(&str, View); 4] = [
    (
        "flight-delays",
        View {
            title: "The carriers with the most flights",
            sink: "carriers",
            key: "name",
            sort_by: "flights",
            at_least: None,
            columns: &[
                ("name", "carrier"),
                ("flights", "flights"),
                ("cancelled", "cancelled"),
                ("mean_minutes", "mean delay (min)"),
            ],
        },
    ),
    (
        "flight-delays",
        View {
            title: "The aircraft with the worst mean delay, of those with 10 flights or more",
            sink: "aircraft",
            key: "name",
            sort_by: "mean_minutes",
            at_least: Some(("flights", 10.0)),
            columns: &[
                ("name", "aircraft"),
                ("flights", "flights"),
                ("mean_minutes", "mean delay (min)"),
                ("longest_minutes", "longest (min)"),
            ],
        },
    ),
    (
        "word-count",
        View {
            title: "The most frequent words",
            sink: "counts",
            key: "word",
            sort_by: "count",
            at_least: None,
            columns: &[("word", "word"), ("count", "count")],
        },
    ),
    (
        "bid-stats",
        View {
            title: "The auctions with the most bids",
            sink: "out",
            key: "auction",
            sort_by: "count",
            at_least: None,
            columns: &[("auction", "auction"), ("count", "bids"), ("maximum", "highest"), ("mean", "mean")],
        },
    ),
];

/// Runs the example that `arguments` name.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let Asked { name, profile, hosts } = parse(arguments)?;
    let example = workspace.path("guest-examples").join(name);
    ensure!(
        example.join(MANIFEST).is_file(),
        "there is no example `{name}`; there are {}",
        examples(workspace)?.join(", ")
    );
    workspace.build_host(profile)?;
    guests::build(workspace, profile, &["guest-examples"])?;
    let folder = fresh_folder(workspace, name)?;
    let known = EXAMPLES.iter().find(|example| example.name == name);
    let inputs = known.map_or(Ok(Inputs::new()), |known| make_inputs(known, &folder))?;
    let hosts = hosts_on_loopback(hosts);
    for manifest in known.map_or(&[MANIFEST][..], |known| known.manifests) {
        let part = folder.join(manifest.trim_end_matches(".toml"));
        let demo = Demo {
            workspace,
            profile,
            name,
            known,
            manifest: example.join(manifest),
            folder: part,
            inputs: &inputs,
            hosts: &hosts,
        };
        demo.run()?;
    }
    println!("\nThe whole output lies in {}", folder.display());
    Ok(())
}

fn make_inputs(example: &Example, folder: &Path) -> anyhow::Result<Inputs> {
    let Some(make) = example.make_input else { return Ok(Inputs::new()) };
    let folder = folder.join("input");
    std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    make(&folder)
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    name: &'a str,
    profile: Profile,
    /// On how many hosts the job runs: one process each.
    hosts: u16,
}

fn parse(arguments: &[String]) -> anyhow::Result<Asked<'_>> {
    let mut asked = Asked { name: DEFAULT, profile: Profile::Release, hosts: 1 };
    let mut names = Vec::new();
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        match argument {
            "--dev" => asked.profile = Profile::Dev,
            "--hosts" => {
                let hosts = rest.next().and_then(|hosts| hosts.parse().ok()).filter(|hosts| (1..=16).contains(hosts));
                asked.hosts = hosts.context("`--hosts` takes a number from 1 to 16")?;
            }
            flag if flag.starts_with('-') => bail!("`demo` takes --dev and --hosts N, not {flag}"),
            name => names.push(name),
        }
    }
    match names[..] {
        [] => {}
        [name] => asked.name = name,
        _ => bail!("`demo` takes one name, not {}", names.join(" ")),
    }
    Ok(asked)
}

/// One of several hosts.
struct Host {
    name: String,
    address: SocketAddr,
}

/// Hosts with an address each that is free now; none for a job of one. The ports lie below those that systems give out by themselves: what one host opens takes no other's.
fn hosts_on_loopback(hosts: u16) -> Vec<Host> {
    const PORTS: Range<u16> = 10_000..30_000;
    let addresses = PORTS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let free = addresses.filter(|address| TcpListener::bind(address).is_ok());
    let host = |(number, address)| Host { name: format!("host-{}", number + 1), address };
    let hosts = if hosts == 1 { 0 } else { usize::from(hosts) };
    free.take(hosts).enumerate().map(host).collect()
}

fn examples(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let folder = workspace.path("guest-examples");
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let with_job = entries.flatten().filter(|entry| entry.path().join(MANIFEST).is_file());
    let mut names = with_job.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>();
    names.sort();
    Ok(names)
}

/// The demo's own folder, without what an earlier run left in it.
fn fresh_folder(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    let folder = workspace.target("demo").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// A sink of the manifest that writes files, and the folder that the demo gives it.
struct FileSink {
    name: String,
    folder: PathBuf,
}

fn file_sinks(manifest: &Path, folder: &Path) -> anyhow::Result<Vec<FileSink>> {
    let text = std::fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let table: toml::Table = text.parse().with_context(|| format!("{} is not TOML", manifest.display()))?;
    let sinks = table.get("sinks").and_then(toml::Value::as_table).into_iter().flatten();
    let writes_files = |sink: &toml::Value| sink.get("kind").and_then(toml::Value::as_str) == Some("files");
    let file_sink = |(name, _): (&String, _)| FileSink { name: name.clone(), folder: folder.join("output").join(name) };
    Ok(sinks.filter(|(_, sink)| writes_files(sink)).map(file_sink).collect())
}

/// One job of an example.
struct Demo<'a> {
    workspace: &'a Workspace,
    profile: Profile,
    name: &'a str,
    /// What is known of the example beside its folder.
    known: Option<&'a Example>,
    manifest: PathBuf,
    /// Where the job's state and output go.
    folder: PathBuf,
    inputs: &'a Inputs,
    /// None for a job of one host.
    hosts: &'a [Host],
}

impl Demo<'_> {
    fn run(&self) -> anyhow::Result<()> {
        std::fs::create_dir(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))?;
        let sinks = file_sinks(&self.manifest, &self.folder)?;
        self.run_job(&sinks)?;
        show_results(self.name, &sinks)?;
        let Some(known) = self.known else { return Ok(()) };
        let scans = || self.wasmill(&["state", "scan"]);
        println!("\ncheck: {}: ok", (known.check)(&self.ran(&sinks, &scans))?);
        Ok(())
    }

    /// Runs the job to its end, on all hosts.
    fn run_job(&self, sinks: &[FileSink]) -> anyhow::Result<()> {
        let mut running = Vec::new();
        for (number, mut command) in self.wasmill(&["run"]).into_iter().enumerate() {
            for (source, path) in self.inputs {
                command.arg("--set").arg(format!("sources.{source}.path={}", path.display()));
            }
            for sink in sinks {
                command.arg("--set").arg(format!("sinks.{}.path={}", sink.name, sink.folder.display()));
            }
            let summary = if number == 0 { "summary.json".to_owned() } else { format!("summary-{}.json", number + 1) };
            command.arg("--summary").arg(self.folder.join(summary));
            running.push(command.spawn().with_context(|| format!("cannot start {command:?}"))?);
        }
        // A host that fails ends the job on all of them.
        let ends = running.into_iter().map(|mut host| host.wait()).collect::<std::io::Result<Vec<_>>>()?;
        match ends.iter().find(|end| !end.success()) {
            Some(end) => bail!("the job has failed ({end})"),
            None => Ok(()),
        }
    }

    /// A command on the job, in its own state: one for each host.
    fn wasmill(&self, words: &[&str]) -> Vec<Command> {
        let command = || {
            let mut command = Command::new(self.workspace.wasmill(self.profile));
            command.current_dir(self.workspace.path("")).args(words).arg(&self.manifest);
            command.arg("--set").arg(format!("job.state={}", self.folder.join("state").display()));
            if !self.hosts.is_empty() {
                command.arg("--set").arg("job.workers=1");
            }
            for Host { name, address } in self.hosts {
                command.arg("--set").arg(format!("cluster.hosts.{name}.address={address}"));
            }
            command
        };
        let of_host = |host: &Host| {
            let mut command = command();
            command.arg("--host").arg(&host.name);
            command
        };
        if self.hosts.is_empty() { vec![command()] } else { self.hosts.iter().map(of_host).collect() }
    }

    fn ran<'a>(&'a self, sinks: &[FileSink], scans: &'a dyn Fn() -> Vec<Command>) -> Ran<'a> {
        let manifest = self.manifest.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let example = self.manifest.parent().unwrap_or(Path::new("")).to_path_buf();
        let outputs = sinks.iter().map(|sink| (sink.name.clone(), sink.folder.clone())).collect();
        Ran { manifest, example, inputs: self.inputs, outputs, scans }
    }
}

fn show_results(name: &str, sinks: &[FileSink]) -> anyhow::Result<()> {
    let views = VIEWS.iter().filter(|(example, _)| *example == name).map(|(_, view)| view).collect::<Vec<_>>();
    for view in &views {
        let sink = sinks.iter().find(|sink| sink.name == view.sink);
        let sink = sink.with_context(|| format!("the manifest has no files sink `{}`", view.sink))?;
        println!("\n{}", show(view, &sink.folder, ROWS)?);
    }
    if views.is_empty() {
        for sink in sinks {
            println!("\nThe last lines of `{}`\n{}", sink.name, show_last_lines(&sink.folder, ROWS)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_parse(arguments: &[&str], expected: Option<(&str, Profile, u16)>) {
        let expected = expected.map(|(name, profile, hosts)| Asked { name, profile, hosts });
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
        assert_eq!(parse(&arguments).ok(), expected, "{arguments:?}");
    }

    #[test]
    fn a_demo_has_a_name_and_a_profile() {
        check_parse(&[], Some(("flight-delays", Profile::Release, 1)));
        check_parse(&["word-count", "--dev"], Some(("word-count", Profile::Dev, 1)));
        check_parse(&["--hosts", "3", "transfer"], Some(("transfer", Profile::Release, 3)));
        check_parse(&["transfer", "--hosts"], None);
        check_parse(&["transfer", "--hosts", "0"], None);
        check_parse(&["one", "two"], None);
        check_parse(&["--fast"], None);
    }

    #[test]
    fn each_sink_that_writes_files_gets_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("job.toml");
        std::fs::write(&manifest, "[sinks.a]\nkind = \"files\"\n[sinks.b]\nkind = \"stdout\"\n").unwrap();
        let sinks = file_sinks(&manifest, Path::new("/demo")).unwrap();
        let folders = sinks.iter().map(|sink| sink.folder.as_path()).collect::<Vec<_>>();
        assert_eq!(folders, [Path::new("/demo/output/a")]);
    }
}
