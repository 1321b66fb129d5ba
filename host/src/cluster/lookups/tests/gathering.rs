//! What travels together, what is joined, and what is remembered, case by case.

use super::super::super::link::{LookupFault, Refusal, RefusalKind};
use super::super::batcher::{Action, BatchId, Batcher};
use super::*;

const LINGER: Duration = Duration::from_micros(100);

/// A batcher and the time.
struct Bench {
    batcher: Batcher<u32>,
    now: Now,
    meters: Arc<LookupMeters>,
    completed: Vec<(u32, Result<Vec<String>, LookupsError>)>,
}

impl Bench {
    fn new() -> Self {
        let meters = Arc::new(LookupMeters::default());
        let now = Now { time: Duration::from_secs(5), epoch: 10 };
        Self { batcher: Batcher::new(1 << 20, Arc::clone(&meters)), now, meters, completed: Vec::new() }
    }

    fn ask(&mut self, asker: u32, keys: &[&str], read: Read) {
        self.ask_as(asker, keys, read, Batching::new(4, LINGER));
    }

    fn ask_as(&mut self, asker: u32, keys: &[&str], read: Read, batching: Batching) {
        self.batcher.ask(self.now, PEER, &question(keys, read, batching), asker);
    }

    fn pass(&mut self, us: u64) {
        self.now.time += Duration::from_micros(us);
    }

    /// What is sent now.
    fn sent(&mut self) -> Vec<(BatchId, Get)> {
        let mut sent = Vec::new();
        while let Some(action) = self.batcher.next(self.now) {
            match action {
                Action::Send { batch, get, .. } => sent.push((batch, get)),
                Action::Complete { asker, answer } => {
                    self.completed.push((asker, answer.map(|answer| texts(&answer))));
                }
            }
        }
        sent
    }

    fn sent_keys(&mut self) -> Vec<Vec<String>> {
        self.sent().iter().map(|(_, get)| names(get)).collect()
    }

    fn answer(&mut self, batch: BatchId, values: Values) {
        self.batcher.answered(self.now, batch, Ok(values));
    }

    /// Sends what is due and answers it with `mark`.
    fn serve(&mut self, mark: &str) -> Vec<Vec<String>> {
        let sent = self.sent();
        sent.iter().for_each(|(batch, get)| self.answer(*batch, echo(get, mark)));
        sent.iter().map(|(_, get)| names(get)).collect()
    }

    /// Who has been answered since this was asked last, with what.
    fn completed(&mut self) -> Vec<(u32, Vec<String>)> {
        assert!(self.sent().is_empty());
        self.completed.drain(..).map(|(asker, answer)| (asker, answer.unwrap())).collect()
    }
}

#[test]
fn equal_keys_of_many_questions_travel_once_when_the_linger_is_over() {
    let mut bench = Bench::new();
    bench.ask(1, &["a", "b", "a"], LIVE);
    bench.pass(60);
    bench.ask(2, &["b", "c"], LIVE);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.batcher.wake_at(), Some(bench.now.time + Duration::from_micros(40)));
    bench.pass(40);
    assert_eq!(bench.serve("1"), [["a", "b", "c"]]);
    assert_eq!(
        bench.completed(),
        [(1, vec!["a1".into(), "b1".into(), "a1".into()]), (2, vec!["b1".into(), "c1".into()])]
    );
    assert_eq!(bench.batcher.wake_at(), None);
    let [figures] = <[_; 1]>::try_from(bench.meters.figures()).unwrap();
    assert_eq!((figures.questions, figures.keys_asked, figures.keys_joined, figures.keys_sent), (2, 5, 2, 3));
    assert_eq!((figures.batches, figures.key_bytes, figures.value_bytes), (1, 3, 6));
    assert!((0.095..0.105).contains(&figures.latency_ms.max), "{figures:?}");
}

#[test]
fn a_full_batch_goes_at_once_and_a_question_is_not_torn() {
    let mut bench = Bench::new();
    bench.ask(1, &["a", "b", "c"], LIVE);
    bench.ask(2, &["c", "d"], LIVE);
    assert_eq!(bench.sent_keys(), [["a", "b", "c", "d"]]);
    bench.ask(3, &["e", "f", "g"], LIVE);
    bench.ask(4, &["a", "e", "h"], LIVE);
    assert_eq!(bench.sent_keys(), [["e", "f", "g"]]);
    bench.pass(100);
    assert_eq!(bench.sent_keys(), [["a", "e", "h"]]);
}

#[test]
fn a_question_of_more_keys_than_a_batch_travels_as_a_whole_if_it_shows_one_moment() {
    let keys = ["a", "b", "c", "d", "e", "f"];
    let mut bench = Bench::new();
    bench.ask(1, &keys, LIVE);
    assert_eq!(bench.sent_keys(), [&keys]);
    bench.ask(2, &keys, Read::At(Consistency::AsOf(3)));
    assert_eq!(bench.sent_keys(), [&keys[..4]]);
    bench.pass(100);
    assert_eq!(bench.sent_keys(), [&keys[4..]]);
}

