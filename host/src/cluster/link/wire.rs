//! Columns, deliveries and lookups as messages of `schema/peer.capnp`, and back.
//!
//! What is read comes from outside: every length is checked before anything is built on it, and what is built is at most as large as the message.

use std::sync::Arc;

use capnp::{Error, data, primitive_list};

use super::generated::peer_capnp::{
    asked, batch, bound, column, delivery, get_answer, message, op, operands, page, read, refusal, scan_answer,
    updates, values,
};
use super::lookups::{self, LookupFault, Read, Refusal, RefusalKind, Scan, State, Values};
use super::message::{Asked, CONTROL_BYTES_MAX, Delivery, Load, TableUpdates, check_load};
use super::session::Message;
use crate::lookup::{Consistency, Page, TableId};
use crate::record::{Batch, Column};
use crate::state::update::{Number, Op, Operands, Updates};

/// What a message of the session says that has come.
pub(super) enum Received {
    Control(Vec<u8>),
    Delivery { attempt: u64, delivery: Delivery },
    Void,
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::failed(reason.to_string())
}

/// A length for a list of a message.
fn length(length: usize) -> Result<u32, Error> {
    u32::try_from(length).map_err(|_| failed("a list is too long for a message"))
}

pub(super) fn write_column(mut told: column::Builder<'_>, column: &Column) -> Result<(), Error> {
    length(column.bytes().len())?;
    told.set_bytes(column.bytes());
    told.set_ends(column.ends())
}

pub(super) fn read_column(told: column::Reader<'_>) -> Result<Column, Error> {
    let ends = told.get_ends()?.iter().collect();
    Column::from_parts(told.get_bytes()?.to_vec(), ends).map_err(failed)
}

fn times_of(times: primitive_list::Reader<'_, i64>) -> Vec<i64> {
    times.iter().collect()
}

fn write_batch(mut told: batch::Builder<'_>, batch: &Batch) -> Result<(), Error> {
    write_column(told.reborrow().init_keys(), &batch.keys)?;
    write_column(told.reborrow().init_values(), &batch.values)?;
    told.set_times(batch.times.as_slice())
}

fn read_batch(told: batch::Reader<'_>) -> Result<Batch, Error> {
    let (keys, values) = (read_column(told.get_keys()?)?, read_column(told.get_values()?)?);
    Batch::from_columns(keys, values, times_of(told.get_times()?)).map_err(failed)
}

/// Marks of which items are there: a byte an item, none where all are.
fn marks(present: &[bool]) -> Vec<u8> {
    present.iter().map(|&present| u8::from(present)).collect()
}

fn write_operands(mut told: operands::Builder<'_>, operands: &Operands) -> Result<(), Error> {
    told.set_present(&marks(&operands.present));
    write_column(told.init_items(), &operands.items)
}

fn read_operands(told: operands::Reader<'_>) -> Result<Operands, Error> {
    let present: data::Reader<'_> = told.get_present()?;
    let present = present.iter().map(|&mark| mark != 0).collect();
    Ok(Operands { items: read_column(told.get_items()?)?, present })
}

fn number_of(told: Result<super::generated::peer_capnp::Number, capnp::NotInSchema>) -> Result<Number, Error> {
    use super::generated::peer_capnp::Number as Told;
    Ok(match told? {
        Told::S64 => Number::S64,
        Told::F32 => Number::F32,
        Told::F64 => Number::F64,
    })
}

fn number(number: Number) -> super::generated::peer_capnp::Number {
    use super::generated::peer_capnp::Number as Told;
    match number {
        Number::S64 => Told::S64,
        Number::F32 => Told::F32,
        Number::F64 => Told::F64,
    }
}

fn write_op(mut told: op::Builder<'_>, op: Op) {
    match op {
        Op::Put => told.set_put(()),
        Op::PutIfAbsent => told.set_put_if_absent(()),
        Op::Delete => told.set_delete(()),
        Op::CompareAndPut => told.set_compare_and_put(()),
        Op::Add(kind) => told.set_add(number(kind)),
        Op::Min(kind) => told.set_min(number(kind)),
        Op::Max(kind) => told.set_max(number(kind)),
        Op::Append { items_max } => told.set_append(items_max),
    }
}

fn read_op(told: op::Reader<'_>) -> Result<Op, Error> {
    Ok(match told.which()? {
        op::Put(()) => Op::Put,
        op::PutIfAbsent(()) => Op::PutIfAbsent,
        op::Delete(()) => Op::Delete,
        op::CompareAndPut(()) => Op::CompareAndPut,
        op::Add(kind) => Op::Add(number_of(kind)?),
        op::Min(kind) => Op::Min(number_of(kind)?),
        op::Max(kind) => Op::Max(number_of(kind)?),
        op::Append(items_max) => Op::Append { items_max },
    })
}

