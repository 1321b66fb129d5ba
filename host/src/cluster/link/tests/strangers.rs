//! Who is let in: hosts that run the same, with certificates where those are asked for.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use tokio::io::AsyncWriteExt as _;

use super::hostile::run;
use super::*;
use crate::cluster::link::handshake;

const LONG: Duration = Duration::from_secs(30);

/// Two hosts, the second of which is started with other settings.
fn pair(change: impl Fn(&mut LinkSettings)) -> (TestHost, TestHost) {
    let (mut listeners, addresses) = listeners(2);
    let first = TestHost::start(settings(0, &addresses, LONG), listeners.remove(0));
    let mut other = settings(1, &addresses, LONG);
    change(&mut other);
    let second = TestHost::start(other, listeners.remove(0));
    (first, second)
}

fn check_refused(said: &str, change: impl Fn(&mut LinkSettings)) {
    let (first, second) = pair(change);
    for host in [&first, &second] {
        let reason = host.wait_refused();
        assert!(reason.contains(said), "`{said}` is not in: {reason}");
    }
}

#[test]
fn hosts_that_do_not_run_the_same_are_told_what_differs_on_both_sides() {
    check_refused("the jobs differ: `b` has `hits`, `a` has `likes`", |other| other.identity.job = "hits".to_owned());
    check_refused("the versions of wasmill differ", |other| other.identity.wasmill = "2.0.0".to_owned());
    check_refused("the manifests differ", |other| other.identity.manifest[31] = 0);
    check_refused("the components of operator `join` differ", |other| other.identity.components[1].1[0] = 0);
}

#[test]
fn hosts_that_are_not_where_they_should_be_are_told_so() {
    check_refused("`z` is none of the hosts behind `a`", |other| other.hosts[1].name = "z".to_owned());
    check_refused("takes it for `y`", |other| other.hosts[0].name = "y".to_owned());
}

#[test]
fn a_second_process_with_the_name_of_one_that_lives_is_refused() {
    let (mut listeners, addresses) = listeners(2);
    let first = TestHost::start(settings(0, &addresses, LONG), listeners.remove(0));
    let second = TestHost::start(settings(1, &addresses, LONG), listeners.remove(0));
    first.wait_up(1);
    second.wait_up(0);
    let mut double = settings(1, &addresses, LONG);
    double.seed = 77;
    let double = TestHost::start(double, Running::bind("127.0.0.1:0").unwrap());
    assert!(double.wait_refused().contains("another process that is `b` is connected"));
    assert!(first.wait_refused().contains("another process that is `b` is connected"));
    assert!(first.link().status()[0].is_up && first.link().status()[0].connections == 1);
}

/// A CA that writes certificates into a folder.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), issuer.pem()).unwrap();
        Self(issuer)
    }

    /// What a host needs whose certificate names `host`, and which trusts `ca`.
    pub(super) fn security(&self, folder: &Path, host: &str, ca: &str) -> Security {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let files = [".pem", ".key"].map(|ending| folder.join(format!("{ca}-{host}{ending}")));
        std::fs::write(&files[0], certificate.pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        let [certificate, key] = files;
        Security::Tls { ca: folder.join(format!("{ca}.pem")), certificate, key }
    }
}

/// Two hosts with these securities.
fn secured(first: Security, second: Security) -> (TestHost, TestHost) {
    let (mut listeners, addresses) = listeners(2);
    let mut host = |own, security| {
        let mut settings = settings(own, &addresses, LONG);
        settings.security = security;
        TestHost::start(settings, listeners.remove(0))
    };
    (host(0, first), host(1, second))
}

#[test]
fn hosts_with_certificates_of_one_ca_talk_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new(folder.path(), "ca");
    let security = |host| ca.security(folder.path(), host, "ca");
    let (first, second) = secured(security("a"), security("b"));
    first.wait_up(1);
    second.wait_up(0);
    [&first, &second].iter().for_each(|host| host.begin(1));
    let mut large = Batch::default();
    large.push(b"", &vec![7; 3 << 20], 0);
    second.send_load(0, 1, 0, 5, Load::Records(large.clone()));
    assert_eq!(first.wait_delivery().1.load, Load::Records(large));
    assert_eq!(second.wait_acknowledged(), 5);
}

