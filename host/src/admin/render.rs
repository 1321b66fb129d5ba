//! How keys and values are shown: the same by HTTP, by `wasmill state` of a running job, and by that of a stopped one.

use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// A key with its value, as one line of JSON.
pub fn entry(key: &[u8], value: &[u8]) -> String {
    format!("{{\"key\":{},\"value\":{}}}", text_or_hex(key), as_value(value))
}

/// A value as JSON where it is JSON, as a string where it is text, else as the object `{"hex": …}`. JSON is shown as it was written, members in
/// their order and numbers to the last digit, but on one line.
pub fn as_value(bytes: &[u8]) -> String {
    match (std::str::from_utf8(bytes), serde_json::from_slice::<IgnoredAny>(bytes)) {
        (Ok(json), Ok(_)) => json.trim().replace(['\n', '\r'], " "),
        _ => text_or_hex(bytes).to_string(),
    }
}

/// Bytes as a string where they are text, else as the object `{"hex": …}`.
pub fn text_or_hex(bytes: &[u8]) -> Value {
    match text(bytes) {
        Some(text) => text.into(),
        None => json!({ "hex": to_hex(bytes) }),
    }
}

/// The bytes that [`text_or_hex`] shows; `None` for JSON that it does not make.
pub fn shown_bytes(shown: &Value) -> Option<Vec<u8>> {
    match shown {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => from_hex(other.get("hex")?.as_str()?),
    }
}

/// Two hexadecimal digits a byte.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits; `None` when they are none.
pub fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? * 16 + digit(*low)?) as u8);
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Bytes that people can read.
fn text(bytes: &[u8]) -> Option<&str> {
    let is_readable = |text: &&str| !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    std::str::from_utf8(bytes).ok().filter(is_readable)
}

/// A value for people, from what [`as_value`] shows: text without quotes.
pub fn readable(value: &str) -> String {
    serde_json::from_str::<String>(value).unwrap_or_else(|_| value.to_owned())
}

/// A key for people: on one line.
pub fn readable_key(key: &[u8]) -> String {
    match text(key) {
        Some(text) if !text.contains(['\n', '\t']) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_what_they_are() {
        assert_eq!(
            as_value(b"{\"n\":1,\n \"a\":12345678901234567890123}"),
            "{\"n\":1,  \"a\":12345678901234567890123}"
        );
        assert_eq!(as_value(b"plain \"text\""), r#""plain \"text\"""#);
        assert_eq!(as_value(&[7, 0, 0, 0]), r#"{"hex":"07000000"}"#);
        let shown = |bytes: &[u8]| readable(&as_value(bytes));
        assert_eq!((shown(b"12"), shown(b"\"a\\nb\""), shown(b"plain")), ("12".into(), "a\nb".into(), "plain".into()));
    }

    #[test]
    fn keys_are_shown_on_one_line() {
        assert_eq!(readable_key("größe".as_bytes()), "größe");
        assert_eq!(readable_key(b"a\tb"), "a\\tb");
        assert_eq!(readable_key(b"\xff"), "\\xff");
        assert_eq!(entry(b"a\tb", b"{}"), r#"{"key":"a\tb","value":{}}"#);
    }

    #[test]
    fn keys_come_back_from_how_they_are_shown() {
        for key in [&b""[..], b"key", b"a\tb\"", b"\xff\x00", "größe".as_bytes(), b"\x07"] {
            assert_eq!(shown_bytes(&text_or_hex(key)).as_deref(), Some(key));
            assert_eq!(from_hex(&to_hex(key)).as_deref(), Some(key));
        }
        for wrong in ["0", "0g", "g0", "+1", "é"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
        assert_eq!(shown_bytes(&json!({ "hex": 7 })), None);
    }
}