fn write_updates(mut told: updates::Builder<'_>, sent: &TableUpdates) -> Result<(), Error> {
    let TableUpdates { table, updates, asked } = sent;
    told.set_table(*table);
    write_op(told.reborrow().init_op(), updates.op);
    write_column(told.reborrow().init_keys(), &updates.keys)?;
    write_operands(told.reborrow().init_operands(), &updates.operands)?;
    write_operands(told.reborrow().init_expected(), &updates.expected)?;
    told.set_times(updates.times.as_slice())?;
    match asked {
        None => told.set_unasked(()),
        Some(asked) => {
            let mut told: asked::Builder<'_> = told.init_asked();
            told.set_port(asked.port);
            told.set_task(asked.task);
            write_batch(told.init_records(), &asked.records)?;
        }
    }
    Ok(())
}

fn read_updates(told: updates::Reader<'_>) -> Result<Load, Error> {
    let updates = Updates {
        op: read_op(told.get_op()?)?,
        keys: read_column(told.get_keys()?)?,
        operands: read_operands(told.get_operands()?)?,
        expected: read_operands(told.get_expected()?)?,
        times: times_of(told.get_times()?),
    };
    let asked = match told.which()? {
        updates::Unasked(()) => None,
        updates::Asked(asked) => {
            let asked = asked?;
            let records = read_batch(asked.get_records()?)?;
            Some(Asked { port: asked.get_port(), task: asked.get_task(), records })
        }
    };
    Ok(Load::Updates(Box::new(TableUpdates { table: told.get_table(), updates, asked })))
}

/// Writes a message of the session.
pub(super) fn write_message(mut told: message::Builder<'_>, message: &Message) -> Result<(), Error> {
    match message {
        Message::Void => told.set_void(()),
        Message::Control(bytes) => told.set_control(bytes),
        Message::Delivery(attempt, Delivery { task, load }) => {
            let mut told = told.init_delivery();
            told.set_attempt(*attempt);
            told.set_task(*task);
            match load {
                Load::Records(records) => write_batch(told.init_records(), records)?,
                Load::Looped(records) => write_batch(told.init_looped(), records)?,
                Load::Updates(updates) => write_updates(told.init_updates(), updates)?,
                Load::Outcomes { port, records } => {
                    let mut told = told.init_outcomes();
                    told.set_port(*port);
                    write_batch(told.init_records(), records)?;
                }
            }
        }
    }
    Ok(())
}

/// Reads a message of the session.
pub(super) fn read_message(told: message::Reader<'_>) -> Result<Received, Error> {
    Ok(match told.which()? {
        message::Void(()) => Received::Void,
        message::Control(bytes) => {
            let bytes = bytes?;
            if bytes.len() > CONTROL_BYTES_MAX {
                return Err(failed(format_args!("a control message has {} bytes", bytes.len())));
            }
            Received::Control(bytes.to_vec())
        }
        message::Delivery(told) => {
            let told = told?;
            let load = match told.which()? {
                delivery::Records(records) => Load::Records(read_batch(records?)?),
                delivery::Looped(records) => Load::Looped(Arc::new(read_batch(records?)?)),
                delivery::Updates(updates) => read_updates(updates?)?,
                delivery::Outcomes(outcomes) => {
                    let outcomes = outcomes?;
                    Load::Outcomes { port: outcomes.get_port(), records: read_batch(outcomes.get_records()?)? }
                }
            };
            check_load(&load).map_err(failed)?;
            Received::Delivery { attempt: told.get_attempt(), delivery: Delivery { task: told.get_task(), load } }
        }
    })
}

/// The table that a number stands for. Whether there is one is for who answers to know.
pub(super) fn table_of(number: u64) -> TableId {
    TableId::new((number >> 32) as usize, (number & u64::from(u32::MAX)) as usize)
}

pub(super) fn write_consistency(mut told: read::Builder<'_>, consistency: Consistency) {
    match consistency {
        Consistency::Live => told.set_live(()),
        Consistency::Committed => told.set_committed(()),
        Consistency::AsOf(epoch) => told.set_as_of(epoch),
    }
}

pub(super) fn write_read(mut told: read::Builder<'_>, read: &Read) -> Result<(), Error> {
    match read {
        Read::At(consistency) => write_consistency(told, *consistency),
        Read::AsOfTimes(times) => {
            told.reborrow().init_times(length(times.len())?);
            told.set_times(times.as_slice())?;
        }
    }
    Ok(())
}

