//! `wasmill build-c`: builds a function in C, C++ or Zig to a component, by Zig's compilers. The SDK below all three is in C.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::zig::Zig;
use super::{Failure, componentize, failed, print, tools};

/// What `wasmill build-c` is given.
#[derive(Debug, Args)]
pub struct BuildC {
    /// The function's folder: its sources are below `src`, its tests below `tests`.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The folder of the SDK, from the function's folder on.
    #[arg(long, value_name = "DIR", default_value = "wasmill-sdk")]
    pub sdk: PathBuf,
    /// The component to make, from the function's folder on.
    #[arg(short, long, value_name = "FILE", default_value = "target/function.wasm")]
    pub output: PathBuf,
    /// Build the function with its tests for this machine and run them, over a host in memory.
    #[arg(long, conflicts_with = "output")]
    pub test: bool,
}

/// With debug information, for the names in traps, and with assertions, which Zig leaves out of optimised code.
const FLAGS: [&str; 5] = ["-O2", "-Wall", "-Wextra", "-g", "-UNDEBUG"];
/// Without an entry point, with the vector instructions that the host has.
const WASM_FLAGS: [&str; 4] = ["--target=wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-mbulk-memory"];
const C_FLAGS: [&str; 1] = ["-std=c11"];
/// Exceptions and type information need what a component does not have.
const CPP_FLAGS: [&str; 3] = ["-std=c++23", "-fno-exceptions", "-fno-rtti"];
/// With checks of bounds and overflows, which say what was wrong where it would otherwise be anything.
const ZIG_FLAGS: [&str; 2] = ["-O", "ReleaseSafe"];
const ZIG_WASM_FLAGS: [&str; 3] = ["-target", "wasm32-wasi", "-mcpu=baseline+simd128+bulk_memory"];

/// Builds the function and prints the path and size of its component, or builds and runs its tests.
///
/// # Errors
/// When there is no compiler, with what to install; when the function does not compile, or a test fails.
pub(super) fn run(arguments: &BuildC) -> Result<(), Failure> {
    check(arguments).map_err(Failure::usage)?;
    let built = Build::new(arguments).map_err(failed)?;
    if arguments.test {
        return built.test().map_err(failed);
    }
    let module = built.module().map_err(failed)?;
    let output = arguments.dir.join(&arguments.output);
    print(&componentize::built(&module, &output).map_err(failed)?)
}

/// Says what is missing of what the command line names.
fn check(arguments: &BuildC) -> Result<(), String> {
    let (sdk, sources) = (arguments.dir.join(&arguments.sdk), arguments.dir.join("src"));
    if !sdk.join("wasmill.h").is_file() {
        return Err(format!("{} has no wasmill.h: name the folder of the SDK by `--sdk`", sdk.display()));
    }
    match sources.is_dir() {
        true => Ok(()),
        false => Err(format!("{} is not there: a function's sources are looked for below it", sources.display())),
    }
}

/// A function on its way through the compiler.
struct Build {
    zig: Zig,
    dir: PathBuf,
    sdk: PathBuf,
    target: PathBuf,
    sources: Vec<PathBuf>,
}

impl Build {
    fn new(arguments: &BuildC) -> Result<Self> {
        let dir = &arguments.dir;
        let sdk = dir.join(&arguments.sdk);
        let target = dir.join("target");
        let own = sources_below(&dir.join("src"))?;
        ensure!(
            !own.is_empty(),
            "{} has no sources: they are looked for below `src`, of Zig the one that is called function.zig",
            dir.display()
        );
        let sources = own.into_iter().chain(sources_in(&sdk)?).collect();
        Ok(Self { zig: Zig::find(&target)?, dir: dir.clone(), sdk, target, sources })
    }

    /// Compiles and links the function; returns the core module.
    fn module(&self) -> Result<PathBuf> {
        let module = self.target.join("wasm/function.wasm");
        self.link(&self.sources, &WASM_FLAGS, &module)?;
        Ok(module)
    }

