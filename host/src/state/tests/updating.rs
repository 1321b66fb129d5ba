//! A batch's writes and updates of the owner's own tables come together, and to the same as one after another.

use proptest::prelude::*;

use super::super::update::{Changed, Number, Op, Operands, Updates};
use super::*;

/// One step of a batch: a key, and what is done to its value.
#[derive(Debug, Clone)]
enum Step {
    Write(Option<i64>),
    Update(Op, i64),
}

fn step() -> impl Strategy<Value = Step> {
    let ops = [Op::Put, Op::PutIfAbsent, Op::Delete, Op::Add(Number::S64), Op::Max(Number::S64)];
    prop_oneof![
        prop::option::of(-3i64..3).prop_map(Step::Write),
        (prop::sample::select(ops.to_vec()), -3i64..3).prop_map(|(op, number)| Step::Update(op, number)),
    ]
}

fn updates(op: Op, steps: &[(u8, i64)]) -> Updates {
    let (mut keys, mut items) = (Column::default(), Column::default());
    for (key, number) in steps {
        keys.push(&[*key]);
        items.push(&number.to_le_bytes());
    }
    let present = steps.iter().map(|_| op != Op::Delete).collect();
    let operands = Operands { items, present };
    Updates { op, keys, operands, expected: Operands::default(), times: Vec::new() }
}

/// The steps one after another, and whether each update has changed anything.
fn one_by_one(values: &mut BTreeMap<u8, i64>, key: u8, step: &Step) -> Option<bool> {
    let before = values.get(&key).copied();
    let after = match step {
        Step::Write(number) => *number,
        Step::Update(Op::Put, number) => Some(*number),
        Step::Update(Op::PutIfAbsent, number) => before.or(Some(*number)),
        Step::Update(Op::Delete, _) => None,
        Step::Update(Op::Add(_), number) => Some(before.unwrap_or(0) + number),
        Step::Update(_, number) => before.max(Some(*number)),
    };
    match after {
        Some(number) => values.insert(key, number),
        None => values.remove(&key),
    };
    match step {
        Step::Write(_) => None,
        Step::Update(op, _) => Some(*op != Op::PutIfAbsent || before.is_none()),
    }
}

proptest! {
    /// Writes come before updates, and each run of updates by one operation is a call of its own.
    #[test]
    fn a_batch_leaves_what_its_steps_would_leave_one_after_another(
        stored in prop::collection::btree_map(0u8..4, -3i64..3, 0..4),
        writes in prop::collection::vec((0u8..4, prop::option::of(-3i64..3)), 0..5),
        runs in prop::collection::vec((prop::collection::vec((0u8..4, -3i64..3), 1..4), step()), 0..4),
    ) {
        let job = Job::open(&CrashDisk::new()).unwrap();
        let task = &job.tasks[0];
        // Keys that this task owns, whatever the hash says.
        let own: Vec<u8> = (0..=u8::MAX).filter(|key| task.owns(&[*key])).take(4).collect();
        let own = |key: u8| own[usize::from(key)];
        let mut expected: BTreeMap<u8, i64> = stored.iter().map(|(key, number)| (own(*key), *number)).collect();
        for (key, number) in &expected {
            job.apply(&[*key], Some(&number.to_le_bytes()));
        }
        let writes: Vec<(u8, Option<i64>)> = writes.into_iter().map(|(key, number)| (own(key), number)).collect();
        for (key, number) in &writes {
            one_by_one(&mut expected, *key, &Step::Write(*number));
        }
        let (mut calls, mut expected_outcomes) = (Vec::new(), Vec::new());
        for (steps, kind) in &runs {
            let Step::Update(op, _) = kind else { continue };
            let steps: Vec<(u8, i64)> = steps.iter().map(|(key, number)| (own(*key), *number)).collect();
            let outcome = |(key, number): &(u8, i64)| one_by_one(&mut expected, *key, &Step::Update(*op, *number));
            expected_outcomes.push(steps.iter().filter_map(outcome).map(Ok).collect::<Vec<Updated>>());
            calls.push(updates(*op, &steps));
        }
        let bytes: Vec<([u8; 1], Option<[u8; 8]>)> =
            writes.iter().map(|(key, number)| ([*key], number.map(i64::to_le_bytes))).collect();
        let as_writes = bytes.iter().map(|(key, value)| {
            Write { table: 0, key, value: value.as_ref().map(<[u8; 8]>::as_slice), when: When::NEWEST }
        });
        let calls: Vec<UpdatesOf<'_>> = calls.iter().map(|updates| UpdatesOf { table: 0, updates }).collect();
        let outcomes = task.write_and_update(as_writes.collect(), &calls).unwrap();
        prop_assert_eq!(outcomes, expected_outcomes);
        for key in 0..=u8::MAX {
            if task.owns(&[key]) {
                let found = job.get(&[key]);
                prop_assert_eq!(found, expected.get(&key).map(|number| number.to_le_bytes().to_vec()));
            }
        }
    }
}

#[test]
fn an_update_that_does_not_fit_leaves_the_others_alone() {
    let job = Job::open(&CrashDisk::new()).unwrap();
    let task = &job.tasks[0];
    let own: Vec<u8> = (0..=u8::MAX).filter(|key| task.owns(&[*key])).take(2).collect();
    let adds = updates(Op::Add(Number::S64), &[(own[0], 1), (own[1], 2), (own[1], 3)]);
    let write = Write { table: 0, key: &[own[0]], value: Some(b"abc"), when: When::NEWEST };
    let outcomes = task.write_and_update(vec![write], &[UpdatesOf { table: 0, updates: &adds }]).unwrap();
    assert!(matches!(&outcomes[0][..], [Err(_), Ok(true), Ok(true)]), "{outcomes:?}");
    assert_eq!((job.get(&[own[0]]), job.get(&[own[1]])), (Some(b"abc".to_vec()), Some(5i64.to_le_bytes().to_vec())));
    let nothing = updates(Op::PutIfAbsent, &[(own[1], 9)]);
    assert_eq!(task.update(0, &nothing).unwrap(), [Ok(false)]);
    assert_eq!(nothing.change(0, None, &mut Vec::new()), Ok(Changed::To));
}
