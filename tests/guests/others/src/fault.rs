//! What the function does wrong.

use crate::columns::{Emitted, column};
use crate::config::Fault;
use crate::wasmill::operator::declare;
use crate::wasmill::operator::tables::{self, Consistency, Op, Outcomes};
use crate::wasmill::operator::types::{Error, OptionalColumn};
use crate::work::{DONE, Item, OTHER, OWN, all, keys, others, said};

/// Makes one call that the host must refuse.
pub fn process(fault: Fault, batch: &[Item<'_>]) -> Result<(), String> {
    let (call, result) = match fault {
        Fault::UnknownTable => ("get", tables::get("nobody", b"k", &Consistency::Live).map(drop)),
        Fault::BadKeys => {
            let mut keys = others(batch);
            keys.ends.push(u32::MAX);
            ("get-many", tables::get_many(OTHER, &keys, &Consistency::Live).map(drop))
        }
        Fault::EmptyPages => ("scan", tables::scan(OTHER, b"", None, 0, &Consistency::Live).map(drop)),
        Fault::EarlierValues => {
            let times = vec![0; batch.len()];
            ("get-many-at", tables::get_many_at(OTHER, &others(batch), &times, false).map(drop))
        }
        Fault::AbsentWithBytes => ("compare-and-put-many", put_what_is_absent(batch)),
        Fault::MissingTime => ("send", send_without_time(batch)),
        Fault::LateDeclaration => {
            declare::open_table(OWN);
            ("open-table", Ok(()))
        }
        fault => ("update-many", update(fault, batch)),
    };
    match result {
        Ok(()) => Err(format!("{call} was accepted, wrongly")),
        Err(error) => Err(said(call)(error)),
    }
}

fn update(fault: Fault, batch: &[Item<'_>]) -> Result<(), Error> {
    let (mut op, mut records, mut outcomes) = (Op::Put, all(batch), None);
    let mut values = column(batch.iter().map(|item| item.value));
    match fault {
        Fault::MissingValue => values = column(batch[1..].iter().map(|item| item.value)),
        Fault::MissingIndex => _ = records.pop(),
        Fault::IndexOutside => records[0] = u32::MAX,
        Fault::BadWidth => (op, values) = (Op::AddS64, column(batch.iter().map(|_| "abc"))),
        Fault::DeleteWithValues => op = Op::Delete,
        Fault::AppendNothing => op = Op::Append(0),
        Fault::UnknownOp => op = Op::Other("xor".to_owned()),
        Fault::UnknownPort => {
            outcomes = Some(Outcomes { port: "nowhere".to_owned(), keys: keys(batch), values: keys(batch) });
        }
        Fault::MissingOutcome => {
            outcomes = Some(Outcomes { port: DONE.to_owned(), keys: keys(batch), values: keys(&batch[1..]) });
        }
        _ => {}
    }
    tables::update_many(OTHER, &others(batch), &op, &values, &records, outcomes.as_ref())
}

fn put_what_is_absent(batch: &[Item<'_>]) -> Result<(), Error> {
    let values = || column(batch.iter().map(|item| item.value));
    let expected = OptionalColumn { items: values(), present: vec![0; batch.len()] };
    let new = OptionalColumn { items: values(), present: vec![1; batch.len()] };
    tables::compare_and_put_many(OTHER, &others(batch), &expected, &new, &all(batch), None)
}

fn send_without_time(batch: &[Item<'_>]) -> Result<(), Error> {
    let mut sent = Emitted::default();
    batch.iter().enumerate().for_each(|(index, item)| sent.push(index, item.key, item.value, item.time));
    let (mut sent, records) = sent.into_columns();
    sent.times.pop();
    tables::send(OTHER, &sent, &records)
}
