//! The Rust code of `schema/peer.capnp`, made by `cargo xtask capnp` and committed, so that nobody needs the schema's compiler.

#[allow(missing_docs, reason = "made by a program")]
#[allow(clippy::all, reason = "made by a program")]
#[rustfmt::skip]
pub mod peer_capnp;

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_code_is_made_from_the_schema_as_it_is() {
        let schema = include_bytes!("../../../../schema/peer.capnp");
        let digest: String = Sha256::digest(schema).iter().map(|byte| format!("{byte:02x}")).collect();
        let code = include_str!("generated/peer_capnp.rs");
        assert!(code.contains(&format!("// Schema: {digest}\n")), "run `cargo xtask capnp`");
    }
}
