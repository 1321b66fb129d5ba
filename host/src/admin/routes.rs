//! The answers: what each path gives.
//!
//! | path | answer |
//! |---|---|
//! | `/status` | the job's epochs and counters |
//! | `/tables` | the tables; `?count=true` with their numbers of keys |
//! | `/tables/TABLE/KEY` | a key's value; 404 where it has none |
//! | `/tables/TABLE?key-hex=…` | the same for any bytes |
//! | `/tables/TABLE?from=&to=&limit=` | a page of keys with their values; `next` is the path of the next |
//! | `/tables/TABLE/KEY/watch` | server-sent events: the value now, and at each committed epoch in which it has changed |
//! | `POST /operators/OPERATOR/reload` | the operator runs the component in the body from the next epoch on; see [`super::reload`] |
//!
//! All that read tables, but the last, take `consistency=committed|live|as-of:EPOCH`. Keys in paths are percent-encoded; `key-hex`, `from-hex` and `to-hex` stand for bytes in hexadecimal digits. What cannot be
//! answered comes as `{"error": words, "code": word}`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::access::{Access, Refusal};
use super::{Facts, render};
use crate::epoch::Epoch;
use crate::job::Meters;
use crate::lookup::{Consistency, Directory, LookupError, Moment, TableId};
use crate::metrics::OperatorMeters;

/// The keys of a page, unless the request says otherwise.
const LIMIT_DEFAULT: usize = 100;

/// What the answers are made from.
pub(super) struct Service {
    pub(super) facts: Facts,
    access: Arc<Access>,
    pub(super) stopped: watch::Receiver<bool>,
    /// Held by the reload under way.
    pub(super) reloading: tokio::sync::Mutex<()>,
}

/// All paths, behind the rule of who may ask.
pub(super) fn router(facts: Facts, access: Arc<Access>, stopped: watch::Receiver<bool>) -> Router {
    let service = Arc::new(Service { facts, access, stopped, reloading: tokio::sync::Mutex::default() });
    Router::new()
        .route("/status", get(status))
        .route("/tables", get(tables))
        .route("/tables/{table}", get(of_table))
        .route("/tables/{table}/{key}", get(value))
        .route("/tables/{table}/{key}/watch", get(super::watch::watch))
        .route("/operators/{operator}/reload", super::reload::route())
        .fallback(nothing_here)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&service), admit))
        .with_state(service)
}

/// A request that has no answer.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    code: &'static str,
    error: String,
}

impl Service {
    /// The job's tables.
    pub(super) fn directory(&self) -> Result<&Arc<Directory>, Refused> {
        let error = "the job waits for its other hosts; `/status` says for which";
        self.facts.directory.as_ref().ok_or_else(|| Refused::new(StatusCode::SERVICE_UNAVAILABLE, "waiting", error))
    }
}

impl Refused {
    pub(super) fn new(status: StatusCode, code: &'static str, error: impl Into<String>) -> Self {
        Self { status, code, error: error.into() }
    }

    pub(super) fn bad(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", error)
    }
}

impl From<LookupError> for Refused {
    fn from(error: LookupError) -> Self {
        let (status, code) = match error {
            LookupError::UnknownTable { .. } => (StatusCode::NOT_FOUND, "unknown-table"),
            LookupError::Gone { .. } => (StatusCode::GONE, "gone"),
            LookupError::NotOrdered { .. } => (StatusCode::CONFLICT, "not-ordered"),
            LookupError::Elsewhere { .. } => (StatusCode::MISDIRECTED_REQUEST, "elsewhere"),
            LookupError::Tables(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Self::new(status, code, format!("failed to {error}"))
    }
}

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad(rejection.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        answer(self.status, json!({ "error": self.error, "code": self.code }).to_string())
    }
}

pub(super) fn answer(status: StatusCode, json: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, Body::from(json + "\n")).into_response()
}

/// Lets in who may ask, and only questions and reloads.
async fn admit(State(service): State<Arc<Service>>, request: Request, next: Next) -> Response {
    match refusal(&service.access, &request) {
        Some(refused) => refused,
        None => next.run(request).await,
    }
}

/// Why a request is not let in.
fn refusal(access: &Access, request: &Request) -> Option<Response> {
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if let Err(refusal) = access.check(authorization, host(request.headers()).as_deref()) {
        return Some(refuse(refusal));
    }
    let is_reload = *request.method() == Method::POST && super::reload::is_path(request.uri().path());
    if is_reload || matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let mut refused = Refused::new(StatusCode::METHOD_NOT_ALLOWED, "read-only", super::READ_ONLY).into_response();
    refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(refused)
}

/// The host that a request names; one that is no text is none that may be named.
fn host(headers: &HeaderMap) -> Option<String> {
    headers.get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned())
}

