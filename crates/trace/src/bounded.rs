//! Files from outside that are read whole: never more of them than such a file can be.
//!
//! Owns: the limit and what is said about a file beyond it. Promises: memory stays within the limit
//! whatever a file claims to be; what is no regular file (a pipe, a device, a folder) is not
//! opened, so nothing waits for a writer. Never: guesses: a file that is too long is refused, not cut off.

use crate::source::regular;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What people write: experiments, job files, specs, fault plans, tables of costs.
pub const TEXT_MAX: u64 = 1 << 20;

/// The bytes of a file of at most `most`.
///
/// # Errors
/// It is no regular file, longer, or can't be read; the caller says which file.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    regular(path)?;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it is longer than {most} bytes, and such a file is read whole: is it the right one? \
             If so, leave out what is not needed"
        )));
    }
    Ok(bytes)
}

/// As [`bytes()`], of text.
///
/// # Errors
/// As [`bytes()`], or it is no UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)");
    String::from_utf8(bytes(path, most)?).map_err(no_text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A file of the largest size is read, one byte more is refused, and so is what has no end: without
    /// waiting, and with no more memory than the limit.
    #[test]
    fn no_more_is_read_than_asked_for() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"12345678").unwrap();
        assert_eq!(text(file.path(), 8).unwrap(), "12345678");
        let said = text(file.path(), 7).unwrap_err().to_string();
        assert!(said.contains("longer than 7 bytes") && said.contains("leave out"), "{said}");
        file.as_file().set_len(1 << 40).unwrap();
        assert!(bytes(file.path(), TEXT_MAX).unwrap_err().to_string().contains("1048576 bytes"));
        let said = bytes(Path::new("/dev/zero"), TEXT_MAX).unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{said}");
        assert!(bytes(Path::new("/"), TEXT_MAX).is_err());
        file.as_file().set_len(0).unwrap();
        file.write_all(b"\xff").unwrap();
        assert!(text(file.path(), 100).unwrap_err().to_string().contains("no text"));
    }
}
