//! `wasmill schema`: the manifest's JSON Schema, or its reference page.

use super::{Failure, print};

/// Prints the JSON Schema of a manifest, for editors.
#[derive(Debug, Clone, clap::Args)]
pub struct SchemaArgs {
    /// Print the reference page in Markdown instead.
    #[arg(long)]
    pub reference: bool,
}

/// Prints to the standard output.
///
/// # Errors
/// When it cannot be written to.
pub(super) fn run(args: &SchemaArgs) -> Result<(), Failure> {
    print(&match args.reference {
        true => crate::manifest::reference(),
        false => format!("{:#}\n", crate::manifest::schema()),
    })
}
