//! Who may ask: whoever knows the token, where there is one; else whoever is on this machine and means this job.
//!
//! Without a token only loopback addresses are listened on. A web page in a browser on this machine could still reach them, under a name of its own that it has
//! pointed here; so a request must also name the host it comes to as this machine.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::AdminError;
use crate::manifest::Admin;

/// The rule.
pub(super) struct Access {
    /// Hashed, so that comparing takes the same time for tokens of all lengths.
    token: Option<[u8; 32]>,
    listens: SocketAddr,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It has no token, or a wrong one.
    Token,
    /// It is meant for another host.
    Host,
}

impl Access {
    pub(super) fn new(token: Option<String>, listens: SocketAddr) -> Self {
        Self { token: token.map(|token| hash(&token)), listens }
    }

    /// Whether `token` opens the job. The time does not tell how much of it is right.
    pub(super) fn knows(&self, token: &str) -> bool {
        self.token.is_none_or(|own| own.ct_eq(&hash(token)).into())
    }

    /// Whether a request with these headers may ask.
    pub(super) fn check(&self, authorization: Option<&str>, host: Option<&str>) -> Result<(), Refusal> {
        if self.token.is_some() {
            let token = authorization.and_then(bearer);
            return if token.is_some_and(|token| self.knows(token)) { Ok(()) } else { Err(Refusal::Token) };
        }
        // Requests without a host come from programs, never from browsers.
        if host.is_none_or(|host| self.is_meant(host)) { Ok(()) } else { Err(Refusal::Host) }
    }

    fn is_meant(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.is_loopback() || address == self.listens.ip())
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Access").field("has_token", &self.token.is_some()).finish_non_exhaustive()
    }
}

/// The token of an `authorization` header.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// The token that the manifest sets, if any; `resolve` makes its paths absolute.
///
/// # Errors
/// When the file cannot be read, or holds nothing.
pub fn read_token(
    admin: &Admin,
    resolve: impl FnOnce(&str) -> std::path::PathBuf,
) -> Result<Option<String>, AdminError> {
    match &admin.token_file {
        Some(file) => read_file(&resolve(file)).map(Some),
        None => Ok(admin.token.clone()),
    }
}

fn read_file(path: &Path) -> Result<String, AdminError> {
    let read = std::fs::read_to_string(path).and_then(|text| match text.trim() {
        "" => Err(std::io::Error::other("it is empty")),
        token => Ok(token.to_owned()),
    });
    read.map_err(|error| AdminError::Token { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(token: Option<&str>) -> Access {
        Access::new(token.map(str::to_owned), "127.0.0.1:7171".parse().unwrap())
    }

    #[test]
    fn with_a_token_only_who_knows_it_may_ask() {
        let access = access(Some("open sesame"));
        for right in ["Bearer open sesame", "bearer open sesame", "Bearer  open sesame "] {
            assert_eq!(access.check(Some(right), Some("evil.example")), Ok(()), "{right}");
        }
        for wrong in
            [None, Some(""), Some("open sesame"), Some("Basic open sesame"), Some("Bearer open sesam"), Some("Bearer ")]
        {
            assert_eq!(access.check(wrong, Some("127.0.0.1:7171")), Err(Refusal::Token), "{wrong:?}");
        }
        assert!(access.knows("open sesame") && !access.knows("open sesame!"));
        assert!(!format!("{access:?}").contains("sesame"));
    }

    #[test]
    fn without_a_token_a_request_must_be_meant_for_this_machine() {
        let access = access(None);
        for meant in [
            None,
            Some("localhost"),
            Some("LOCALHOST:7171"),
            Some("127.0.0.1:7171"),
            Some("[::1]:7171"),
            Some("127.0.0.1"),
        ] {
            assert_eq!(access.check(None, meant), Ok(()), "{meant:?}");
        }
        for other in
            ["evil.example", "evil.example:7171", "127.0.0.1.evil.example", "192.168.0.7", "localhost.evil.example", ""]
        {
            assert_eq!(access.check(Some("Bearer x"), Some(other)), Err(Refusal::Host), "{other}");
        }
        assert!(access.knows("anything"));
    }

    #[test]
    fn a_token_comes_from_the_manifest_or_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let read = |admin: &Admin| read_token(admin, |file| folder.path().join(file));
        assert_eq!(read(&Admin::default()).unwrap(), None);
        assert_eq!(read(&Admin { token: Some("s".into()), ..Admin::default() }).unwrap(), Some("s".into()));
        let admin = Admin { token_file: Some("secret".into()), ..Admin::default() };
        assert!(read(&admin).unwrap_err().to_string().contains("secret"));
        std::fs::write(folder.path().join("secret"), " \n").unwrap();
        assert!(read(&admin).unwrap_err().to_string().contains("it is empty"));
        std::fs::write(folder.path().join("secret"), "open sesame\n").unwrap();
        assert_eq!(read(&admin).unwrap(), Some("open sesame".into()));
    }
}
