//! Reloading in a job of several hosts: the new version comes to all of them, and takes the place of the old one at the same seal everywhere, or nowhere.
//!
//! Whoever is asked sends the component to the leader, and the leader to every host. Each makes it ready beside the running job, as on one host (`job::reload`), and says so. When all are
//! ready, the leader names the epoch at whose seal it is put in place: the next one that it has not had collected. What it says to a host arrives in order, so each hears of
//! it before it collects that epoch. The epoch's entries name the new version on all hosts, and become committed on all of them or on none: so whatever host is lost in between, all go on with the
//! same version.
//!
//! The leader works on one reload at a time. All of it belongs to one attempt: when that ends, whoever has asked hears so, and may ask again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::super::JobError;
use super::super::coordinate::Swap;
use super::super::reload::{ReloadError, Reloaded, Request};
use super::{Heard, Place, Process};
use crate::cluster::HostId;
use crate::epoch::{Attempt, Epoch};
use crate::state::components::digest_of;

/// A component travels in parts of this size, one a look, so that the job's own messages go in between.
const PART_BYTES: usize = 512 << 10;
/// The largest component that a host takes from another.
const COMPONENT_BYTES_MAX: u64 = 256 << 20;

/// The first byte of what is said here.
pub(super) const RELOAD: u8 = 2;

/// What hosts say to each other. Anything of another attempt is void.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Said {
    /// To the leader: somebody asks for a reload. A part of the component follows.
    Ask { operator: String, length: u64 },
    /// To a host: make this ready. A part of the component follows.
    Offer { number: u64, operator: String, length: u64 },
    /// To the leader: it is ready.
    Ready { number: u64 },
    /// To the leader: it is not possible.
    Refused { number: u64, refusal: Refusal },
    /// To a host: put it in place when this epoch is collected.
    Arm { number: u64, epoch: Epoch },
    /// To a host: forget it.
    Drop { number: u64 },
    /// To the host that has asked: what came of it.
    Answer { result: Result<Reloaded, Refusal> },
}

/// Why nothing has changed, as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Refusal {
    /// Whether the component is at fault.
    is_refused: bool,
    why: String,
}

impl Refusal {
    fn of(error: &ReloadError) -> Self {
        Self { is_refused: error.is_refusal(), why: error.to_string() }
    }

    fn failed(why: impl Into<String>) -> Self {
        Self { is_refused: false, why: why.into() }
    }
}

impl From<Refusal> for ReloadError {
    fn from(Refusal { is_refused, why }: Refusal) -> Self {
        if is_refused { Self::Elsewhere(why) } else { Self::Failed(why) }
    }
}

/// A component on its way here.
struct Arriving {
    operator: String,
    length: u64,
    bytes: Vec<u8>,
}

/// A component on its way to another host.
struct Leaving {
    to: HostId,
    said: Said,
    component: Arc<[u8]>,
    sent: usize,
}

/// What the leader has had a host make ready: its number, the operator, and the component's digest, which tells it from one that was given up while it was being made ready.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Offered {
    number: u64,
    operator: String,
    sha256: String,
}

/// The reload that the leader works on.
struct UnderWay {
    number: u64,
    asked_by: HostId,
    /// The hosts on which it is ready.
    ready: BTreeSet<HostId>,
}

/// What of reloads is under way on this host, in one attempt.
#[derive(Default)]
pub(super) struct Reloading {
    leaving: VecDeque<Leaving>,
    /// By whom it is sent, and for what: at the leader, each host may send one; from the leader, there is one at a time.
    arriving: Vec<(HostId, Arriving)>,
    /// The component that is being made ready here, or is.
    offered: Option<Offered>,
    /// Ready, until the leader says when.
    ready: Option<Swap>,
    /// Put in place when this epoch is collected.
    armed: Option<(Epoch, Swap)>,
    /// Whoever has asked this host.
    waiting: Option<oneshot::Sender<Result<Reloaded, ReloadError>>>,
    // On the leader.
    under_way: Option<UnderWay>,
    last_number: u64,
}

