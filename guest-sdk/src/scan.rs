//! A shallow look into a JSON object: where its members lie, without reading what is in them.
//!
//! A function that needs two numbers of a record need not pay for the rest. The scan steps over what is not asked for, looks no
//! deeper than the object's own members, and ends when it has found them all: JSON behind that is not checked.

use std::ops::Range;

use serde::Deserialize;

use crate::error::Reject;

/// A member's value within the JSON object that holds it. See [`Record::members`](crate::Record::members).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    object: &'a [u8],
    start: usize,
    end: usize,
}

impl<'a> Member<'a> {
    /// The value as it is written.
    pub fn bytes(&self) -> &'a [u8] {
        &self.object[self.start..self.end]
    }

    /// What stands before and behind the value: to replace it, and copy the rest.
    pub fn around(&self) -> (&'a [u8], &'a [u8]) {
        (&self.object[..self.start], &self.object[self.end..])
    }

    /// The value read as JSON.
    ///
    /// # Errors
    /// When it is not JSON, or does not fit `T`.
    pub fn json<T: Deserialize<'a>>(&self) -> Result<T, Reject> {
        serde_json::from_slice(self.bytes()).map_err(|error| {
            let text = String::from_utf8_lossy(self.bytes());
            Reject::new(format_args!("`{text}` is not the JSON that is expected: {error}"))
        })
    }
}

/// The members `names` of the object `json`. Of several members of one name the first counts; a name written with escapes is not recognised.
pub(crate) fn members<'a, const N: usize>(json: &'a [u8], names: [&str; N]) -> Result<[Member<'a>; N], Reject> {
    let mut found: [Option<Range<usize>>; N] = [const { None }; N];
    let mut missing = N;
    let mut scan = Scan { json, at: 0 };
    scan.expect(b'{')?;
    let mut more = scan.peek()? != b'}';
    while more && missing > 0 {
        let name = scan.name()?;
        let value = scan.value()?;
        let wanted = names.iter().position(|wanted| wanted.as_bytes() == &json[name.clone()]);
        if let Some(slot) = wanted.map(|wanted| &mut found[wanted]).filter(|slot| slot.is_none()) {
            *slot = Some(value);
            missing -= 1;
        }
        more = missing > 0 && scan.goes_on()?;
    }
    if let Some(index) = found.iter().position(Option::is_none) {
        return Err(Reject::new(format_args!("the value has no member `{}`", names[index])));
    }
    Ok(found.map(|range| {
        let Range { start, end } = range.expect("the missing ones were looked for just above");
        Member { object: json, start, end }
    }))
}

/// Which bytes end a number, `true`, `false` or `null`. A `match` in its place becomes a jump table in a component, which costs several times as much a byte.
static ENDS_SCALAR: [bool; 256] = {
    let mut ends = [false; 256];
    let bytes = b",}] \t\n\r";
    let mut index = 0;
    while index < bytes.len() {
        ends[bytes[index] as usize] = true;
        index += 1;
    }
    ends
};

