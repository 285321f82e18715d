//! Small nodes that share a page of the log.
//!
//! Owns: the bytes of such a page, how large a share of it a node takes. Promises: nodes whose
//! shares come to one page fit into one; a page that is not whole is an error. Never: decides which
//! nodes go together.
//!
//! Bodies follow each other from the first byte on, without the zeros at their ends. Before the
//! footer of the page is a table with an entry for each body: the last entry comes first.

use super::node::{FOOTER, Footer, NodePage};
use super::{FormatError, Nid, Owner, get16, get32, put16, put32};

const WHAT: &str = "a page of nodes";
/// Bytes of an entry of the table.
const ENTRY: usize = 16;
/// Bodies begin and end at multiples of so many bytes, and are told in them.
const WORD: usize = 4;

/// How many nodes of one size share a page. All divide [`Share::PAGE`].
const CLASSES: [u8; 12] = [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60];

/// The part of a page that a node takes: one of [`CLASSES`], so that shares of the same page can be
/// added up without a rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share(u8);

impl Share {
    /// All of it.
    pub(crate) const WHOLE: Share = Share(0);
    /// Units of a page.
    pub(crate) const PAGE: u8 = 60;

    /// The share of a node with a body of so many bytes.
    pub(crate) fn of(body: usize, page_bytes: usize) -> Share {
        let each = body.next_multiple_of(WORD) + ENTRY;
        let fit = (page_bytes - FOOTER) / each;
        let class = CLASSES.iter().rposition(|most| usize::from(*most) <= fit);
        Share(class.unwrap_or(0) as u8)
    }

    /// Its units: [`Share::PAGE`] of them are a page.
    pub(crate) fn units(self) -> u8 {
        Share::PAGE / CLASSES.get(usize::from(self.0)).unwrap_or(&1)
    }

    /// The four bits of it in the node address table.
    pub(crate) fn code(self) -> u8 {
        self.0
    }

    /// Nothing for a code that no share has.
    pub(crate) fn from_code(code: u8) -> Option<Share> {
        (usize::from(code) < CLASSES.len()).then_some(Share(code))
    }
}

/// A node of a shared page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) nid: Nid,
    pub(crate) ino: Nid,
    /// Its number in its file's tree.
    pub(crate) ofs: u32,
    pub(crate) body: &'a [u8],
}

impl Part<'_> {
    /// The node as it is in memory: a page, with zeros behind the body.
    pub(crate) fn page(&self, page_bytes: usize) -> Vec<u8> {
        let mut page = vec![0; page_bytes];
        let length = self.body.len().min(page_bytes);
        page[..length].copy_from_slice(&self.body[..length]);
        page
    }
}

/// A node as it lies in a page of the log.
pub(crate) struct Lying {
    /// What the node says of itself.
    pub(crate) footer: Footer,
    /// The node as it is in memory: a page, with zeros behind the body.
    pub(crate) content: Vec<u8>,
    /// The owner that the summary of the segment should have for the page.
    pub(crate) owner: Owner,
}

/// The nodes in a page of the log, one or several, as far as they are `wanted`. If the table of a
/// shared page has a number twice, the first entry counts. `seed` begins the checksum of the page.
pub(crate) fn lying(
    page: &[u8],
    seed: u32,
    wanted: impl Fn(Nid) -> bool,
) -> Result<Vec<Lying>, FormatError> {
    let footer = NodePage::check(page, seed)?;
    if footer.nid != Footer::SHARED {
        let alone = || {
            let owner = Owner::node(footer.nid);
            Lying { footer, content: page.to_vec(), owner }
        };
        return Ok(wanted(footer.nid).then(alone).into_iter().collect());
    }
    let parts = parts(page)?.into_iter().filter(|part| wanted(part.nid));
    let of = |part: Part<'_>| {
        let Part { nid, ino, ofs, .. } = part;
        let footer = Footer { nid, ino, ofs, version: footer.version, ..Footer::default() };
        Lying { footer, content: part.page(page.len()), owner: Owner::SHARED }
    };
    Ok(parts.map(of).collect())
}

/// Bytes of a node in memory, without its footer, up to the last word that is not 0. An inode has at
/// least its fields.
pub(crate) fn body_length(page: &[u8], is_inode: bool) -> usize {
    let end = page.len() - FOOTER;
    let words = page[..end].chunks_exact(8).rposition(|word| word != [0; 8]);
    let used = words.map_or(0, |last| 8 * (last + 1));
    if is_inode { used.max(super::node::FIXED) } else { used }
}