#[test]
fn certificates_of_another_ca_or_another_host_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, other) = (Authority::new(folder.path(), "ca"), Authority::new(folder.path(), "other"));
    // Trusts the CA, but is not known to it.
    let mut foreign = other.security(folder.path(), "b", "other");
    let Security::Tls { ca: trusted, .. } = &mut foreign else { panic!() };
    *trusted = folder.path().join("ca.pem");
    let check = |first: Security, second: Security, refused: [&str; 2]| {
        let (first, second) = secured(first, second);
        for (host, said) in [&first, &second].into_iter().zip(refused) {
            let reason = host.wait_refused();
            assert!(reason.contains(said), "`{said}` is not in: {reason}");
        }
    };
    let security = |host| ca.security(folder.path(), host, "ca");
    let of_ca = ["its certificate is not one of the CA", "this host's certificate is not one of the CA"];
    check(security("a"), foreign, of_ca);
    check(security("a"), security("c"), ["`b` shows a certificate that does not name it"; 2]);
    check(
        security("d"),
        security("b"),
        ["does not accept this host's certificate", "its certificate does not name it"],
    );
}

#[test]
fn a_host_without_tls_and_one_with_it_are_told_so_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new(folder.path(), "ca");
    let security = |host| ca.security(folder.path(), host, "ca");
    let (here, there) = ("it does not speak TLS: is `[cluster.tls]` missing there?", "one side speaks TLS");
    let (first, second) = secured(security("a"), Security::Plain);
    assert!(first.wait_refused().contains(here) && second.wait_refused().contains(there));
    let (first, second) = secured(Security::Plain, security("b"));
    assert!(first.wait_refused().contains(there) && second.wait_refused().contains(here));
}

#[test]
fn who_cannot_be_introduced_is_told_at_the_start() {
    let (mut listeners, addresses) = listeners(1);
    let mut settings = settings(0, &addresses, LONG);
    settings.identity.job = "line\nbreak".to_owned();
    let (sender, _heard) = channel();
    let ears = Arc::new(Ears { heard: Mutex::new(sender), values: Mutex::default() });
    let error = Running::start(settings, listeners.remove(0), ears).err().unwrap().to_string();
    assert!(error.starts_with("introduce this host to the others"), "{error}");
}

#[test]
fn another_version_of_the_protocol_is_answered_so_that_both_know() {
    let (mut listeners, addresses) = listeners(2);
    let first = TestHost::start(settings(0, &addresses, LONG), listeners.remove(0));
    let said = run(async {
        let mut stream = tokio::net::TcpStream::connect(&addresses[0]).await.unwrap();
        stream.write_all(b"WMIL\x09\x00\x01\x00\x00\x00\x00").await.unwrap();
        handshake::read(&mut stream).await.unwrap()
    });
    let known = "speaks version 9 of the protocol between hosts, this host version 2";
    assert!(matches!(said, handshake::Frame::Refused(reason) if reason.contains(known)));
    assert!(first.wait_refused().contains(known));
}

#[test]
fn files_that_are_not_what_they_should_be_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new(folder.path(), "ca");
    let check = |change: &dyn Fn(&mut Security), said: &str| {
        let mut security = ca.security(folder.path(), "a", "ca");
        change(&mut security);
        let (mut listeners, addresses) = listeners(1);
        let mut settings = settings(0, &addresses, LONG);
        settings.security = security;
        let (sender, _heard) = channel();
        let ears = Arc::new(Ears { heard: Mutex::new(sender), values: Mutex::default() });
        let error = Running::start(settings, listeners.remove(0), ears).err().unwrap().to_string();
        assert!(error.contains(said), "`{said}` is not in: {error}");
    };
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "nothing").unwrap();
    fn files(security: &mut Security) -> [&mut PathBuf; 3] {
        let Security::Tls { ca, certificate, key } = security else { panic!() };
        [ca, certificate, key]
    }
    check(&|security| files(security)[0].clone_from(&empty), "empty.pem as the CA's certificate");
    check(&|security| files(security)[1].clone_from(&empty), "empty.pem as this host's certificate");
    check(&|security| files(security)[2].clone_from(&empty), "empty.pem as the private key");
    check(&|security| *files(security)[2] = folder.path().join("none.pem"), "none.pem as the private key");
}