fn refuse(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Token => {
            let why = "this job asks for a token: send `authorization: Bearer TOKEN` with the one of the manifest's `[admin]`";
            let mut response = Refused::new(StatusCode::UNAUTHORIZED, "unauthorized", why).into_response();
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Refusal::Host => {
            let why = "the request is meant for another host; ask by `localhost` or an address of this machine, or set a token";
            Refused::new(StatusCode::MISDIRECTED_REQUEST, "wrong-host", why).into_response()
        }
    }
}

async fn nothing_here() -> Refused {
    let paths = "/status, /tables, /tables/TABLE?from=&to=&limit=, /tables/TABLE/KEY, /tables/TABLE/KEY/watch, and for POST /operators/OPERATOR/reload";
    Refused::new(StatusCode::NOT_FOUND, "unknown-path", format!("there is nothing here; there are {paths}"))
}

/// What a request may say behind its path.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Asked {
    consistency: Option<String>,
    key_hex: Option<String>,
    from: Option<String>,
    from_hex: Option<String>,
    to: Option<String>,
    to_hex: Option<String>,
    limit: Option<usize>,
    count: Option<bool>,
}

impl Asked {
    fn consistency(&self) -> Result<Consistency, Refused> {
        self.consistency.as_deref().map_or(Ok(Consistency::Committed), str::parse).map_err(Refused::bad)
    }

    /// The key: as `key-hex` says, else as it stands in the path.
    pub(super) fn key(&self, uri: &Uri) -> Result<Vec<u8>, Refused> {
        match &self.key_hex {
            Some(digits) => bytes_of("key-hex", digits),
            None => Ok(segment(uri, 2).unwrap_or_default()),
        }
    }

    /// Whether a consistency is asked for.
    pub(super) fn names_a_moment(&self) -> bool {
        self.consistency.is_some()
    }

    /// Whether anything says that a range is meant.
    fn has_range(&self) -> bool {
        self.from.is_some()
            || self.from_hex.is_some()
            || self.to.is_some()
            || self.to_hex.is_some()
            || self.limit.is_some()
    }
}

fn bytes_of(name: &str, digits: &str) -> Result<Vec<u8>, Refused> {
    render::from_hex(digits)
        .ok_or_else(|| Refused::bad(format!("`{name}` must be an even number of hexadecimal digits")))
}

/// A bound of a range, as text or in hexadecimal digits.
fn bound(name: &str, text: Option<&String>, digits: Option<&String>) -> Result<Option<Vec<u8>>, Refused> {
    match (text, digits) {
        (Some(_), Some(_)) => Err(Refused::bad(format!("`{name}` and `{name}-hex` exclude each other"))),
        (Some(text), None) => Ok(Some(text.as_bytes().to_vec())),
        (None, digits) => digits.map(|digits| bytes_of(&format!("{name}-hex"), digits)).transpose(),
    }
}

/// A part of the path, decoded. Keys are bytes, so they are not taken through text.
fn segment(uri: &Uri, index: usize) -> Option<Vec<u8>> {
    let segment = uri.path().split('/').nth(index + 1)?;
    Some(percent_encoding::percent_decode_str(segment).collect())
}

/// The table that the path names.
pub(super) fn table(service: &Service, uri: &Uri) -> Result<(TableId, String), Refused> {
    let name = segment(uri, 1).unwrap_or_default();
    let directory = service.directory()?;
    let id = directory.resolve(&String::from_utf8_lossy(&name))?;
    Ok((id, directory.name(id)))
}

/// The epoch of a moment, as JSON.
fn epoch(moment: &Moment) -> String {
    moment.epoch().map_or_else(|| "null".to_owned(), |epoch| epoch.to_string())
}

async fn status(State(service): State<Arc<Service>>) -> Response {
    let Facts { job, started, directory, meters, .. } = &service.facts;
    let mut told = json!({
        "job": job,
        "pid": std::process::id(),
        "uptime_s": started.elapsed().as_secs_f64(),
        "published_epoch": meters.committed_epoch.load(Ordering::Relaxed),
        "records_in": meters.records_in(),
        "records_out": meters.records_out(),
        "rejected": meters.rejected(),
        "log_bytes": meters.log_bytes.get(),
        "operators": operator_figures(meters),
    });
    if let Some(directory) = directory {
        let readable = directory.readable();
        told["epoch"] = json!(readable.end());
        told["readable"] = json!({ "oldest": readable.start(), "newest": readable.end() });
    }
    if let Some(cluster) = &*meters.cluster.lock() {
        told["cluster"] = json!(cluster);
    }
    answer(StatusCode::OK, told.to_string())
}