impl Reloading {
    /// Whether a seal is wanted for a reload.
    pub(super) fn wants_seal(&self) -> bool {
        self.armed.is_some()
    }

    fn is_offered(&self, number: u64) -> bool {
        self.offered.as_ref().is_some_and(|offered| offered.number == number)
    }

    /// Keeps what is ready, and gives its number. What was given up while it was being made ready is dropped, also when something else has been offered since.
    fn keep_ready(&mut self, swap: Swap) -> Option<u64> {
        let is_it = |offered: &&Offered| offered.operator == swap.operator && offered.sha256 == swap.component.sha256;
        let number = self.offered.as_ref().filter(is_it)?.number;
        self.ready = Some(swap);
        Some(number)
    }

    /// What is to be put in place when `epoch` is collected.
    ///
    /// # Errors
    /// When that should have been done at an earlier one.
    pub(super) fn due(&mut self, epoch: Epoch) -> Result<Option<Swap>, JobError> {
        match &self.armed {
            Some((at, _)) if *at < epoch => {
                let late = "a host heard too late of a reload; this is a defect of wasmill";
                Err(JobError::Plan(late.to_owned()))
            }
            Some((at, _)) if *at == epoch => Ok(self.armed.take().map(|(_, swap)| swap)),
            _ => Ok(None),
        }
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            // Whoever asked may have gone.
            let _ = waiting.send(Err(ReloadError::AttemptOver));
        }
    }
}

