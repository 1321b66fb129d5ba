//! `cargo xtask capnp`: makes the Rust code of the Cap'n Proto schemas, or says whether it is made from them as they are.

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::workspace::Workspace;

/// The schema, its code, and the module that the code lies in.
const SCHEMA: &str = "schema/query.capnp";
const CODE: &str = "host/src/lookup/generated/query_capnp.rs";
const PARENT: &str = "lookup::generated";

/// Writes the code, or with `--check` compares it.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let is_check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("`capnp` takes `--check` or nothing"),
    };
    let code = workspace.path(CODE);
    let made = generate(workspace)?;
    if !is_check {
        return std::fs::write(&code, made).with_context(|| code.display().to_string());
    }
    match std::fs::read(&code).with_context(|| code.display().to_string())? == made {
        true => Ok(()),
        false => bail!("{CODE} is not what {SCHEMA} makes: run `cargo xtask capnp`"),
    }
}

fn generate(workspace: &Workspace) -> anyhow::Result<Vec<u8>> {
    let manifest: PathBuf = workspace.path("schema/generate/Cargo.toml");
    let mut command = workspace.cargo();
    command.args(["run", "--quiet", "--manifest-path"]).arg(manifest).args(["--", SCHEMA, PARENT]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("cargo cannot be run")?;
    if !output.status.success() {
        bail!("the code of {SCHEMA} could not be made: {}", output.status);
    }
    Ok(output.stdout)
}
