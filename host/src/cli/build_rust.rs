//! `wasmill build-rust`: builds a Rust guest crate to a component, with whichever Rust toolchain can.
//!
//! A toolchain that has the standard library for WebAssembly is taken first; else Debian's, which builds that library from
//! its source. Both link by `wasm-component-ld`, so a component comes out at once. It knows nothing of jobs.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::Args;

use super::{Failure, failed, print};

const TARGET: &str = "wasm32-unknown-unknown";
const LINKER: &str = "wasm-component-ld";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_PACKAGES: &str = "rustc-web cargo-web rust-web-src";

/// What `wasmill build-rust` is given.
#[derive(Debug, Args)]
pub struct BuildRust {
    /// The guest's directory: a crate, or a workspace of which every member is built.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Features of the guest to build with, separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub features: Vec<String>,
    /// Say which toolchain and linker would be used, and build nothing.
    #[arg(long)]
    pub check: bool,
}

/// Builds the guest and prints the path and size of each component.
///
/// # Errors
/// When no toolchain or linker is found, with what to install; when the guest does not compile.
pub(super) fn run(arguments: &BuildRust) -> Result<(), Failure> {
    let dir = &arguments.dir;
    if !dir.join("Cargo.toml").is_file() {
        return Err(Failure::usage(format!("{} is not a Rust crate: it has no Cargo.toml", dir.display())));
    }
    print(&build(arguments).map_err(failed)?)
}

/// Builds, or says what it would build with; returns what is to be told of it.
fn build(arguments: &BuildRust) -> anyhow::Result<String> {
    let dir = &arguments.dir;
    let toolchain = Toolchain::find(dir)?;
    let linker = Linker::find(dir)?;
    if arguments.check {
        return Ok(format!("{}, linked by {}\n", toolchain.described(), linker.component.display()));
    }
    let target_dir = workspace_of(&toolchain, dir)?.join("target");
    let mut command = build_command(&toolchain, &linker, arguments, &target_dir);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        bail!("the guest in {} was not built: see cargo's messages above", dir.display());
    }
    let components = components_of(&output.stdout);
    ensure!(
        !components.is_empty(),
        "the guest in {} made no component: its Cargo.toml needs `crate-type = [\"cdylib\"]` under [lib]",
        dir.display()
    );
    components.iter().map(|component| Ok(format!("{} ({})\n", component.display(), size_of(component)?))).collect()
}

fn size_of(component: &Path) -> anyhow::Result<bytesize::ByteSize> {
    let metadata = component.metadata().with_context(|| format!("cannot read {}", component.display()))?;
    Ok(bytesize::ByteSize(metadata.len()))
}

/// A cargo and rustc that can compile for WebAssembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toolchain {
    /// The one on the PATH, with the target installed.
    Installed,
    /// Debian's, which builds the standard library from source.
    Debian,
}

impl Toolchain {
    fn find(dir: &Path) -> anyhow::Result<Self> {
        if has_target(dir) {
            Ok(Self::Installed)
        } else if has_library_source() {
            Ok(Self::Debian)
        } else {
            bail!("no Rust toolchain here can build for WebAssembly: {}", toolchain_remedy())
        }
    }