impl Process<'_> {
    /// Somebody asks this host for a reload.
    pub(super) fn ask_reload(&mut self, Request { operator, component, trial, reply }: Request) {
        let leader = self.leader;
        let is_known = self.parts.loaded.manifest.operators.contains_key(&operator);
        let refused = match &mut self.place {
            _ if trial.is_some() => Some(ReloadError::NoTrial(
                "a job of several hosts takes new versions without a trial only: try it in a job of one host"
                    .to_owned(),
            )),
            _ if !is_known => Some(ReloadError::unknown(self.parts.loaded.manifest.operators.keys())),
            Place::Running(here) if here.reloading.waiting.is_some() => {
                Some(ReloadError::Failed("another reload is under way".to_owned()))
            }
            Place::Running(here) => {
                let said = Said::Ask { operator, length: component.len() as u64 };
                here.reloading.leaving.push_back(Leaving { to: leader, said, component: component.into(), sent: 0 });
                here.reloading.waiting = Some(reply);
                return;
            }
            Place::Idle(_) | Place::Nothing => Some(ReloadError::AttemptOver),
        };
        if let Some(error) = refused {
            let _ = reply.send(Err(error));
        }
    }

    /// Sends a part of what is on its way, if anything.
    pub(super) fn send_part(&mut self) -> Result<(), JobError> {
        let own = self.settings.own;
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        let attempt = here.attempt;
        // To this host itself it is not far.
        if let Some(leaving) = here.reloading.leaving.pop_front_if(|leaving| leaving.to == own) {
            let Leaving { said, component, .. } = leaving;
            return self.hear_reload(own, said, &component);
        }
        let Some(leaving) = here.reloading.leaving.front_mut() else { return Ok(()) };
        let end = leaving.component.len().min(leaving.sent + PART_BYTES);
        let message = encoded(attempt, &leaving.said, &leaving.component[leaving.sent..end]);
        let to = leaving.to;
        leaving.sent = end;
        if end == leaving.component.len() {
            here.reloading.leaving.pop_front();
        }
        self.link.control(to, message).map_err(JobError::Link)
    }

    /// Another host says something of a reload.
    pub(super) fn hear_reload_bytes(&mut self, from: HostId, message: &[u8]) -> Result<(), JobError> {
        let Some((attempt, said, part)) = decoded(message) else {
            return Err(JobError::Plan(format!("the host `{}` says what cannot be read", self.name(from))));
        };
        match &self.place {
            Place::Running(here) if here.attempt == attempt => self.hear_reload(from, said, part),
            _ => Ok(()),
        }
    }

    fn hear_reload(&mut self, from: HostId, said: Said, part: &[u8]) -> Result<(), JobError> {
        let is_leader = self.leader == self.settings.own;
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        match said {
            Said::Ask { operator, length } if is_leader => {
                if let Some(component) = here.reloading.take_part(from, &operator, length, part)? {
                    self.lead_reload(from, operator, component)?;
                }
            }
            Said::Offer { number, operator, length } if from == self.leader => {
                if let Some(component) = here.reloading.take_part(from, &operator, length, part)? {
                    let sha256 = digest_of(&component);
                    here.reloading.offered = Some(Offered { number, operator: operator.clone(), sha256 });
                    self.make_ready(number, operator, component);
                }
            }
            Said::Ready { number } if is_leader => self.note_ready(number, from)?,
            Said::Refused { number, refusal } if is_leader => {
                if here.reloading.under_way.as_ref().is_some_and(|under_way| under_way.number == number) {
                    let name = self.name(from).to_owned();
                    let why = format!("{} (host `{name}`)", refusal.why);
                    self.say_to_all(&Said::Drop { number })?;
                    self.conclude(Err(Refusal { why, ..refusal }))?;
                }
            }
            Said::Arm { number, epoch } if from == self.leader => {
                match here.reloading.ready.take().filter(|_| here.reloading.is_offered(number)) {
                    Some(swap) => here.reloading.armed = Some((epoch, swap)),
                    None => return Err(JobError::Plan("a reload is to be done that is not ready".to_owned())),
                }
            }
            Said::Drop { number } if from == self.leader => {
                if here.reloading.is_offered(number) {
                    (here.reloading.offered, here.reloading.ready) = (None, None);
                }
            }
            Said::Answer { result } if from == self.leader => {
                if let Some(waiting) = here.reloading.waiting.take() {
                    let _ = waiting.send(result.map_err(ReloadError::from));
                }
            }
            _ => {
                let who = self.name(from);
                return Err(JobError::Plan(format!("the host `{who}` says of a reload what only the leader may")));
            }
        }
        Ok(())
    }

    /// The leader: a component has come that is asked for.
    fn lead_reload(&mut self, asked_by: HostId, operator: String, component: Vec<u8>) -> Result<(), JobError> {
        let hosts = (0..self.settings.hosts.len() as u16).map(HostId);
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        let reloading = &mut here.reloading;
        if reloading.under_way.is_some() {
            let busy = Refusal::failed("another reload is under way");
            return self.answer(asked_by, Err(busy));
        }
        reloading.last_number += 1;
        let number = reloading.last_number;
        reloading.under_way = Some(UnderWay { number, asked_by, ready: BTreeSet::new() });
        let component: Arc<[u8]> = component.into();
        let said = Said::Offer { number, operator, length: component.len() as u64 };
        let leaving = |to| Leaving { to, said: said.clone(), component: component.clone(), sent: 0 };
        reloading.leaving.extend(hosts.map(leaving));
        Ok(())
    }

    /// Has the attempt's own thread make a component ready; what comes of it is heard.
    fn make_ready(&self, number: u64, operator: String, component: Vec<u8>) {
        let Place::Running(here) = &self.place else { return };
        let (reloads, to_self, attempt) = (here.reloads.clone(), self.to_self.clone(), here.attempt);
        tokio::spawn(async move {
            let result = reloads.reload(operator, component, None).await;
            // A loop that no longer listens has ended.
            let _ = to_self.send(Heard::Reloaded { attempt, number, result: Box::new(result) });
        });
    }

    /// A component is ready here.
    pub(super) fn note_swap(&mut self, swap: Swap) -> Result<(), JobError> {
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        match here.reloading.keep_ready(swap) {
            Some(number) => self.say(self.leader, Said::Ready { number }),
            None => Ok(()),
        }
    }

    /// The attempt's own thread has come to an end with a component: it runs, and its epoch is committed; or it does not.
    pub(super) fn note_reloaded(
        &mut self,
        attempt: Attempt,
        number: u64,
        result: Result<Reloaded, ReloadError>,
    ) -> Result<(), JobError> {
        let is_leader = self.leader == self.settings.own;
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        if here.attempt != attempt {
            return Ok(());
        }
        let is_current = here.reloading.under_way.as_ref().is_some_and(|under_way| under_way.number == number);
        match result {
            // The others' entries of the epoch are committed, or will be: that is decided.
            Ok(reloaded) if is_leader && is_current => self.conclude(Ok(reloaded)),
            Ok(_) => Ok(()),
            Err(error) => {
                if here.reloading.is_offered(number) {
                    here.reloading.offered = None;
                }
                self.say(self.leader, Said::Refused { number, refusal: Refusal::of(&error) })
            }
        }
    }

    /// The leader: a component is ready on `host`.
    fn note_ready(&mut self, number: u64, host: HostId) -> Result<(), JobError> {
        let hosts = self.settings.hosts.len();
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        let Some(under_way) = here.reloading.under_way.as_mut().filter(|under_way| under_way.number == number) else {
            return Ok(());
        };
        under_way.ready.insert(host);
        if under_way.ready.len() < hosts {
            return Ok(());
        }
        let epoch = here.running.coordinator.epoch + 1;
        self.say_to_all(&Said::Arm { number, epoch })
    }

    /// The leader: nothing more is to be done for the reload that is under way.
    fn conclude(&mut self, result: Result<Reloaded, Refusal>) -> Result<(), JobError> {
        let Place::Running(here) = &mut self.place else { return Ok(()) };
        match here.reloading.under_way.take() {
            Some(under_way) => self.answer(under_way.asked_by, result),
            None => Ok(()),
        }
    }

    fn answer(&mut self, to: HostId, result: Result<Reloaded, Refusal>) -> Result<(), JobError> {
        self.say(to, Said::Answer { result })
    }

    fn say_to_all(&mut self, said: &Said) -> Result<(), JobError> {
        for host in (0..self.settings.hosts.len() as u16).map(HostId) {
            self.say(host, said.clone())?;
        }
        Ok(())
    }

    fn say(&mut self, to: HostId, said: Said) -> Result<(), JobError> {
        if to == self.settings.own {
            return self.hear_reload(to, said, &[]);
        }
        let Place::Running(here) = &self.place else { return Ok(()) };
        let message = encoded(here.attempt, &said, &[]);
        self.link.control(to, message).map_err(JobError::Link)
    }
}