fn operator_figures(meters: &Meters) -> serde_json::Map<String, serde_json::Value> {
    let components = meters.components.lock();
    let figures = |(name, own): (&String, &Arc<OperatorMeters>)| {
        let component = json!(components.get(name));
        json!({ "records_in": own.records_in.get(), "records_out": own.records_out.get(), "rejected": own.refused.get(), "component": component })
    };
    meters.operators.lock().iter().map(|own| (own.0.clone(), figures(own))).collect()
}

type QueryOf<T> = Result<Query<T>, QueryRejection>;

async fn tables(State(service): State<Arc<Service>>, asked: QueryOf<Asked>) -> Result<Response, Refused> {
    let Query(asked) = asked?;
    let (consistency, is_counted) = (asked.consistency()?, asked.count.unwrap_or(false));
    aside(move || {
        let directory = service.directory()?;
        let moment = directory.moment(consistency)?;
        let mut listed = Vec::new();
        for table in directory.tables() {
            let mut told =
                json!({ "name": table.name, "ordered": table.ordered, "schema_version": table.schema_version });
            if let Some(span_ms) = table.versioned_span_ms {
                told["versioned_ms"] = span_ms.into();
            }
            if is_counted {
                told["keys"] = directory.count_at(table.id, &moment)?.into();
            }
            listed.push(told);
        }
        Ok(answer(StatusCode::OK, json!({ "epoch": moment.epoch(), "tables": listed }).to_string()))
    })
    .await
}

async fn of_table(State(service): State<Arc<Service>>, uri: Uri, asked: QueryOf<Asked>) -> Result<Response, Refused> {
    let Query(asked) = asked?;
    match (&asked.key_hex, asked.has_range()) {
        (Some(_), true) => Err(Refused::bad("`key-hex` names one key; `from`, `to` and `limit` name a range")),
        (Some(_), false) => get_value(&service, &uri, &asked),
        (None, _) => range(service, uri, asked).await,
    }
}

async fn value(State(service): State<Arc<Service>>, uri: Uri, asked: QueryOf<Asked>) -> Result<Response, Refused> {
    get_value(&service, &uri, &asked?.0)
}

/// A key is nearly always in memory, and else one read of a page away: not worth another thread.
fn get_value(service: &Service, uri: &Uri, asked: &Asked) -> Result<Response, Refused> {
    let (table, name) = table(service, uri)?;
    let key = asked.key(uri)?;
    let directory = service.directory()?;
    let moment = directory.moment(asked.consistency()?)?;
    let value = directory.get_at(table, &key, &moment)?;
    let told = |rest: String| {
        let (table, epoch, key) = (json!(name), epoch(&moment), render::text_or_hex(&key));
        format!("{{\"table\":{table},\"epoch\":{epoch},\"key\":{key},{rest}}}")
    };
    Ok(match value {
        Some(value) => answer(StatusCode::OK, told(format!("\"value\":{}", render::as_value(&value)))),
        None => answer(StatusCode::NOT_FOUND, told("\"absent\":true".to_owned())),
    })
}

async fn range(service: Arc<Service>, uri: Uri, asked: Asked) -> Result<Response, Refused> {
    let (table, name) = table(&service, &uri)?;
    let from = bound("from", asked.from.as_ref(), asked.from_hex.as_ref())?.unwrap_or_default();
    let to = bound("to", asked.to.as_ref(), asked.to_hex.as_ref())?;
    let (limit, consistency) = (asked.limit.unwrap_or(LIMIT_DEFAULT), asked.consistency()?);
    aside(move || {
        let directory = service.directory()?;
        let moment = directory.moment(consistency)?;
        let page = directory.scan_at(table, &from, to.as_deref(), limit, &moment)?;
        let entries = page.keys.iter().zip(page.values.iter()).map(|(key, value)| render::entry(key, value));
        let entries = entries.collect::<Vec<_>>().join(",");
        let next = page.next.map(|next| next_path(&name, &next, to.as_deref(), limit, moment.epoch()));
        let (table, epoch, next) = (json!(name), epoch(&moment), json!(next));
        let told = format!("{{\"table\":{table},\"epoch\":{epoch},\"entries\":[{entries}],\"next\":{next}}}");
        Ok(answer(StatusCode::OK, told))
    })
    .await
}

/// The path of the page behind one, as of the same epoch.
fn next_path(table: &str, from: &[u8], to: Option<&[u8]>, limit: usize, epoch: Option<Epoch>) -> String {
    let consistency = epoch.map_or(Consistency::Live, Consistency::AsOf);
    let to = to.map(|to| format!("&to-hex={}", render::to_hex(to))).unwrap_or_default();
    format!("/tables/{table}?from-hex={}{to}&limit={limit}&consistency={consistency}", render::to_hex(from))
}

/// Runs what may take a while beside the thread that answers.
async fn aside(work: impl FnOnce() -> Result<Response, Refused> + Send + 'static) -> Result<Response, Refused> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "the answer was not finished")),
    }
}
