//! Taking the effects of some records out of what a call did: of those that it refused, or those that others were in the way of.

use std::collections::HashSet;

use super::{Effects, Outcomes};
use crate::record::{Batch, Column};
use crate::state::update::Operands;

/// Takes out the effects of rejected records, and puts the rejects in the order of their records, each named once.
pub(super) fn without_rejected(mut effects: Effects) -> Effects {
    if effects.rejects.is_empty() {
        return effects;
    }
    let rejected: HashSet<u32> = effects.rejects.iter().map(|(record, _)| *record).collect();
    effects.dropped_any = effects.drop_records(|record| rejected.contains(&record));
    effects.rejects.sort_by_key(|(record, _)| *record);
    effects.rejects.dedup_by_key(|(record, _)| *record);
    effects
}

impl Effects {
    /// Takes out what records did, but for their rejects. Returns whether that was anything.
    pub fn drop_records(&mut self, is_dropped: impl Fn(u32) -> bool) -> bool {
        let mut dropped_any = false;
        // The places of the effects that stay, where some do not.
        let mut kept = |records: &mut Vec<u32>| -> Option<Vec<usize>> {
            if !records.iter().any(|&record| is_dropped(record)) {
                return None;
            }
            dropped_any = true;
            let kept: Vec<usize> = (0..records.len()).filter(|&index| !is_dropped(records[index])).collect();
            *records = kept.iter().map(|&index| records[index]).collect();
            Some(kept)
        };
        for writes in &mut self.writes {
            if let Some(kept) = kept(&mut writes.records) {
                writes.keys = pick(&writes.keys, &kept);
                writes.values = writes.values.as_ref().map(|values| pick(values, &kept));
            }
        }
        for emitted in &mut self.emitted {
            if let Some(kept) = kept(&mut emitted.records) {
                emitted.batch = pick_records(&emitted.batch, &kept);
            }
        }
        for update in &mut self.updates {
            if let Some(kept) = kept(&mut update.records) {
                update.updates.keys = pick(&update.updates.keys, &kept);
                update.updates.operands = pick_operands(&update.updates.operands, &kept);
                update.updates.expected = pick_operands(&update.updates.expected, &kept);
                if !update.updates.times.is_empty() {
                    update.updates.times = kept.iter().map(|&index| update.updates.times[index]).collect();
                }
                update.outcomes = update
                    .outcomes
                    .as_ref()
                    .map(|outcomes| Outcomes { records: pick_records(&outcomes.records, &kept), ..*outcomes });
            }
        }
        for sent in &mut self.sent {
            if let Some(kept) = kept(&mut sent.records) {
                sent.batch = pick_records(&sent.batch, &kept);
            }
        }
        for counts in &mut self.counts {
            if let Some(kept) = kept(&mut counts.records) {
                counts.values = kept.iter().map(|&index| counts.values[index]).collect();
            }
        }
        for gauges in &mut self.gauges {
            if let Some(kept) = kept(&mut gauges.records) {
                gauges.values = kept.iter().map(|&index| gauges.values[index]).collect();
            }
        }
        if dropped_any {
            self.writes.retain(|writes| !writes.records.is_empty());
            self.emitted.retain(|emitted| !emitted.records.is_empty());
            self.updates.retain(|update| !update.records.is_empty());
            self.sent.retain(|sent| !sent.records.is_empty());
        }
        dropped_any
    }
}

fn pick(column: &Column, kept: &[usize]) -> Column {
    kept.iter().map(|&index| column.get(index)).collect()
}

fn pick_records(batch: &Batch, kept: &[usize]) -> Batch {
    Batch {
        keys: pick(&batch.keys, kept),
        values: pick(&batch.values, kept),
        times: kept.iter().map(|&index| batch.times[index]).collect(),
    }
}

/// Operands that an operation does not have stay none.
fn pick_operands(operands: &Operands, kept: &[usize]) -> Operands {
    if operands.items.is_empty() {
        return Operands::default();
    }
    let present = &operands.present;
    let present = if present.is_empty() { Vec::new() } else { kept.iter().map(|&index| present[index]).collect() };
    Operands { items: pick(&operands.items, kept), present }
}

