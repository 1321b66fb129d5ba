//! What a running job shows: a line that is redrawn on a terminal, plain log lines otherwise.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, MultiProgress, ProgressBar, ProgressStyle};

use crate::job::Meters;

/// How often the terminal line is redrawn.
const REDRAW_EVERY: Duration = Duration::from_millis(250);
/// How often a log line is written without a terminal.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The display, until it is dropped.
pub(super) struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts showing `meters`.
    pub(super) fn start(meters: Arc<Meters>, bars: &MultiProgress) -> Self {
        let (stop, stopped) = channel();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg}").expect("a template of known placeholders");
            bars.add(ProgressBar::new_spinner().with_style(style))
        });
        let every = if bar.is_some() { REDRAW_EVERY } else { LOG_EVERY };
        let show = move || {
            let (mut before, mut at) = (0, Instant::now());
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let records = meters.records_in();
                let rate = (records - before) as f64 / at.elapsed().as_secs_f64();
                (before, at) = (records, Instant::now());
                match &bar {
                    Some(bar) => {
                        bar.set_message(line(&meters, records, rate));
                        bar.tick();
                    }
                    None => tracing::info!("{}", line(&meters, records, rate)),
                }
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        };
        // A job without a display is better than none.
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(show).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A display that failed has nothing to tell that matters now.
            let _ = thread.join();
        }
    }
}

fn line(meters: &Meters, records: u64, rate: f64) -> String {
    let lag = meters.lag_bytes().map_or(String::new(), |lag| format!(" · {} to read", HumanBytes(lag)));
    let rejected = match meters.rejected() {
        0 => String::new(),
        rejected => format!(" · {} rejected", HumanCount(rejected)),
    };
    format!(
        "{} records in · {} records/s · {} out{lag} · epoch {}{rejected}",
        HumanCount(records),
        HumanCount(rate as u64),
        HumanCount(meters.records_out()),
        meters.committed_epoch.load(Ordering::Relaxed),
    )
}
