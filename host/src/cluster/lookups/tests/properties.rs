//! Whatever is asked, in whatever order things happen: every question gets an answer that its owner had at a moment that its read allows.

use proptest::prelude::*;

use super::model::{CLOSED, Model, OLDEST, Step};
use super::*;

/// A read of so many keys.
fn read(keys: usize) -> impl Strategy<Value = Read> {
    prop_oneof![
        4 => Just(LIVE),
        1 => Just(Read::At(Consistency::Committed)),
        2 => (OLDEST - 1..4).prop_map(|epoch| Read::At(Consistency::AsOf(epoch))),
        3 => (0u64..400).prop_map(|us| Read::Bounded(Staleness::Time(Duration::from_micros(us)))),
        2 => (0u64..3).prop_map(|epochs| Read::Bounded(Staleness::Epochs(epochs))),
        1 => prop::collection::vec(0i64..3, keys).prop_map(Read::AsOfTimes),
    ]
}

fn ask() -> impl Strategy<Value = Step> {
    let keys = prop_oneof![4 => prop::collection::vec(0u8..20, 0..6), 1 => prop::collection::vec(0u8..60, 0..60)];
    let parts = keys.prop_flat_map(|keys| (read(keys.len()), Just(keys)));
    let batching = (1usize..12, prop::sample::select(vec![0u64, 50, 100, 1_000]));
    (1u16..3, 0..=CLOSED, parts, batching).prop_map(|(peer, table, (read, keys), (keys_max, linger))| {
        let batching = Batching::new(keys_max, Duration::from_micros(linger));
        // The table that refuses is asked less often.
        let table = if table == CLOSED && keys.len() % 3 != 0 { 0 } else { table };
        Step::Ask { peer, table, keys, read, batching }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => ask(),
        3 => Just(Step::Write),
        1 => Just(Step::Commit),
        4 => (0u64..200).prop_map(|us| Step::Pass { us }),
        4 => any::<usize>().prop_map(Step::Read),
        4 => any::<usize>().prop_map(Step::Arrive),
    ]
}

fn check(steps: Vec<Step>, cache_bytes_max: usize, answer_max: usize) {
    let mut model = Model::new(cache_bytes_max, answer_max);
    steps.into_iter().for_each(|step| model.step(step));
    model.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_question_is_answered_once_from_an_allowed_moment(
        steps in prop::collection::vec(step(), 0..120),
        cache_bytes_max in prop::sample::select(vec![0usize, 1_000, 1 << 20]),
        answer_max in prop::sample::select(vec![1usize, 3, usize::MAX, usize::MAX]),
    ) {
        check(steps, cache_bytes_max, answer_max);
    }

    #[test]
    fn so_it_is_when_batches_are_lost(
        steps in prop::collection::vec(prop_oneof![9 => step(), 1 => any::<usize>().prop_map(Step::Lose)], 0..120),
    ) {
        check(steps, 1 << 20, usize::MAX);
    }
}
