//! How a function refuses a record, and why reading state can fail.

use std::fmt;

use crate::bindings::wasmill::operator::types::Error as HostError;

/// The refusal of one record, with its reason.
///
/// Any error becomes a `Reject` by `?`; [`Reject::new`] makes one from a text. The record then goes where the operator's
/// `on-error` sends failing records, and its effects are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    reason: String,
}

impl Reject {
    /// A refusal for `reason`, which should read well behind "record refused: ".
    #[cold]
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string() }
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) fn into_reason(self) -> String {
        self.reason
    }
}

/// Any error refuses the record that it arose on. (For this, `Reject` itself cannot be an `Error`.)
impl<E: std::error::Error> From<E> for Reject {
    #[cold]
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// Why state could not be read. Completes "failed to …".
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// The table is missing in the function's [`Description`](crate::Description).
    Undeclared {
        /// The table's name.
        table: &'static str,
    },
    /// The table that is used beside the function's own is missing in the function's [`Description`](crate::Description).
    UndeclaredUse {
        /// What the function calls the table.
        table: &'static str,
    },
    /// The table is declared with another codec than the one it is used with.
    OtherCodec {
        /// The table's name.
        table: &'static str,
    },
    /// Another entry of the same table is still held.
    Held {
        /// The table's name.
        table: &'static str,
    },
    /// A stored value is not what the codec expects.
    Decode {
        /// The table's name.
        table: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A value of an update has no encoding.
    Encode {
        /// The table's name.
        table: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The host refused: most often a key that belongs to another task, or a table that the manifest does not let the function use so.
    Host {
        /// The table's name.
        table: &'static str,
        /// What the host said.
        reason: String,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undeclared { table } => {
                write!(f, "use table `{table}`: it is not declared; add it to `describe` with `.table(&…)`")
            }
            Self::UndeclaredUse { table } => {
                write!(f, "use table `{table}`: it is not declared; add it to `describe` with `.uses(&…)`")
            }
            Self::OtherCodec { table } => {
                write!(f, "use table `{table}`: it is declared with another codec; use one constant for both")
            }
            Self::Held { table } => {
                write!(f, "use table `{table}`: another entry of it is still held; let go of that one first")
            }
            Self::Decode { table, reason } => write!(f, "decode a value of table `{table}`: {reason}"),
            Self::Encode { table, reason } => write!(f, "encode a value of table `{table}`: {reason}"),
            Self::Host { table, reason } => write!(f, "read table `{table}`: {reason}"),
        }
    }
}

impl std::error::Error for StateError {}

/// What the host said, for people.
pub(crate) fn host_error_text(error: HostError) -> String {
    match error {
        HostError::UnknownName(text) => format!("unknown name: {text}"),
        HostError::ForeignKey(text) => format!("key of another task: {text}"),
        HostError::Malformed(text) => format!("malformed call: {text}"),
        HostError::LimitExceeded(text) => format!("limit exceeded: {text}"),
        HostError::NotAllowed(text) => format!("not allowed: {text}"),
        HostError::NotYet(text) => format!("not yet: {text}"),
        HostError::Gone(text) => format!("no longer kept: {text}"),
        HostError::Other(text) => text,
    }
}
