//! The effects of several calls as those of one, so that they are applied together.

use std::ops::Range;

use crate::plugin::{Effects, Figures, TableUpdates};
use crate::record::Column;
use crate::state::update::Operands;

/// Adds what a call with the records `part` of a batch did to what calls with those before them did. All that it does names its record by its place in the batch then.
pub(super) fn add(all: &mut Effects, part: Range<usize>, mut one: Effects) {
    name(&mut one, part);
    all.writes.extend(one.writes);
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
    all.rejects.extend(one.rejects);
    all.counts.extend(one.counts);
    all.gauges.extend(one.gauges);
    all.dropped_any |= one.dropped_any;
}

/// Names the records of a part by their places in the whole.
fn name(one: &mut Effects, part: Range<usize>) {
    let start = part.start as u32;
    let moved = |records: &mut Vec<u32>| records.iter_mut().for_each(|record| *record += start);
    one.writes.iter_mut().for_each(|writes| moved(&mut writes.records));
    one.emitted.iter_mut().for_each(|emitted| moved(&mut emitted.records));
    one.updates.iter_mut().for_each(|updates| moved(&mut updates.records));
    one.sent.iter_mut().for_each(|sent| moved(&mut sent.records));
    one.rejects.iter_mut().for_each(|(record, _)| *record += start);
    one.counts.iter_mut().for_each(|counts| name_figures(counts, part.clone()));
    one.gauges.iter_mut().for_each(|gauges| name_figures(gauges, part.clone()));
}

/// What a call with one record has counted is that record's.
fn name_figures<T>(figures: &mut Figures<T>, part: Range<usize>) {
    if part.len() == 1 {
        figures.records = vec![0; figures.values.len()];
    }
    figures.records.iter_mut().for_each(|record| *record += part.start as u32);
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
    use crate::plugin::{Emitted, Figures, Outcomes, Writes};
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
            add(&mut all, record..record + 1, Effects { updates: vec![updates], ..Effects::default() });
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
            [TableUpdates {
                records: vec![0, 1, 1, 2],
                ..puts(0, &["a", "b", "", "d"], &[true, true, false, true], None)
            }]
        );
        assert_eq!(
            joined(vec![puts(0, &["a"], &[], Some(1)), puts(0, &["b"], &[], Some(1))]),
            [TableUpdates { records: vec![0, 1], ..puts(0, &["a", "b"], &[], Some(1)) }]
        );
    }

    #[test]
    fn updates_of_other_tables_or_with_other_outcomes_stay_apart() {
        let apart = |left: TableUpdates, right: TableUpdates| {
            let later = TableUpdates { records: vec![1], ..right.clone() };
            assert_eq!(joined(vec![left.clone(), right]), [left, later]);
        };
        apart(puts(0, &["a"], &[], None), puts(1, &["a"], &[], None));
        apart(puts(0, &["a"], &[], Some(0)), puts(0, &["a"], &[], None));
        apart(puts(0, &["a"], &[], Some(0)), puts(0, &["a"], &[], Some(1)));
    }

    #[test]
    fn everything_else_is_kept_in_order_and_names_its_record() {
        let one = |key: &str, reject: bool| Effects {
            writes: vec![Writes { table: 0, keys: column(&[key]), values: None, records: vec![0] }],
            emitted: vec![Emitted { port: 0, batch: batch(&[key]), records: vec![0] }],
            rejects: reject.then(|| (0, key.to_owned())).into_iter().collect(),
            counts: vec![Figures { name: key.to_owned(), values: vec![1], records: Vec::new() }],
            ..Effects::default()
        };
        let mut all = Effects::default();
        add(&mut all, 3..4, one("x", false));
        add(&mut all, 7..8, one("y", true));
        let records: Vec<_> = all.writes.iter().map(|writes| writes.records.as_slice()).collect();
        assert_eq!(records, [[3], [7]], "a write has the time of its record");
        assert_eq!(all.emitted, [Emitted { port: 0, batch: batch(&["x", "y"]), records: vec![3, 7] }]);
        assert_eq!(all.rejects, [(7, "y".to_owned())]);
        let count = |name: &str, record| Figures { name: name.to_owned(), values: vec![1], records: vec![record] };
        assert_eq!(all.counts, [count("x", 3), count("y", 7)]);
        add(&mut all, 8..12, one("z", true));
        assert_eq!((&all.writes[2].records, all.rejects[1].0), (&vec![8], 8));
        assert!(all.counts[2].records.is_empty(), "of a call with several records it is the call's");
    }
}
