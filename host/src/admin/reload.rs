//! Takes a new version of an operator's function: `POST /operators/OPERATOR/reload` with the component as its body; with `?trial=5`, and `&slower-than=2` or without, for a trial.
//!
//! Who may read the job may do this, too: whoever knows its token, or, where it has none, is on this machine. A web page in a browser on this machine is kept out by the content
//! type `application/wasm`, for which a browser asks the job first, and gets no; and by the `origin` that browsers send.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodRouter, post};
use serde::Deserialize;

use super::routes::{Refused, Service, answer};
use crate::job::{ReloadError, Trial};

/// The largest component.
const COMPONENT_BYTES_MAX: usize = 256 << 20;
/// How long its transfer may take. Others wait meanwhile: there is one body in memory at a time.
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(120);
/// What the body is.
pub(super) const CONTENT_TYPE: &str = "application/wasm";

pub(super) fn route() -> MethodRouter<Arc<Service>> {
    post(reload)
}

/// Whether a request with this path may be something else than a question.
pub(super) fn is_path(path: &str) -> bool {
    path.starts_with("/operators/") && path.ends_with("/reload")
}

/// A trial, if asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Asked {
    trial: Option<u32>,
    slower_than: Option<f64>,
}

async fn reload(
    State(service): State<Arc<Service>>,
    Path(operator): Path<String>,
    trial: Result<Query<Asked>, QueryRejection>,
    request: Request,
) -> Result<Response, Refused> {
    let Query(Asked { trial, slower_than }) = trial?;
    let trial = match (trial, slower_than) {
        (Some(trial), slower_than) => Some(Trial { trial, slower_than }),
        (None, None) => None,
        (None, Some(_)) => return Err(Refused::bad("`slower-than` is for a trial: `trial` says of how many epochs")),
    };
    let headers = request.headers();
    let is_wasm = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == CONTENT_TYPE);
    if !is_wasm || headers.contains_key(header::ORIGIN) {
        let why =
            format!("the body must be a component, with `content-type: {CONTENT_TYPE}`, and not come from a web page");
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "bad-request", why));
    }
    let _turn = service.reloading.lock().await;
    let transfer = tokio::time::timeout(TRANSFER_TIME_MAX, to_bytes(request.into_body(), COMPONENT_BYTES_MAX)).await;
    let component = match transfer {
        Ok(Ok(component)) => component,
        Ok(Err(error)) => return Err(Refused::bad(format!("the component did not arrive: {error}"))),
        Err(_) => return Err(Refused::bad("the component did not arrive in time")),
    };
    let reloaded = service.facts.reloads.reload(operator.clone(), component.into(), trial).await;
    let reloaded = reloaded.map_err(|error| refused(&operator, &error))?;
    Ok(answer(StatusCode::OK, serde_json::json!(reloaded).to_string()))
}

fn refused(operator: &str, error: &ReloadError) -> Refused {
    let (status, code) = match error {
        ReloadError::UnknownOperator { .. } => (StatusCode::NOT_FOUND, "unknown-operator"),
        error if error.is_refusal() => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
        ReloadError::AttemptOver | ReloadError::Ended => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
    };
    Refused::new(status, code, format!("failed to reload `{operator}`: {error}"))
}
