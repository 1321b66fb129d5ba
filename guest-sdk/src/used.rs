//! Tables that a function uses but does not keep itself, and which state of them it sees.

use std::fmt;
use std::marker::PhantomData;

use crate::bindings::wasmill::operator::tables as wit;
use crate::codec::Codec;

/// A table used beside the function's own: one of another operator, or one of its own for keys that other tasks own. Which table that is, and what
/// the function may do with it, stands in the manifest, under `uses` and this name. A constant of the function:
///
/// ```
/// use wasmill_sdk::{Json, UsedTable};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Customer { name: String }
///
/// const CUSTOMERS: UsedTable<Json<Customer>> = UsedTable::new("customers");
/// ```
pub struct UsedTable<C> {
    pub(crate) name: &'static str,
    codec: PhantomData<fn() -> C>,
}

impl<C: Codec> UsedTable<C> {
    /// The table that the manifest describes under `uses.NAME`. Declare it in `describe` by [`Description::uses`](crate::Description::uses). The codec
    /// must be that of the owner.
    pub const fn new(name: &'static str) -> Self {
        Self { name, codec: PhantomData }
    }

    /// The name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<C> fmt::Debug for UsedTable<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsedTable").field("name", &self.name).finish()
    }
}

/// Which state a lookup sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// The latest batch that the owner has applied. What it has done in this epoch is rolled back together with what the reader has done, so effects
    /// still happen exactly once.
    #[default]
    Live,
    /// The last committed epoch: what no failure can take back.
    Committed,
    /// A committed epoch that is still retained.
    AsOf(u64),
    /// As [`Consistency::Live`], but the answer may be this many milliseconds old.
    BoundedMs(u64),
    /// As [`Consistency::Live`], but the answer may be this many epochs old.
    BoundedEpochs(u64),
}

impl From<Consistency> for wit::Consistency {
    fn from(consistency: Consistency) -> Self {
        match consistency {
            Consistency::Live => Self::Live,
            Consistency::Committed => Self::Committed,
            Consistency::AsOf(epoch) => Self::AsOf(epoch),
            Consistency::BoundedMs(ms) => Self::BoundedMs(ms),
            Consistency::BoundedEpochs(epochs) => Self::BoundedEpochs(epochs),
        }
    }
}
