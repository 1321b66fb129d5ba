//! Keys and event times out of JSON records, by pointer (RFC 6901), read only as far as needed.
//!
//! Sources use it for keys and times, operators for their own keys. It knows bytes and columns, and nothing of where they come from.
//! Where an object has a name twice, the first counts. What lies behind the wanted value is not looked at.

use std::fmt;

use super::scan::{RawString, Scanner};
use crate::manifest::TimeFormat;
use crate::record::{Column, NO_TIME};

/// Why a record has no such value. Completes "failed to read `/pointer`: …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExtractError {
    /// The record has no value there.
    #[error("the record has no such value")]
    Missing,
    /// The record is not JSON, as far as it was read.
    #[error("the record is not JSON: expected {expected} at byte {at}")]
    Malformed {
        /// The byte offset in the record.
        at: usize,
        /// What should have stood there.
        expected: &'static str,
    },
    /// Arrays and objects are nested too deeply.
    #[error("arrays and objects are nested more than {depth_max} deep")]
    TooDeep {
        /// The limit.
        depth_max: u32,
    },
    /// A value that cannot be a key.
    #[error("{kind} cannot be a key; a string, a number or a boolean can")]
    NotAKey {
        /// What it is.
        kind: &'static str,
    },
    /// A value that is no event time.
    #[error("the value is not a time: expected {expected}")]
    NotATime {
        /// How it should be written.
        expected: &'static str,
    },
}

/// Why a text is no pointer. Completes "failed to read a pointer: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    /// It does not begin with a slash.
    #[error("`{text}` is not a JSON pointer: write `/{text}` for the field `{text}`, or `.` for the whole value")]
    NoSlash {
        /// The text.
        text: String,
    },
    /// A `~` that is not `~0` or `~1`.
    #[error("`{text}` is not a JSON pointer: `~` is written `~0` and `/` within a name `~1`")]
    Escape {
        /// The text.
        text: String,
    },
}

/// A place in JSON records: a pointer such as `/user/id` or `/items/0`, or `.` for the whole record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    name: String,
    index: Option<usize>,
}

impl JsonPointer {
    /// The pointer that `text` writes.
    ///
    /// # Errors
    /// [`PointerError`] when it is none.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        if text == "." {
            return Ok(Self { text: text.to_owned(), tokens: Vec::new() });
        }
        let Some(path) = text.strip_prefix('/') else {
            return Err(PointerError::NoSlash { text: text.to_owned() });
        };
        let tokens = path.split('/').map(Token::parse).collect::<Option<_>>();
        let tokens = tokens.ok_or_else(|| PointerError::Escape { text: text.to_owned() })?;
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// Whether this is `.`, the whole record, which then need not be JSON.
    pub fn is_whole(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The text of the value in `json`, as it stands there; all of `json` for `.`.
    ///
    /// # Errors
    /// [`ExtractError`] when there is none, or `json` is malformed before its end.
    #[inline]
    pub fn find<'a>(&self, json: &'a [u8]) -> Result<&'a [u8], ExtractError> {
        if self.is_whole() {
            return Ok(json);
        }
        let mut scanner = Scanner::new(json);
        for token in &self.tokens {
            match scanner.peek() {
                Some(b'{') => enter_member(&mut scanner, &token.name)?,
                Some(b'[') => enter_item(&mut scanner, token.index)?,
                _ => {
                    scanner.value()?;
                    return Err(ExtractError::Missing);
                }
            }
        }
        scanner.value()
    }

    /// Adds the value in `json` to `keys`: the content of a string, the text of a number or boolean, the bytes of the whole record for
    /// `.`. Nothing is added on an error.
    ///
    /// # Errors
    /// [`ExtractError`] as [`JsonPointer::find`], and for `null`, arrays and objects.
    #[inline]
    pub fn key_into(&self, json: &[u8], keys: &mut Column) -> Result<(), ExtractError> {
        let raw = self.find(json)?;
        if self.is_whole() {
            keys.push(raw);
            return Ok(());
        }
        let refused = match raw.first() {
            Some(b'"') => return content_into(raw, keys),
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'n') => "null",
            _ => {
                keys.push(raw);
                return Ok(());
            }
        };
        Err(ExtractError::NotAKey { kind: refused })
    }

    /// The event time in `json`, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`ExtractError`] as [`JsonPointer::find`], and for what is no time.
    #[inline]
    pub fn time(&self, json: &[u8], format: TimeFormat) -> Result<i64, ExtractError> {
        let raw = self.find(json)?;
        let text = raw.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(raw);
        parse_time(text, format)
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Token {
    fn parse(text: &str) -> Option<Self> {
        let mut name = String::with_capacity(text.len());
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            name.push(match character {
                '~' => match characters.next()? {
                    '0' => '~',
                    '1' => '/',
                    _ => return None,
                },
                other => other,
            });
        }
        let plain = name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
        let index = if plain { name.parse().ok() } else { None };
        Some(Self { name, index })
    }
}

