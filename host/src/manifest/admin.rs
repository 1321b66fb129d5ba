//! How a running job can be asked, as the manifest describes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a running job answers questions about its tables, and takes new versions of its components (`wasmill reload`). Tables cannot be changed from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Admin {
    /// Whether it answers at all.
    #[schemars(example = false)]
    pub enabled: bool,
    /// The address for HTTP: an IP address and a port. Port 0 is one that the system chooses; the file `serving` in the state directory says which.
    #[schemars(example = &"127.0.0.1:7171")]
    pub listen: String,
    /// The address for Cap'n Proto (`schema/query.capnp`). Without it there is none.
    #[schemars(example = &"127.0.0.1:7172")]
    pub capnp: Option<String>,
    /// What whoever asks must know: HTTP as `authorization: Bearer TOKEN`. Needed where an address is not of this machine alone.
    #[schemars(example = &"a long and random text")]
    pub token: Option<String>,
    /// A file, relative to the manifest, with the token in it.
    #[schemars(example = &"/etc/wasmill/token")]
    pub token_file: Option<String>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { enabled: true, listen: "127.0.0.1:0".to_owned(), capnp: None, token: None, token_file: None }
    }
}
