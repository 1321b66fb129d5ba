//! What two hosts say to each other before anything else: who they are and what they run. Nothing else is read of a peer until all of it matches.
//!
//! # Frames
//!
//! A frame is `"WMIL"`, the protocol's version (16 bits), its kind (8 bits), the length of what follows (32 bits, at most [`FRAME_BYTES_MAX`]), then that. All numbers are little-endian; a text is
//! its length (16 bits) and its bytes in UTF-8. The beginning of a frame is the same in every version of the protocol, so that a difference of versions can be told.
//!
//! - kind 1, `hello`: the version of Wasmill, the job's name, the host's name, the name of whom it takes the other for (texts); the manifest's digest (32 bytes); the number of components (16 bits), of each its
//!   operator (text) and digest (32 bytes); two random numbers of 64 bits, one of the process and one of the connection.
//! - kind 2, `ready`: the session that is to go on (128 bits, 0 for none) and the number of the last message received in it (64 bits).
//! - kind 3, `refused`: why (text).
//!
//! The host that connects says `hello`, the other answers with its own; each checks the other's. Then both say `ready`, the one that connects first. Who does not accept the other says `refused` and why
//! instead, and closes. When both name the same session it goes on; else a new one begins, with the random numbers of both as its number.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAGIC: [u8; 4] = *b"WMIL";
/// The version of the protocol: of these frames and of `schema/peer.capnp`.
const PROTOCOL: u16 = 2;
/// How what is said in TLS begins: an alert, or a handshake.
const TLS_RECORDS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];
/// The most bytes behind the beginning of a frame.
const FRAME_BYTES_MAX: usize = 256 << 10;
const HEAD_BYTES: usize = 11;
/// The most bytes of a name or version.
const NAME_BYTES_MAX: usize = 1024;
/// The most bytes of a reason; a longer one is cut.
const REASON_BYTES_MAX: usize = 4096;

/// What all hosts of a job must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The version of Wasmill.
    pub wasmill: String,
    /// The job's name.
    pub job: String,
    /// SHA-256 of the manifest, without what differs between hosts.
    pub manifest: [u8; 32],
    /// Every operator with the SHA-256 of its component, in the manifest's order.
    pub components: Vec<(String, [u8; 32])>,
}

/// The frame `hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) identity: Identity,
    pub(super) host: String,
    /// Whom it takes the other for; empty where it does not know yet.
    pub(super) to: String,
    /// A random number of the process.
    pub(super) process: u64,
    /// A random number of the connection.
    pub(super) nonce: u64,
}

/// The frame `ready`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ready {
    /// 0 for none.
    pub(super) session: u128,
    pub(super) received: u64,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Box<Hello>),
    Ready(Ready),
    Refused(String),
}

/// Why a handshake has not succeeded. Completes "failed to connect: …".
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    #[error("the other side does not speak as a host of wasmill does")]
    Garbled,
    #[error("one side speaks TLS and the other does not: `[cluster.tls]` must be the same on all hosts")]
    SpeaksTls,
    #[error("{said} ({error})")]
    Tls { said: &'static str, error: String },
    #[error(
        "the other side speaks version {theirs} of the protocol between hosts, this host version {PROTOCOL}: install the same version of wasmill on all hosts"
    )]
    Protocol { theirs: u16 },
    /// The other side's word.
    #[error("host `{host}` refuses: {reason}")]
    RefusedBy { host: String, reason: String },
    /// Our word.
    #[error("{0}")]
    Mismatch(String),
}

impl Hello {
    pub(super) fn new(identity: &Identity, host: &str, to: &str, process: u64, nonce: u64) -> Self {
        Self { identity: identity.clone(), host: host.to_owned(), to: to.to_owned(), process, nonce }
    }

    /// Whether the others will read it as it is.
    pub(super) fn can_travel(&self) -> bool {
        let frame = encode(&Frame::Hello(Box::new(self.clone())));
        let body = &frame[HEAD_BYTES..];
        body.len() <= FRAME_BYTES_MAX && parse_body(1, body) == Some(Frame::Hello(Box::new(self.clone())))
    }