impl Reloading {
    /// Takes a part of a component; the whole of it, when that was the last.
    fn take_part(
        &mut self,
        from: HostId,
        operator: &str,
        length: u64,
        part: &[u8],
    ) -> Result<Option<Vec<u8>>, JobError> {
        let place = self.arriving.iter().position(|(host, arriving)| *host == from && arriving.operator == operator);
        let place = place.unwrap_or_else(|| {
            self.arriving.retain(|(host, _)| *host != from);
            self.arriving.push((from, Arriving { operator: operator.to_owned(), length, bytes: Vec::new() }));
            self.arriving.len() - 1
        });
        let arriving = &mut self.arriving[place].1;
        let so_far = (arriving.bytes.len() + part.len()) as u64;
        if length != arriving.length || so_far > length || length > COMPONENT_BYTES_MAX {
            return Err(JobError::Plan("a host sends more of a component than it has said".to_owned()));
        }
        arriving.bytes.extend_from_slice(part);
        Ok((so_far == length).then(|| self.arriving.remove(place).1.bytes))
    }
}

/// The first byte; the attempt; how long the description is, and it as JSON; a part of a component.
fn encoded(attempt: Attempt, said: &Said, part: &[u8]) -> Vec<u8> {
    let description = serde_json::to_vec(said).expect("what is said is plain JSON");
    let mut message = Vec::with_capacity(1 + size_of::<Attempt>() + 4 + description.len() + part.len());
    message.push(RELOAD);
    message.extend(attempt.to_le_bytes());
    message.extend((description.len() as u32).to_le_bytes());
    message.extend(description);
    message.extend(part);
    message
}

