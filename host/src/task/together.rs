//! The effects of several records as those of one call, so that they are applied together.

use crate::plugin::{Effects, TableUpdates};
use crate::record::Column;
use crate::state::update::Operands;

/// Adds what record `record` of a batch does, in a call of its own, to what the records before it do. Writes and rejects name their record by its place in the batch.
pub(super) fn add(all: &mut Effects, record: u32, one: Effects) {
    for mut writes in one.writes {
        writes.records.fill(record);
        all.writes.push(writes);
    }
    for emitted in one.emitted {
        match all.emitted.last_mut() {
            Some(last) if last.port == emitted.port => {
                last.batch.extend_from(&emitted.batch, 0..emitted.batch.len());
                last.records.extend(emitted.records);
            }
            _ => all.emitted.push(emitted),
        }
    }
    for updates in one.updates {
        match all.updates.last_mut() {
            Some(last) if may_join(last, &updates) => join(last, updates),
            _ => all.updates.push(updates),
        }
    }
    all.sent.extend(one.sent);
    all.rejects.extend(one.rejects.into_iter().map(|(_, reason)| (record, reason)));
    all.counts.extend(one.counts);
    all.gauges.extend(one.gauges);
    all.dropped_any |= one.dropped_any;
}

fn may_join(left: &TableUpdates, right: &TableUpdates) -> bool {
    left.table == right.table
        && left.updates.op == right.updates.op
        && left.outcomes.as_ref().map(|asked| asked.port) == right.outcomes.as_ref().map(|asked| asked.port)
}

fn join(left: &mut TableUpdates, right: TableUpdates) {
    extend(&mut left.updates.keys, &right.updates.keys);
    join_operands(&mut left.updates.operands, &right.updates.operands);
    join_operands(&mut left.updates.expected, &right.updates.expected);
    left.updates.times.extend(right.updates.times);
    left.records.extend(right.records);
    if let (Some(left), Some(right)) = (&mut left.outcomes, right.outcomes) {
        left.records.extend_from(&right.records, 0..right.records.len());
    }
}

/// Where one side says which of its items are there, both have to.
fn join_operands(left: &mut Operands, right: &Operands) {
    if !(left.present.is_empty() && right.present.is_empty()) {
        left.present.resize(left.items.len(), true);
        let right_present = (0..right.items.len()).map(|index| right.get(index).is_some());
        left.present.extend(right_present);
    }
    extend(&mut left.items, &right.items);
}

fn extend(left: &mut Column, right: &Column) {
    left.extend_from(right, 0..right.len());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Emitted, Outcomes, Writes};
    use crate::record::Batch;
    use crate::state::update::{Op, Updates};

    fn column(items: &[&str]) -> Column {
        items.iter().map(|item| item.as_bytes()).collect()
    }

    fn batch(items: &[&str]) -> Batch {
        Batch { keys: column(items), values: column(items), times: vec![1; items.len()] }
    }

    fn puts(table: usize, items: &[&str], present: &[bool], port: Option<usize>) -> TableUpdates {
        let operands = Operands { items: column(items), present: present.to_vec() };
        TableUpdates {
            table,
            updates: Updates {
                op: Op::Put,
                keys: column(items),
                operands,
                expected: Operands::default(),
                times: vec![7; items.len()],
            },
            records: vec![0; items.len()],
            outcomes: port.map(|port| Outcomes { port, records: batch(items) }),
        }
    }

    fn joined(parts: Vec<TableUpdates>) -> Vec<TableUpdates> {
        let mut all = Effects::default();
        for (record, updates) in parts.into_iter().enumerate() {
            add(&mut all, record as u32, Effects { updates: vec![updates], ..Effects::default() });
        }
        all.updates
    }

    #[test]
    fn updates_of_one_kind_become_one() {
        assert_eq!(
            joined(vec![
                puts(0, &["a"], &[], None),
                puts(0, &["b", ""], &[true, false], None),
                puts(0, &["d"], &[], None)
            ]),
            [TableUpdates { records: vec![0; 4], ..puts(0, &["a", "b", "", "d"], &[true, true, false, true], None) }]
        );
        assert_eq!(
            joined(vec![puts(0, &["a"], &[], Some(1)), puts(0, &["b"], &[], Some(1))]),
            [puts(0, &["a", "b"], &[], Some(1))]
        );
    }

    #[test]
    fn updates_of_other_tables_or_with_other_outcomes_stay_apart() {
        let apart = |left: TableUpdates, right: TableUpdates| {
            assert_eq!(joined(vec![left.clone(), right.clone()]), [left, right]);
        };
        apart(puts(0, &["a"], &[], None), puts(1, &["a"], &[], None));
        apart(puts(0, &["a"], &[], Some(0)), puts(0, &["a"], &[], None));
        apart(puts(0, &["a"], &[], Some(0)), puts(0, &["a"], &[], Some(1)));
    }

    #[test]
    fn everything_else_is_kept_in_order_and_rejects_name_their_records() {
        let one = |key: &str, reject: bool| Effects {
            writes: vec![Writes { table: 0, keys: column(&[key]), values: None, records: vec![0] }],
            emitted: vec![Emitted { port: 0, batch: batch(&[key]), records: vec![0] }],
            rejects: reject.then(|| (0, key.to_owned())).into_iter().collect(),
            counts: vec![(key.to_owned(), 1)],
            ..Effects::default()
        };
        let mut all = Effects::default();
        add(&mut all, 3, one("x", false));
        add(&mut all, 7, one("y", true));
        let records: Vec<_> = all.writes.iter().map(|writes| writes.records.as_slice()).collect();
        assert_eq!(records, [[3], [7]], "a write has the time of its record");
        assert_eq!(all.emitted, [Emitted { port: 0, batch: batch(&["x", "y"]), records: vec![0, 0] }]);
        assert_eq!(all.rejects, [(7, "y".to_owned())]);
        assert_eq!(all.counts, [("x".to_owned(), 1), ("y".to_owned(), 1)]);
    }
}
