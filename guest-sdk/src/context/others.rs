//! What a function can do with tables of others while it works on a record: look up, scan, update, send.

use serde::Serialize;

use super::Context;
use crate::bindings::wasmill::operator::tables::Page;
use crate::bindings::wasmill::operator::types::Error as HostError;
use crate::codec::Codec;
use crate::description::Port;
use crate::error::{Reject, StateError, host_error_text};
use crate::lookup::{Refused, Shown, key_at};
use crate::output::Buffer;
use crate::pages::{KeyRange, Scan};
use crate::table::Failure;
use crate::update::{Asked, Update};
use crate::used::{Consistency, UsedTable};

/// Tables of others.
///
/// Lookups see neither the changes that the batch makes nor its updates: those reach their owners when the batch has succeeded. What a refused record
/// has updated and sent is dropped, as its output is.
impl Context {
    /// The value that `table` has for `key`, as of the latest batch that the table's owner has applied.
    ///
    /// A key that [`Function::prefetch`](crate::Function::prefetch) has named shares one call of the host's with all others; any other costs one call, once a batch.
    ///
    /// # Errors
    /// When the table is not declared, when the stored value does not decode, and when the host refuses the lookup: most often because the manifest
    /// does not allow it.
    pub fn lookup<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<C::Value>, StateError> {
        self.lookup_at(table, Consistency::Live, key)
    }

    /// As [`Context::lookup`], of another state of the table.
    ///
    /// # Errors
    /// As [`Context::lookup`]; also when the epoch asked for is not retained.
    pub fn lookup_at<C: Codec>(
        &self,
        table: &UsedTable<C>,
        consistency: Consistency,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<C::Value>, StateError> {
        self.look_up(table, Shown::State(consistency), key.as_ref())
    }

    /// The value that `table` had for `key` at an event time (milliseconds since the Unix epoch), as its owner knows it by now: of what has been written so far, the newest
    /// that is not later. `None` where there was none, and where it is older than what the table keeps. The owner must declare the table versioned.
    ///
    /// # Errors
    /// As [`Context::lookup`].
    pub fn lookup_as_of<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        time: i64,
    ) -> Result<Option<C::Value>, StateError> {
        self.look_up(table, Shown::AS_OF_TIME, &key_at(key.as_ref(), time))
    }

