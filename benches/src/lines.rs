//! Lines of a byte stream, without copying them: the fastest plain reader that safe standard code gives.

use std::io::{self, Read};

/// Bytes asked for at once. Larger reads gain nothing; smaller ones cost system calls.
const CHUNK_BYTES: usize = 1 << 20;

/// Calls `each` with every line of `input`, without its line feed. A last line without one counts as a line.
///
/// # Errors
/// What reading or `each` returns; reading stops there.
pub fn for_each_line<E: From<io::Error>>(
    mut input: impl Read,
    mut each: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            buffer.resize(buffer.len() * 2, 0);
        }
        let read = input.read(&mut buffer[filled..])?;
        if read == 0 {
            break;
        }
        filled += read;
        let mut start = 0;
        // A line that an earlier read began is searched again from its start: lines are short beside a chunk.
        for end in memchr::memchr_iter(b'\n', &buffer[..filled]) {
            each(&buffer[start..end])?;
            start = end + 1;
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
    }
    if filled > 0 { each(&buffer[..filled]) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives at most `step` bytes a read, as a pipe may.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(buffer.len());
            self.bytes.read(&mut buffer[..count])
        }
    }

    fn collected(bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for_each_line(Trickle { bytes, step }, |line| {
            lines.push(line.to_vec());
            Ok::<_, io::Error>(())
        })
        .unwrap();
        lines
    }

    #[test]
    fn a_line_longer_than_a_chunk_comes_whole() {
        let long = vec![b'x'; CHUNK_BYTES * 2 + 3];
        let text = [b"a\n".as_slice(), &long, b"\nb"].concat();
        assert_eq!(collected(&text, usize::MAX), [b"a".to_vec(), long, b"b".to_vec()]);
    }

    #[test]
    fn no_bytes_are_no_lines_and_a_lone_feed_is_an_empty_line() {
        assert!(collected(b"", 1).is_empty());
        assert_eq!(collected(b"\n", 1), [b"".to_vec()]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_arrive(lines in prop::collection::vec("[a-z]{0,9}", 1..20), step in 1usize..17) {
            let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let expected: Vec<Vec<u8>> = lines.iter().map(|line| line.clone().into_bytes()).collect();
            prop_assert_eq!(collected(text.as_bytes(), step), expected);
        }
    }
}
