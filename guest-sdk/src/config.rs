//! The operator's `config`, as the manifest gives it.

use serde::de::DeserializeOwned;

/// The operator's `config` from the manifest.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    json: &'a str,
}

impl<'a> Config<'a> {
    pub(crate) fn new(json: &'a str) -> Self {
        Self { json }
    }

    /// The config as a value of any type that serde can read; put `#[serde(deny_unknown_fields)]` on it, and misspelt
    /// fields are found when the job starts.
    ///
    /// # Errors
    /// A text for the author of the manifest, fit to be returned from `init` as it is.
    pub fn parse<T: DeserializeOwned>(self) -> Result<T, String> {
        serde_json::from_str(self.json).map_err(|error| format!("`config` does not fit: {}", without_position(&error)))
    }

    /// The config as JSON text, `{}` where the manifest has none.
    pub fn as_json(self) -> &'a str {
        self.json
    }
}

/// The author of the manifest wrote TOML: a line and column of the JSON made from it would mislead.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Rate {
        rate: f64,
    }

    fn check(json: &str, expected: Result<f64, &str>) {
        let rate = Config::new(json).parse::<Rate>().map(|config| config.rate);
        assert_eq!(rate, expected.map_err(str::to_owned));
    }

    #[test]
    fn a_config_that_does_not_fit_says_what_is_wrong_in_it() {
        check(r#"{"rate": 0.5}"#, Ok(0.5));
        check("{}", Err("`config` does not fit: missing field `rate`"));
        check(r#"{"rat": 1}"#, Err("`config` does not fit: unknown field `rat`, expected `rate`"));
        check(r#"{"rate": "x"}"#, Err("`config` does not fit: invalid type: string \"x\", expected f64"));
    }
}
