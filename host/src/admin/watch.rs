//! Following a key: server-sent events, one for each committed epoch in which its value has changed.
//!
//! A reader who keeps up is told of every change. One who does not is told of the newest: what lies between is not kept for anybody beyond `checkpoint.retained`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::sync::watch::Receiver;

use super::render;
use super::routes::{Asked, Refused, Service, table};
use crate::epoch::Epoch;
use crate::lookup::{Consistency, Directory, LookupError, TableId};

pub(super) async fn watch(
    State(service): State<Arc<Service>>,
    uri: Uri,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let Query(asked) = asked?;
    if asked.names_a_moment() {
        return Err(Refused::bad(
            "a key is watched from the last committed epoch on, whatever `consistency` says: leave it out",
        ));
    }
    let (table, _) = table(&service, &uri)?;
    let key = asked.key(&uri)?;
    let directory = Arc::clone(service.directory()?);
    let (commits, stopped) = (directory.subscribe(), service.stopped.clone());
    let watching = Watching { directory, table, key, commits, stopped, told: None, next: None, is_over: false };
    let events = stream::unfold(watching, |mut watching| async {
        let event = watching.event().await?;
        Some((Ok::<_, Infallible>(event), watching))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// A key that is being followed.
struct Watching {
    directory: Arc<Directory>,
    table: TableId,
    key: Vec<u8>,
    commits: Receiver<Epoch>,
    stopped: Receiver<bool>,
    /// The value that was told last; `None` before the first.
    told: Option<Option<Vec<u8>>>,
    /// The epoch to look at next; `None` before the first, which is the last committed one.
    next: Option<Epoch>,
    is_over: bool,
}

impl Watching {
    /// The next event; `None` when the job has ended.
    async fn event(&mut self) -> Option<Event> {
        loop {
            match self.look() {
                Ok(Some(event)) => return Some(event),
                Ok(None) if self.is_over => return None,
                Ok(None) => self.wait().await,
                Err(_) if self.is_over => return None,
                Err(error) => {
                    self.is_over = true;
                    return Some(Event::default().event("error").data(format!("failed to {error}")));
                }
            }
        }
    }

    /// Looks at the epochs that were committed since, up to the first with another value.
    fn look(&mut self) -> Result<Option<Event>, LookupError> {
        let directory = &self.directory;
        let newest = *self.commits.borrow_and_update();
        while self.next.is_none_or(|next| next <= newest) {
            let oldest = *directory.readable().start();
            let moment = match directory
                .moment(self.next.map_or(Consistency::Committed, |next| Consistency::AsOf(next.max(oldest))))
            {
                Ok(moment) => moment,
                // Dropped in this moment: there is a later one.
                Err(LookupError::Gone { .. }) => continue,
                Err(error) => return Err(error),
            };
            let value = directory.get_at(self.table, &self.key, &moment)?;
            let epoch = moment.epoch().expect("a committed moment is of an epoch");
            self.next = Some(epoch + 1);
            if self.told.as_ref() != Some(&value) {
                let event = event(epoch, &self.key, value.as_deref());
                self.told = Some(value);
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits for the next commit, or for the end of the job.
    async fn wait(&mut self) {
        let ended = tokio::select! {
            changed = self.commits.changed() => changed.is_err(),
            () = super::end_of(&mut self.stopped) => true,
        };
        // After the end, one more look: the last epoch may have come with it.
        self.is_over = ended;
    }
}

fn event(epoch: Epoch, key: &[u8], value: Option<&[u8]>) -> Event {
    let value =
        value.map_or_else(|| "\"absent\":true".to_owned(), |value| format!("\"value\":{}", render::as_value(value)));
    let told = format!("{{\"epoch\":{epoch},\"key\":{},{value}}}", render::text_or_hex(key));
    Event::default().event("value").id(epoch.to_string()).data(told)
}
