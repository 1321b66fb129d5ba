//! Answers lookups by Cap'n Proto, as `schema/query.capnp` describes them.
//!
//! [`serve`] takes connections for as long as it is polled. Each begins at an `Entrance`; who has come through it holds `Tables`. Both are bounded in what they may ask for and in what may wait
//! for them: a reader who misbehaves loses the connection, and nothing else happens. The rooms above decide who is admitted, and where to listen.

mod answers;
mod bounded;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capnp::message::ReaderOptions;
use capnp_rpc::RpcSystem;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use self::answers::Entrance;
use self::bounded::{BoundedReader, CountingWriter, Line};
use super::Directory;
use super::generated::query_capnp::entrance;

/// Connections at a time; more wait until one ends.
const CONNECTIONS_MAX: usize = 64;
/// The largest message that a reader may send.
const MESSAGE_WORDS_MAX: usize = (8 << 20) / 8;
/// How deep the structures of a message may be nested.
const NESTING_MAX: i32 = 16;
/// How long a reader may take to come through the entrance.
const ENTRANCE_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after the system has refused a connection, as it does when files run out.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// Whether a token opens the tables.
pub type Admit = Rc<dyn Fn(&str) -> bool>;

/// Answers who connects to `listener`. To be run within a [`tokio::task::LocalSet`], with timers; dropped with it, it ends.
pub async fn serve(listener: TcpListener, directory: Arc<Directory>, admit: Admit) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = converse(stream, Arc::clone(&directory), Rc::clone(&admit));
                tokio::task::spawn_local(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be taken");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

/// One connection, to its end.
async fn converse(stream: TcpStream, directory: Arc<Directory>, admit: Admit) {
    // Answers are small and somebody waits for them.
    let _ = stream.set_nodelay(true);
    let line = Rc::new(Line::default());
    let (reader, writer) = stream.into_split();
    let reader = BoundedReader::new(reader, Rc::clone(&line)).compat();
    let writer = CountingWriter::new(writer, Rc::clone(&line)).compat_write();
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(Some(MESSAGE_WORDS_MAX)).nesting_limit(NESTING_MAX);
    let network = VatNetwork::new(reader, writer, Side::Server, options);
    let entrance: entrance::Client = capnp_rpc::new_client(Entrance::new(directory, admit, Rc::clone(&line)));
    let system = RpcSystem::new(Box::new(network), Some(entrance.client));
    let late = async {
        tokio::time::sleep(ENTRANCE_TIME_MAX).await;
        if line.is_open() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        ended = system => if let Err(error) = ended {
            tracing::debug!(%error, "a reader's connection ended badly");
        },
        () = late => tracing::debug!("a reader stayed at the entrance; the connection is closed"),
    }
}