    /// As [`Context::lookup_as_of`], but not before the table's owner has come to `time`: nothing of that time or before is to come to it any more, except what comes late.
    ///
    /// Where it has not, the lookup fails; return the error, as `?` does. Whatever is made of it, the record is worked on again once the owner has come so far, and with it
    /// all records behind it that come to this task. That is known when an epoch is sealed, so a record that waits waits for the next checkpoint at least.
    ///
    /// # Errors
    /// As [`Context::lookup`]; and while the owner has not come so far, upon which the batch ends.
    pub fn lookup_as_of_waiting<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        time: i64,
    ) -> Result<Option<C::Value>, StateError> {
        self.look_up(table, Shown::AS_OF_TIME_WAITING, &key_at(key.as_ref(), time))
    }

    /// The values that `table` has for several keys, in their order, by one call of the host's for those that are not known yet.
    ///
    /// # Errors
    /// As [`Context::lookup`].
    pub fn lookup_many<C: Codec, K: AsRef<[u8]>>(
        &self,
        table: &UsedTable<C>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<C::Value>>, StateError> {
        self.lookup_many_at(table, Consistency::Live, keys)
    }

    /// As [`Context::lookup_many`], of another state of the table.
    ///
    /// # Errors
    /// As [`Context::lookup_at`].
    pub fn lookup_many_at<C: Codec, K: AsRef<[u8]>>(
        &self,
        table: &UsedTable<C>,
        consistency: Consistency,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<C::Value>>, StateError> {
        self.check_used(table)?;
        let mut lookups = self.lookups.borrow_mut();
        let shown = Shown::State(consistency);
        let places: Vec<_> =
            keys.into_iter().map(|key| lookups.want(table.name, shown, self.record.get(), key.as_ref())).collect();
        drop(lookups);
        places.into_iter().map(|place| self.answer(table, shown, place)).collect()
    }

    /// The keys of `table` that lie in `range` with their values, ascending by the keys' bytes. The table must be kept ordered by its owner.
    ///
    /// The host is asked for `page_keys` keys at a time (at least 1), as the iterator comes to them. A page is of one moment; the next may be of a later one.
    ///
    /// ```
    /// # use wasmill_sdk::{Context, Fixed, Reject, UsedTable};
    /// const BALANCES: UsedTable<Fixed<i64>> = UsedTable::new("balances");
    ///
    /// fn total(context: &Context) -> Result<i64, Reject> {
    ///     let mut total = 0;
    ///     for entry in context.scan(&BALANCES, "a".."b", 1_000)? {
    ///         let (_account, balance) = entry?;
    ///         total += balance;
    ///     }
    ///     Ok(total)
    /// }
    /// ```
    ///
    /// # Errors
    /// When the table is not declared. The iterator's items have the errors of [`Context::lookup`].
    pub fn scan<C: Codec>(
        &self,
        table: &UsedTable<C>,
        range: impl KeyRange,
        page_keys: u32,
    ) -> Result<Scan<'_, C>, StateError> {
        self.scan_at(table, Consistency::Live, range, page_keys)
    }

    /// As [`Context::scan`], of another state of the table.
    ///
    /// # Errors
    /// As [`Context::scan`].
    pub fn scan_at<C: Codec>(
        &self,
        table: &UsedTable<C>,
        consistency: Consistency,
        range: impl KeyRange,
        page_keys: u32,
    ) -> Result<Scan<'_, C>, StateError> {
        self.check_used(table)?;
        Ok(Scan::new(self, table, consistency, range, page_keys))
    }

    /// Changes the value that `table` has for `key`, whatever it is by then.
    ///
    /// The owner applies the update exactly once, after the batch has succeeded. Updates of one table from one task are applied in their order.
    ///
    /// ```
    /// # use wasmill_sdk::{Context, Fixed, Reject, Update, UsedTable};
    /// const BALANCES: UsedTable<Fixed<i64>> = UsedTable::new("balances");
    ///
    /// fn transfer(context: &Context, from: &str, to: &str, cents: i64) -> Result<(), Reject> {
    ///     context.update(&BALANCES, from, Update::add(-cents))?;
    ///     context.update(&BALANCES, to, Update::add(cents))?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// When the table is not declared, or a value has no encoding. What else the host does not allow fails the batch when it ends.
    pub fn update<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        update: Update<'_, C>,
    ) -> Result<(), StateError> {
        self.add_update(table, key.as_ref(), &update, None)
    }

    /// As [`Context::update`], and asks for what becomes of it: a record on `port` with the key `outcome_key`, which [`Record::outcome`](crate::Record::outcome) reads. `tag`
    /// comes back with it.
    ///
    /// # Errors
    /// As [`Context::update`].
    pub fn update_asking<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        update: Update<'_, C>,
        port: &Port,
        outcome_key: impl AsRef<[u8]>,
        tag: impl AsRef<[u8]>,
    ) -> Result<(), StateError> {
        let asked = Asked { port: *port, key: outcome_key.as_ref(), tag: tag.as_ref() };
        self.add_update(table, key.as_ref(), &update, Some(asked))
    }

    /// Sends a record to the function that owns `table`: to the task that owns `key`, which works on it as on any other. It has the event time of the
    /// record being worked on.
    ///
    /// # Errors
    /// When the table is not declared. What else the host does not allow fails the batch when it ends.
    pub fn send<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), StateError> {
        self.check_used(table)?;
        let copied = self.send_with(table.name, key.as_ref(), |buffer| {
            buffer.extend_from_slice(value.as_ref());
            Ok(())
        });
        copied.expect("copying bytes does not fail");
        Ok(())
    }

    /// As [`Context::send`], with `value` as JSON.
    ///
    /// # Errors
    /// As [`Context::send`]; also when `value` cannot be written as JSON.
    pub fn send_json<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: impl AsRef<[u8]>,
        value: &(impl Serialize + ?Sized),
    ) -> Result<(), Reject> {
        self.check_used(table)?;
        self.send_with(table.name, key.as_ref(), |buffer| buffer.push_json(value))
    }

    /// Whether the function has declared any table of others.
    pub(crate) fn uses_tables(&self) -> bool {
        !self.uses.is_empty()
    }

    /// Notes that `key` will be looked up. Of a table that is not declared, the lookup itself will tell.
    pub(crate) fn want(&self, table: &'static str, shown: Shown, key: &[u8]) {
        if self.uses.contains(&table) {
            self.lookups.borrow_mut().want(table, shown, self.record.get(), key);
        }
    }

    /// A page of a scan.
    pub(crate) fn page(
        &self,
        table: &'static str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: u32,
        consistency: Consistency,
    ) -> Result<Page, StateError> {
        if self.is_apart.get() {
            self.host.read_for(&[self.record.get()]);
        }
        let page = self.host.scan(table, from, to, limit, consistency);
        page.map_err(|error| self.refused(table, Refused { error, is_single: true }))
    }

    /// Whether the batch may go on.
    ///
    /// # Errors
    /// When it has to fail as a whole, although no record of it is at fault.
    pub(crate) fn check_batch(&self) -> Result<(), Failure> {
        if !self.uses_tables() {
            return Ok(());
        }
        match self.batch_failure.take() {
            None => Ok(()),
            Some(reason) => Err(Failure { record: None, reason }),
        }
    }

    fn check_used<C: Codec>(&self, table: &UsedTable<C>) -> Result<(), StateError> {
        match self.uses.contains(&table.name) {
            true => Ok(()),
            false => Err(StateError::UndeclaredUse { table: table.name }),
        }
    }

    fn look_up<C: Codec>(
        &self,
        table: &UsedTable<C>,
        shown: Shown,
        key: &[u8],
    ) -> Result<Option<C::Value>, StateError> {
        self.check_used(table)?;
        let place = self.lookups.borrow_mut().want(table.name, shown, self.record.get(), key);
        self.answer(table, shown, place)
    }

    fn answer<C: Codec>(
        &self,
        table: &UsedTable<C>,
        shown: Shown,
        place: usize,
    ) -> Result<Option<C::Value>, StateError> {
        let mut lookups = self.lookups.borrow_mut();
        let bytes = lookups.answer(table.name, shown, place, &*self.host);
        let bytes = bytes.map_err(|refused| self.refused(table.name, refused))?;
        let decode = |bytes| C::decode(bytes).map_err(|reason| StateError::Decode { table: table.name, reason });
        bytes.map(decode).transpose()
    }

    /// A lookup that comes too early, or that wants more at once than an instance has room for, is no record's fault: the batch is run again, or
    /// in parts.
    fn refused(&self, table: &'static str, Refused { error, is_single }: Refused) -> StateError {
        let is_of_batch =
            matches!(error, HostError::NotYet(_)) || matches!(error, HostError::LimitExceeded(_)) && !is_single;
        let error = StateError::Host { table, reason: host_error_text(error) };
        if is_of_batch {
            *self.batch_failure.borrow_mut() = Some(error.to_string());
        }
        error
    }

    fn add_update<C: Codec>(
        &self,
        table: &UsedTable<C>,
        key: &[u8],
        update: &Update<'_, C>,
        asked: Option<Asked<'_>>,
    ) -> Result<(), StateError> {
        self.check_used(table)?;
        let added = self.updates.borrow_mut().add(table.name, self.record.get(), key, update, asked);
        added.map_err(|reason| StateError::Encode { table: table.name, reason })
    }

    fn send_with(
        &self,
        table: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Buffer<'_>) -> Result<(), Reject>,
    ) -> Result<(), Reject> {
        let outputs = self.outputs.try_borrow_mut();
        let mut outputs = outputs.expect("a closure given to `emit_with` must not send by itself");
        outputs.send(table, self.record.get(), key, self.time.get(), write)
    }
}
