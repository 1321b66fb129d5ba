//! The file `serving` in a state directory: where the running job answers.
//!
//! It is a JSON object: `http` and `capnp` (or null) are addresses, `pid` is the process, `note` a word for people. It is written when the job begins to answer and removed when it
//! ends. After a crash it stays lying: whoever finds it knows by the process, and by the directory's lock, whether it still holds. It has no secrets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::AdminError;

const NAME: &str = "serving";
const NOTE: &str = "The running job answers here. Written when it starts, removed when it ends.";

/// Where a job answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// For HTTP.
    pub http: SocketAddr,
    /// For Cap'n Proto, if at all.
    pub capnp: Option<SocketAddr>,
    /// The process.
    pub pid: i32,
    note: String,
}

impl Announcement {
    /// Of this process.
    pub(super) fn new(http: SocketAddr, capnp: Option<SocketAddr>) -> Self {
        Self { http, capnp, pid: rustix::process::getpid().as_raw_pid(), note: NOTE.to_owned() }
    }

    /// What the state directory announces; `None` where no job has announced itself, or the one that has is dead.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn find(state: &Path) -> std::io::Result<Option<Self>> {
        let text = match std::fs::read(state.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let found: Self = serde_json::from_slice(&text)?;
        Ok(found.is_alive().then_some(found))
    }

    fn is_alive(&self) -> bool {
        let process = rustix::process::Pid::from_raw(self.pid);
        // A process of somebody else's is one that may not be asked, but it is there.
        process
            .is_some_and(|process| !matches!(rustix::process::test_kill_process(process), Err(rustix::io::Errno::SRCH)))
    }

    /// The address for HTTP as a process on this machine reaches it.
    pub fn reachable(&self) -> SocketAddr {
        let ip = match self.http.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        SocketAddr::new(ip, self.http.port())
    }
}

/// Writes the file; returns its path.
pub(super) fn publish(state: &Path, announcement: &Announcement) -> Result<PathBuf, AdminError> {
    let path = state.join(NAME);
    let mut text = serde_json::to_vec_pretty(announcement).expect("addresses and texts are plain JSON");
    text.push(b'\n');
    // Whoever looks finds all of it or nothing.
    let unfinished = path.with_extension("new");
    let written = std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, &path));
    written.map_err(|error| AdminError::Announce { path: path.clone(), error })?;
    Ok(path)
}

/// Removes the file.
pub(super) fn withdraw(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "removing the announcement of where this job answered failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_found_until_it_is_withdrawn() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(Announcement::find(state.path()).unwrap(), None);
        let announcement = Announcement::new("0.0.0.0:7171".parse().unwrap(), Some("[::1]:7172".parse().unwrap()));
        let path = publish(state.path(), &announcement).unwrap();
        let found = Announcement::find(state.path()).unwrap().unwrap();
        assert_eq!(found, announcement);
        assert_eq!((found.reachable().to_string(), found.pid), ("127.0.0.1:7171".into(), std::process::id() as i32));
        withdraw(&path);
        assert_eq!(Announcement::find(state.path()).unwrap(), None);
        assert_eq!(state.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn the_announcement_of_a_dead_process_does_not_hold() {
        let state = tempfile::tempdir().unwrap();
        let mut process = std::process::Command::new("true").spawn().unwrap();
        let pid = process.id() as i32;
        process.wait().unwrap();
        let dead = Announcement { pid, ..Announcement::new("127.0.0.1:1".parse().unwrap(), None) };
        publish(state.path(), &dead).unwrap();
        assert_eq!(Announcement::find(state.path()).unwrap(), None);
        std::fs::write(state.path().join(NAME), "{").unwrap();
        assert!(Announcement::find(state.path()).is_err());
    }
}
