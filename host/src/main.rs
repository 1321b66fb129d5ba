//! The `wasmill` program.

fn main() -> anyhow::Result<()> {
    wasmill::cli::run()
}
