//! The workers: threads with a current-thread runtime each, which run tasks.

use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

use super::JobError;
use crate::task::run::Task;

/// The running workers of a job.
pub(super) struct Workers {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts the workers and waits until each task has its instance, so that a function that refuses its config is known before anything is read.
    pub(super) async fn start(
        tasks: Vec<Vec<Task>>,
        failed: &mpsc::UnboundedSender<JobError>,
    ) -> Result<Self, JobError> {
        let (stop, stopped) = watch::channel(false);
        let mut workers = Self { stop, threads: Vec::new() };
        let mut started = Vec::new();
        for (index, tasks) in tasks.into_iter().enumerate() {
            let (ready, is_ready) = oneshot::channel();
            let (failed, stopped) = (failed.clone(), stopped.clone());
            let name = format!("worker-{index}");
            let thread = std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || work(tasks, ready, stopped, &failed))
                .map_err(|error| JobError::Lost(format!("thread `{name}` ({error})")))?;
            workers.threads.push(thread);
            started.push((name, is_ready));
        }
        for (name, is_ready) in started {
            is_ready.await.map_err(|_| JobError::Lost(name))??;
        }
        Ok(workers)
    }

    /// Ends the workers where they stand: what their tasks have not sealed is void.
    pub(super) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A worker that panicked has been reported as lost by the task it ran.
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

/// The work of one thread.
fn work(
    tasks: Vec<Task>,
    ready: oneshot::Sender<Result<(), JobError>>,
    mut stopped: watch::Receiver<bool>,
    failed: &mpsc::UnboundedSender<JobError>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            // Nobody listens once another worker has failed to start.
            let _ = ready.send(Err(JobError::Lost(format!("a worker's runtime ({error})"))));
            return;
        }
    };
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut running = Vec::new();
        for mut task in tasks {
            if let Err(error) = task.start().await {
                // As above.
                let _ = ready.send(Err(error.into()));
                return;
            }
            running.push(tokio::task::spawn_local(run(task, failed.clone())));
        }
        // As above.
        let _ = ready.send(Ok(()));
        // The job drops the sender only when it has ended.
        let _ = stopped.wait_for(|&stop| stop).await;
        running.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

async fn run(task: Task, failed: mpsc::UnboundedSender<JobError>) {
    let lost = LostOnDrop { failed: failed.clone(), armed: true };
    let result = task.run().await;
    lost.disarm();
    if let Err(error) = result {
        // A coordinator that no longer listens is stopping the job already.
        let _ = failed.send(error.into());
    }
}

/// Reports a task that panics.
struct LostOnDrop {
    failed: mpsc::UnboundedSender<JobError>,
    armed: bool,
}

impl LostOnDrop {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for LostOnDrop {
    fn drop(&mut self) {
        if self.armed && std::thread::panicking() {
            let _ = self.failed.send(JobError::Lost("a task".to_owned()));
        }
    }
}
