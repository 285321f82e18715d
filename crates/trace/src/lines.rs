//! Lines of bounded length from a stream.
//!
//! Owns: line numbers and the buffer. Promises: memory is bounded by [`LINE_BYTES_MAX`] whatever
//! the file holds; a line without its newline at the end of the file is told apart.
//! Never: interprets a line.

use std::io::{self, BufRead};

/// Longest line; blkparse's own are below 200 bytes, a process name may add 16.
pub const LINE_BYTES_MAX: usize = 4096;

/// A line that could not be read.
#[derive(Debug)]
pub enum LineError {
    /// The stream failed behind `lines` good lines.
    Io(io::Error),
    /// Longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Cuts a stream into lines.
pub struct Lines {
    input: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
    ended_with_newline: bool,
}

impl Lines {
    /// Lines of `input`.
    pub fn new(input: Box<dyn BufRead>) -> Lines {
        Lines { input, line: Vec::with_capacity(256), number: 0, ended_with_newline: true }
    }

    /// Number of the line that was read last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the line that was read last had its end.
    pub fn complete(&self) -> bool {
        self.ended_with_newline
    }

    /// The line that was read last, without its end.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// Reads the next line; false at the end of the stream.
    pub fn advance(&mut self) -> Result<bool, LineError> {
        self.line.clear();
        self.number += 1;
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(LineError::Io(e)),
            };
            if chunk.is_empty() {
                self.ended_with_newline = false;
                let any = !self.line.is_empty();
                self.number -= !any as u64;
                return Ok(any);
            }
            let end = chunk.iter().position(|b| *b == b'\n');
            let take = end.unwrap_or(chunk.len());
            if self.line.len() + take > LINE_BYTES_MAX {
                return Err(LineError::TooLong);
            }
            self.line.extend_from_slice(&chunk[..take]);
            self.input.consume(take + end.is_some() as usize);
            if end.is_some() {
                self.ended_with_newline = true;
                if self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
                return Ok(true);
            }
        }
    }
}

/// Blank-separated fields of a line, each with the column it starts at.
pub struct Fields<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Fields of `line`.
    pub fn new(line: &'a [u8]) -> Fields<'a> {
        Fields { line, at: 0 }
    }

    /// Column (from 1) behind the fields taken so far.
    pub fn column(&self) -> usize {
        self.at + 1
    }

    /// Everything behind the fields taken so far, without leading blanks.
    pub fn rest(&self) -> &'a [u8] {
        self.line[self.at..].trim_ascii()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (usize, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<(usize, &'a [u8])> {
        let blank = |b: &u8| matches!(*b, b' ' | b'\t');
        let skip = self.line[self.at..].iter().position(|b| !blank(b))?;
        let start = self.at + skip;
        let field = &self.line[start..];
        let len = field.iter().position(blank).unwrap_or(field.len());
        self.at = start + len;
        Some((start + 1, &field[..len]))
    }
}

/// A decimal number, or nothing if there is any other character or too many digits.
#[inline]
pub fn decimal(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 20 {
        return None;
    }
    let mut n: u64 = 0;
    for b in field {
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        n = n.checked_mul(10)?.checked_add(digit as u64)?;
    }
    Some(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn all(bytes: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let mut lines = Lines::new(Box::new(Cursor::new(bytes.to_vec())));
        let mut out = Vec::new();
        while lines.advance().unwrap() {
            out.push((lines.line().to_vec(), lines.complete()));
        }
        out
    }

    #[test]
    fn lines_keep_their_number_and_tell_whether_they_ended() {
        assert_eq!(
            all(b"a\r\n\nbc"),
            [(b"a".to_vec(), true), (b"".to_vec(), true), (b"bc".to_vec(), false)]
        );
        assert!(all(b"").is_empty());
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::new(Box::new(Cursor::new(vec![b'x'; 3 * LINE_BYTES_MAX])));
        assert!(matches!(lines.advance(), Err(LineError::TooLong)));
    }

    #[test]
    fn fields_know_their_columns_and_numbers_do_not_wrap() {
        let got: Vec<_> = Fields::new(b"  8,0 \t1").collect();
        assert_eq!(got, [(3, &b"8,0"[..]), (8, &b"1"[..])]);
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b"18446744073709551616"[..], b"", b"-1", b"1x", b"0x10"] {
            assert_eq!(decimal(bad), None);
        }
    }
}
