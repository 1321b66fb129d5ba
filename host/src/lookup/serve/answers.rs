//! The two interfaces of the schema, over a [`Directory`].

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use capnp::Error;
use capnp::data_list;

use super::Admit;
use super::bounded::Line;
use crate::lookup::generated::query_capnp::{bound, consistency, entrance, tables, value};
use crate::lookup::{Consistency, Directory, LookupError, TableId};
use crate::record::Column;

/// The most keys of one call.
const KEYS_MAX: u32 = 10_000;
/// The bytes of values that one answer may have.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What an answer takes beside its bytes, at least.
const ANSWER_BYTES_MIN: u64 = 32;
/// How many calls of a connection may wait for an epoch.
const WAITING_MAX: u32 = 256;

/// Where a connection begins.
pub(super) struct Entrance {
    directory: Arc<Directory>,
    admit: Admit,
    line: Rc<Line>,
}

impl Entrance {
    pub(super) fn new(directory: Arc<Directory>, admit: Admit, line: Rc<Line>) -> Self {
        Self { directory, admit, line }
    }
}

impl entrance::Server for Entrance {
    async fn enter(
        self: Rc<Self>,
        params: entrance::EnterParams,
        mut results: entrance::EnterResults,
    ) -> Result<(), Error> {
        if !(self.admit)(params.get()?.get_token()?.to_str()?) {
            return Err(Error::failed(
                "this job asks for another token: the one of the manifest's `[admin]`".to_owned(),
            ));
        }
        self.line.open();
        let tables =
            Tables { directory: Arc::clone(&self.directory), line: Rc::clone(&self.line), waiting: Cell::new(0) };
        results.get().set_tables(capnp_rpc::new_client(tables));
        Ok(())
    }
}

/// What a reader who has been admitted may ask.
struct Tables {
    directory: Arc<Directory>,
    line: Rc<Line>,
    /// Calls that wait for an epoch.
    waiting: Cell<u32>,
}

impl tables::Server for Tables {
    async fn tables(self: Rc<Self>, _: tables::TablesParams, mut results: tables::TablesResults) -> Result<(), Error> {
        let all = self.directory.tables();
        let readable = self.directory.readable();
        let mut told = results.get();
        told.set_oldest(*readable.start());
        told.set_newest(*readable.end());
        let mut list = told.init_tables(length(all.len())?);
        for (index, table) in (0..).zip(&all) {
            let mut told = list.reborrow().get(index);
            told.set_name(&table.name);
            told.set_ordered(table.ordered);
            told.set_schema_version(table.schema_version);
        }
        self.line.answer(ANSWER_BYTES_MIN);
        Ok(())
    }

    async fn get(self: Rc<Self>, params: tables::GetParams, mut results: tables::GetResults) -> Result<(), Error> {
        let asked = params.get()?;
        let table = self.table(asked.get_table()?)?;
        let keys = keys(asked.get_keys()?)?;
        let moment = self.directory.moment(consistency_of(asked.get_consistency()?)?).map_err(refused)?;
        let mut told = results.get();
        told.set_epoch(moment.epoch().unwrap_or(0));
        let mut list = told.init_values(length(keys.len())?);
        let mut bytes = 0;
        let mut found = |index: usize, found: Option<&[u8]>| {
            bytes += found.map_or(0, <[u8]>::len);
            // Keys come in a list of at most 2^32.
            let mut told: value::Builder<'_> = list.reborrow().get(index as u32);
            match found {
                Some(found) if bytes <= ANSWER_BYTES_MAX => told.set_present(found),
                _ => told.set_absent(()),
            }
        };
        self.directory.check_here(table, &keys).map_err(refused)?;
        self.directory.get_many_at(table, &keys, &moment, &mut found).map_err(refused)?;
        if bytes > ANSWER_BYTES_MAX {
            return Err(Error::failed(format!(
                "the values have {bytes} bytes, an answer at most {ANSWER_BYTES_MAX}: ask for fewer keys"
            )));
        }
        self.line.answer(ANSWER_BYTES_MIN + bytes as u64);
        Ok(())
    }