#[cfg(test)]
mod tests {
    use super::super::{Emitted, Figures, Sent, TableUpdates, Writes};
    use super::*;
    use crate::state::update::{Op, Updates};

    fn column(items: &[&str]) -> Column {
        items.iter().map(|item| item.as_bytes()).collect()
    }

    fn batch(items: &[&str]) -> Batch {
        Batch { keys: column(items), values: column(items), times: (0..items.len() as i64).collect() }
    }

    fn updates(items: &[&str], records: &[u32]) -> TableUpdates {
        let operands = Operands { items: column(items), present: items.iter().map(|item| !item.is_empty()).collect() };
        TableUpdates {
            table: 0,
            updates: Updates {
                op: Op::CompareAndPut,
                keys: column(items),
                operands: operands.clone(),
                expected: operands,
                times: Vec::new(),
            },
            records: records.to_vec(),
            outcomes: Some(Outcomes { port: 1, records: batch(items) }),
        }
    }

    #[test]
    fn every_kind_of_effect_is_dropped_with_its_record() {
        let (all, records) = (["a", "", "c", "d"], vec![0, 1, 1, 2]);
        let deletes = Updates {
            op: Op::Delete,
            keys: column(&all),
            operands: Operands::default(),
            expected: Operands::default(),
            times: Vec::new(),
        };
        let effects = Effects {
            writes: vec![Writes { table: 0, keys: column(&all), values: None, records: records.clone() }],
            emitted: vec![Emitted { port: 0, batch: batch(&all), records: records.clone() }],
            updates: vec![
                updates(&all, &records),
                TableUpdates { updates: deletes, outcomes: None, ..updates(&all, &records) },
            ],
            sent: vec![Sent { table: 0, batch: batch(&all), records: records.clone() }],
            rejects: vec![(1, "second reason".to_owned()), (1, "again".to_owned())],
            counts: vec![
                Figures { name: "of the call".to_owned(), values: vec![9], records: Vec::new() },
                Figures { name: "of records".to_owned(), values: vec![1, 2, 3, 4], records: records.clone() },
            ],
            gauges: vec![Figures { name: "gauge".to_owned(), values: vec![0.5, 1.5], records: vec![1, 2] }],
            ..Effects::default()
        };
        let left = without_rejected(effects);
        let rest = ["a", "d"];
        let mut rest_batch = batch(&rest);
        rest_batch.times = vec![0, 3];
        assert_eq!(left.writes[0].keys, column(&rest));
        assert_eq!((&left.emitted[0].batch, &left.sent[0].batch), (&rest_batch, &rest_batch));
        let mut expected = updates(&rest, &[0, 2]);
        expected.outcomes = Some(Outcomes { port: 1, records: rest_batch });
        assert_eq!(left.updates[0], expected);
        assert_eq!((&left.updates[1].updates.keys, &left.updates[1].records), (&column(&rest), &vec![0, 2]));
        assert_eq!(left.updates[1].updates.operands, Operands::default());
        assert_eq!(left.rejects, [(1, "second reason".to_owned())]);
        assert!(left.dropped_any);
        let counts: Vec<_> = left.counts.iter().map(|counts| counts.values.as_slice()).collect();
        assert_eq!((counts, left.gauges[0].values.as_slice()), (vec![[9].as_slice(), &[1, 4]], [1.5].as_slice()));
    }

    #[test]
    fn a_record_without_effects_leaves_the_others_as_they_are() {
        let effects = Effects {
            updates: vec![updates(&["a"], &[0])],
            rejects: vec![(2, "z".to_owned()), (1, "y".to_owned())],
            ..Effects::default()
        };
        let left = without_rejected(effects.clone());
        assert_eq!(left.updates, effects.updates);
        assert!(!left.dropped_any);
        assert_eq!(left.rejects, [(1, "y".to_owned()), (2, "z".to_owned())]);
    }
}
