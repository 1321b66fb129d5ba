//! Where things lie, and how commands are run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Which build of the host is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Dev,
    Release,
}

/// This repository and its target directory.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
}

impl Workspace {
    pub fn find() -> anyhow::Result<Self> {
        // Set by `cargo run`; the path at compile time would be wrong once the repository is moved.
        let package = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
        let root = Path::new(&package).parent().context("xtask lies in the workspace")?;
        // This program is `TARGET/PROFILE/xtask`, wherever the user's configuration puts TARGET.
        let program = std::env::current_exe().context("cannot tell where xtask lies")?;
        let target = program.parent().and_then(Path::parent).context("xtask lies in a target directory")?;
        Ok(Self { root: root.to_path_buf(), target: target.to_path_buf() })
    }

    /// A path from the root of the repository.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A path in the target directory.
    pub fn target(&self, relative: &str) -> PathBuf {
        self.target.join(relative)
    }

    /// The host's program.
    pub fn wasmill(&self, profile: Profile) -> PathBuf {
        let folder = match profile {
            Profile::Dev => "debug",
            Profile::Release => "release",
        };
        self.target.join(folder).join(format!("wasmill{}", std::env::consts::EXE_SUFFIX))
    }

    /// The profile whose build costs least: the release build where only that one has been made.
    pub fn profile_at_hand(&self) -> Profile {
        let made = |profile| self.wasmill(profile).is_file();
        if made(Profile::Release) && !made(Profile::Dev) { Profile::Release } else { Profile::Dev }
    }

    /// The cargo that runs this program, in the root of the repository.
    pub fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            // Meant for this package alone; build scripts that watch them would run again.
            if name.as_encoded_bytes().starts_with(b"CARGO_PKG_")
                || name.as_encoded_bytes().starts_with(b"CARGO_MANIFEST_")
            {
                command.env_remove(name);
            }
        }
        command
    }

    pub fn build_host(&self, profile: Profile) -> anyhow::Result<()> {
        let mut build = self.cargo();
        build.args(["build", "--package", "wasmill"]).args((profile == Profile::Release).then_some("--release"));
        run(&mut build)
    }
}

/// Runs a command that shows its own messages.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` ended badly ({status})");
    Ok(())
}

/// Runs a command without showing anything, and says whether it went well.
pub fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