#[test]
fn more_keys_than_a_lookup_may_have_are_split_and_put_together_again() {
    let names: Vec<String> = (0..2 * KEYS_MAX + 100).map(|number| number.to_string()).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bench = Bench::new();
    bench.ask(1, &keys, LIVE);
    let sizes: Vec<usize> = bench.serve("!").iter().map(Vec::len).collect();
    assert_eq!(sizes, [KEYS_MAX, KEYS_MAX, 100]);
    let (asker, values) = bench.completed().remove(0);
    assert_eq!(asker, 1);
    assert!(values.iter().eq(names.iter().map(|name| format!("{name}!")).collect::<Vec<_>>().iter()));

    let long = "k".repeat(KEY_BYTES_MAX / 2 + 1);
    let keys: Vec<String> = (0..3).map(|number| format!("{number}{long}")).collect();
    bench.ask(2, &keys.iter().map(String::as_str).collect::<Vec<_>>(), LIVE);
    let mut sent = bench.sent();
    bench.pass(100);
    sent.extend(bench.sent());
    assert!(sent.len() == 3 && sent.iter().all(|(_, get)| get.keys.bytes().len() <= KEY_BYTES_MAX));
    bench.ask(3, &[&"k".repeat(KEY_BYTES_MAX + 1)], LIVE);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.completed, [(3, Err(LookupsError::KeyTooLarge { bytes: KEY_BYTES_MAX + 1 }))]);
}

#[test]
fn no_answer_under_way_is_good_enough_for_a_live_question() {
    let mut bench = Bench::new();
    for read in [LIVE, Read::At(Consistency::Committed), Read::AsOfTimes(vec![7])] {
        bench.ask(1, &["a"], read.clone());
        bench.pass(100);
        assert_eq!(bench.sent_keys(), [["a"]]);
        bench.ask(2, &["a"], read);
        bench.pass(100);
        assert_eq!(bench.sent_keys(), [["a"]]);
    }
}

#[test]
fn what_never_changes_may_be_joined_under_way() {
    let mut bench = Bench::new();
    let as_of = |epoch| Read::At(Consistency::AsOf(epoch));
    bench.ask(1, &["a"], as_of(3));
    bench.pass(100);
    let sent = bench.sent();
    bench.ask(2, &["a"], as_of(3));
    bench.ask(3, &["a"], as_of(4));
    bench.pass(100);
    assert_eq!(bench.serve("4"), [["a"]]);
    bench.answer(sent[0].0, echo(&sent[0].1, "3"));
    assert_eq!(bench.completed(), [(3, vec!["a4".into()]), (1, vec!["a3".into()]), (2, vec!["a3".into()])]);
}

#[test]
fn bounded_questions_join_and_remember_within_their_time_and_no_longer() {
    let mut bench = Bench::new();
    let bounded = |us| Read::Bounded(Staleness::Time(Duration::from_micros(us)));
    bench.ask(1, &["a"], LIVE);
    bench.ask(2, &["a"], bounded(0));
    bench.pass(100);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    bench.pass(50);
    bench.ask(3, &["a"], bounded(50));
    bench.ask(4, &["a"], bounded(49));
    bench.answer(sent[0].0, echo(&sent[0].1, "old"));
    let old = || vec!["aold".to_owned()];
    assert_eq!(bench.completed(), [(1, old()), (2, old()), (3, old())]);
    bench.pass(100);
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    // Remembered since it was asked for, not since it is here.
    bench.pass(1_000);
    bench.answer(sent[0].0, echo(&sent[0].1, "new"));
    bench.ask(5, &["a", "a"], bounded(1_000));
    let new = || "anew".to_owned();
    assert_eq!(bench.completed(), [(4, vec![new()]), (5, vec![new(), new()])]);
    bench.ask(6, &["a"], bounded(999));
    bench.ask(7, &["a"], LIVE);
    bench.pass(100);
    assert_eq!(bench.serve("last"), [["a"]]);
    assert_eq!(bench.completed().len(), 2);
    assert_eq!(bench.meters.figures()[0].keys_cached, 2);
    assert!(bench.meters.cached_bytes() > 5);
}

#[test]
fn bounded_by_epochs_goes_by_the_epoch_in_which_it_was_asked_for() {
    let mut bench = Bench::new();
    let bounded = |epochs| Read::Bounded(Staleness::Epochs(epochs));
    bench.ask(1, &["a", "absent"], bounded(5));
    bench.pass(100);
    let sent = bench.sent();
    bench.answer(sent[0].0, [Found::Present(b"v"), Found::Absent].into_iter().collect());
    bench.ask(2, &["absent", "a"], bounded(0));
    bench.now.epoch += 2;
    bench.ask(3, &["a"], bounded(2));
    bench.ask(4, &["a"], bounded(1));
    let expected = [(1, vec!["v".into(), "-".into()]), (2, vec!["-".into(), "v".into()]), (3, vec!["v".into()])];
    assert_eq!(bench.completed(), expected);
    bench.pass(100);
    assert_eq!(bench.serve(""), [["a"]]);
}

