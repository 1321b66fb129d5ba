//! Takes HTTP connections, a bounded number at a time, and lets them finish when the job ends.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// Connections at a time; more wait until one ends.
const CONNECTIONS_MAX: usize = 128;
/// How long a connection may take over the head of a request, waiting for the next one included.
const HEAD_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest head of a request. A key that is longer cannot be asked for by HTTP.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The pause after the system has refused a connection, as it does when files run out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stopped` holds, then for `grace` at most while open requests are answered.
pub(super) async fn serve(listener: TcpListener, router: Router, mut stopped: watch::Receiver<bool>, grace: Duration) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, permit)
        };
        tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => {
                    let connection = converse(stream, router.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be taken");
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            },
            // The results of connections that have ended are cleared away.
            Some(_) = connections.join_next() => {}
            () = super::end_of(&mut stopped) => break,
        }
    }
    let all = async { while connections.join_next().await.is_some() {} };
    // What is not answered by then is cut off.
    let _ = tokio::time::timeout(grace, all).await;
}

/// One connection, to its end.
async fn converse(stream: TcpStream, router: Router, mut stopped: watch::Receiver<bool>) {
    // Answers are small and somebody waits for them.
    let _ = stream.set_nodelay(true);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = super::end_of(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a reader's connection ended badly");
    }
}
