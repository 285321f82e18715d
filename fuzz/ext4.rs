//! A file system of any bytes, read as `flashlane idiscard` does.

use flashlane_ext4::{Census, Journal, Superblock, Tables, Volume};
use std::io;
use std::ops::Range;

pub(crate) const NAMES: [&str; 1] = ["ext4"];

/// Bytes of the volume: zeros behind the input.
const BYTES: u64 = 1 << 20;
/// Groups that are looked at.
const GROUPS_MAX: u32 = 64;

struct Padded<'a>(&'a [u8]);

impl Volume for Padded<'_> {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(buf.len() as u64).filter(|end| *end <= BYTES);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.fill(0);
        let there = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let n = there.len().min(buf.len());
        buf[..n].copy_from_slice(&there[..n]);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        BYTES
    }
}

/// True when it is taken for a file system.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    if target != NAMES[0] {
        return None;
    }
    let volume = Padded(bytes);
    let sb = match Superblock::read(&volume) {
        Ok(sb) => sb,
        Err(why) => {
            assert!(!why.to_string().trim().is_empty());
            return Some(false);
        }
    };
    let _ = Tables::<Padded<'_>>::refusal(&sb);
    let mut tables = Tables::new(&volume, &sb);
    for _ in 0..GROUPS_MAX {
        // All that a superblock tells of is on the volume, so nothing can't be read.
        let Some(runs) = tables.group().map(|group| group.expect("it lies on the volume")) else {
            break;
        };
        for run in runs {
            assert!(run.blocks > 0 && run.first + u64::from(run.blocks) <= sb.blocks, "{run:?}");
            assert!(run.inode <= sb.inodes, "{run:?}");
        }
    }
    if let Some(Ok(journal)) = Journal::read(&volume, &sb).expect("it lies on the volume") {
        let mut done = 0;
        for extent in &journal.extents {
            assert!(extent.blocks > 0 && extent.logical >= done, "{extent:?}");
            assert!(extent.first + u64::from(extent.blocks) <= sb.blocks, "{extent:?}");
            done = extent.logical.saturating_add(extent.blocks);
        }
        let log: u64 = journal.log().map(|extent| u64::from(extent.blocks)).sum();
        let all: u64 = journal.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        assert_eq!(log + 1, all);
    }
    let mut census = Census::new(&volume, &sb);
    let mut held = |bytes: Range<u64>| {
        assert!(bytes.start < bytes.end && bytes.end <= sb.bytes(), "{bytes:?}");
        bytes.end - bytes.start
    };
    for _ in 0..GROUPS_MAX {
        if !census.group(&mut held) {
            break;
        }
    }
    let pages = census.pages();
    assert_eq!(pages.unread, 0, "{:?}", pages.error);
    assert!(pages.iter().all(|(_, s)| s.held == s.blocks * u64::from(sb.block_bytes)));
    Some(true)
}
