//! Where log lines go: standard error, as text or JSON, filtered by `WASMILL_LOG`: a level for Wasmill's and the functions' own lines
//! (default `info`), or a filter such as `debug,cranelift_codegen=off` for those of its libraries, too.

use std::io::IsTerminal;

use clap::ValueEnum;
use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. Lines go through `bars`, so that they stand above a progress display.
pub(super) fn start(format: LogFormat, bars: &MultiProgress) {
    let wanted = std::env::var("WASMILL_LOG").unwrap_or_default();
    let filter = match wanted.parse::<tracing::Level>() {
        Ok(level) => EnvFilter::new(format!("warn,wasmill={level}")),
        Err(_) if wanted.is_empty() => EnvFilter::new("warn,wasmill=info"),
        Err(_) => EnvFilter::new(wanted),
    };
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(AboveBars(bars.clone()));
    match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).compact().init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

#[derive(Clone)]
struct AboveBars(MultiProgress);

impl<'a> MakeWriter<'a> for AboveBars {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { bars: self.0.clone(), bytes: Vec::new() }
    }
}

/// One log line, written when it is complete.
struct Line {
    bars: MultiProgress,
    bytes: Vec<u8>,
}

impl std::io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Nobody is left to tell when standard error itself is gone.
        let _ = self.bars.suspend(|| std::io::stderr().lock().write_all(&self.bytes));
    }
}

use std::io::Write;