pub(super) fn read_read(told: read::Reader<'_>) -> Result<Read, Error> {
    Ok(match told.which()? {
        read::Live(()) => Read::At(Consistency::Live),
        read::Committed(()) => Read::At(Consistency::Committed),
        read::AsOf(epoch) => Read::At(Consistency::AsOf(epoch)),
        read::Times(times) => Read::AsOfTimes(times_of(times?)),
    })
}

pub(super) fn write_values(mut told: values::Builder<'_>, items: &Column, states: &[State]) -> Result<(), Error> {
    let data = told.reborrow().init_states(length(states.len())?);
    for (byte, state) in data.iter_mut().zip(states) {
        *byte = *state as u8;
    }
    write_column(told.init_values(), items)
}

fn read_values(told: values::Reader<'_>) -> Result<Values, Error> {
    let states = told.get_states()?.iter().map(|&byte| State::of(byte));
    let states = states.collect::<Option<Vec<_>>>().ok_or_else(|| failed("an answer has an unknown state"))?;
    let items = read_column(told.get_values()?)?;
    if items.len() != states.len() {
        return Err(failed("an answer has more states than values, or fewer"));
    }
    // Else it would be asked for the same again and again.
    if states.contains(&State::AskAgain) && !states.contains(&State::Present) {
        return Err(failed("an answer is full of nothing"));
    }
    Ok(Values::new(items, states))
}

/// The values, or why there are none.
pub(super) fn read_get_answer(told: get_answer::Reader<'_>, keys: usize) -> Result<Result<Values, LookupFault>, Error> {
    Ok(match told.which()? {
        get_answer::Values(told) => {
            let values = read_values(told?)?;
            if values.len() != keys {
                return Err(failed(format_args!("an answer to {keys} keys has {} values", values.len())));
            }
            Ok(values)
        }
        get_answer::Refused(told) => Err(read_refusal(told?)?),
    })
}

pub(super) fn write_page(mut told: page::Builder<'_>, page: &Page) -> Result<(), Error> {
    write_column(told.reborrow().init_keys(), &page.keys)?;
    write_column(told.reborrow().init_values(), &page.values)?;
    write_bound(told.init_next(), page.next.as_deref());
    Ok(())
}

/// The page, or why there is none.
pub(super) fn read_scan_answer(told: scan_answer::Reader<'_>, scan: &Scan) -> Result<Result<Page, LookupFault>, Error> {
    Ok(match told.which()? {
        scan_answer::Page(told) => {
            let told = told?;
            let (keys, values) = (read_column(told.get_keys()?)?, read_column(told.get_values()?)?);
            let page = Page { keys, values, next: read_bound(told.get_next()?)? };
            scan.check(&page).map_err(failed)?;
            Ok(page)
        }
        scan_answer::Refused(told) => Err(read_refusal(told?)?),
    })
}

pub(super) fn write_bound(mut told: bound::Builder<'_>, bound: Option<&[u8]>) {
    match bound {
        None => told.set_end(()),
        Some(before) => told.set_before(before),
    }
}

pub(super) fn read_bound(told: bound::Reader<'_>) -> Result<Option<Vec<u8>>, Error> {
    Ok(match told.which()? {
        bound::End(()) => None,
        bound::Before(before) => Some(before?.to_vec()),
    })
}

/// Why a lookup is not answered.
pub(super) enum NoAnswer {
    Stale,
    Refused(Refusal),
}

pub(super) fn write_refusal(mut told: refusal::Builder<'_>, why: &NoAnswer) {
    let (kind, text) = match why {
        NoAnswer::Stale => (refusal::Kind::Stale, ""),
        NoAnswer::Refused(Refusal { kind, text }) => {
            let kind = match kind {
                lookups::RefusalKind::Gone => refusal::Kind::Gone,
                lookups::RefusalKind::NotAllowed => refusal::Kind::NotAllowed,
                lookups::RefusalKind::Failed => refusal::Kind::Failed,
            };
            (kind, text.as_str())
        }
    };
    told.set_kind(kind);
    told.set_text(text);
}

