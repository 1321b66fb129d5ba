//! What the function was told to do.

use serde::Deserialize;

/// The operator's `config`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// What it does with each record.
    pub mode: Mode,
    /// Which state of the other table it looks at.
    pub consistency: Consistency,
    /// By which operation it updates the other table, in mode `update`.
    pub op: Op,
    /// How values are written and read.
    pub values: Values,
    /// Whether it asks what becomes of its updates: on port `done`, under the record's own key, with the record as the tag.
    pub ask: bool,
    /// The keys of one page of a scan, and the items that `append` keeps.
    pub limit: Limit,
    /// What it does wrong, in mode `fault`.
    pub fault: Fault,
}

/// A number that is 10 unless it is given.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(transparent)]
pub struct Limit(pub u32);

impl Default for Limit {
    fn default() -> Self {
        Self(10)
    }
}

/// What the function does with each record. `key` is the record's own key, `to`, `n` and so on are fields of its value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Sets its own value of `key` to `n`, and emits the record.
    #[default]
    Keep,
    /// Adds `n` to its own value of `key`, and emits the sum.
    Sum,
    /// Emits `{"to": …, "found": …}` with the other table's value of `to`, all keys of a batch being looked up by one call.
    LookUp,
    /// The same by one call a record.
    LookUpSingly,
    /// Emits `{"found": {key: value, …}}` with the other table's values from key `from` to before key `to`.
    Scan,
    /// Updates the other table's value of `to` with `n`.
    Update,
    /// The same by one call a record.
    UpdateSingly,
    /// Sets the other table's value of `to` to `n` where it equals `expected`.
    CompareAndPut,
    /// Takes `n` from the other table's value of `key` and adds it to that of `to`.
    Transfer,
    /// Adds `n` to its own value of `key` and to the other table's value of `to`, and emits what it has found there before, as `look-up` does.
    Meet,
    /// Looks the other table's value of `to` up and sets it to that and `n`, if it is still the same; tries again until it is, then emits the record. What comes of
    /// each try comes back on `done`.
    Claim,
    /// Sends the record to the owner of the other table, for key `to`.
    Send,
    /// Sends the record on, with `n` less 1, from key to key and back, until `n` is 0; then emits it. A negative `n` never gets there.
    Bounce,
    /// As `bounce`, by emitting on port `again`.
    Loop,
    /// Emits each record as it came: also what comes back from updates.
    Echo,
    /// Calls the host in a way that it must refuse.
    Fault,
}

/// Which state of the other table is looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Consistency {
    #[default]
    Live,
    Committed,
    AsOf(u64),
    BoundedMs(u64),
    BoundedEpochs(u64),
}

/// An operation on the other table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Op {
    #[default]
    Put,
    PutIfAbsent,
    Delete,
    Add,
    Min,
    Max,
    Append,
}

/// How values are written and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// Integers of 64 bits.
    #[default]
    S64,
    /// Floats of 32 bits.
    F32,
    /// Floats of 64 bits.
    F64,
    /// Decimal digits; of values that were appended, a list of such.
    Text,
}

/// What the function does wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Looks into a table that nobody knows.
    #[default]
    UnknownTable,
    /// Looks up keys whose ends overrun their bytes.
    BadKeys,
    /// Updates with one value fewer than keys.
    MissingValue,
    /// Updates with one record index fewer than keys.
    MissingIndex,
    /// Updates with a record index past the batch.
    IndexOutside,
    /// Adds three bytes to a number of eight.
    BadWidth,
    /// Deletes with values.
    DeleteWithValues,
    /// Appends, and keeps nothing.
    AppendNothing,
    /// Uses an operation that nobody knows.
    UnknownOp,
    /// Asks for outcomes on a port that is not declared.
    UnknownPort,
    /// Asks for fewer outcomes than it makes updates.
    MissingOutcome,
    /// Says of an absent value what it is.
    AbsentWithBytes,
    /// Sends a batch with one time fewer than records.
    MissingTime,
    /// Scans pages of no keys.
    EmptyPages,
    /// Looks at earlier values of a table that keeps none.
    EarlierValues,
    /// Declares a table while it works on records.
    LateDeclaration,
}

impl Config {
    /// Reads the JSON object that `init` is handed.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("config: {error}"))
    }
}