    fn described(self) -> &'static str {
        match self {
            Self::Installed => "the installed Rust toolchain with the target wasm32-unknown-unknown",
            Self::Debian => "Debian's Rust toolchain with the standard library built from source",
        }
    }

    fn cargo(self) -> Command {
        match self {
            Self::Installed => clean_command("cargo"),
            Self::Debian => {
                let mut command = clean_command(DEBIAN_CARGO);
                // `-Zbuild-std` is not stable; Debian's packages are stable ones.
                command.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

fn has_target(dir: &Path) -> bool {
    let mut rustc = clean_command("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(dir);
    let Some(libraries) = printed_path(rustc).and_then(|path| path.read_dir().ok()) else { return false };
    libraries.flatten().any(|file| file.file_name().as_encoded_bytes().starts_with(b"libstd-"))
}

fn has_library_source() -> bool {
    let source = |sysroot: PathBuf| sysroot.join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file();
    Path::new(DEBIAN_CARGO).is_file() && sysroot(DEBIAN_RUSTC, Path::new("/")).is_some_and(source)
}

fn toolchain_remedy() -> String {
    let rustup = clean_command("rustup").arg("--version").output().is_ok();
    let debian = Path::new("/etc/debian_version").exists();
    match (rustup, debian) {
        (true, false) => format!("run `rustup target add {TARGET}`"),
        (true, true) => {
            format!("run `rustup target add {TARGET}`, or as root `apt-get install {DEBIAN_PACKAGES}`")
        }
        (false, true) => format!("run as root `apt-get install {DEBIAN_PACKAGES}`"),
        (false, false) => format!("install Rust by https://rustup.rs, then run `rustup target add {TARGET}`"),
    }
}

/// The linker that makes components, and the one for core modules that it calls.
#[derive(Debug)]
struct Linker {
    component: PathBuf,
    /// Left to the linker's own search where it is not beside it.
    core: Option<PathBuf>,
}

impl Linker {
    fn find(dir: &Path) -> anyhow::Result<Self> {
        let sysroots = [sysroot("rustc", dir), sysroot(DEBIAN_RUSTC, dir)];
        let in_sysroots = sysroots.into_iter().flatten().flat_map(|sysroot| tools_of(&sysroot));
        let candidates = in_sysroots.map(Self::beside).collect::<Vec<_>>();
        let core_on_path = on_path("wasm-ld");
        let complete = candidates.into_iter().find(|linker| linker.core.is_some() || core_on_path.is_some());
        let alone = || on_path(LINKER).filter(|_| core_on_path.is_some());
        complete.or_else(|| alone().map(|component| Self { component, core: None })).with_context(|| {
            format!(
                "the linker `{LINKER}` (with `wasm-ld`) was not found in a Rust toolchain or on the PATH: install Rust by \
                 https://rustup.rs, which brings both, or run `cargo install {LINKER}` and install LLVM's `lld`"
            )
        })
    }

    fn beside(component: PathBuf) -> Self {
        let core = component.with_file_name("gcc-ld").join(executable("wasm-ld"));
        Self { core: core.is_file().then_some(core), component }
    }
}

/// The component linkers of a toolchain, one for each of its host platforms.
fn tools_of(sysroot: &Path) -> Vec<PathBuf> {
    let Ok(platforms) = sysroot.join("lib/rustlib").read_dir() else { return Vec::new() };
    let linker = |platform: std::fs::DirEntry| platform.path().join("bin").join(executable(LINKER));
    platforms.flatten().map(linker).filter(|path| path.is_file()).collect()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(executable(name))).find(|file| file.is_file())
}

fn executable(name: &str) -> String {
    format!("{name}{}", std::env::consts::EXE_SUFFIX)
}

fn sysroot(rustc: &str, dir: &Path) -> Option<PathBuf> {
    let mut command = clean_command(rustc);
    command.args(["--print", "sysroot"]).current_dir(dir);
    printed_path(command)
}

fn printed_path(mut command: Command) -> Option<PathBuf> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(text.trim_end()))
}

/// The guest's own workspace. Its target directory is used whatever the user's cargo configuration says, because
/// manifests name components by their place in it.
fn workspace_of(toolchain: &Toolchain, dir: &Path) -> anyhow::Result<PathBuf> {
    let mut command = toolchain.cargo();
    command.args(["locate-project", "--workspace", "--message-format", "plain"]).current_dir(dir);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo cannot read the crate in {}", dir.display());
    let manifest = String::from_utf8(output.stdout).context("cargo's answer is not text")?;
    Path::new(manifest.trim_end()).parent().map(Path::to_path_buf).context("cargo named no workspace")
}

fn build_command(toolchain: &Toolchain, linker: &Linker, arguments: &BuildRust, target_dir: &Path) -> Command {
    let mut command = toolchain.cargo();
    command.current_dir(&arguments.dir).args(["build", "--release", "--lib", "--target", TARGET]);
    command.arg("--message-format=json-render-diagnostics").arg("--target-dir").arg(target_dir);
    if *toolchain == Toolchain::Debian {
        command.arg("-Zbuild-std=std,panic_abort");
    }
    if !arguments.features.is_empty() {
        command.args(["--features", &arguments.features.join(",")]);
    }
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", &linker.component);
    command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", rust_flags(linker));
    command
}

fn rust_flags(linker: &Linker) -> OsString {
    // Every host that runs Wasmill has vector instructions; parsers gain from them.
    let mut flags = OsString::from("-Ctarget-feature=+simd128");
    if let Some(core) = &linker.core {
        flags.push(" -Clink-arg=--wasm-ld-path=");
        flags.push(core);
    }
    flags
}

/// The components that cargo names in its messages, one JSON object a line.
fn components_of(messages: &[u8]) -> Vec<PathBuf> {
    let mut components = Vec::new();
    for line in messages.split(|&byte| byte == b'\n') {
        let Ok(message) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(|file| file.as_str());
        components.extend(files.filter(|file| file.ends_with(".wasm")).map(PathBuf::from));
    }
    components
}

/// A command without what an outer cargo, rustup or build script left in the environment for its own children: flags and
/// wrappers meant for the host's build would break a guest's, or send its output elsewhere.
fn clean_command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| leaks(name)) {
        command.env_remove(name);
    }
    command
}