    async fn scan(self: Rc<Self>, params: tables::ScanParams, mut results: tables::ScanResults) -> Result<(), Error> {
        let asked = params.get()?;
        let table = self.table(asked.get_table()?)?;
        let to = match asked.get_to()?.which()? {
            bound::End(()) => None,
            bound::Before(to) => Some(to?),
        };
        let moment = self.directory.moment(consistency_of(asked.get_consistency()?)?).map_err(refused)?;
        let (epoch, from, limit) = (moment.epoch(), asked.get_from()?.to_vec(), asked.get_limit() as usize);
        // A page may take a while to be read from disk: others are answered meanwhile.
        let (directory, to) = (Arc::clone(&self.directory), to.map(<[u8]>::to_vec));
        let scan = move || directory.scan_at(table, &from, to.as_deref(), limit, &moment);
        let scanned = tokio::task::spawn_blocking(scan).await;
        let page = scanned.map_err(|_| Error::failed("the page was not finished".to_owned()))?.map_err(refused)?;
        let mut told = results.get();
        told.set_epoch(epoch.unwrap_or(0));
        let mut told = told.init_page();
        fill(told.reborrow().init_keys(length(page.keys.len())?), &page.keys);
        fill(told.reborrow().init_values(length(page.values.len())?), &page.values);
        if let Some(next) = &page.next {
            told.init_next().set_before(next);
        }
        self.line.answer(ANSWER_BYTES_MIN + (page.keys.bytes().len() + page.values.bytes().len()) as u64);
        Ok(())
    }

    async fn await_epoch(
        self: Rc<Self>,
        params: tables::AwaitEpochParams,
        mut results: tables::AwaitEpochResults,
    ) -> Result<(), Error> {
        let after = params.get()?.get_after();
        let _place = Place::take(&self.waiting)?;
        let mut commits = self.directory.subscribe();
        let ended = |_| Error::disconnected("the job has ended".to_owned());
        commits.wait_for(|&newest| newest > after).await.map_err(ended)?;
        let readable = self.directory.readable();
        let mut told = results.get();
        told.set_oldest(*readable.start());
        told.set_newest(*readable.end());
        self.line.answer(ANSWER_BYTES_MIN);
        Ok(())
    }
}

impl Tables {
    fn table(&self, name: capnp::text::Reader<'_>) -> Result<TableId, Error> {
        self.directory.resolve(name.to_str()?).map_err(refused)
    }
}

/// A call's place among those that wait.
struct Place<'a>(&'a Cell<u32>);

impl<'a> Place<'a> {
    fn take(waiting: &'a Cell<u32>) -> Result<Self, Error> {
        if waiting.get() >= WAITING_MAX {
            return Err(Error::overloaded(format!("{WAITING_MAX} calls of this connection wait for an epoch already")));
        }
        waiting.set(waiting.get() + 1);
        Ok(Self(waiting))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn refused(error: LookupError) -> Error {
    Error::failed(format!("failed to {error}"))
}

fn length(length: usize) -> Result<u32, Error> {
    u32::try_from(length).map_err(|_| Error::failed("the answer is too long".to_owned()))
}

/// The keys of a call. They are copied: a message may say the same bytes again and again, but not without an end.
fn keys(list: data_list::Reader<'_>) -> Result<Column, Error> {
    if list.len() > KEYS_MAX {
        return Err(Error::failed(format!("a call may have {KEYS_MAX} keys, this one has {}", list.len())));
    }
    let mut keys = Column::default();
    for key in list.iter() {
        let key = key?;
        if keys.bytes().len() + key.len() > ANSWER_BYTES_MAX {
            return Err(Error::failed(format!(
                "the keys of a call may have {ANSWER_BYTES_MAX} bytes, these have more"
            )));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn consistency_of(asked: consistency::Reader<'_>) -> Result<Consistency, Error> {
    Ok(match asked.which()? {
        consistency::Committed(()) => Consistency::Committed,
        consistency::Live(()) => Consistency::Live,
        consistency::AsOf(epoch) => Consistency::AsOf(epoch),
    })
}

fn fill(mut list: data_list::Builder<'_>, items: &Column) {
    for (index, item) in (0..).zip(items.iter()) {
        list.set(index, item);
    }
}