/// Makes the page of some nodes, whose shares come to a page at most. `version` is that of the last
/// checkpoint; `seed` begins the checksum of the page.
pub(crate) fn encode(parts: &[Part<'_>], page_bytes: usize, version: u64, seed: u32) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    let mut at = 0;
    for (i, part) in parts.iter().enumerate() {
        let entry = entry_at(page_bytes, i);
        let length = part.body.len().next_multiple_of(WORD);
        page[at..at + part.body.len()].copy_from_slice(part.body);
        put32(&mut page, entry, part.nid);
        put32(&mut page, entry + 4, part.ino);
        put32(&mut page, entry + 8, part.ofs);
        put16(&mut page, entry + 12, (at / WORD) as u16);
        put16(&mut page, entry + 14, (length / WORD) as u16);
        at += length;
    }
    debug_assert!(parts.is_empty() || at <= entry_at(page_bytes, parts.len() - 1));
    let ofs = parts.len() as u32;
    let footer = Footer { nid: Footer::SHARED, ofs, version, ..Footer::default() };
    NodePage::seal(&mut page, &footer, seed);
    page
}

fn entry_at(page_bytes: usize, i: usize) -> usize {
    page_bytes - FOOTER - ENTRY * (i + 1)
}

/// The nodes of a shared page whose footer was checked.
pub(crate) fn parts(page: &[u8]) -> Result<Vec<Part<'_>>, FormatError> {
    let count = get32(page, page.len() - FOOTER + 8) as usize;
    let wrong = |field, value| FormatError::Value { what: WHAT, field, value };
    if !(1..=usize::from(Share::PAGE)).contains(&count) {
        return Err(wrong("the number of its nodes", count as u64));
    }
    let table = entry_at(page.len(), count - 1);
    let part = |i| {
        let entry = entry_at(page.len(), i);
        let at = usize::from(get16(page, entry + 12)) * WORD;
        let length = usize::from(get16(page, entry + 14)) * WORD;
        let is_inode = get32(page, entry + 8) == 0;
        if at + length > table || is_inode && length < super::node::FIXED {
            return Err(wrong("the end of a node", (at + length) as u64));
        }
        Ok(Part {
            nid: get32(page, entry),
            ino: get32(page, entry + 4),
            ofs: get32(page, entry + 8),
            body: &page[at..at + length],
        })
    };
    (0..count).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_page_fit_into_it() {
        for page_bytes in [4096, 8192, 65_536] {
            for body in (0..page_bytes - FOOTER).step_by(4) {
                let share = Share::of(body, page_bytes);
                let count = usize::from(Share::PAGE / share.units());
                let fits = count * (body + ENTRY) <= page_bytes - FOOTER;
                assert!(fits || share == Share::WHOLE, "{count} of {body} in {page_bytes}");
                assert_eq!(Share::from_code(share.code()), Some(share));
            }
        }
        assert_eq!(Share::from_code(12), None);
        assert_eq!(Share::default(), Share::WHOLE);
        // An inode with a kilobyte, and an empty file.
        assert_eq!((Share::of(1408, 8192).units(), Share::of(384, 8192).units()), (12, 3));
    }

    #[test]
    fn a_shared_page_comes_back_and_lies_are_found() {
        let bodies: Vec<Vec<u8>> = (1..=5).map(|i| vec![i as u8; 384 + 200 * i]).collect();
        let parts_of = || {
            let numbered = (5..).zip(&bodies);
            let part = |(nid, body)| Part { nid, ino: nid, ofs: 0, body };
            numbered.map(|(nid, body)| (nid, body.as_slice())).map(part).collect::<Vec<_>>()
        };
        let page = encode(&parts_of(), 8192, 9, 7);
        let footer = NodePage::check(&page, 7).expect("it is whole");
        assert_eq!((footer.nid, footer.version, footer.batch.number), (Footer::SHARED, 9, 0));
        assert_eq!(parts(&page), Ok(parts_of()));
        let mut node = vec![0; 8192];
        node[..bodies[2].len()].copy_from_slice(&bodies[2]);
        assert_eq!(parts_of()[2].page(8192), node);
        assert_eq!(body_length(&node, true), bodies[2].len());
        assert_eq!((body_length(&[0; 4096], true), body_length(&[0; 4096], false)), (384, 0));
        // Whoever computes the checksum anew can't lead anybody out of the page.
        for (at, value) in [(8, 0), (8, 61), (8, u32::MAX), (-4, u32::MAX), (-4, 0)] {
            let mut bad = page.clone();
            put32(&mut bad, (8192 - FOOTER).wrapping_add_signed(at), value);
            assert!(parts(&bad).is_err(), "{at} {value}");
        }
    }
}
