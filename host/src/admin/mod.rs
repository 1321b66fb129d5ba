//! What a running job answers from outside: its tables and its figures, read-only, by HTTP with JSON and by Cap'n Proto.
//!
//! [`start`] listens and answers on a thread of its own, so that no worker, however busy, silences it; [`Serving`] ends it. Everything is read through the
//! [`Directory`], which neither holds the job up nor changes it. Writes are refused: they could not be replayed after a crash, so they come in through a source.
//!
//! `http` takes connections, `access` says who may ask, `routes` answers, `watch` follows a key, `render` is how keys and values are shown; `announce` is the file that tells where the job
//! answers, and `client` asks there. The only room that names axum and hyper.

mod access;
pub mod announce;
pub mod client;
mod http;
pub mod render;
mod routes;
mod watch;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch::Sender;

pub use access::read_token;

use self::access::Access;
use self::announce::Announcement;
use crate::job::Meters;
use crate::lookup::{Directory, serve};
use crate::manifest::Admin;

/// Why nothing can be written from outside.
pub const READ_ONLY: &str = "tables are changed by the job alone: a write from outside could not be replayed after a crash; let it come in through a source";

/// The threads that read what is not at hand at once: ranges, counts.
const READERS_MAX: usize = 2;
/// How long connections may finish once the job has ended.
const END_GRACE: Duration = Duration::from_secs(1);

/// Why a job cannot be asked. Completes "failed to …".
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// An address is not to be had.
    #[error("listen on {address} as `admin.{field}` says: {error}; choose another address")]
    Listen {
        /// The address.
        address: String,
        /// The field of the manifest.
        field: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// The token cannot be read.
    #[error("read the token in `{path}`: {error}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The file that tells where the job answers.
    #[error("write `{path}`: {error}", path = path.display())]
    Announce {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A thread or its runtime could not be started.
    #[error("start the thread that answers readers: {0}")]
    Thread(std::io::Error),
}

/// What there is to tell of a job.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Its name.
    pub job: String,
    /// When it was started.
    pub started: Instant,
    /// Its tables. None while one of several hosts waits for the others.
    pub directory: Option<Arc<Directory>>,
    /// Its figures.
    pub meters: Arc<Meters>,
}

/// A job that answers. Dropped, it stops, and takes the announcement away.
#[derive(Debug)]
pub struct Serving {
    announced: PathBuf,
    announcement: Announcement,
    stop: Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Where it answers.
    pub fn announcement(&self) -> &Announcement {
        &self.announcement
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        announce::withdraw(&self.announced);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been logged.
            let _ = thread.join();
        }
    }
}

/// Begins to answer, as the manifest says, and announces where in the state directory. `token` is what [`read_token`] found.
///
/// # Errors
/// When an address is taken, or the announcement cannot be written.
pub fn start(admin: &Admin, token: Option<String>, state: &Path, facts: Facts) -> Result<Serving, AdminError> {
    let (listener, http) = listen("listen", &admin.listen)?;
    let capnp = admin.capnp.as_ref().map(|address| listen("capnp", address)).transpose()?;
    let announcement = Announcement::new(http, capnp.as_ref().map(|(_, address)| *address));
    let announced = announce::publish(state, &announcement)?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let access = Arc::new(Access::new(token, http));
    let work = move || answer(listener, capnp.map(|(listener, _)| listener), access, facts, stopped);
    let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
        crate::thread::answer_soon();
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "nobody answers readers any more; the job goes on"),
            Err(_) => tracing::error!("nobody answers readers any more, after a panic; the job goes on"),
        }
    });
    let thread = thread.map_err(AdminError::Thread)?;
    tracing::info!("answering readers at http://{http}");
    Ok(Serving { announced, announcement, stop, thread: Some(thread) })
}

fn listen(field: &'static str, address: &str) -> Result<(TcpListener, SocketAddr), AdminError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bind().map_err(|error| AdminError::Listen { address: address.to_owned(), field, error })
}

/// Waits until the job has ended.
async fn end_of(stopped: &mut tokio::sync::watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stopped.wait_for(|&stop| stop).await;
}

/// The work of the thread, until it is told to stop.
fn answer(
    http: TcpListener,
    capnp: Option<TcpListener>,
    access: Arc<Access>,
    facts: Facts,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) -> std::io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(READERS_MAX).build()?;
    let local = tokio::task::LocalSet::new();
    let directory = facts.directory.clone();
    let ended = local.block_on(&runtime, async {
        if let (Some(capnp), Some(directory)) = (capnp, directory) {
            let (listener, access) = (tokio::net::TcpListener::from_std(capnp)?, Arc::clone(&access));
            let admit = std::rc::Rc::new(move |token: &str| access.knows(token));
            tokio::task::spawn_local(serve::serve(listener, directory, admit));
        }
        let listener = tokio::net::TcpListener::from_std(http)?;
        let router = routes::router(facts, access, stopped.clone());
        http::serve(listener, router, stopped.clone(), END_GRACE).await;
        end_of(&mut stopped).await;
        Ok(())
    });
    // Readers that are in the middle of a long scan are not waited for.
    runtime.shutdown_background();
    ended
}