#[test]
fn values_left_out_of_a_full_answer_are_asked_for_again_before_anything_else() {
    let mut bench = Bench::new();
    bench.ask(1, &["a", "b"], LIVE);
    bench.ask(2, &["b", "c"], LIVE);
    bench.pass(100);
    let sent = bench.sent();
    bench.ask_as(3, &["x"], LIVE, Batching::new(4, Duration::ZERO));
    bench.answer(sent[0].0, [Found::Present(b"A"), Found::AskAgain, Found::AskAgain].into_iter().collect());
    let sent = bench.sent();
    let asked: Vec<Vec<String>> = sent.iter().map(|(_, get)| names(get)).collect();
    assert_eq!(asked, [vec!["b", "c"], vec!["x"]]);
    bench.answer(sent[0].0, echo(&sent[0].1, "!"));
    assert_eq!(bench.completed(), [(1, vec!["A".into(), "b!".into()]), (2, vec!["b!".into(), "c!".into()])]);
    assert_eq!(bench.meters.figures()[0].keys_again, 2);
}

#[test]
fn a_value_too_large_fails_the_questions_that_want_it_and_no_others() {
    let mut bench = Bench::new();
    bench.ask(1, &["a"], LIVE);
    bench.ask(2, &["a", "huge"], LIVE);
    bench.pass(100);
    let sent = bench.sent();
    bench.answer(sent[0].0, [Found::Present(b"v"), Found::TooLarge].into_iter().collect());
    assert!(bench.sent().is_empty());
    assert_eq!(bench.completed[0], (1, Ok(vec!["v".to_owned()])));
    assert_eq!(bench.completed[1], (2, Err(LookupsError::ValueTooLarge { key: "huge".to_owned() })));
    assert_eq!(bench.meters.figures()[0].failures, 1);
}

#[test]
fn a_refusal_fails_the_questions_of_its_batch_once_and_no_others() {
    let mut bench = Bench::new();
    let gone = LookupFault::Refused(Refusal { kind: RefusalKind::Gone, text: "epoch 3 is gone".to_owned() });
    let keys: Vec<String> = (0..6).map(|number| number.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    bench.ask(1, &keys, Read::At(Consistency::AsOf(3)));
    bench.ask(2, &keys[..1], LIVE);
    bench.pass(100);
    let sent = bench.sent();
    assert_eq!(sent.len(), 3);
    for (batch, get) in sent {
        let is_live = get.read == super::super::super::link::Read::At(Consistency::Live);
        let answer = if is_live { Ok(echo(&get, "")) } else { Err(gone.clone()) };
        bench.batcher.answered(bench.now, batch, answer);
    }
    assert!(bench.sent().is_empty());
    bench.completed.sort_by_key(|(asker, _)| *asker);
    assert_eq!(bench.completed, [(1, Err(LookupsError::Fault(gone))), (2, Ok(vec!["0".to_owned()]))]);
}

#[test]
fn an_answer_that_answers_nothing_is_not_asked_for_for_ever() {
    let mut bench = Bench::new();
    bench.ask(1, &["a", "b"], LIVE);
    bench.pass(100);
    let sent = bench.sent();
    bench.answer(sent[0].0, [Found::AskAgain, Found::AskAgain].into_iter().collect());
    assert!(bench.sent().is_empty());
    assert!(matches!(bench.completed[..], [(1, Err(LookupsError::Fault(LookupFault::Refused(_))))]));
}

#[test]
fn a_peer_is_asked_so_many_batches_at_a_time_and_what_waits_grows_meanwhile() {
    let mut bench = Bench::new();
    let ask = |bench: &mut Bench, number: usize| {
        bench.ask_as(number as u32, &[&number.to_string()], LIVE, Batching::new(4, Duration::ZERO));
        bench.sent()
    };
    let sent: Vec<_> = (0..BATCHES_IN_FLIGHT_MAX).flat_map(|number| ask(&mut bench, number)).collect();
    assert_eq!(sent.len(), BATCHES_IN_FLIGHT_MAX);
    assert!((100..106).all(|number| ask(&mut bench, number).is_empty()));
    assert_eq!(bench.batcher.wake_at(), None);
    let other = question(&["a"], LIVE, Batching::new(4, Duration::ZERO));
    bench.batcher.ask(bench.now, HostId(2), &other, 7);
    assert_eq!(bench.sent_keys(), [["a"]]);
    bench.answer(sent[3].0, echo(&sent[3].1, ""));
    assert_eq!(bench.sent_keys(), [["100", "101", "102", "103"]]);
    bench.answer(sent[5].0, echo(&sent[5].1, ""));
    assert_eq!(bench.sent_keys(), [["104", "105"]]);
}

#[test]
fn a_question_without_keys_is_answered() {
    let mut bench = Bench::new();
    bench.ask(1, &[], LIVE);
    assert_eq!(bench.completed(), [(1, vec![])]);
}
