//! Zig, which compiles C, C++ and Zig to WebAssembly with the libraries that these need.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tools;

/// The version that templates, SDKs and tests are written for.
const VERSION: &str = "0.17.1";

/// A Zig that can be started.
pub(super) struct Zig {
    program: PathBuf,
    /// What it keeps of earlier builds.
    cache: PathBuf,
}

impl Zig {
    /// The Zig on the PATH, else one that is fetched for what is built in `target`.
    ///
    /// # Errors
    /// When there is none and none can be fetched, with what to install.
    pub(super) fn find(target: &Path) -> Result<Self> {
        let program = match tools::works("zig", &["version"]) {
            true => PathBuf::from("zig"),
            false => tools::from_pypi(&tools::folder(target), &format!("ziglang=={VERSION}"), "ziglang/zig")
                .with_context(|| format!("there is no Zig here to compile with: install Zig {VERSION} from https://ziglang.org/download and put it on the PATH"))?,
        };
        Ok(Self { program, cache: target.join("zig-cache") })
    }

    /// A command of Zig's.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("ZIG_LOCAL_CACHE_DIR", &self.cache);
        command
    }
}