    /// What of `other`'s does not match, in words that the same reason can be told to both sides with.
    pub(super) fn mismatch(&self, other: &Hello) -> Option<String> {
        let (own, theirs) = (&self.identity, &other.identity);
        let (us, them) = (&self.host, &other.host);
        let differ = |what: &str, own: &str, theirs: &str, remedy: &str| {
            Some(format!("{what} differ: `{them}` has {theirs}, `{us}` has {own}; {remedy}"))
        };
        if own.job != theirs.job {
            return differ("the jobs", &quoted(&own.job), &quoted(&theirs.job), "check the addresses in `[cluster]`");
        }
        if own.wasmill != theirs.wasmill {
            let remedy = "install the same version of wasmill on all hosts";
            return differ("the versions of wasmill", &own.wasmill, &theirs.wasmill, remedy);
        }
        if !other.to.is_empty() && other.to != *us {
            return Some(format!(
                "`{them}` has connected to `{us}` and takes it for `{}`: check the addresses in `[cluster]`",
                other.to
            ));
        }
        // Components first: where one of them differs, so may what the manifest says of it.
        let of = |identity: &Identity, name: &str| {
            identity.components.iter().find(|(operator, _)| operator == name).map(|(_, digest)| *digest)
        };
        for (operator, digest) in &own.components {
            if let Some(other) = of(theirs, operator)
                && other != *digest
            {
                let what = format!("the components of operator `{operator}`");
                return differ(&what, &short(digest), &short(&other), "put the same file on all hosts");
            }
        }
        if own.manifest != theirs.manifest || own.components.len() != theirs.components.len() {
            let remedy = "use the same manifest, with the same overrides, on all hosts";
            return differ("the manifests", &short(&own.manifest), &short(&theirs.manifest), remedy);
        }
        None
    }
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

fn short(digest: &[u8; 32]) -> String {
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// The number of the session that two new hosts begin.
pub(super) fn session_of(connecting: u64, accepting: u64) -> u128 {
    // 0 stands for none.
    (u128::from(connecting) << 64 | u128::from(accepting)).max(1)
}

/// Reads a frame.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, HandshakeError> {
    // Who speaks something else may not say as much as the beginning of a frame.
    let (mut magic, mut head) = ([0; MAGIC.len()], [0; HEAD_BYTES - MAGIC.len()]);
    stream.read_exact(&mut magic).await?;
    check_magic(magic)?;
    stream.read_exact(&mut head).await?;
    let (kind, length) = parse_head(head)?;
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    parse_body(kind, &body).ok_or(HandshakeError::Garbled)
}

/// Writes a frame.
pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> std::io::Result<()> {
    stream.write_all(&encode(frame)).await?;
    stream.flush().await
}

fn check_magic(magic: [u8; MAGIC.len()]) -> Result<(), HandshakeError> {
    match magic {
        MAGIC => Ok(()),
        _ if TLS_RECORDS.iter().any(|record| magic.starts_with(record)) => Err(HandshakeError::SpeaksTls),
        _ => Err(HandshakeError::Garbled),
    }
}

fn parse_head(head: [u8; HEAD_BYTES - MAGIC.len()]) -> Result<(u8, usize), HandshakeError> {
    let [protocol @ .., kind, length_0, length_1, length_2, length_3] = head;
    let protocol = u16::from_le_bytes(protocol);
    let length = u32::from_le_bytes([length_0, length_1, length_2, length_3]) as usize;
    if protocol != PROTOCOL {
        return Err(HandshakeError::Protocol { theirs: protocol });
    }
    if length > FRAME_BYTES_MAX { Err(HandshakeError::Garbled) } else { Ok((kind, length)) }
}

fn parse_body(kind: u8, body: &[u8]) -> Option<Frame> {
    let mut rest = Cursor(body);
    let frame = match kind {
        1 => Frame::Hello(Box::new(parse_hello(&mut rest)?)),
        2 => Frame::Ready(Ready {
            session: u128::from_le_bytes(rest.array()?),
            received: u64::from_le_bytes(rest.array()?),
        }),
        3 => Frame::Refused(rest.text(REASON_BYTES_MAX)?),
        _ => return None,
    };
    rest.0.is_empty().then_some(frame)
}

fn parse_hello(rest: &mut Cursor<'_>) -> Option<Hello> {
    let (wasmill, job) = (rest.text(NAME_BYTES_MAX)?, rest.text(NAME_BYTES_MAX)?);
    let (host, to) = (rest.text(NAME_BYTES_MAX)?, rest.text(NAME_BYTES_MAX)?);
    let manifest = rest.array()?;
    let count = u16::from_le_bytes(rest.array()?);
    // The list grows with what is there, not with what is said.
    let mut components = Vec::new();
    for _ in 0..count {
        components.push((rest.text(NAME_BYTES_MAX)?, rest.array()?));
    }
    let (process, nonce) = (u64::from_le_bytes(rest.array()?), u64::from_le_bytes(rest.array()?));
    Some(Hello { identity: Identity { wasmill, job, manifest, components }, host, to, process, nonce })
}

/// What is left to be read.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn text(&mut self, bytes_max: usize) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= bytes_max)?;
        // It is shown to people.
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    }
}