struct Scan<'a> {
    json: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<u8, Reject> {
        loop {
            match self.json.get(self.at) {
                Some(&byte) if byte > b' ' => return Ok(byte),
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(&byte) => return Ok(byte),
                None => return Err(self.broken()),
            }
        }
    }

    fn expect(&mut self, expected: u8) -> Result<(), Reject> {
        if self.peek()? != expected {
            return Err(self.broken());
        }
        self.at += 1;
        Ok(())
    }

    /// A member's name without its quotes; steps over the colon, too.
    fn name(&mut self) -> Result<Range<usize>, Reject> {
        self.expect(b'"')?;
        let start = self.at;
        self.step_over_string()?;
        let end = self.at - 1;
        self.expect(b':')?;
        Ok(start..end)
    }

    fn value(&mut self) -> Result<Range<usize>, Reject> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => {
                self.at += 1;
                self.step_over_string()?;
            }
            b'{' | b'[' => self.step_over_nested()?,
            _ => self.step_over_scalar()?,
        }
        Ok(start..self.at)
    }

    /// Whether another member follows.
    fn goes_on(&mut self) -> Result<bool, Reject> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Ok(true)
            }
            b'}' => Ok(false),
            _ => Err(self.broken()),
        }
    }

    /// From behind the opening quote to behind the closing one.
    fn step_over_string(&mut self) -> Result<(), Reject> {
        loop {
            self.step_to_quote_or_backslash();
            match self.json.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => self.at += 2,
                None => return Err(self.broken()),
            }
        }
    }

    /// Eight bytes at a step: a byte of `word ^ pattern` is zero where the pattern's byte stands, and the subtraction borrows
    /// into its top bit. The lowest such bit is exact ("Bit Twiddling Hacks", determine if a word has a zero byte).
    fn step_to_quote_or_backslash(&mut self) {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let marks = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
        while let Some(chunk) = self.json.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
            let word = u64::from_le_bytes(*chunk);
            let found = marks(word ^ (ONES * b'"' as u64)) | marks(word ^ (ONES * b'\\' as u64));
            if found != 0 {
                self.at += found.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while self.json.get(self.at).is_some_and(|byte| !matches!(byte, b'"' | b'\\')) {
            self.at += 1;
        }
    }

    /// Eight bytes at a step. A digit's upper half is 3, and stays so when 6 is added to it; no other byte's does.
    fn step_over_digits(&mut self) {
        const UPPER: u64 = 0xF0F0_F0F0_F0F0_F0F0;
        const THREES: u64 = 0x3030_3030_3030_3030;
        const SIXES: u64 = 0x0606_0606_0606_0606;
        while let Some(chunk) = self.json.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
            let word = u64::from_le_bytes(*chunk);
            // The addition may carry from one byte into the next: only from one that is no digit, so the first of those is exact.
            let others = ((word & UPPER) ^ THREES) | ((word.wrapping_add(SIXES) & UPPER) ^ THREES);
            if others != 0 {
                self.at += others.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
    }

    fn step_over_nested(&mut self) -> Result<(), Reject> {
        let mut depth = 0u32;
        loop {
            let byte = *self.json.get(self.at).ok_or_else(|| self.broken())?;
            self.at += 1;
            match byte {
                b'"' => self.step_over_string()?,
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn step_over_scalar(&mut self) -> Result<(), Reject> {
        let start = self.at;
        self.step_over_digits();
        while self.json.get(self.at).is_some_and(|byte| !ENDS_SCALAR[usize::from(*byte)]) {
            self.at += 1;
        }
        if self.at == start { Err(self.broken()) } else { Ok(()) }
    }

    #[cold]
    fn broken(&self) -> Reject {
        Reject::new(format_args!("the value is no JSON object: byte {} is not what should stand there", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const N: usize>(json: &str, names: [&str; N], expected: [&str; N]) {
        let found = members(json.as_bytes(), names).expect("all members are there");
        assert_eq!(found.map(|member| String::from_utf8_lossy(member.bytes()).into_owned()), expected);
    }

    fn check_error(json: &str, expected: &str) {
        let error = members(json.as_bytes(), ["a"]).expect_err("the scan must fail");
        assert!(error.reason().contains(expected), "{}", error.reason());
    }

    #[test]
    fn members_are_found_wherever_they_stand() {
        check(r#"{"a":1,"b":"x"}"#, ["b", "a"], [r#""x""#, "1"]);
        check(" {\t\"a\" : -1.5e3 ,\r\n\"b\":null } ", ["a", "b"], ["-1.5e3", "null"]);
        check(r#"{"n":{"a":[1,"}",{"a":2}]},"a":3}"#, ["a", "n"], ["3", r#"{"a":[1,"}",{"a":2}]}"#]);
        check(r#"{"long":"a \"a\":7, \\","a":"end \\"}"#, ["a"], [r#""end \\""#]);
        check(r#"{"a":"first","a":"second"}"#, ["a"], [r#""first""#]);
        check(r#"{"":true}"#, [""], ["true"]);
    }

    #[test]
    fn the_end_of_a_string_is_found_at_every_length() {
        for length in 0..40 {
            let text = "é\u{22f}".repeat(length / 4) + &"x".repeat(length % 4);
            check(&format!(r#"{{"s":"{text}\\","a":{length}}}"#), ["a"], [&length.to_string()]);
        }
    }

    #[test]
    fn the_end_of_a_number_is_found_at_every_length() {
        for length in 1..40 {
            let digits = &"1234567890123456789012345678901234567890"[..length];
            for number in [digits.to_owned(), format!("-{digits}"), format!("{digits}.5e-7")] {
                check(&format!(r#"{{"n":{number},"a":{length}}}"#), ["n", "a"], [&number, &length.to_string()]);
                check(&format!(r#"{{"n":{number} }}"#), ["n"], [&number]);
                check(&format!(r#"{{"n":{number}}}"#), ["n"], [&number]);
            }
        }
    }

    #[test]
    fn the_scan_agrees_with_serde_json() {
        let names = ["a", "b\u{e9}", "c", "d"];
        let values = [r#""\u0041\"""#, "[[],{}]", "{\"a\":[\"]\"]}", "-0.5E-2", "true", "\"\""];
        for (index, value) in values.iter().enumerate() {
            let json = format!(r#"{{"a":{value},"bé":{},"c":0,"d":{value}}}"#, values[(index + 1) % values.len()]);
            let whole: serde_json::Value = serde_json::from_str(&json).expect("valid JSON");
            for (name, member) in names.iter().zip(members(json.as_bytes(), names).expect("all are there")) {
                assert_eq!(member.json::<serde_json::Value>().as_ref(), Ok(&whole[name]), "{name} of {json}");
            }
        }
    }

    #[test]
    fn what_is_no_object_or_lacks_a_member_is_an_error() {
        check_error("", "no JSON object: byte 0");
        check_error("[1]", "no JSON object: byte 0");
        check_error("{}", "no member `a`");
        check_error(r#"{"b":1}"#, "no member `a`");
        check_error(r#"{"b":1"#, "byte 6");
        check_error(r#"{"b" 1}"#, "byte 5");
        check_error(r#"{"b":}"#, "byte 5");
        check_error(r#"{"b":"open"#, "no JSON object");
        check_error(r#"{"b":"open\"#, "no JSON object");
        check_error(r#"{"b":[1,[2]"#, "byte 11");
        check_error(r#"{"b":1 "a":2}"#, "byte 7");
        check_error(r#"{"b":1,}"#, "byte 7");
    }
}
