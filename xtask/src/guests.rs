//! Builds functions with the host's own `build-rust`, and gets what that needs where it can.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::workspace::{Profile, Workspace, run, succeeds};

/// The workspace whose target directory the others use as well, so that the standard library is built once.
const FIRST: &str = "guest-examples";
const TARGET: &str = "wasm32-unknown-unknown";
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// Builds the guests in `folders` with the host's program, which must have been built.
pub fn build(workspace: &Workspace, profile: Profile, folders: &[&str]) -> anyhow::Result<()> {
    for folder in folders.iter().filter(|folder| workspace.path(folder).join("Cargo.toml").is_file()) {
        let build_rust = || {
            let mut command = Command::new(workspace.wasmill(profile));
            command.current_dir(workspace.path("")).args(["build-rust", folder]);
            command
        };
        if *folder != FIRST {
            share_target(&workspace.path(FIRST).join("target"), &workspace.path(folder).join("target"))?;
        }
        if !succeeds(build_rust().arg("--check")) {
            install_toolchain()?;
        }
        run(&mut build_rust())?;
    }
    Ok(())
}

/// Makes `own` a link to `shared`, unless it is there already.
fn share_target(shared: &Path, own: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(shared).with_context(|| format!("cannot make {}", shared.display()))?;
    #[cfg(unix)]
    if own.symlink_metadata().is_err() {
        std::os::unix::fs::symlink(shared, own).with_context(|| format!("cannot make the link {}", own.display()))?;
    }
    Ok(())
}

/// Tries what can make a toolchain for WebAssembly appear. Where nothing can, the build itself says what to install.
fn install_toolchain() -> anyhow::Result<()> {
    eprintln!("no Rust toolchain for WebAssembly yet: trying `rustup target add {TARGET}`");
    if succeeds(Command::new("rustup").args(["target", "add", TARGET])) {
        return Ok(());
    }
    if is_root() && succeeds(Command::new("apt-get").arg("--version")) {
        let apt = || {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        run(apt().args(["update", "--quiet"]))?;
        run(apt().args(["install", "--quiet", "--yes", "--no-install-recommends"]).args(DEBIAN_PACKAGES))?;
    }
    Ok(())
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