/// The milliseconds since the Unix epoch that `text` writes.
///
/// # Errors
/// [`ExtractError::NotATime`] when it is not written as `format` says, or lies outside what milliseconds can hold.
pub fn parse_time(text: &[u8], format: TimeFormat) -> Result<i64, ExtractError> {
    let time = match format {
        TimeFormat::Ms => whole_number(text),
        TimeFormat::S => whole_number(text).and_then(|seconds| seconds.checked_mul(1_000)),
        TimeFormat::Rfc3339 => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .map(jiff::Timestamp::as_millisecond),
    };
    let expected = match format {
        TimeFormat::Ms => "whole milliseconds since the Unix epoch",
        TimeFormat::S => "whole seconds since the Unix epoch",
        TimeFormat::Rfc3339 => "RFC 3339, such as 2013-01-01T05:15:00Z",
    };
    time.filter(|&time| time != NO_TIME).ok_or(ExtractError::NotATime { expected })
}

fn whole_number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Moves into the member `name` of the object that begins here.
#[inline]
fn enter_member(scanner: &mut Scanner<'_>, name: &str) -> Result<(), ExtractError> {
    scanner.expect(b'{', "`{`")?;
    if scanner.passes(b'}') {
        return Err(ExtractError::Missing);
    }
    loop {
        let found = scanner.string()?;
        scanner.expect(b':', "`:`")?;
        if is_named(found, name) {
            return Ok(());
        }
        scanner.value()?;
        if scanner.passes(b'}') {
            return Err(ExtractError::Missing);
        }
        scanner.expect(b',', "`,` or `}`")?;
    }
}

/// Moves into item `index` of the array that begins here.
fn enter_item(scanner: &mut Scanner<'_>, index: Option<usize>) -> Result<(), ExtractError> {
    let index = index.ok_or(ExtractError::Missing)?;
    scanner.expect(b'[', "`[`")?;
    if scanner.passes(b']') {
        return Err(ExtractError::Missing);
    }
    for _ in 0..index {
        scanner.value()?;
        if scanner.passes(b']') {
            return Err(ExtractError::Missing);
        }
        scanner.expect(b',', "`,` or `]`")?;
    }
    Ok(())
}

#[inline]
fn is_named(found: RawString<'_>, name: &str) -> bool {
    if !found.escaped {
        return found.content == name.as_bytes();
    }
    let mut unescaped = Column::default();
    unescape_into(found, &mut unescaped).is_ok() && unescaped.get(0) == name.as_bytes()
}

/// Adds the content of the string `raw`, which includes its quotes.
#[inline]
fn content_into(raw: &[u8], column: &mut Column) -> Result<(), ExtractError> {
    let string = Scanner::new(raw).string()?;
    if string.escaped {
        return unescape_into(string, column);
    }
    column.push(string.content);
    Ok(())
}

