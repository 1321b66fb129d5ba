//! TLS between hosts: both sides show a certificate of the same CA, and the one that it names must be the host that speaks.
//!
//! Only TLS 1.3. The only file of Wasmill that names rustls.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig, client, crypto, version,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::handshake::HandshakeError;
use super::{LinkError, Security};

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// How connections are secured.
pub(super) enum Tls {
    Plain,
    Mutual { connector: TlsConnector, acceptor: TlsAcceptor },
}

/// Whose certificate the other side has shown.
pub(super) enum Shown {
    /// None is asked for.
    Nothing,
    Certificate(CertificateDer<'static>),
}

impl Shown {
    /// Whether it is that of `host`.
    pub(super) fn is_of(&self, host: &str) -> bool {
        let Self::Certificate(certificate) = self else { return true };
        let (Ok(certificate), Ok(name)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(host)) else {
            return false;
        };
        client::verify_server_name(&certificate, &name).is_ok()
    }
}

impl Tls {
    /// Reads what `security` names.
    ///
    /// # Errors
    /// When a file is not what it should be, or the certificate and its key do not fit.
    pub(super) fn of(security: &Security) -> Result<Self, LinkError> {
        let Security::Tls { ca, certificate, key } = security else { return Ok(Self::Plain) };
        let mut roots = RootCertStore::empty();
        for root in certificates(ca, "the CA's certificate")? {
            roots.add(root).map_err(|error| pem_error(ca, "the CA's certificate", &error))?;
        }
        let (roots, chain) = (Arc::new(roots), certificates(certificate, "this host's certificate")?);
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| pem_error(key, "the private key", &error))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let told = |error: &dyn std::fmt::Display| LinkError::Tls(error.to_string());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| told(&error))?
            .with_client_cert_verifier(verifier.map_err(|error| told(&error))?)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| told(&error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|error| told(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| told(&error))?;
        Ok(Self::Mutual { connector: Arc::new(client).into(), acceptor: Arc::new(server).into() })
    }

    /// Secures a connection made to `host`, whose certificate must name it.
    pub(super) async fn connect(&self, stream: TcpStream, host: &str) -> Result<Box<dyn Stream>, HandshakeError> {
        let Self::Mutual { connector, .. } = self else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            HandshakeError::Mismatch(format!(
                "no certificate can name `{host}`: with TLS, a host's name is one of the DNS"
            ))
        })?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    /// Secures a connection that somebody has made, who must show a certificate of the CA.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<(Box<dyn Stream>, Shown), HandshakeError> {
        let Self::Mutual { acceptor, .. } = self else { return Ok((Box::new(stream), Shown::Nothing)) };
        let stream = acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first().cloned());
        let shown = shown.ok_or_else(|| io::Error::other("no certificate is known of the other side"))?.into_owned();
        Ok((Box::new(stream), Shown::Certificate(shown)))
    }
}

/// Says of a failure of TLS, which comes as one of the connection, what to look at.
pub(super) fn explained(error: HandshakeError) -> HandshakeError {
    let HandshakeError::Io(broken) = &error else { return error };
    let Some(fault) = broken.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else { return error };
    let said = match fault {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is not one of the CA of this host's `[cluster.tls]`"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate does not name it",
        Error::InvalidCertificate(_) => "its certificate is not valid",
        Error::NoCertificatesPresented => "it shows no certificate",
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "this host's certificate is not one of the CA of its `[cluster.tls]`"
        }
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied,
        ) => "it does not accept this host's certificate",
        Error::InvalidMessage(_) => "it does not speak TLS: is `[cluster.tls]` missing there?",
        _ => "TLS has failed",
    };
    HandshakeError::Tls { said, error: fault.to_string() }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| pem_error(path, what, &error))?;
    if read.is_empty() {
        return Err(pem_error(path, what, &"there is no certificate in it"));
    }
    Ok(read)
}

fn pem_error(path: &Path, what: &'static str, reason: &dyn std::fmt::Display) -> LinkError {
    LinkError::Pem { path: path.to_owned(), what, reason: reason.to_string() }
}