fn encode(frame: &Frame) -> Vec<u8> {
    let mut body = Vec::new();
    let kind = match frame {
        Frame::Hello(hello) => {
            let identity = &hello.identity;
            for text in [&identity.wasmill, &identity.job, &hello.host, &hello.to] {
                put_text(&mut body, text, NAME_BYTES_MAX);
            }
            body.extend_from_slice(&identity.manifest);
            let count = u16::try_from(identity.components.len()).unwrap_or(u16::MAX);
            body.extend_from_slice(&count.to_le_bytes());
            for (operator, digest) in identity.components.iter().take(usize::from(count)) {
                put_text(&mut body, operator, NAME_BYTES_MAX);
                body.extend_from_slice(digest);
            }
            body.extend_from_slice(&hello.process.to_le_bytes());
            body.extend_from_slice(&hello.nonce.to_le_bytes());
            1
        }
        Frame::Ready(ready) => {
            body.extend_from_slice(&ready.session.to_le_bytes());
            body.extend_from_slice(&ready.received.to_le_bytes());
            2
        }
        Frame::Refused(reason) => {
            put_text(&mut body, reason, REASON_BYTES_MAX);
            3
        }
    };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&PROTOCOL.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// A text, cut where it is too long.
fn put_text(body: &mut Vec<u8>, text: &str, bytes_max: usize) {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    body.extend_from_slice(&(end as u16).to_le_bytes());
    body.extend_from_slice(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::link::backoff::Dice;

    pub(in crate::cluster::link) fn hello(host: &str) -> Hello {
        let identity = Identity {
            wasmill: "1.2.3".to_owned(),
            job: "likes".to_owned(),
            manifest: [7; 32],
            components: vec![("count".to_owned(), [1; 32]), ("join".to_owned(), [2; 32])],
        };
        Hello { identity, host: host.to_owned(), to: String::new(), process: 5, nonce: 6 }
    }

    fn decode(bytes: &[u8]) -> Result<Frame, HandshakeError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { read(&mut &bytes[..]).await })
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let ready = Frame::Ready(Ready { session: u128::MAX - 7, received: 1 << 40 });
        for frame in [Frame::Hello(Box::new(hello("a"))), ready, Frame::Refused("because é".to_owned())] {
            assert_eq!(decode(&encode(&frame)).unwrap(), frame);
        }
    }

    #[test]
    fn who_cannot_be_introduced_is_known_before() {
        assert!(hello("a").can_travel());
        let check = |change: &dyn Fn(&mut Hello)| {
            let mut hello = hello("a");
            change(&mut hello);
            assert!(!hello.can_travel());
        };
        check(&|hello| hello.identity.job = "j".repeat(NAME_BYTES_MAX + 1));
        check(&|hello| hello.host = "a\nb".to_owned());
        check(&|hello| hello.identity.components = vec![("o".repeat(1000), [1; 32]); 300]);
        check(&|hello| hello.identity.components = vec![(String::new(), [1; 32]); 1 << 16]);
    }

    #[test]
    fn who_speaks_tls_is_told_by_the_first_bytes() {
        assert!(matches!(decode(&[0x15, 3, 3, 0, 2, 2, 10]), Err(HandshakeError::SpeaksTls)));
        assert!(matches!(decode(&[0x16, 3, 1, 2, 0]), Err(HandshakeError::SpeaksTls)));
        assert!(matches!(decode(b"GET "), Err(HandshakeError::Garbled)));
    }

    #[test]
    fn a_mismatch_says_what_differs() {
        let check = |change: &dyn Fn(&mut Hello), said: &str| {
            let mut other = hello("b");
            change(&mut other);
            let reason = hello("a").mismatch(&other).unwrap();
            assert!(reason.contains(said) && reason.contains("`a`") && reason.contains("`b`"), "{reason}");
        };
        assert_eq!(hello("a").mismatch(&hello("b")), None);
        check(&|other| other.identity.job = "hits".to_owned(), "the jobs differ: `b` has `hits`");
        check(
            &|other| other.identity.wasmill = "1.2.4".to_owned(),
            "versions of wasmill differ: `b` has 1.2.4, `a` has 1.2.3",
        );
        check(&|other| other.identity.manifest[0] = 8, "the manifests differ: `b` has 080707070707, `a` has 0707");
        check(&|other| other.identity.components[1].1[0] = 9, "components of operator `join` differ");
        check(&|other| _ = other.identity.components.pop(), "the manifests differ");
        check(&|other| other.to = "c".to_owned(), "takes it for `c`");
    }

    #[test]
    fn another_version_of_the_protocol_is_named() {
        let mut bytes = encode(&Frame::Hello(Box::new(hello("a"))));
        bytes[4] = 9;
        assert!(matches!(decode(&bytes), Err(HandshakeError::Protocol { theirs: 9 })));
    }

    #[test]
    fn huge_lengths_and_long_texts_are_garbled() {
        let mut bytes = encode(&Frame::Refused("x".to_owned()));
        bytes[7..11].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(decode(&bytes), Err(HandshakeError::Garbled)));
        let Frame::Refused(reason) = decode(&encode(&Frame::Refused("é".repeat(5000)))).unwrap() else { panic!() };
        assert_eq!(reason.len(), REASON_BYTES_MAX);
    }

    #[test]
    fn frames_that_are_changed_anywhere_are_read_as_something_or_refused() {
        let mut dice = Dice::new(7);
        let ready = Frame::Ready(Ready { session: 7, received: 9 });
        let (mut read, mut refused) = (0, 0);
        for frame in [Frame::Hello(Box::new(hello("a"))), ready, Frame::Refused("because".to_owned())] {
            for _ in 0..3_000 {
                let mut changed = encode(&frame);
                for _ in 0..=dice.roll() % 3 {
                    let place = dice.roll() as usize % changed.len();
                    changed[place] = if dice.roll().is_multiple_of(2) { dice.roll() as u8 } else { 0xFF };
                }
                changed.truncate(changed.len() - (dice.roll() % 4).saturating_sub(2) as usize);
                match decode(&changed) {
                    Ok(_) => read += 1,
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(read > 1_000 && refused > 1_000, "{read} are read, {refused} refused");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(kind in 0..5_u8, body in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Some(frame) = parse_body(kind, &body) {
                prop_assert_eq!(decode(&encode(&frame)).unwrap(), frame);
            }
            prop_assert!(decode(&body).is_err() || body.starts_with(&MAGIC));
        }

        #[test]
        fn a_frame_that_is_changed_or_cut_is_an_error_or_another_frame(place in 0..400_usize, bit in 0..8, end in 0..400_usize) {
            let whole = encode(&Frame::Hello(Box::new(hello("a"))));
            let mut changed = whole.clone();
            let place = place % whole.len();
            changed[place] ^= 1_u8 << bit;
            if let Ok(frame) = decode(&changed) {
                prop_assert_ne!(frame, Frame::Hello(Box::new(hello("a"))));
            }
            prop_assert!(decode(&whole[..end % whole.len()]).is_err());
        }
    }
}
