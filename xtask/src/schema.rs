//! `cargo xtask capnp`: makes the Rust code of the Cap'n Proto schemas, or says whether it is made from them as they are.

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::workspace::Workspace;

/// A schema, its code, and the module that the code lies in.
struct Schema {
    schema: &'static str,
    code: &'static str,
    parent: &'static str,
}

const SCHEMAS: [Schema; 3] = [
    Schema {
        schema: "schema/query.capnp",
        code: "host/src/lookup/generated/query_capnp.rs",
        parent: "lookup::generated",
    },
    Schema {
        schema: "schema/peer.capnp",
        code: "host/src/cluster/link/generated/peer_capnp.rs",
        parent: "cluster::link::generated",
    },
    Schema { schema: "benches/floor.capnp", code: "benches/src/floor/floor_capnp.rs", parent: "floor" },
];

/// Writes the code, or with `--check` compares it.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let is_check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("`capnp` takes `--check` or nothing"),
    };
    SCHEMAS.iter().try_for_each(|schema| make(workspace, schema, is_check))
}

fn make(workspace: &Workspace, schema: &Schema, is_check: bool) -> anyhow::Result<()> {
    let code = workspace.path(schema.code);
    let made = generate(workspace, schema)?;
    if !is_check {
        return std::fs::write(&code, made).with_context(|| code.display().to_string());
    }
    match std::fs::read(&code).with_context(|| code.display().to_string())? == made {
        true => Ok(()),
        false => bail!("{} is not what {} makes: run `cargo xtask capnp`", schema.code, schema.schema),
    }
}

fn generate(workspace: &Workspace, schema: &Schema) -> anyhow::Result<Vec<u8>> {
    let manifest: PathBuf = workspace.path("schema/generate/Cargo.toml");
    let mut command = workspace.cargo();
    command.args(["run", "--quiet", "--manifest-path"]).arg(manifest).args(["--", schema.schema, schema.parent]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("cargo cannot be run")?;
    if !output.status.success() {
        bail!("the code of {} could not be made: {}", schema.schema, output.status);
    }
    Ok(output.stdout)
}
