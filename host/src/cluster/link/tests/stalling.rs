//! Peers that stop in the middle of something: nobody waits for them for ever, and nobody else waits for them at all.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use tokio::io::AsyncWriteExt as _;

use super::hostile::{Victim, hello, run, shake_hands};
use super::strangers::Authority;
use super::*;
use crate::cluster::link::backoff::LONGEST;
use crate::cluster::link::handshake::{self, Frame, Ready};

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    run(handshake::write(&mut bytes, frame)).unwrap();
    bytes
}

/// Connections on which so much is said and no more, each of which the other side must end.
fn check_ended(address: &str, said: &[&[u8]]) {
    let stalled: Vec<TcpStream> = said
        .iter()
        .map(|said| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(said).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        })
        .collect();
    for (mut stream, said) in stalled.into_iter().zip(said) {
        let ended = stream.read_to_end(&mut Vec::new());
        let is_late = ended.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!is_late, "after {} bytes", said.len());
    }
}

#[test]
fn strangers_that_stall_are_sent_away_wherever_they_stand() {
    let victim = Victim::new(PATIENCE);
    let (hello, ready) = (bytes_of(&hello("b", "a")), bytes_of(&Frame::Ready(Ready::default())));
    let half_ready = [&hello[..], &ready[..ready.len() / 2]].concat();
    check_ended(&victim.address, &[b"", &hello[..2], &hello[..11], &hello[..hello.len() / 2], &hello, &half_ready]);
    victim.check_well();
}

#[test]
fn strangers_that_stall_in_tls_are_sent_away() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Authority::new(folder.path(), "ca");
    let (mut listeners, addresses) = listeners(2);
    let host = |own: u16, name, listener| {
        let mut settings = settings(own, &addresses, PATIENCE);
        settings.security = ca.security(folder.path(), name, "ca");
        TestHost::start(settings, listener)
    };
    let first = host(0, "a", listeners.remove(0));
    // The beginning of a record of 512 bytes.
    check_ended(&addresses[0], &[b"", &[0x16, 3, 1], &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3]]);
    let _second = host(1, "b", listeners.remove(0));
    first.wait_up(1);
}

/// Why a peer is lost that says only this after the handshake, while the good one is not.
fn reason_of_loss(said: &[u8]) -> String {
    let victim = Victim::new(Duration::from_millis(400));
    run(async {
        let mut stream = shake_hands(&victim.address).await;
        stream.write_all(said).await.unwrap();
        let lost = tokio::task::spawn_blocking(move || (victim.host.wait_lost(1), victim));
        let (reason, victim) = lost.await.unwrap();
        assert!(victim.good.link().status()[0].is_up);
        reason
    })
}

#[test]
fn a_peer_that_falls_silent_is_lost_also_in_the_middle_of_a_message() {
    let silent = "nothing was heard of it for 400 ms";
    assert_eq!(reason_of_loss(b""), silent);
    // A message of one segment of 128 Ki words, of which one comes.
    assert_eq!(reason_of_loss(&[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), silent);
}

#[test]
fn a_peer_that_says_something_now_and_then_but_answers_nothing_is_lost() {
    let (mut listeners, addresses) = listeners(2);
    let host = TestHost::start(settings(0, &addresses, Duration::from_millis(200)), listeners.remove(0));
    run(async {
        let mut stream = shake_hands(&addresses[0]).await;
        let lost = tokio::task::spawn_blocking(move || host.wait_lost(1));
        stream.write_all(&[0, 0, 0, 0, 0, 0, 2, 0]).await.unwrap();
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        while stream.write_all(&[0]).await.is_ok() {
            pause.tick().await;
        }
        let reason = lost.await.unwrap();
        assert!(reason.contains("has answered nothing for a long time"), "{reason}");
    });
}

#[test]
fn connections_that_come_to_nothing_are_tried_less_and_less_often() {
    let (mut listeners, addresses) = listeners(2);
    let _host = TestHost::start(settings(1, &addresses, PATIENCE), listeners.remove(1));
    let mut start = None;
    run(async {
        let listener = tokio::net::TcpListener::from_std(listeners.remove(0)).unwrap();
        for _ in 0..8 {
            let (mut stream, _) = listener.accept().await.unwrap();
            start.get_or_insert_with(Instant::now);
            assert!(matches!(handshake::read(&mut stream).await.unwrap(), Frame::Hello(_)));
            handshake::write(&mut stream, &hello("a", "")).await.unwrap();
            assert!(matches!(handshake::read(&mut stream).await.unwrap(), Frame::Ready(_)));
            handshake::write(&mut stream, &Frame::Ready(Ready::default())).await.unwrap();
        }
    });
    // Half of 20, 40, 80, 160, 320 and 640 ms, and of the longest pause.
    assert!(start.unwrap().elapsed() >= Duration::from_millis(630) + LONGEST / 2);
}
