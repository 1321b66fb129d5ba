//! A JSON scanner that reads only as far as it must: it steps over values without building anything.
//!
//! It serves pointers into records (see [`super::extract`]), where a parser that builds values, or that recurses on hostile
//! nesting, would cost too much. It checks the grammar of everything it steps over (RFC 8259), never reads out of bounds and needs
//! a fixed amount of memory. It does not check UTF-8: its caller knows whether that has been done.

use super::extract::ExtractError;

/// How deeply arrays and objects may be nested in what is stepped over; the same limit as `serde_json`'s.
pub const DEPTH_MAX: u32 = 128;

/// A place in a JSON text.
#[derive(Debug, Clone, Copy)]
pub struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

/// A string as it stands in the text, without its quotes.
#[derive(Debug, Clone, Copy)]
pub struct RawString<'a> {
    /// What lies between the quotes.
    pub content: &'a [u8],
    /// Whether `content` holds escapes.
    pub escaped: bool,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of `json`.
    pub fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// The next byte that is not white space, without passing it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        match self.byte() {
            Some(byte) if byte > b' ' => Some(byte),
            None => None,
            Some(_) => self.peek_behind_space(),
        }
    }

    fn peek_behind_space(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.at += 1;
        }
        self.byte()
    }

    /// Passes `byte`, or says what was expected.
    ///
    /// # Errors
    /// [`ExtractError::Malformed`] when something else stands here.
    #[inline]
    pub fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), ExtractError> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.malformed(expected))
    }

    /// Passes `byte` if it stands here.
    #[inline]
    pub fn passes(&mut self, byte: u8) -> bool {
        let stands = self.peek() == Some(byte);
        self.at += usize::from(stands);
        stands
    }

    /// Steps over a string.
    ///
    /// # Errors
    /// [`ExtractError::Malformed`] when none stands here, or it does not end.
    #[inline]
    pub fn string(&mut self) -> Result<RawString<'a>, ExtractError> {
        self.expect(b'"', "a string")?;
        self.string_rest()
    }

    /// Steps over a string behind its first quote.
    #[inline]
    fn string_rest(&mut self) -> Result<RawString<'a>, ExtractError> {
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at = special_byte(self.json, self.at);
            match self.json.get(self.at) {
                Some(b'"') => {
                    let content = &self.json[start..self.at];
                    self.at += 1;
                    return Ok(RawString { content, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(self.malformed("no control character in a string")),
                None => return Err(self.malformed("the end of a string")),
            }
        }
    }

    /// Steps over the value that begins here and returns its text.
    ///
    /// # Errors
    /// [`ExtractError::Malformed`] when no value stands here; [`ExtractError::TooDeep`] beyond [`DEPTH_MAX`].
    #[inline]
    pub fn value(&mut self) -> Result<&'a [u8], ExtractError> {
        let first = self.peek();
        let start = self.at;
        match first {
            Some(b'{' | b'[') => self.container()?,
            other => self.scalar(other)?,
        }
        Ok(&self.json[start..self.at])
    }

    /// Steps over an array or object. The kinds of the open ones are the bits of one number, so nesting needs no memory.
    fn container(&mut self) -> Result<(), ExtractError> {
        let mut objects = 0u128;
        let mut depth = 0;
        loop {
            // A value begins here.
            let opened = match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if depth == DEPTH_MAX {
                        return Err(ExtractError::TooDeep { depth_max: DEPTH_MAX });
                    }
                    self.at += 1;
                    objects = objects << 1 | u128::from(open == b'{');
                    depth += 1;
                    true
                }
                other => {
                    self.scalar(other)?;
                    false
                }
            };
            if !opened || self.closes(objects) {
                // A value has ended here: it may be the last of any number of open ones.
                if opened {
                    objects >>= 1;
                    depth -= 1;
                }
                while depth > 0 && !self.passes(b',') {
                    if !self.closes(objects) {
                        return Err(self.malformed("`,` or the end of an array or object"));
                    }
                    objects >>= 1;
                    depth -= 1;
                }
                if depth == 0 {
                    return Ok(());
                }
            }
            if objects & 1 == 1 {
                self.string()?;
                self.expect(b':', "`:`")?;
            }
        }
    }

    fn closes(&mut self, objects: u128) -> bool {
        self.passes(if objects & 1 == 1 { b'}' } else { b']' })
    }

    /// Steps over what is no array or object and begins with `first`, here.
    #[inline]
    fn scalar(&mut self, first: Option<u8>) -> Result<(), ExtractError> {
        match first {
            Some(b'"') => {
                self.at += 1;
                self.string_rest().map(drop)
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.malformed("a value")),
        }
    }

    fn literal(&mut self, literal: &'static [u8]) -> Result<(), ExtractError> {
        if !self.json[self.at..].starts_with(literal) {
            return Err(self.malformed("a value"));
        }
        self.at += literal.len();
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<(), ExtractError> {
        self.at += usize::from(self.byte() == Some(b'-'));
        if self.byte() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.digits()?;
        }
        // What follows must end the number; `01` and `1x` are none.
        match self.byte() {
            None | Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r') => Ok(()),
            Some(_) => Err(self.malformed("the end of a number")),
        }
    }

    #[inline]
    fn digits(&mut self) -> Result<(), ExtractError> {
        let rest = self.json.get(self.at..).unwrap_or_default();
        let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += count;
        if count == 0 { Err(self.malformed("a digit")) } else { Ok(()) }
    }

    fn escape(&mut self) -> Result<(), ExtractError> {
        let length = match self.json.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => match self.json.get(self.at + 2..self.at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => 6,
                _ => return Err(self.malformed("four hexadecimal digits after `\\u`")),
            },
            _ => return Err(self.malformed("an escape after `\\`")),
        };
        self.at += length;
        Ok(())
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    #[cold]
    fn malformed(&self, expected: &'static str) -> ExtractError {
        ExtractError::Malformed { at: self.at, expected }
    }
}

/// The place of the first quote, backslash or control character from `at` on, or the end.
///
/// Eight bytes at a time: most strings of records are too short for a vectorised search to pay for its set-up.
#[inline]
fn special_byte(json: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    const CONTROLS: u64 = u64::from_ne_bytes([0x20; 8]);
    while let Some(chunk) = json.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ u64::from_ne_bytes([b'"'; 8]);
        let backslash = word ^ u64::from_ne_bytes([b'\\'; 8]);
        // The usual tests for a zero byte and for a byte below a bound; the lowest bit found is always right.
        let hits = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(CONTROLS) & !word);
        let hits = hits & HIGHS;
        if hits != 0 {
            return at + hits.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while json.get(at).is_some_and(|&byte| byte != b'"' && byte != b'\\' && byte >= 0x20) {
        at += 1;
    }
    at
}