fn leaks(variable: &OsStr) -> bool {
    const KEPT: [&str; 7] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_", "RUSTUP_HOME"];
    const DROPPED: [&str; 4] = ["CARGO", "RUSTC", "RUSTDOC", "CLIPPY_"];
    const DROPPED_WHOLE: [&str; 11] = [
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "OUT_DIR",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
        "NUM_JOBS",
        "MAKEFLAGS",
        "MFLAGS",
    ];
    let Some(name) = variable.to_str() else { return false };
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    !starts(&KEPT) && (starts(&DROPPED) || DROPPED_WHOLE.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_leaks(names: &[&str], expected: bool) {
        for name in names {
            assert_eq!(leaks(OsStr::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn what_an_outer_cargo_leaves_is_dropped() {
        check_leaks(&["CARGO", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "CARGO_PKG_NAME"], true);
        check_leaks(&["CARGO_PROFILE_RELEASE_LTO", "CARGO_MAKEFLAGS", "RUSTC_WRAPPER", "RUSTC"], true);
        check_leaks(&["RUSTFLAGS", "RUSTUP_TOOLCHAIN", "RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS"], true);
    }

    #[test]
    fn what_the_user_set_up_stays() {
        check_leaks(&["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_PROXY", "CARGO_REGISTRIES_OWN_INDEX"], false);
        check_leaks(&["RUSTUP_HOME", "RUSTUP_DIST_SERVER", "RUST_BACKTRACE", "PATH", "HOME", "HOSTNAME"], false);
    }

    #[test]
    fn components_are_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","filenames":["/t/deps/libserde.rlib"]}"#,
            "\n",
            r#"{"reason":"compiler-artifact","filenames":["/t/release/one.wasm"]}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","filenames":["/t/release/two.wasm","/t/release/libtwo.rlib"]}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let expected = [PathBuf::from("/t/release/one.wasm"), PathBuf::from("/t/release/two.wasm")];
        assert_eq!(components_of(messages.as_bytes()), expected);
    }

    #[test]
    fn the_core_linker_is_looked_for_beside_the_component_linker() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("lib/rustlib/some-host/bin");
        std::fs::create_dir_all(bin.join("gcc-ld")).unwrap();
        std::fs::write(bin.join(executable(LINKER)), "").unwrap();
        let [component] = &tools_of(dir.path())[..] else { panic!("one linker is there") };
        assert_eq!(Linker::beside(component.clone()).core, None);
        let core = bin.join("gcc-ld").join(executable("wasm-ld"));
        std::fs::write(&core, "").unwrap();
        assert_eq!(Linker::beside(component.clone()).core, Some(core));
    }
}