    /// Compiles and links the function with its tests for this machine, and runs them.
    fn test(&self) -> Result<()> {
        let mut support = sources_in(&self.sdk.join("testing"))?;
        if let Some(root) = self.sources.iter().find(|source| Language::of(source) == Some(Language::Zig)) {
            support.extend(self.sources.iter().filter(|source| Language::of(source) == Some(Language::C)).cloned());
            let mut command = self.zig.command();
            command.arg("test").args(support).arg("-I").arg(&self.sdk).arg("-lc");
            return tools::run(self.with_zig_modules(&mut command, root), "the tests failed");
        }
        let tests = sources_below(&self.dir.join("tests"))?;
        ensure!(!tests.is_empty(), "{} has no tests: they are looked for below `tests`", self.dir.display());
        support.extend(self.sources.iter().cloned().chain(tests));
        let program = self.target.join("native/tests");
        self.link(&support, &[], &program)?;
        tools::run(&mut Command::new(&program), "the tests failed")
    }

    /// Compiles each source by the compiler of its language, and links what comes out.
    fn link(&self, sources: &[PathBuf], flags: &[&str], output: &Path) -> Result<()> {
        let folder = output.parent().expect("it is a file in a folder");
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut objects = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let object = folder.join(format!("{index}.o"));
            let mut compile = self.compile(source, flags, &object);
            tools::run(&mut compile, &format!("{} was not compiled", source.display()))?;
            objects.push(object);
        }
        let is_cpp = sources.iter().any(|source| Language::of(source) == Some(Language::Cpp));
        let mut link = self.zig.command();
        link.arg(if is_cpp { "c++" } else { "cc" }).args(FLAGS).args(flags);
        tools::run(link.args(objects).arg("-o").arg(output), "the function was not linked")
    }

    /// The command that compiles a source.
    fn compile(&self, source: &Path, flags: &[&str], object: &Path) -> Command {
        let (compiler, own_flags) = match Language::of(source) {
            Some(Language::Zig) => {
                let mut command = self.zig.command();
                command.arg("build-obj").args(ZIG_WASM_FLAGS).arg(format!("-femit-bin={}", object.display()));
                self.with_zig_modules(&mut command, source);
                return command;
            }
            Some(Language::Cpp) => ("c++", &CPP_FLAGS[..]),
            Some(Language::C) | None => ("cc", &C_FLAGS[..]),
        };
        let mut command = self.zig.command();
        command.arg(compiler).args(FLAGS).args(flags).args(own_flags).arg("-I").arg(&self.sdk);
        command.arg("-c").arg(source).arg("-o").arg(object);
        command
    }

    /// Adds to a command of Zig's own compiler the file that imports the others of a function, and the SDK as the module `wasmill`. What is said of the former stands before it.
    fn with_zig_modules<'a>(&self, command: &'a mut Command, root: &Path) -> &'a mut Command {
        command.args(ZIG_FLAGS).args(["--dep", "wasmill"]).arg(format!("-Mroot={}", root.display()));
        command.arg(format!("-Mwasmill={}", self.sdk.join("wasmill.zig").display()))
    }
}

/// What a source is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Cpp,
    Zig,
}

impl Language {
    /// The language of a file, if it is to be compiled by itself. Zig's other files are imported by `function.zig`.
    fn of(source: &Path) -> Option<Self> {
        match source.extension().and_then(OsStr::to_str)? {
            "c" => Some(Self::C),
            "cpp" | "cc" | "cxx" => Some(Self::Cpp),
            "zig" if source.file_name().is_some_and(|name| name == "function.zig") => Some(Self::Zig),
            _ => None,
        }
    }
}

/// The sources in a folder, in the order of their names.
fn sources_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_file() && Language::of(&path).is_some() {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// The sources in a folder and those below it; none where there is no such folder.
fn sources_below(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut sources = sources_in(folder)?;
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            sources.extend(sources_below(&path)?);
        }
    }
    sources.sort();
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_found_by_their_endings() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("more")).unwrap();
        for name in ["b.c", "a.cpp", "notes.txt", "function.h", "function.zig", "other.zig", "more/c.cc"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = sources_below(dir.path()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(dir.path()).unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["a.cpp", "b.c", "function.zig", "more/c.cc"]);
    }

    #[test]
    fn a_folder_without_the_sdk_says_how_to_name_it() {
        let dir = tempfile::tempdir().unwrap();
        let arguments =
            BuildC { dir: dir.path().to_owned(), sdk: "wasmill-sdk".into(), output: "out".into(), test: false };
        let error = check(&arguments).unwrap_err();
        assert!(error.ends_with("has no wasmill.h: name the folder of the SDK by `--sdk`"), "{error}");
    }
}
