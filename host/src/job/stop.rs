//! A clean stop: somebody asks for it once, and from then on what is under way has a limited time to end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::task::flow::Flow;

/// A stop that may be asked for.
pub(super) struct Stop {
    /// Gone once it has been answered.
    request: Option<oneshot::Receiver<()>>,
    within: Duration,
    deadline: Option<Instant>,
    flow: Arc<Flow>,
}

impl Stop {
    /// A stop that `request` asks for, and that is to be over `within` that time. Tasks learn of it by `flow`.
    pub(super) fn new(request: oneshot::Receiver<()>, within: Duration, flow: Arc<Flow>) -> Self {
        Self { request: Some(request), within, deadline: None, flow }
    }

    /// Waits until the stop is asked for; not at all when it has been, and for ever when nobody can ask any more.
    pub(super) async fn asked(&mut self) {
        self.deadline().await;
    }

    /// Waits until the stop has been asked for and its time is over.
    pub(super) async fn overdue(&mut self) {
        let deadline = self.deadline().await;
        sleep_until(deadline).await;
    }

    async fn deadline(&mut self) -> Instant {
        if let Some(deadline) = self.deadline {
            return deadline;
        }
        let Some(request) = &mut self.request else { return pending().await };
        let asked = request.await.is_ok();
        self.request = None;
        if !asked {
            return pending().await;
        }
        self.flow.hasten();
        *self.deadline.insert(Instant::now() + self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_millis(20);
    const MOMENT: Duration = Duration::from_millis(1);

    fn stop() -> (oneshot::Sender<()>, Stop, Arc<Flow>) {
        let (sender, receiver) = oneshot::channel();
        let flow = Arc::<Flow>::default();
        (sender, Stop::new(receiver, WITHIN, Arc::clone(&flow)), flow)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn a_stop_is_overdue_its_time_after_it_was_asked_for_however_often_one_waits() {
        let (sender, mut stop, flow) = stop();
        run(async {
            assert!(tokio::time::timeout(MOMENT, stop.overdue()).await.is_err());
            assert!(!flow.is_hastened());
            let asked = Instant::now();
            sender.send(()).unwrap();
            stop.asked().await;
            assert!(flow.is_hastened());
            while tokio::time::timeout(MOMENT, stop.overdue()).await.is_err() {
                stop.asked().await;
            }
            assert!(asked.elapsed() >= WITHIN);
            stop.overdue().await;
        });
    }

    #[test]
    fn where_nobody_can_ask_any_more_there_is_no_stop() {
        let (sender, mut stop, flow) = stop();
        drop(sender);
        run(async {
            for _ in 0..2 {
                assert!(tokio::time::timeout(MOMENT, stop.asked()).await.is_err());
            }
        });
        assert!(!flow.is_hastened());
    }
}
