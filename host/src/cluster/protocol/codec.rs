//! How a [`Message`] lies in bytes.
//!
//! # Format, version 1
//!
//! All integers are little-endian. A message is the format version (1 byte), its kind (1 byte), and the fields of the kind in the order of the table, without anything
//! between or behind them. A message is at most [`MESSAGE_BYTES_MAX`] long; what is longer is refused before it is looked at. Nothing is allocated for a count that
//! the bytes behind it could not fill.
//!
//! | kind | message | fields |
//! |---|---|---|
//! | 1 | `Hello` | attempt, attempt (recorded), entry (committed), flag, entry (prepared; only with flag 1) |
//! | 2 | `Missing` | count (2), that many hosts |
//! | 3 | `Joined` | attempt, reach |
//! | 4 | `Report` | attempt, report |
//! | 5 | `Polled` | attempt, round (4), report |
//! | 6 | `Sealed` | attempt, epoch, reach, flag (unnoted) |
//! | 7 | `Prepared` | attempt, epoch, digest |
//! | 8 | `Committed` | attempt, epoch |
//! | 9 | `Parted` | attempt, host |
//! | 10 | `Over` | attempt, outcome |
//! | 11 | `Stop` | |
//! | 12 | `Bye` | |
//! | 33 | `Granted` | attempt, epoch, digest |
//! | 34 | `Start` | attempt, reach |
//! | 35 | `Close` | attempt, epoch |
//! | 36 | `Poll` | attempt, round (4) |
//! | 37 | `Seal` | attempt, epoch, flag (last), flag (finished) |
//! | 38 | `Open` | attempt, epoch, reach |
//! | 39 | `Commit` | attempt, epoch |
//! | 40 | `End` | attempt, flag; with flag 1 an outcome, else host (by), host (lost) |
//!
//! - *attempt*, *epoch*: 8 bytes; *digest*: 16; *host*: 2; *entry*: epoch, attempt, digest; *flag*: 1 byte, 0 or 1.
//! - *report*: one byte of flags (bit 0 idle, 1 ended, 2 carried, 3 needs, 4 urgent, 5 finished, 6 unnoted, 7 zero), moved (8).
//! - *reach*: number of sources (4), number of operators (4), that many times (8 each).
//! - *outcome*: 1 byte: 0 input ended, 1 stopped, 2 stopped short, 3 output closed, 4 failed; after 4 a host, an exit code (1), the length of the reason (2, at most
//!   4,096), the reason (UTF-8).

use super::outcome::{EndReason, Outcome, REASON_BYTES_MAX};
use super::{HostId, Message, Reach, Report};
use crate::epoch::Digest;
use crate::epoch::standing::{Decision, EntryId, Standing};

/// The version of the format.
pub const FORMAT_VERSION: u8 = 1;
/// The longest message, in bytes: enough for 65,000 sources and operators.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Why bytes are not a message. Completes "failed to …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It has another version.
    #[error(
        "read a message between hosts: it has format version {found}, this program knows {FORMAT_VERSION}; run the same program on all hosts"
    )]
    Version {
        /// Its version.
        found: u8,
    },
    /// It is not what this program writes.
    #[error("read a message between hosts: {0}")]
    Invalid(&'static str),
}

