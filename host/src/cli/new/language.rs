//! What is the same for all languages: a folder in `host/templates`, what it shares with the others, and a row in the table.
//!
//! A language is added by its folder, a file beside this one, and its line in [`LANGUAGES`].

use std::fmt;

use super::assemblyscript::ASSEMBLYSCRIPT;
use super::c::C;
use super::cpp::CPP;
use super::go::GO;
use super::javascript::JAVASCRIPT;
use super::python::PYTHON;
use super::rust::RUST;
use super::typescript::TYPESCRIPT;
use super::zig::ZIG;

/// The languages that `wasmill new` has a template for.
pub(super) const LANGUAGES: &[Language] = &[
    RUST, // the default
    C,
    CPP,
    ZIG,
    GO,
    PYTHON,
    TYPESCRIPT,
    JAVASCRIPT,
    ASSEMBLYSCRIPT,
];

/// What has to be known of a language beyond the files of its template.
#[derive(Clone, Copy)]
pub(super) struct Language {
    /// What `--lang` calls it, and its folder in `host/templates`.
    pub name: &'static str,
    /// The component that a build makes, from the new folder on. `{{name}}` and `{{crate}}` are filled in as in a template.
    pub component: &'static str,
    /// The command that builds it.
    pub build: &'static str,
    /// Which parts of the SDK go into the new folder: the beginning of a path in `guest-sdk`, and what stands there in its place.
    pub sdk: &'static [(&'static str, &'static str)],
    /// Names that the language or its tools have a use for.
    pub taken: &'static [&'static str],
}

impl Language {
    /// The language with this name. There is one for every name that the command line lets through.
    pub(super) fn find(name: &str) -> Option<Self> {
        LANGUAGES.iter().find(|language| language.name == name).copied()
    }

    /// Where a file of the SDK goes in the new folder, if it belongs to this language.
    pub(super) fn sdk_place(&self, path: &str) -> Option<String> {
        if path.contains("__pycache__") {
            return None;
        }
        self.sdk.iter().find_map(|(from, to)| path.strip_prefix(from).map(|rest| format!("{to}{rest}")))
    }

    /// Says what keeps `name` from naming a function in this language.
    pub(super) fn check_name(&self, name: &str) -> Result<(), String> {
        if name.is_empty() {
            return Err("a name is needed, such as `page-visits`".to_owned());
        }
        let first = name.chars().next().is_some_and(|first| first.is_ascii_lowercase());
        let others = name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-_".contains(char));
        if !first || !others {
            return Err(format!(
                "`{name}` cannot name a function: use small letters, digits, `-` and `_`, with a letter first, such as `page-visits`"
            ));
        }
        if self.taken.contains(&name) {
            return Err(format!("`{name}` is taken in the language `{}`: choose another name", self.name));
        }
        Ok(())
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(name: &str, fragment: &str) {
        let error = RUST.check_name(name).unwrap_err();
        assert!(error.contains(fragment), "{name}: {error}");
    }

    #[test]
    fn names_that_cannot_name_a_function_are_refused() {
        check_refused("", "a name is needed");
        check_refused("9lives", "cannot name a function");
        check_refused("My-Job", "cannot name a function");
        check_refused("a.b", "cannot name a function");
        check_refused("größe", "cannot name a function");
        check_refused("match", "taken in the language `rust`");
        check_refused("wasmill-sdk", "taken in the language `rust`");
        assert!(RUST.check_name("page-visits_2").is_ok());
    }

    #[test]
    fn only_the_languages_own_part_of_the_sdk_goes_along() {
        assert_eq!(RUST.sdk_place("src/lib.rs").as_deref(), Some("wasmill-sdk/src/lib.rs"));
        assert_eq!(RUST.sdk_place("elsewhere/lib.rs"), None);
    }
}
