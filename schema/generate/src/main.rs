//! Writes to standard output the Rust code of a Cap'n Proto schema: `generate-schema SCHEMA PARENT_MODULE`, with the module as `a::b`.
//!
//! The schema's compiler comes with the crate `capnpc-embedded`, so no `capnp` needs to be installed. The first lines bear the SHA-256 of the schema: a test
//! compares it with the schema as it is, which needs no compiler at all.

use std::path::Path;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [schema, parent] = arguments.as_slice() else { bail!("usage: generate-schema SCHEMA PARENT_MODULE") };
    print!("{}", generate(Path::new(schema), parent).with_context(|| schema.clone())?);
    Ok(())
}

fn generate(schema: &Path, parent: &str) -> anyhow::Result<String> {
    let folder = schema.parent().context("the schema has no folder")?;
    let name = schema.file_stem().and_then(|name| name.to_str()).context("the schema has no name")?;
    let request = capnpc_embedded::CompileCommand::new().src_prefix(folder).file(schema).compile()?;
    let output = tempfile::tempdir()?;
    capnpc::codegen::CodeGenerationCommand::new()
        .output_directory(output.path())
        .default_parent_module(parent.split("::").map(str::to_owned).collect())
        .run(&request[..])?;
    let code = std::fs::read_to_string(output.path().join(format!("{name}_capnp.rs")))?;
    let digest = Sha256::digest(std::fs::read(schema)?);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("// Made by `cargo xtask capnp`; change the schema, not this file.\n// Schema: {digest}\n{code}"))
}