#[cold]
fn unescape_into(string: RawString<'_>, column: &mut Column) -> Result<(), ExtractError> {
    const LONE_SURROGATE: ExtractError = ExtractError::Malformed { at: 0, expected: "well-formed text in a string" };
    let mut quoted = Vec::with_capacity(string.content.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(string.content);
    quoted.push(b'"');
    let text: String = serde_json::from_slice(&quoted).map_err(|_| LONE_SURROGATE)?;
    column.push(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    fn find<'a>(pointer: &str, json: &'a str) -> Result<&'a str, ExtractError> {
        let found = JsonPointer::parse(pointer).unwrap().find(json.as_bytes())?;
        Ok(std::str::from_utf8(found).unwrap())
    }

    fn key(pointer: &str, json: &str) -> Result<String, ExtractError> {
        let mut keys = Column::default();
        JsonPointer::parse(pointer).unwrap().key_into(json.as_bytes(), &mut keys)?;
        assert_eq!(keys.len(), 1);
        Ok(String::from_utf8(keys.get(0).to_vec()).unwrap())
    }

    #[test]
    fn finds_members_and_items() {
        let json = r#" {"a":1, "b" : {"c":[true, {"d":"x"},[ ]], "e/f~":null}, "0":"zero", "":2, "a":3}"#;
        let check = |pointer, expected| assert_eq!(find(pointer, json), expected, "{pointer}");
        check("/a", Ok("1"));
        check("/b/c", Ok(r#"[true, {"d":"x"},[ ]]"#));
        check("/b/c/0", Ok("true"));
        check("/b/c/1/d", Ok(r#""x""#));
        check("/b/c/2", Ok("[ ]"));
        check("/b/e~1f~0", Ok("null"));
        check("/0", Ok(r#""zero""#));
        check("/", Ok("2"));
        check(".", Ok(json));
        check("/none", Err(ExtractError::Missing));
        check("/a/b", Err(ExtractError::Missing));
        check("/b/c/3", Err(ExtractError::Missing));
        check("/b/c/00", Err(ExtractError::Missing));
        check("/b/c/2/0", Err(ExtractError::Missing));
    }

    #[test]
    fn keys_are_contents_and_literals() {
        assert_eq!(key("/k", r#"{"k":"plain"}"#).unwrap(), "plain");
        assert_eq!(key("/k", r#"{"k":"a\"\\\/\n\u00e9\ud83d\ude00"}"#).unwrap(), "a\"\\/\né😀");
        assert_eq!(key("/k", r#"{"\u006b":""}"#).unwrap(), "");
        assert_eq!(key("/k", r#"{"k":-1.50e+3}"#).unwrap(), "-1.50e+3");
        assert_eq!(key("/k", r#"{"k":false}"#).unwrap(), "false");
        assert_eq!(key(".", "not json").unwrap(), "not json");
        for (json, kind) in [(r#"{"k":null}"#, "null"), (r#"{"k":[]}"#, "an array"), (r#"{"k":{}}"#, "an object")] {
            assert_eq!(key("/k", json), Err(ExtractError::NotAKey { kind }));
        }
        assert!(matches!(key("/k", r#"{"k":"\ud83d"}"#), Err(ExtractError::Malformed { .. })));
    }

    #[test]
    fn malformed_records_are_refused_before_the_wanted_value() {
        for json in [
            "",
            "{",
            r#"{"a""#,
            r#"{"a":"#,
            r#"{"a":1"#,
            r#"{"a":1,"#,
            r#"{"a":1 "k":2}"#,
            r#"{a:1,"k":2}"#,
            r#"{"a":01,"k":2}"#,
            r#"{"a":1.,"k":2}"#,
            r#"{"a":-,"k":2}"#,
            r#"{"a":tru,"k":2}"#,
            r#"{"a":[1,],"k":2}"#,
            r#"{"a":[1},"k":2}"#,
            r#"{"a":{"b"},"k":2}"#,
            r#"{"a":"\x","k":2}"#,
            r#"{"a":"\u12g4","k":2}"#,
            "{\"a\":\"\t\",\"k\":2}",
            r#"{"a":"b"#,
            r#"{"k":"b"#,
            r#"{"k":}"#,
            r#"{,"k":2}"#,
            r#"{"a":1,}"#,
            r#"{"k":1x}"#,
            "nul",
        ] {
            assert!(matches!(find("/k", json), Err(ExtractError::Malformed { .. })), "{json}: {:?}", find("/k", json));
        }
    }

    #[test]
    fn hostile_nesting_is_an_error_and_needs_no_stack() {
        let deep = format!(r#"{{"a":{},"k":1}}"#, "[".repeat(1_000_000));
        assert_eq!(find("/k", &deep), Err(ExtractError::TooDeep { depth_max: 128 }));
        let allowed = format!(r#"{{"a":{}{},"k":1}}"#, "[".repeat(128), "]".repeat(128));
        assert_eq!(find("/k", &allowed), Ok("1"));
    }

    #[test]
    fn times_are_read_in_each_format() {
        let check = |text: &str, format, expected: Option<i64>| {
            let json = format!(r#"{{"t":{text}}}"#);
            let time = JsonPointer::parse("/t").unwrap().time(json.as_bytes(), format);
            assert_eq!(time.ok(), expected, "{text} {format:?}");
        };
        check("1436918400123", TimeFormat::Ms, Some(1_436_918_400_123));
        check(r#""-5""#, TimeFormat::Ms, Some(-5));
        check("1.5", TimeFormat::Ms, None);
        check("null", TimeFormat::Ms, None);
        check("-9223372036854775808", TimeFormat::Ms, None);
        check("9223372036854775808", TimeFormat::Ms, None);
        check("1436918400", TimeFormat::S, Some(1_436_918_400_000));
        check("9223372036854775807", TimeFormat::S, None);
        check(r#""2013-01-01T05:15:00Z""#, TimeFormat::Rfc3339, Some(1_357_017_300_000));
        check(r#""2013-01-01T05:15:00.25+01:00""#, TimeFormat::Rfc3339, Some(1_357_013_700_250));
        check(r#""2013-13-01T05:15:00Z""#, TimeFormat::Rfc3339, None);
    }

    #[test]
    fn texts_that_are_no_pointers_are_refused() {
        assert_eq!(JsonPointer::parse("user"), Err(PointerError::NoSlash { text: "user".to_owned() }));
        assert_eq!(JsonPointer::parse("/a~2"), Err(PointerError::Escape { text: "/a~2".to_owned() }));
        assert_eq!(JsonPointer::parse("/a~"), Err(PointerError::Escape { text: "/a~".to_owned() }));
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            Just(Value::from(-0.25e-7)),
            "[ -~é\"\\\\\n\u{1}]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[ab01/~\"]{0,2}", inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Every pointer into `value`, with what it points at.
    fn places<'a>(at: String, value: &'a Value, found: &mut Vec<(String, &'a Value)>) {
        match value {
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| places(format!("{at}/{index}"), item, found));
            }
            Value::Object(members) => members.iter().for_each(|(name, member)| {
                places(format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), member, found);
            }),
            _ => {}
        }
        found.push((at, value));
    }

    proptest! {
        #[test]
        fn agrees_with_a_full_parser(value in json_value(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let mut all = Vec::new();
            places(String::new(), &value, &mut all);
            for (pointer, expected) in all.iter().filter(|(pointer, _)| !pointer.is_empty()) {
                let raw = find(pointer, &text).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Value>(raw).unwrap(), *expected);
            }
        }

        #[test]
        fn a_scanned_value_is_json_exactly_when_a_parser_says_so(
            text in r#"[\[\]{}:,"\\ntruefalse01.eE+\- u]{0,24}"#,
        ) {
            let mut scanner = Scanner::new(text.as_bytes());
            let scanned = scanner.value().is_ok() && scanner.peek().is_none();
            let mut parser = serde_json::Deserializer::from_str(&text);
            let parsed = serde::de::IgnoredAny::deserialize(&mut parser).is_ok() && parser.end().is_ok();
            prop_assert_eq!(scanned, parsed, "{}", text);
        }

        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..64), value in json_value(), cut in any::<prop::sample::Index>()) {
            let pointer = JsonPointer::parse("/a/0").unwrap();
            let _ = pointer.key_into(&bytes, &mut Column::default());
            let text = serde_json::to_vec(&value).unwrap();
            bytes.splice(0..0, text[..cut.index(text.len() + 1)].iter().copied());
            let _ = pointer.key_into(&bytes, &mut Column::default());
        }
    }
}