fn read_refusal(told: refusal::Reader<'_>) -> Result<LookupFault, Error> {
    let kind = match told.get_kind()? {
        refusal::Kind::Stale => return Ok(LookupFault::Stale),
        refusal::Kind::Gone => RefusalKind::Gone,
        refusal::Kind::NotAllowed => RefusalKind::NotAllowed,
        refusal::Kind::Failed => RefusalKind::Failed,
    };
    Ok(LookupFault::Refused(Refusal { kind, text: told.get_text()?.to_string()? }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::link::backoff::Dice;

    fn column() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..20)
    }

    fn made(items: &[Vec<u8>]) -> Column {
        items.iter().map(Vec::as_slice).collect()
    }

    fn op() -> impl Strategy<Value = Op> {
        let number = prop_oneof![Just(Number::S64), Just(Number::F32), Just(Number::F64)];
        prop_oneof![
            Just(Op::Put),
            Just(Op::PutIfAbsent),
            Just(Op::Delete),
            Just(Op::CompareAndPut),
            number.clone().prop_map(Op::Add),
            number.clone().prop_map(Op::Min),
            number.prop_map(Op::Max),
            (1..9_u32).prop_map(|items_max| Op::Append { items_max }),
        ]
    }

    fn load() -> impl Strategy<Value = Load> {
        let parts = (column(), op(), any::<u32>(), any::<bool>(), any::<i64>(), 0..4);
        parts.prop_map(|(items, op, number, flag, time, kind)| {
            let column = made(&items);
            let records = Batch { keys: column.clone(), values: column.clone(), times: vec![time; items.len()] };
            match kind {
                0 => Load::Records(records),
                1 => Load::Looped(Arc::new(records)),
                2 => Load::Outcomes { port: number, records },
                _ => {
                    let present = if flag { vec![flag; items.len()] } else { Vec::new() };
                    let operands = Operands { items: column.clone(), present };
                    let expected = if op == Op::CompareAndPut { operands.clone() } else { Operands::default() };
                    let times = if flag { vec![time; items.len()] } else { Vec::new() };
                    let updates = Updates { op, keys: column, operands, expected, times };
                    let asked = flag.then_some(Asked { port: number, task: number / 2, records });
                    Load::Updates(Box::new(TableUpdates { table: number, updates, asked }))
                }
            }
        })
    }

    fn travelled(message: &Message) -> Result<Received, Error> {
        let mut builder = capnp::message::Builder::new_default();
        write_message(builder.init_root(), message)?;
        let bytes = capnp::serialize::write_message_to_words(&builder);
        let reader = capnp::serialize::read_message(&bytes[..], capnp::message::ReaderOptions::new())?;
        read_message(reader.get_root()?)
    }

    proptest! {
        #[test]
        fn deliveries_are_read_as_they_were_written(attempt in any::<u64>(), task in any::<u32>(), load in load()) {
            let sent = Delivery { task, load };
            match travelled(&Message::Delivery(attempt, sent.clone())).unwrap() {
                Received::Delivery { attempt: told, delivery } => prop_assert_eq!((told, delivery), (attempt, sent)),
                _ => prop_assert!(false),
            }
        }
    }

    /// Messages of every kind that carries something.
    fn samples() -> Vec<Vec<u8>> {
        let column: Column = [&b"some"[..], b"", b"items"].into_iter().collect();
        let batch = Batch { keys: column.clone(), values: column.clone(), times: vec![1, -1, i64::MAX] };
        let operands = Operands { items: column.clone(), present: vec![true, false, true] };
        let (keys, expected, times) = (column.clone(), operands.clone(), vec![1, 2, 3]);
        let updates = Updates { op: Op::CompareAndPut, keys, operands, expected, times };
        let asked = Some(Asked { port: 1, task: 2, records: batch.clone() });
        let updates = Load::Updates(Box::new(TableUpdates { table: 1, updates, asked }));
        let loads = [Load::Records(batch.clone()), Load::Outcomes { port: 1, records: batch.clone() }, updates];
        let written = |write: &dyn Fn(&mut capnp::message::Builder<capnp::message::HeapAllocator>)| {
            let mut builder = capnp::message::Builder::new_default();
            write(&mut builder);
            capnp::serialize::write_message_to_words(&builder)
        };
        let deliveries = loads.map(|load| {
            let message = Message::Delivery(1, Delivery { task: 3, load });
            written(&|builder| write_message(builder.init_root(), &message).unwrap())
        });
        let states = [State::Present, State::AskAgain, State::Absent];
        let page =
            Page { keys: [&b"a"[..], b"b"].into_iter().collect(), values: column.clone(), next: Some(b"c".to_vec()) };
        let page = Page { values: [&b"1"[..], b"2"].into_iter().collect(), ..page };
        let others = [
            written(&|builder| write_message(builder.init_root(), &Message::Control(vec![7; 40])).unwrap()),
            written(&|builder| {
                write_values(builder.init_root::<get_answer::Builder<'_>>().init_values(), &column, &states).unwrap()
            }),
            written(&|builder| write_page(builder.init_root::<scan_answer::Builder<'_>>().init_page(), &page).unwrap()),
            written(&|builder| write_read(builder.init_root(), &Read::AsOfTimes(vec![1, 2, 3])).unwrap()),
        ];
        deliveries.into_iter().chain(others).collect()
    }

    /// Reads a message as each of the kinds. Returns how many can be read, having checked that none comes to more than what has come.
    fn read_all(bytes: &[u8]) -> usize {
        let options = capnp::message::ReaderOptions { traversal_limit_in_words: Some(4096), nesting_limit: 16 };
        let open = || capnp::serialize::read_message(bytes, options);
        let scan =
            Scan { table: TableId::new(0, 0), from: b"a".to_vec(), to: None, limit: 2, consistency: Consistency::Live };
        let received = open().and_then(|reader| read_message(reader.get_root()?));
        if let Ok(Received::Delivery { delivery, .. }) = &received {
            assert!(delivery.load.bytes() <= 8 * 4096 * 4, "{} bytes", delivery.load.bytes());
        }
        let values = open().and_then(|reader| read_get_answer(reader.get_root()?, 3));
        let page = open().and_then(|reader| read_scan_answer(reader.get_root()?, &scan));
        let read = open().and_then(|reader| read_read(reader.get_root()?));
        [received.is_ok(), values.is_ok(), page.is_ok(), read.is_ok()].into_iter().filter(|is_ok| *is_ok).count()
    }

    #[test]
    fn messages_that_are_changed_anywhere_are_read_as_something_or_refused() {
        let mut dice = Dice::new(7);
        let (mut read, mut refused) = (0, 0);
        for sample in samples() {
            assert!(read_all(&sample) > 0);
            for _ in 0..2_000 {
                let mut changed = sample.clone();
                for _ in 0..=dice.roll() % 4 {
                    let place = dice.roll() as usize % changed.len();
                    changed[place] = match dice.roll() % 4 {
                        0 => 0,
                        1 => 0xFF,
                        2 => changed[place] ^ (1 << (dice.roll() % 8)),
                        _ => dice.roll() as u8,
                    };
                }
                if dice.roll().is_multiple_of(8) {
                    changed.truncate(dice.roll() as usize % changed.len());
                }
                match read_all(&changed) {
                    0 => refused += 1,
                    _ => read += 1,
                }
            }
        }
        assert!(read > 1_000 && refused > 100, "{read} are read, {refused} refused");
    }

    #[test]
    fn an_answer_that_is_full_of_nothing_is_refused() {
        let check = |states: &[State]| {
            let mut builder = capnp::message::Builder::new_default();
            let column: Column = states.iter().map(|_| &b"x"[..]).collect();
            write_values(builder.init_root(), &column, states).unwrap();
            read_values(builder.get_root_as_reader().unwrap()).is_ok()
        };
        assert!(check(&[State::Present, State::AskAgain]) && check(&[State::Absent, State::TooLarge]));
        assert!(!check(&[State::AskAgain, State::TooLarge]));
    }

    #[test]
    fn updates_whose_columns_do_not_fit_are_refused() {
        let columns = |keys: usize, operands: usize, expected: usize, times: usize| {
            let column = |items: usize| (0..items).map(|_| &b"x"[..]).collect::<Column>();
            let of = |items| Operands { items: column(items), present: Vec::new() };
            let (operands, expected) = (of(operands), of(expected));
            Updates { op: Op::CompareAndPut, keys: column(keys), operands, expected, times: vec![0; times] }
        };
        let check = |updates: Updates| {
            let load = Load::Updates(Box::new(TableUpdates { table: 0, updates, asked: None }));
            travelled(&Message::Delivery(1, Delivery { task: 0, load })).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(check(columns(2, 2, 2, 0)), Ok(()));
        assert_eq!(check(columns(2, 2, 2, 2)), Ok(()));
        assert!(check(columns(2, 1, 2, 0)).unwrap_err().contains("2 updates, but 1 operands"));
        assert!(check(columns(2, 2, 0, 0)).unwrap_err().contains("0 expected values"));
        assert!(check(columns(2, 2, 2, 1)).unwrap_err().contains("1 times"));
    }

    #[test]
    fn a_table_is_found_by_its_number_whatever_the_number() {
        assert_eq!(table_of(TableId::new(3, 5).number()), TableId::new(3, 5));
        assert_eq!(table_of(u64::MAX).number(), u64::MAX);
    }
}
