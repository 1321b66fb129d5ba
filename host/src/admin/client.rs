//! Asks a running job, for the command line.

use std::time::Duration;

use axum::http::request::Builder;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::announce::Announcement;
use crate::job::Trial;

/// How long an answer may take, unless it is one that goes on.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a reload may take: a large component has to be compiled.
const RELOAD_TIME_MAX: Duration = Duration::from_secs(600);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or no longer: the job may just have ended.
    #[error("the job does not answer at {address}: {error}")]
    Silent {
        /// Where it was asked.
        address: String,
        /// What happened.
        error: String,
    },
    /// The job refuses.
    #[error("{error}")]
    Refused {
        /// The word that programs go by.
        code: String,
        /// Why, for people.
        error: String,
    },
}

/// A line to a running job.
#[derive(Debug)]
pub struct Client {
    address: String,
    token: Option<String>,
    runtime: tokio::runtime::Runtime,
}

/// An answer: its status and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether what was asked for is there; if not, it is absent.
    pub is_there: bool,
    /// JSON.
    pub text: String,
}

#[derive(Deserialize)]
struct Told {
    error: String,
    code: String,
}

impl Client {
    /// Of the job that has announced itself.
    ///
    /// # Errors
    /// When the system has no more threads or files.
    pub fn new(announcement: &Announcement, token: Option<String>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { address: announcement.reachable().to_string(), token, runtime })
    }

    /// The answer at a path.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn get(&self, path: &str) -> Result<Answer, ClientError> {
        self.answer(Request::get(path), Bytes::new(), ANSWER_TIME_MAX)
    }

    /// Has an operator run another component.
    /// A trial takes so many times the `interval` between epochs longer.
    ///
    /// # Errors
    /// [`ClientError`]; where the job refuses it, nothing has changed.
    pub fn reload(
        &self,
        operator: &str,
        component: Vec<u8>,
        trial: Option<Trial>,
        interval: Duration,
    ) -> Result<Answer, ClientError> {
        let mut path = format!("/operators/{operator}/reload");
        let mut time_max = RELOAD_TIME_MAX;
        if let Some(Trial { trial, slower_than }) = trial {
            path += &format!("?trial={trial}");
            path += &slower_than.map_or_else(String::new, |factor| format!("&slower-than={factor}"));
            time_max += interval.saturating_mul(trial);
        }
        let request = Request::post(path);
        let request = request.header(header::CONTENT_TYPE, super::reload::CONTENT_TYPE);
        self.answer(request, component.into(), time_max)
    }

    fn answer(&self, request: Builder, body: Bytes, time_max: Duration) -> Result<Answer, ClientError> {
        let asked = async {
            let (status, body) = self.ask(request, body).await?;
            let body = body.collect().await.map_err(|error| self.silent(error))?.to_bytes();
            self.read(status, &body)
        };
        let timed = self.runtime.block_on(async { tokio::time::timeout(time_max, asked).await });
        timed.unwrap_or_else(|_| Err(self.silent("it takes too long")))
    }

    /// Hands out the data of the events at a path until there are no more, or `each` returns false.
    ///
    /// # Errors
    /// [`ClientError`]; an event named `error` is one.
    pub fn follow(&self, path: &str, mut each: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        self.runtime.block_on(async {
            let (status, mut body) = self.ask(Request::get(path), Bytes::new()).await?;
            if status != StatusCode::OK {
                let body = body.collect().await.map_err(|error| self.silent(error))?.to_bytes();
                return self.read(status, &body).map(|_| ());
            }
            let mut events = Events::default();
            // A job that ends cuts the line: so ends the answer.
            while let Some(Ok(frame)) = body.frame().await {
                let Ok(bytes) = frame.into_data() else { continue };
                for event in events.take(&bytes) {
                    if event.name == "error" {
                        return Err(ClientError::Refused { code: "failed".to_owned(), error: event.data });
                    }
                    if !each(&event.data) {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    async fn ask(&self, request: Builder, body: Bytes) -> Result<(StatusCode, Incoming), ClientError> {
        let mut request = request.header(header::HOST, &self.address);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| self.silent(error))?;
        let stream = TcpStream::connect(&self.address).await.map_err(|error| self.silent(error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.silent(error))?;
        // Its end is seen by whoever reads the answer.
        tokio::spawn(async move { _ = connection.await });
        let (head, body) = sender.send_request(request).await.map_err(|error| self.silent(error))?.into_parts();
        Ok((head.status, body))
    }

    fn read(&self, status: StatusCode, body: &[u8]) -> Result<Answer, ClientError> {
        let text = String::from_utf8_lossy(body).trim_end().to_owned();
        if status == StatusCode::OK {
            return Ok(Answer { is_there: true, text });
        }
        match serde_json::from_str(&text) {
            Ok(Told { error, code }) => Err(ClientError::Refused { code, error }),
            Err(_) if status == StatusCode::NOT_FOUND => Ok(Answer { is_there: false, text }),
            Err(_) => Err(self.silent(format!("it says {status}: {text}"))),
        }
    }

    fn silent(&self, error: impl ToString) -> ClientError {
        ClientError::Silent { address: self.address.clone(), error: error.to_string() }
    }
}

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    name: String,
    data: String,
}

/// Puts events together from the pieces in which they come.
#[derive(Debug, Default)]
struct Events {
    rest: Vec<u8>,
    under_way: Event,
}

impl Events {
    fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', &self.rest) {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            match line.split_once(':').map(|(field, value)| (field, value.strip_prefix(' ').unwrap_or(value))) {
                Some(("event", name)) => self.under_way.name = name.to_owned(),
                Some(("data", data)) => self.under_way.data.push_str(data),
                None if line.is_empty() => {
                    let event = std::mem::take(&mut self.under_way);
                    events.extend((event != Event::default()).then_some(event));
                }
                _ => {}
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_pieces() {
        let text = ":\n\nevent: value\nid: 7\ndata: {\"a\":1}\n\n:\n\ndata: x\r\n\r\nevent: error\ndata: no\n\n";
        let event = |name: &str, data: &str| Event { name: name.to_owned(), data: data.to_owned() };
        let expected = [event("value", "{\"a\":1}"), event("", "x"), event("error", "no")];
        for size in [1, 2, 7, text.len()] {
            let mut events = Events::default();
            let found: Vec<Event> = text.as_bytes().chunks(size).flat_map(|piece| events.take(piece)).collect();
            assert_eq!(found, expected, "{size}");
        }
    }
}