/// What [`encoded`] has put together, less its first byte.
fn decoded(message: &[u8]) -> Option<(Attempt, Said, &[u8])> {
    let (attempt, rest) = message.split_first_chunk::<{ size_of::<Attempt>() }>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (description, part) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((Attempt::from_le_bytes(*attempt), serde_json::from_slice(description).ok()?, part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::entry::RunningComponent;

    #[test]
    fn what_is_said_comes_back_whole_and_what_is_not_is_noticed() {
        let said = Said::Offer { number: 3, operator: "work".to_owned(), length: 5 };
        let message = encoded(7, &said, b"bytes");
        assert_eq!(message[0], RELOAD);
        assert_eq!(decoded(&message[1..]), Some((7, said, &b"bytes"[..])));
        for cut in 1..message.len() - b"bytes".len() {
            assert_eq!(decoded(&message[1..cut]), None, "{cut}");
        }
        let mut damaged = message.clone();
        damaged[9..13].fill(0xFF);
        assert_eq!(decoded(&damaged[1..]), None);
    }

    fn swap(operator: &str, sha256: &str) -> Swap {
        let component = RunningComponent {
            sha256: sha256.to_owned(),
            file_sha256: String::new(),
            name: String::new(),
            version: String::new(),
        };
        let (done, _) = oneshot::channel();
        Swap { operator: operator.to_owned(), component, replace: Box::new(|| {}), trial: None, done }
    }

    #[test]
    fn what_was_given_up_while_it_was_made_ready_is_not_taken_for_what_was_offered_since() {
        let mut reloading = Reloading::default();
        assert_eq!(reloading.keep_ready(swap("work", "a")), None);
        reloading.offered = Some(Offered { number: 2, operator: "work".to_owned(), sha256: "b".to_owned() });
        assert_eq!(reloading.keep_ready(swap("work", "a")), None);
        assert_eq!(reloading.keep_ready(swap("play", "b")), None);
        assert!(reloading.ready.is_none());
        assert_eq!(reloading.keep_ready(swap("work", "b")), Some(2));
        assert!(reloading.ready.is_some() && reloading.is_offered(2) && !reloading.is_offered(1));
    }

    #[test]
    fn a_swap_is_due_at_its_epoch_and_never_behind_it() {
        let mut reloading = Reloading::default();
        reloading.armed = Some((5, swap("work", "a")));
        assert!(reloading.due(4).unwrap().is_none() && reloading.wants_seal());
        assert!(reloading.due(6).is_err());
        assert_eq!(reloading.due(5).unwrap().map(|swap| swap.operator), Some("work".to_owned()));
        assert!(reloading.due(5).unwrap().is_none() && !reloading.wants_seal());
    }

    #[test]
    fn a_component_comes_in_parts_and_nobody_sends_more_than_was_said() {
        let mut reloading = Reloading::default();
        let [one, two] = [HostId(1), HostId(2)];
        assert_eq!(reloading.take_part(one, "work", 4, b"ab").unwrap(), None);
        assert_eq!(reloading.take_part(two, "work", 2, b"x").unwrap(), None);
        assert_eq!(reloading.take_part(one, "work", 4, b"cd").unwrap(), Some(b"abcd".to_vec()));
        assert_eq!(reloading.take_part(two, "work", 2, b"y").unwrap(), Some(b"xy".to_vec()));
        assert_eq!(reloading.take_part(two, "work", 0, b"").unwrap(), Some(Vec::new()));
        // Who begins with another one has given up the first.
        assert_eq!(reloading.take_part(one, "work", 4, b"ab").unwrap(), None);
        assert_eq!(reloading.take_part(one, "play", 1, b"p").unwrap(), Some(b"p".to_vec()));
        assert!(reloading.take_part(one, "work", 1, b"ab").is_err());
        assert!(Reloading::default().take_part(one, "work", u64::MAX, b"ab").is_err());
    }
}