impl Message {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![FORMAT_VERSION]);
        match self {
            Self::Hello { attempt, standing } => {
                out.kind(1, *attempt)
                    .u64(standing.attempt)
                    .entry(&standing.committed)
                    .flag(standing.prepared.is_some());
                standing.prepared.iter().for_each(|prepared| _ = out.entry(prepared));
            }
            Self::Missing { hosts } => out.bytes(&[2]).hosts(hosts),
            Self::Joined { attempt, reach } => out.kind(3, *attempt).reach(reach),
            Self::Report { attempt, report } => out.kind(4, *attempt).report(report),
            Self::Polled { attempt, round, report } => out.kind(5, *attempt).bytes(&round.to_le_bytes()).report(report),
            Self::Sealed { attempt, epoch, reach, unnoted } => {
                out.kind(6, *attempt).u64(*epoch).reach(reach);
                out.flag(*unnoted);
            }
            Self::Prepared { attempt, epoch, digest } => out.kind(7, *attempt).u64(*epoch).digest(*digest),
            Self::Committed { attempt, epoch } => _ = out.kind(8, *attempt).u64(*epoch),
            Self::Parted { attempt, host } => _ = out.kind(9, *attempt).host(*host),
            Self::Over { attempt, outcome } => out.kind(10, *attempt).outcome(outcome),
            Self::Stop => _ = out.bytes(&[11]),
            Self::Bye => _ = out.bytes(&[12]),
            Self::Granted { attempt, decision } => out.kind(33, *attempt).u64(decision.epoch).digest(decision.digest),
            Self::Start { attempt, progress } => out.kind(34, *attempt).reach(progress),
            Self::Close { attempt, epoch } => _ = out.kind(35, *attempt).u64(*epoch),
            Self::Poll { attempt, round } => _ = out.kind(36, *attempt).bytes(&round.to_le_bytes()),
            Self::Seal { attempt, epoch, last, finished } => {
                out.kind(37, *attempt).u64(*epoch).flag(*last).flag(*finished);
            }
            Self::Open { attempt, epoch, progress } => out.kind(38, *attempt).u64(*epoch).reach(progress),
            Self::Commit { attempt, epoch } => _ = out.kind(39, *attempt).u64(*epoch),
            Self::End { attempt, reason: EndReason::Lost { by, host } } => {
                out.kind(40, *attempt).flag(false).host(*by).host(*host);
            }
            Self::End { attempt, reason: EndReason::Over(outcome) } => {
                out.kind(40, *attempt).flag(true).outcome(outcome)
            }
        }
        out.0
    }

    /// The message that bytes hold. Any bytes give a message or an error, in memory proportional to their number.
    ///
    /// # Errors
    /// When they are of another version, or not a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::Invalid("it is longer than a message may be"));
        }
        let mut rest = Reader(bytes);
        match rest.u8()? {
            FORMAT_VERSION => {}
            found => return Err(MessageError::Version { found }),
        }
        let kind = rest.u8()?;
        let message = match kind {
            2 => Self::Missing { hosts: rest.hosts()? },
            11 => Self::Stop,
            12 => Self::Bye,
            _ => rest.with_attempt(kind)?,
        };
        if rest.0.is_empty() { Ok(message) } else { Err(MessageError::Invalid("there are bytes behind its end")) }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn kind(&mut self, kind: u8, attempt: u64) -> &mut Self {
        self.bytes(&[kind]).u64(attempt)
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.bytes(&[u8::from(flag)])
    }

    fn host(&mut self, host: HostId) -> &mut Self {
        self.bytes(&host.0.to_le_bytes())
    }

    fn hosts(&mut self, hosts: &[HostId]) {
        let count = u16::try_from(hosts.len()).unwrap_or(u16::MAX);
        self.bytes(&count.to_le_bytes());
        hosts.iter().take(usize::from(count)).for_each(|host| _ = self.host(*host));
    }

    fn digest(&mut self, digest: Digest) {
        self.bytes(&digest.0.to_le_bytes());
    }

    fn entry(&mut self, entry: &EntryId) -> &mut Self {
        self.u64(entry.epoch).u64(entry.attempt).digest(entry.digest);
        self
    }

    fn report(&mut self, report: &Report) {
        let Report { idle, moved, ended, carried, needs, urgent, finished, unnoted } = *report;
        let flags = [idle, ended, carried, needs, urgent, finished, unnoted];
        let flags = flags.iter().enumerate().map(|(bit, flag)| u8::from(*flag) << bit).sum();
        self.bytes(&[flags]).u64(moved);
    }

    fn reach(&mut self, reach: &Reach) {
        let count =
            |times: &[i64]| u32::try_from(times.len()).expect("a job has fewer than 2^32 sources and operators");
        self.bytes(&count(&reach.sources).to_le_bytes()).bytes(&count(&reach.operators).to_le_bytes());
        reach.sources.iter().chain(&reach.operators).for_each(|time| _ = self.bytes(&time.to_le_bytes()));
    }

    fn outcome(&mut self, outcome: &Outcome) {
        let kind = match outcome {
            Outcome::InputEnded => 0,
            Outcome::Stopped => 1,
            Outcome::StoppedShort => 2,
            Outcome::OutputClosed => 3,
            Outcome::Failed { .. } => 4,
        };
        self.bytes(&[kind]);
        if let Outcome::Failed { host, code, reason } = outcome {
            // Whoever has made it by hand may have forgotten to cut it.
            let Outcome::Failed { reason, .. } = Outcome::failed(*host, *code, reason) else { return };
            let length = u16::try_from(reason.len()).expect("a reason is cut to 4,096 bytes");
            self.host(*host).bytes(&[*code]).bytes(&length.to_le_bytes()).bytes(reason.as_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MessageError::Invalid("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        Ok(self.take(N)?.try_into().expect("take returns the length asked for"))
    }

    fn u8(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, MessageError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError::Invalid("a flag is neither 0 nor 1")),
        }
    }

    fn digest(&mut self) -> Result<Digest, MessageError> {
        Ok(Digest(u128::from_le_bytes(self.array()?)))
    }

    fn host(&mut self) -> Result<HostId, MessageError> {
        self.u16().map(HostId)
    }

    fn hosts(&mut self) -> Result<Vec<HostId>, MessageError> {
        let count = usize::from(self.u16()?);
        let mut hosts = Reader(self.take(2 * count)?);
        (0..count).map(|_| hosts.host()).collect()
    }

    fn entry(&mut self) -> Result<EntryId, MessageError> {
        Ok(EntryId { epoch: self.u64()?, attempt: self.u64()?, digest: self.digest()? })
    }

    fn standing(&mut self) -> Result<Standing, MessageError> {
        let (attempt, committed) = (self.u64()?, self.entry()?);
        let prepared = if self.flag()? { Some(self.entry()?) } else { None };
        Ok(Standing { attempt, committed, prepared })
    }

    fn report(&mut self) -> Result<Report, MessageError> {
        let flags = self.u8()?;
        let moved = self.u64()?;
        if flags & 0x80 != 0 {
            return Err(MessageError::Invalid("a report has a flag that this program does not know"));
        }
        let [idle, ended, carried, needs, urgent, finished, unnoted] =
            [0, 1, 2, 3, 4, 5, 6].map(|bit| flags & (1 << bit) != 0);
        Ok(Report { idle, moved, ended, carried, needs, urgent, finished, unnoted })
    }

    fn reach(&mut self) -> Result<Reach, MessageError> {
        let counts = [self.u32()?, self.u32()?].map(|count| count as usize);
        let [sources, operators] = counts.map(|count| count.checked_mul(8));
        let mut times = |bytes: Option<usize>| {
            let bytes = self.take(bytes.ok_or(MessageError::Invalid("it ends too early"))?)?;
            let time = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
            Ok(bytes.chunks_exact(8).map(time).collect())
        };
        Ok(Reach { sources: times(sources)?, operators: times(operators)? })
    }

    fn outcome(&mut self) -> Result<Outcome, MessageError> {
        Ok(match self.u8()? {
            0 => Outcome::InputEnded,
            1 => Outcome::Stopped,
            2 => Outcome::StoppedShort,
            3 => Outcome::OutputClosed,
            4 => {
                let (host, code, length) = (self.host()?, self.u8()?, usize::from(self.u16()?));
                if length > REASON_BYTES_MAX {
                    return Err(MessageError::Invalid("a reason is too long"));
                }
                let reason = std::str::from_utf8(self.take(length)?);
                let reason = reason.map_err(|_| MessageError::Invalid("a reason is not UTF-8"))?;
                Outcome::Failed { host, code, reason: reason.to_owned() }
            }
            _ => return Err(MessageError::Invalid("it tells an outcome that this program does not know")),
        })
    }

    fn with_attempt(&mut self, kind: u8) -> Result<Message, MessageError> {
        let attempt = self.u64()?;
        Ok(match kind {
            1 => Message::Hello { attempt, standing: self.standing()? },
            3 => Message::Joined { attempt, reach: self.reach()? },
            4 => Message::Report { attempt, report: self.report()? },
            5 => Message::Polled { attempt, round: self.u32()?, report: self.report()? },
            6 => Message::Sealed { attempt, epoch: self.u64()?, reach: self.reach()?, unnoted: self.flag()? },
            7 => Message::Prepared { attempt, epoch: self.u64()?, digest: self.digest()? },
            8 => Message::Committed { attempt, epoch: self.u64()? },
            9 => Message::Parted { attempt, host: self.host()? },
            10 => Message::Over { attempt, outcome: self.outcome()? },
            33 => Message::Granted { attempt, decision: Decision { epoch: self.u64()?, digest: self.digest()? } },
            34 => Message::Start { attempt, progress: self.reach()? },
            35 => Message::Close { attempt, epoch: self.u64()? },
            36 => Message::Poll { attempt, round: self.u32()? },
            37 => Message::Seal { attempt, epoch: self.u64()?, last: self.flag()?, finished: self.flag()? },
            38 => Message::Open { attempt, epoch: self.u64()?, progress: self.reach()? },
            39 => Message::Commit { attempt, epoch: self.u64()? },
            40 if self.flag()? => Message::End { attempt, reason: EndReason::Over(self.outcome()?) },
            40 => Message::End { attempt, reason: EndReason::Lost { by: self.host()?, host: self.host()? } },
            _ => return Err(MessageError::Invalid("it is of a kind that this program does not know")),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::epoch::standing::EntryId;

    fn digest() -> impl Strategy<Value = Digest> {
        any::<u128>().prop_map(Digest)
    }

    fn host() -> impl Strategy<Value = HostId> {
        any::<u16>().prop_map(HostId)
    }

    fn entry() -> impl Strategy<Value = EntryId> {
        (any::<u64>(), any::<u64>(), digest()).prop_map(|(epoch, attempt, digest)| EntryId { epoch, attempt, digest })
    }

    fn standing() -> impl Strategy<Value = Standing> {
        let parts = (any::<u64>(), entry(), proptest::option::of(entry()));
        parts.prop_map(|(attempt, committed, prepared)| Standing { attempt, committed, prepared })
    }

    fn report() -> impl Strategy<Value = Report> {
        (any::<[bool; 7]>(), any::<u64>()).prop_map(
            |([idle, ended, carried, needs, urgent, finished, unnoted], moved)| Report {
                idle,
                moved,
                ended,
                carried,
                needs,
                urgent,
                finished,
                unnoted,
            },
        )
    }

    fn reach() -> impl Strategy<Value = Reach> {
        let times = || vec(any::<i64>(), 0..6);
        (times(), times()).prop_map(|(sources, operators)| Reach { sources, operators })
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            Just(Outcome::InputEnded),
            Just(Outcome::Stopped),
            Just(Outcome::StoppedShort),
            Just(Outcome::OutputClosed),
            (host(), any::<u8>(), ".{0,40}").prop_map(|(host, code, reason)| Outcome::failed(host, code, &reason)),
        ]
    }

    fn end() -> impl Strategy<Value = EndReason> {
        let lost = (host(), host()).prop_map(|(by, host)| EndReason::Lost { by, host });
        prop_oneof![lost, outcome().prop_map(EndReason::Over)]
    }

    fn from_a_member() -> impl Strategy<Value = Message> {
        let (attempt, epoch) = (any::<u64>, any::<u64>);
        prop_oneof![
            (attempt(), standing()).prop_map(|(attempt, standing)| Message::Hello { attempt, standing }),
            vec(host(), 0..8).prop_map(|hosts| Message::Missing { hosts }),
            (attempt(), reach()).prop_map(|(attempt, reach)| Message::Joined { attempt, reach }),
            (attempt(), report()).prop_map(|(attempt, report)| Message::Report { attempt, report }),
            (attempt(), any::<u32>(), report()).prop_map(|(attempt, round, report)| Message::Polled {
                attempt,
                round,
                report
            }),
            (attempt(), epoch(), reach(), any::<bool>()).prop_map(|(attempt, epoch, reach, unnoted)| Message::Sealed {
                attempt,
                epoch,
                reach,
                unnoted
            }),
            (attempt(), epoch(), digest()).prop_map(|(attempt, epoch, digest)| Message::Prepared {
                attempt,
                epoch,
                digest
            }),
            (attempt(), epoch()).prop_map(|(attempt, epoch)| Message::Committed { attempt, epoch }),
            (attempt(), host()).prop_map(|(attempt, host)| Message::Parted { attempt, host }),
            (attempt(), outcome()).prop_map(|(attempt, outcome)| Message::Over { attempt, outcome }),
            Just(Message::Stop),
            Just(Message::Bye),
        ]
    }

    fn from_the_leader() -> impl Strategy<Value = Message> {
        let (attempt, epoch) = (any::<u64>, any::<u64>);
        let decision = (epoch(), digest()).prop_map(|(epoch, digest)| Decision { epoch, digest });
        prop_oneof![
            (attempt(), decision).prop_map(|(attempt, decision)| Message::Granted { attempt, decision }),
            (attempt(), reach()).prop_map(|(attempt, progress)| Message::Start { attempt, progress }),
            (attempt(), epoch()).prop_map(|(attempt, epoch)| Message::Close { attempt, epoch }),
            (attempt(), any::<u32>()).prop_map(|(attempt, round)| Message::Poll { attempt, round }),
            (attempt(), epoch(), any::<bool>(), any::<bool>())
                .prop_map(|(attempt, epoch, last, finished)| Message::Seal { attempt, epoch, last, finished }),
            (attempt(), epoch(), reach()).prop_map(|(attempt, epoch, progress)| Message::Open {
                attempt,
                epoch,
                progress
            }),
            (attempt(), epoch()).prop_map(|(attempt, epoch)| Message::Commit { attempt, epoch }),
            (attempt(), end()).prop_map(|(attempt, reason)| Message::End { attempt, reason }),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![from_a_member(), from_the_leader()]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(message in message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn what_is_cut_short_or_goes_on_is_an_error(message in message(), more in any::<u8>()) {
            let bytes = message.encode();
            (0..bytes.len()).for_each(|length| assert!(Message::decode(&bytes[..length]).is_err(), "{length}"));
            prop_assert!(Message::decode(&[bytes.as_slice(), &[more]].concat()).is_err());
        }

        /// Every message has one form: what is read is written as it was.
        #[test]
        fn damaged_bytes_are_another_message_or_an_error(message in message(), at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = message.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(other) = Message::decode(&bytes) {
                prop_assert_eq!(other.encode(), bytes);
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(kind in 0..=45_u8, rest in vec(any::<u8>(), 0..80)) {
            let bytes = [&[FORMAT_VERSION, kind], rest.as_slice()].concat();
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }

    #[test]
    fn messages_lie_in_bytes_as_the_table_says() {
        let check = |message: Message, bytes: &[u8]| {
            assert_eq!(message.encode(), bytes, "{message:?}");
            assert_eq!(Message::decode(bytes), Ok(message));
        };
        check(Message::Stop, &[1, 11]);
        check(Message::Missing { hosts: vec![HostId(2), HostId(0x0103)] }, &[1, 2, 2, 0, 2, 0, 3, 1]);
        check(Message::Close { attempt: 7, epoch: 258 }, &[1, 35, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let report = Report { moved: 5, ended: true, unnoted: true, ..Report::default() };
        let polled = [1, 5, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0b0100_0010, 5, 0, 0, 0, 0, 0, 0, 0];
        check(Message::Polled { attempt: 7, round: 9, report }, &polled);
        let reach = Reach { sources: vec![-1], operators: Vec::new() };
        let start = [1, 34, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
        check(Message::Start { attempt: 7, progress: reach }, &start);
        let reason = EndReason::Over(Outcome::failed(HostId(1), 3, "é"));
        let end = [1, 40, 7, 0, 0, 0, 0, 0, 0, 0, 1, 4, 1, 0, 3, 2, 0, 0xC3, 0xA9];
        check(Message::End { attempt: 7, reason }, &end);
    }

    #[test]
    fn counts_that_the_bytes_cannot_fill_are_errors() {
        let attempt = [7, 0, 0, 0, 0, 0, 0, 0];
        let check = |start: &[u8], what: &str| {
            let error = Message::decode(start).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        };
        check(&[&[1, 3][..], &attempt, &[255; 8]].concat(), "ends too early");
        check(&[1, 2, 255, 255, 0], "ends too early");
        check(&[&[1, 10][..], &attempt, &[4, 0, 0, 1, 1, 16]].concat(), "reason is too long");
        check(&[&[1, 10][..], &attempt, &[4, 0, 0, 1, 1, 0, 0xFF]].concat(), "not UTF-8");
        check(&[&[1, 4][..], &attempt, &[0x80], &attempt].concat(), "flag that this program does not know");
        check(&[2, 11], "format version 2");
        check(&[], "ends too early");
        check(&vec![1; MESSAGE_BYTES_MAX + 1], "longer than a message may be");
    }

    #[test]
    fn a_reason_is_cut_between_two_characters() {
        let Outcome::Failed { reason, .. } = Outcome::failed(HostId(0), 1, &"é".repeat(REASON_BYTES_MAX)) else {
            panic!("it is a failure");
        };
        assert_eq!(reason.len(), REASON_BYTES_MAX);
        let uncut = Outcome::Failed { host: HostId(0), code: 1, reason: "x".repeat(REASON_BYTES_MAX + 1) };
        let decoded = Message::decode(&Message::Over { attempt: 0, outcome: uncut }.encode()).unwrap();
        let expected = Outcome::Failed { host: HostId(0), code: 1, reason: "x".repeat(REASON_BYTES_MAX) };
        assert_eq!(decoded, Message::Over { attempt: 0, outcome: expected });
    }
}
