//! What a component says of itself by calls within `describe`, and whether it makes sense together with what `describe` returns.

use super::bindings::wasmill::operator as wit;
use super::imports::Host;
use super::{DEFAULT_PORT, Description};

/// The most calls of `declare` in one `describe`.
const DECLARATIONS_MAX: usize = 10_000;
/// A longer name is refused.
const NAME_BYTES_MAX: usize = 256;

/// The calls of `declare` so far.
#[derive(Debug, Default)]
pub(super) struct Declarations {
    open: Vec<String>,
    ordered: Vec<String>,
    versioned: Vec<(String, u64)>,
    migrates_from: Vec<(String, u32)>,
    uses: Vec<String>,
    apart: bool,
}

impl Declarations {
    /// The whole description.
    ///
    /// # Errors
    /// When something is declared twice, or of a table that `describe` does not name.
    pub(super) fn complete(self, told: wit::description::Descriptor) -> Result<Description, String> {
        let tables: Vec<(String, u32)> =
            told.tables.into_iter().map(|table| (table.name, table.schema_version)).collect();
        let versioned: Vec<String> = self.versioned.iter().map(|(name, _)| name.clone()).collect();
        for (call, names) in
            [("open-table", &self.open), ("ordered-table", &self.ordered), ("versioned-table", &versioned)]
        {
            check_once(call, names)?;
            if let Some(unknown) = names.iter().find(|name| !tables.iter().any(|(table, _)| table == *name)) {
                return Err(format!(
                    "`{call}` names `{}`, which is not among the tables that it returns",
                    unknown.escape_debug()
                ));
            }
        }
        check_once("uses-table", &self.uses)?;
        if let Some((unknown, _)) =
            self.migrates_from.iter().find(|(name, _)| !tables.iter().any(|(table, _)| table == name))
        {
            return Err(format!(
                "`migrates-from` names `{}`, which is not among the tables that it returns",
                unknown.escape_debug()
            ));
        }
        Ok(Description {
            name: told.name,
            version: told.version,
            tables,
            open_tables: self.open,
            ordered_tables: self.ordered,
            versioned_tables: self.versioned,
            migrates_from: self.migrates_from,
            uses: self.uses,
            apart: self.apart,
            ports: std::iter::once(DEFAULT_PORT.to_owned()).chain(told.ports).collect(),
        })
    }

    fn len(&self) -> usize {
        self.open.len() + self.ordered.len() + self.versioned.len() + self.migrates_from.len() + self.uses.len()
    }
}

fn check_once(call: &str, names: &[String]) -> Result<(), String> {
    let twice = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
    twice.map_or(Ok(()), |(_, name)| Err(format!("`{call}` names `{}` twice", name.escape_debug())))
}

impl Host {
    /// Where `call` puts what it says of the table `name`.
    fn declaring(&mut self, call: &str, name: &str) -> wasmtime::Result<&mut Declarations> {
        let Some(declarations) = &mut self.declarations else {
            wasmtime::bail!("`declare.{call}` was called outside of `describe`");
        };
        if name.len() > NAME_BYTES_MAX {
            wasmtime::bail!("`declare.{call}`: a name of {} bytes; at most {NAME_BYTES_MAX} are allowed", name.len());
        }
        if declarations.len() >= DECLARATIONS_MAX {
            wasmtime::bail!("`declare` was called more than {DECLARATIONS_MAX} times");
        }
        Ok(declarations)
    }
}

impl wit::declare::Host for Host {
    fn open_table(&mut self, table: String) -> wasmtime::Result<()> {
        self.declaring("open-table", &table)?.open.push(table);
        Ok(())
    }

    fn ordered_table(&mut self, table: String) -> wasmtime::Result<()> {
        self.declaring("ordered-table", &table)?.ordered.push(table);
        Ok(())
    }

    fn versioned_table(&mut self, table: String, span_ms: u64) -> wasmtime::Result<()> {
        self.declaring("versioned-table", &table)?.versioned.push((table, span_ms));
        Ok(())
    }

    fn migrates_from(&mut self, table: String, schema_version: u32) -> wasmtime::Result<()> {
        self.declaring("migrates-from", &table)?.migrates_from.push((table, schema_version));
        Ok(())
    }

    fn uses_table(&mut self, name: String) -> wasmtime::Result<()> {
        self.declaring("uses-table", &name)?.uses.push(name);
        Ok(())
    }

    fn apart(&mut self) -> wasmtime::Result<()> {
        self.declaring("apart", "")?.apart = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn complete(declarations: Declarations) -> Result<Description, String> {
        let table = |name: &str| wit::description::Table { name: name.to_owned(), schema_version: 1 };
        declarations.complete(wit::description::Descriptor {
            name: "n".to_owned(),
            version: "1".to_owned(),
            tables: vec![table("a"), table("b")],
            ports: names(&["late"]),
        })
    }

    #[test]
    fn calls_complete_what_describe_returns() {
        let declarations = Declarations {
            open: names(&["b", "a"]),
            ordered: names(&["a"]),
            versioned: vec![("b".to_owned(), 5)],
            migrates_from: vec![("a".to_owned(), 7), ("a".to_owned(), 2)],
            uses: names(&["c"]),
            apart: true,
        };
        let description = complete(declarations).unwrap();
        assert_eq!(description.open_tables, ["b", "a"]);
        assert_eq!(description.ordered_tables, ["a"]);
        assert_eq!(description.versioned_tables, [("b".to_owned(), 5)]);
        assert_eq!(description.migrates_from, [("a".to_owned(), 7), ("a".to_owned(), 2)]);
        assert_eq!(description.uses, ["c"]);
        assert_eq!(description.ports, ["out", "late"]);
        assert!(description.apart && !complete(Declarations::default()).unwrap().apart);
    }

    #[test]
    fn what_is_said_twice_or_of_nothing_is_refused() {
        let check = |declarations, expected: &str| assert_eq!(complete(declarations), Err(expected.to_owned()));
        check(Declarations { open: names(&["a", "a"]), ..Declarations::default() }, "`open-table` names `a` twice");
        check(
            Declarations { ordered: names(&["c"]), ..Declarations::default() },
            "`ordered-table` names `c`, which is not among the tables that it returns",
        );
        check(
            Declarations { versioned: vec![("b".to_owned(), 1), ("b".to_owned(), 2)], ..Declarations::default() },
            "`versioned-table` names `b` twice",
        );
        check(
            Declarations { migrates_from: vec![("c".to_owned(), 1)], ..Declarations::default() },
            "`migrates-from` names `c`, which is not among the tables that it returns",
        );
        check(
            Declarations { uses: names(&["x", "y", "x"]), ..Declarations::default() },
            "`uses-table` names `x` twice",
        );
    }
}
