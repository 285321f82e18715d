//! What is known of a file system by who stands under it: from each write that passed.
//!
//! Owns: what lies where, the newest bitmaps of each group, what each piece of the inode tables holds, and
//! which blocks of inodes are dead; in `blocks.rs` which blocks are free, and where the journal is, in
//! `pages.rs` how many blocks hold what. Promises: a block is dead only if all its bits in the newest
//! bitmap are clear *and* each inode in it was freed by the kernel, or never used, as it stands on the
//! medium; what nobody has seen is not known, and nothing of it is dead; a byte for each piece of the
//! tables, a bit for each inode and each block. Never: reads; discards.
//!
//! **Why a dead block may be discarded while the file system is mounted.** It reads as zeros then, so what
//! is asked is whether anybody needs an inode from the medium that is freed there. The newest version of
//! a block is on the medium, or in the kernel's memory, where it stays until it was written, or in the log
//! of the journal, whose replay writes blocks as a whole (`do_one_pass`, fs/jbd2/recovery.c). Both come
//! over the zeros. Fast commits replay single inodes into blocks in which all others are free, all of them but
//! the map of their blocks, which they make anew where there is none (`ext4_fc_replay_inode`). A freed inode on the medium is read by nobody but who uses it again, and who
//! does so fills it anew (`ext4_new_inode`, `ext4_do_update_inode`). So the journal need not be read.
//!
//! **What an inode without links may be.** A file that is open, or has no name yet (`O_TMPFILE`), has no
//! link, and its bitmap may come later than its block. Its time of deletion is zero or, as a link of the list of
//! orphans, a number of an inode (Documentation/filesystems/ext4/orphan.rst). Who frees it sets the time.
//! So an inode is freed only if that time is above every number of an inode; with checksums of metadata
//! its own must be right, too. Whatever else lies there is in use.

mod blocks;
mod pages;

pub use blocks::{Found, Wanted};

use crate::bytes::{le16, le32};
use crate::extent::is_inode_sum;
use crate::{Ext4Error, Feature, Group, Superblock, Tables};
use flashlane_base::mutant;
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of a drive's sector, in which writes come and discards go.
pub const SECTOR: usize = 4096;

/// A volume has room for the shadow of one piece of a table in so many of its bytes; a file system that is
/// nothing but inodes has more.
const BYTES_PER_PIECE: u64 = 8192;

/// The same of a group, of which `mke2fs` makes one per 8 MiB or more; small file systems may have more.
const BYTES_PER_GROUP: u64 = 1 << 20;
const GROUPS_LEAST: u64 = 1024;

/// What a piece of a table holds: a sector, or a block where that is smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Piece {
    /// Nobody has seen it.
    Unknown,
    /// An inode in it is in use, or might be.
    Used,
    /// Inodes that were freed, and at most some that were never used.
    Freed,
    /// Zeros that somebody wrote.
    Zeros,
    /// Nothing: it was discarded, or never written.
    Gone,
}

/// What a sector holds now.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// These bytes.
    Written(&'a [u8]),
    /// Nothing, which reads as zeros.
    Gone,
    /// Nobody knows: a write failed, or two were under way at once.
    Unsure,
}

/// What a write of the superblock has changed.
#[derive(Debug)]
pub enum Change {
    /// Nothing that matters here.
    None,
    /// The file system was unmounted.
    Unmounted,
    /// Another one, or the same with another size or other features.
    Other(Box<Superblock>),
    /// There is none any more.
    Ended(Ext4Error),
}

/// What lies in a block that is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Descriptors, from this group's on.
    Descriptors(u32),
    Bitmap(u32),
    /// The bitmap of its blocks.
    Blocks(u32),
    Table(u32),
    /// The journal's superblock.
    Journal,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    first: u64,
    blocks: u32,
    what: What,
}

/// The newest bits of a group's inodes.
#[derive(Clone, Debug)]
enum Bits {
    Unknown,
    /// No inode was ever used, and there is no bitmap yet.
    Clear,
    /// A bit of `missing` for each sector of them that nobody has seen.
    Seen {
        bits: Box<[u8]>,
        missing: u16,
    },
}

#[derive(Clone, Debug)]
struct Known {
    group: Option<Group>,
    bits: Bits,
    used: Option<blocks::Used>,
}

impl Known {
    const NOTHING: Known = Known { group: None, bits: Bits::Unknown, used: None };
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Shadow {
    sb: Superblock,
    /// By first block; none overlaps another one.
    places: Vec<Place>,
    groups: Vec<Known>,
    /// Of all tables, group after group.
    pieces: Vec<Piece>,
    per_table: u32,
    piece_bytes: u32,
    /// First sectors of blocks of inodes that are dead, or were a moment ago.
    dead: BTreeSet<u64>,
    wanted: Wanted,
    /// Sectors of bitmaps that are zeros.
    zeros: BTreeSet<u64>,
    log: Option<blocks::Log>,
    /// What was found since somebody asked.
    found: Vec<Found>,
    /// Something lies elsewhere since the places were laid out.
    moved: bool,
}

impl Shadow {
    /// Of a file system of which nothing but the superblock is known.
    ///
    /// # Errors
    /// A sentence: why it can't be followed.
    pub fn new(sb: Superblock, wanted: Wanted) -> Result<Shadow, String> {
        let piece_bytes = sb.block_bytes.min(SECTOR as u32);
        if sb.inode_bytes > piece_bytes {
            return Err(format!("its inodes have {} bytes", sb.inode_bytes));
        }
        let per_table = sb.table_blocks() * (sb.block_bytes / piece_bytes);
        let pieces = u64::from(per_table) * u64::from(sb.groups);
        if pieces > sb.bytes() / BYTES_PER_PIECE {
            return Err(format!("it is nothing but inodes: {} in {} blocks", sb.inodes, sb.blocks));
        }
        if u64::from(sb.groups) > (sb.bytes() / BYTES_PER_GROUP).max(GROUPS_LEAST) {
            return Err(format!("its groups have {} blocks", sb.blocks_per_group));
        }
        let mut shadow = Shadow {
            places: Vec::new(),
            groups: vec![Known::NOTHING; sb.groups as usize],
            pieces: vec![Piece::Unknown; pieces as usize],
            per_table,
            piece_bytes,
            dead: BTreeSet::new(),
            wanted,
            zeros: BTreeSet::new(),
            log: None,
            found: Vec::new(),
            moved: false,
            sb,
        };
        shadow.place();
        Ok(shadow)
    }

    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        let seen = |known: &Known| match &known.bits {
            Bits::Seen { bits, .. } => bits.len(),
            _ => 0,
        };
        self.pieces.len()
            + self.places.len() * size_of::<Place>()
            + self
                .groups
                .iter()
                .map(|k| size_of::<Known>() + seen(k) + k.used_bytes())
                .sum::<usize>()
    }

    /// Takes over what is known of the same file system with another size.
    pub fn inherit(&mut self, old: &Shadow) {
        let (sb, was) = (&self.sb, &old.sb);
        let same = sb.uuid == was.uuid
            && sb.block_bytes == was.block_bytes
            && sb.inode_bytes == was.inode_bytes
            && sb.inodes_per_group == was.inodes_per_group
            && sb.blocks_per_group == was.blocks_per_group
            && sb.first_data_block == was.first_data_block;
        if !same {
            return;
        }
        for (known, old) in self.groups.iter_mut().zip(&old.groups) {
            *known = old.clone();
        }
        let both = self.pieces.len().min(old.pieces.len());
        self.pieces[..both].copy_from_slice(&old.pieces[..both]);
        self.dead.extend(&old.dead);
        self.log.clone_from(&old.log);
        self.place();
    }

    /// Lays out anew what is known of where things are. Groups that lie on each other, or on
    /// descriptors, lie nowhere.
    fn place(&mut self) {
        let per_block = self.sb.block_bytes / self.sb.descriptor_bytes;
        loop {
            let descriptors = (0..self.sb.groups).step_by(per_block as usize).map(|group| Place {
                first: self.sb.descriptor_at(group) / u64::from(self.sb.block_bytes),
                blocks: 1,
                what: What::Descriptors(group),
            });
            let descriptors = descriptors.filter(|place| place.first < self.sb.blocks);
            let blocks = self.sb.table_blocks();
            let groups = self.groups.iter().filter_map(|known| known.group.as_ref());
            let of_groups = groups.flat_map(|group| {
                let number = group.number;
                let used = group.block_bitmap.filter(|_| Shadow::follows_blocks(&self.sb));
                let used = used.map(|first| Place { first, blocks: 1, what: What::Blocks(number) });
                let two = [
                    Place { first: group.inode_bitmap, blocks: 1, what: What::Bitmap(number) },
                    Place { first: group.inode_table, blocks, what: What::Table(number) },
                ];
                two.into_iter().chain(used)
            });
            let log = self.log.as_ref().and_then(|log| log.superblock());
            let log = log.map(|first| Place { first, blocks: 1, what: What::Journal });
            self.places = descriptors.chain(of_groups).chain(log).collect();
            self.places.sort_unstable_by_key(|place| place.first);
            let lost: Vec<u32> = self
                .places
                .windows(2)
                .filter(|two| two[0].first + u64::from(two[0].blocks) > two[1].first)
                .flat_map(|two| [two[0].what, two[1].what])
                .filter_map(|what| match what {
                    What::Descriptors(_) | What::Journal => None,
                    What::Bitmap(group) | What::Blocks(group) | What::Table(group) => Some(group),
                })
                .collect();
            if lost.is_empty() {
                let apart = |two: &[Place]| two[0].first + u64::from(two[0].blocks) <= two[1].first;
                if !self.places.windows(2).all(apart) {
                    // The journal lies on descriptors.
                    self.log = None;
                    continue;
                }
                return;
            }
            lost.into_iter().for_each(|group| self.lose(group));
        }
    }

    /// Nothing is known of a group any more.
    fn lose(&mut self, group: u32) {
        self.groups[group as usize] = Known::NOTHING;
        self.lose_used(group);
        let from = self.index(group, 0);
        self.pieces[from..from + self.per_table as usize].fill(Piece::Unknown);
    }

    fn index(&self, group: u32, piece: u32) -> usize {
        group as usize * self.per_table as usize + piece as usize
    }

    /// The place that a block is in.
    fn find(&self, block: u64) -> Option<Place> {
        let behind = self.places.partition_point(|place| place.first <= block);
        let place = self.places[..behind].last()?;
        (block < place.first + u64::from(place.blocks)).then_some(*place)
    }

    /// Of these sectors of the file system, those that say something of it.
    pub fn watched(&self, sectors: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let from = self.places.partition_point(|p| self.sectors(p).end <= sectors.start);
        let first = (sectors.start == 0 && sectors.end > 0).then_some(0);
        // Small blocks share a sector with those of the place before.
        let mut next = u64::from(first.is_some()).max(sectors.start);
        let rest = self.places[from..].iter().map(|place| self.sectors(place));
        let rest = rest.take_while(move |place| place.start < sectors.end).flat_map(move |place| {
            let mine = place.start.max(next)..place.end.min(sectors.end);
            next = next.max(mine.end);
            mine
        });
        first.into_iter().chain(rest)
    }

    /// The sectors that a place is in.
    fn sectors(&self, place: &Place) -> Range<u64> {
        let at = |block: u64| block * u64::from(self.sb.block_bytes);
        let end = at(place.first + u64::from(place.blocks)).div_ceil(SECTOR as u64);
        at(place.first) / SECTOR as u64..end
    }

    /// Every run of sectors that says something.
    pub fn places(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        std::iter::once(0..1).chain(self.places.iter().map(|place| self.sectors(place)))
    }

    /// Sectors with descriptors; where all else lies follows from them.
    pub fn descriptors(&self) -> Vec<Range<u64>> {
        let is = |place: &&Place| matches!(place.what, What::Descriptors(_));
        let each = self.places.iter().filter(is).map(|place| self.sectors(place));
        each.fold(Vec::new(), joined)
    }

    /// Sectors with bitmaps and tables in which there may be something, and which nobody has seen.
    pub fn unseen(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for place in &self.places {
            let group = match place.what {
                What::Bitmap(group) | What::Blocks(group) | What::Table(group) => group,
                What::Journal if self.has_log_head() => continue,
                What::Journal => {
                    runs = joined(runs, self.sectors(place));
                    continue;
                }
                What::Descriptors(_) => continue,
            };
            let sectors = self.sectors(place);
            let unseen = |sector: u64| match (place.what, &self.groups[group as usize].bits) {
                // Where no inode ever was there may be zeros of `mke2fs`, and else nothing of use.
                (What::Table(_), Bits::Clear) if !self.wanted.zeros => false,
                (What::Blocks(_), _) => self.is_missing(group) && !self.is_block_uninit(group),
                (What::Bitmap(_), Bits::Clear) => false,
                (What::Bitmap(_), Bits::Seen { missing, .. }) => *missing != 0,
                (What::Bitmap(_), _) => true,
                _ => self.pieces_in(place, sector).any(|piece| piece == Piece::Unknown),
            };
            for sector in sectors.filter(|sector| unseen(*sector)) {
                runs = joined(runs, sector..sector + 1);
            }
        }
        runs
    }

    /// Pieces of a table that lie in a sector.
    fn pieces_in(&self, place: &Place, sector: u64) -> impl Iterator<Item = Piece> + '_ {
        let What::Table(group) = place.what else { unreachable!("a table") };
        let bytes = u64::from(self.piece_bytes);
        let begin = place.first * u64::from(self.sb.block_bytes);
        let from = (sector * SECTOR as u64).max(begin) - begin;
        let to = ((sector + 1) * SECTOR as u64 - begin).min(u64::from(self.per_table) * bytes);
        (from / bytes..to / bytes).map(move |piece| self.pieces[self.index(group, piece as u32)])
    }

    /// Descriptors that were read, not written, count only where they have checksums: somebody may have
    /// been writing them.
    pub fn has_sums(&self) -> bool {
        self.sb.has(Feature::METADATA_CSUM) || self.sb.has(Feature::GDT_CSUM)
    }

    /// A sector of the file system holds something else now. True if other sectors are of interest since.
    pub fn holds(&mut self, sector: u64, content: Content<'_>) -> bool {
        self.note(sector, content);
        self.settle()
    }

    /// What was noted may lie elsewhere. True if other sectors are of interest since.
    pub fn settle(&mut self) -> bool {
        let moved = std::mem::take(&mut self.moved);
        if moved {
            self.place();
        }
        moved
    }

    /// As [`Shadow::holds`]; where things lie is laid out anew by [`Shadow::settle`]. So many sectors of
    /// descriptors can be noted at once.
    pub fn note(&mut self, sector: u64, content: Content<'_>) {
        self.bitmaps_are(sector, content);
        let (at, block_bytes) = (sector * SECTOR as u64, u64::from(self.sb.block_bytes));
        for from in (0..SECTOR).step_by(self.piece_bytes as usize) {
            let block = (at + from as u64) / block_bytes;
            let Some(place) = self.find(block) else { continue };
            let within = ((at + from as u64) % block_bytes) as u32;
            let part = match content {
                Content::Written(bytes) => {
                    Content::Written(&bytes[from..from + self.piece_bytes as usize])
                }
                other => other,
            };
            match place.what {
                What::Descriptors(group) => self.descriptors_are(group, within, part),
                What::Bitmap(group) => self.bitmap_is(group, within, part),
                What::Blocks(group) => self.blocks_are(group, within, part),
                What::Journal => self.journal_is(part),
                What::Table(group) => {
                    let blocks = (block - place.first) as u32;
                    let piece = (blocks * self.sb.block_bytes + within) / self.piece_bytes;
                    self.table_is(group, piece, part);
                }
            }
        }
    }

    fn descriptors_are(&mut self, first: u32, within: u32, content: Content<'_>) {
        let each = self.sb.descriptor_bytes;
        let first = first + within / each;
        let count = (self.piece_bytes / each).min(self.sb.groups.saturating_sub(first));
        for (i, group) in (first..first + count).enumerate() {
            let said = match content {
                Content::Written(bytes) => {
                    let bytes = &bytes[i * each as usize..(i + 1) * each as usize];
                    Group::parse(bytes, &self.sb, group)
                }
                _ => None,
            };
            let gone = matches!(content, Content::Gone);
            let known = &self.groups[group as usize];
            // One that can't be right was written while it changed: the next one will say.
            let Some(said) = said else {
                if gone && known.group.is_some() {
                    self.moved = true;
                    self.lose(group);
                }
                continue;
            };
            let at = |g: &Group| (g.inode_bitmap, g.inode_table, g.block_bitmap);
            if known.group.as_ref().map(at) != Some(at(&said)) {
                self.moved = true;
                self.lose(group);
            }
            let known = &mut self.groups[group as usize];
            match &known.bits {
                Bits::Unknown if said.inodes_uninit => known.bits = Bits::Clear,
                // There is one now; it was not seen yet.
                Bits::Clear if !said.inodes_uninit => known.bits = Bits::Unknown,
                _ => {}
            }
            known.group = Some(said);
        }
    }

    fn bitmap_is(&mut self, group: u32, within: u32, content: Content<'_>) {
        let bytes = self.sb.inodes_per_group.div_ceil(8);
        let parts = bytes.div_ceil(self.piece_bytes);
        let part = within / self.piece_bytes;
        if part >= parts {
            return;
        }
        let known = &mut self.groups[group as usize];
        if !matches!(known.bits, Bits::Seen { .. }) {
            let all = ((1u32 << parts) - 1) as u16;
            known.bits = Bits::Seen { bits: vec![0; bytes as usize].into(), missing: all };
        }
        let Bits::Seen { bits, missing } = &mut known.bits else { return };
        match content {
            Content::Written(new) => {
                let mine =
                    &mut bits[within as usize..bytes.min(within + self.piece_bytes) as usize];
                mine.copy_from_slice(&new[..mine.len()]);
                *missing &= !(1 << part);
            }
            // A bitmap is never discarded; who does it anyway has something else in mind.
            Content::Gone | Content::Unsure => *missing |= 1 << part,
        }
        for piece in 0..self.per_table {
            self.look(group, piece);
        }
    }

    fn table_is(&mut self, group: u32, piece: u32, content: Content<'_>) {
        let new = match content {
            Content::Written(bytes) => self.judge(group, piece, bytes),
            Content::Gone => Piece::Gone,
            Content::Unsure => Piece::Unknown,
        };
        let at = self.index(group, piece);
        self.pieces[at] = new;
        self.look(group, piece);
        if let Content::Written(bytes) = content {
            self.moved |= self.journal_inode_is(group, piece, bytes);
        }
    }

    /// What the bytes of a piece are.
    fn judge(&self, group: u32, piece: u32, bytes: &[u8]) -> Piece {
        let sb = &self.sb;
        let first = group * sb.inodes_per_group + piece * (self.piece_bytes / sb.inode_bytes);
        let mut found = Piece::Zeros;
        for (number, inode) in (first + 1..).zip(bytes.chunks_exact(sb.inode_bytes as usize)) {
            if inode.iter().all(|byte| *byte == 0) {
                continue;
            }
            if !self.is_freed(number, inode) {
                return Piece::Used;
            }
            found = Piece::Freed;
        }
        found
    }

    /// Offsets: Documentation/filesystems/ext4/inodes.rst.
    fn is_freed(&self, number: u32, inode: &[u8]) -> bool {
        let (mode, links, deleted) = (le16(inode, 0x0), le16(inode, 0x1a), le32(inode, 0x14));
        // One of the seven types that there are.
        let is_inode = matches!(mode >> 12, 1 | 2 | 4 | 6 | 8 | 10 | 12);
        let is_deleted = deleted > self.sb.inodes || mutant!("ext4.orphans-are-freed");
        let has_no_link = links == 0 || mutant!("ext4.shadow-links-unchecked");
        is_inode && has_no_link && is_deleted && is_inode_sum(&self.sb, number, inode)
    }

    /// All bits of the inodes of a piece are known, and clear.
    fn is_clear(&self, group: u32, piece: u32) -> bool {
        let per_piece = self.piece_bytes / self.sb.inode_bytes;
        let first = piece * per_piece;
        let Bits::Seen { bits, missing } = &self.groups[group as usize].bits else {
            return matches!(self.groups[group as usize].bits, Bits::Clear);
        };
        if *missing != 0 {
            return false;
        }
        let used = |inode: u32| bits[inode as usize / 8] >> (inode % 8) & 1 == 1;
        !(first..first + per_piece).any(used) || mutant!("ext4.shadow-bits-unchecked")
    }

    /// Something of this piece has changed.
    fn look(&mut self, group: u32, piece: u32) {
        let state = self.pieces[self.index(group, piece)];
        if !(state == Piece::Freed || self.wanted.zeros && state == Piece::Zeros) {
            return;
        }
        let Some(table) = self.groups[group as usize].group.as_ref().map(|g| g.inode_table) else {
            return;
        };
        let at =
            table * u64::from(self.sb.block_bytes) + u64::from(piece) * u64::from(self.piece_bytes);
        let unit = u64::from(self.unit_sectors());
        let first = at / SECTOR as u64 / unit * unit;
        if self.is_dead(first) {
            self.dead.insert(first);
        }
    }

    /// Sectors of a block of inodes: what is discarded at once.
    pub fn unit_sectors(&self) -> u32 {
        (self.sb.block_bytes / SECTOR as u32).max(1)
    }

    /// The block of inodes that begins with this sector is dead.
    pub fn is_dead(&self, sector: u64) -> bool {
        let bytes = u64::from(self.unit_sectors()) * SECTOR as u64;
        let (at, block_bytes) = (sector * SECTOR as u64, u64::from(self.sb.block_bytes));
        let mut any = false;
        for byte in (at..at + bytes).step_by(self.piece_bytes as usize) {
            let block = byte / block_bytes;
            let Some(Place { first, what: What::Table(group), .. }) = self.find(block) else {
                return false;
            };
            let piece = ((byte - first * block_bytes) / u64::from(self.piece_bytes)) as u32;
            if !self.is_clear(group, piece) {
                return false;
            }
            match self.pieces[self.index(group, piece)] {
                Piece::Unknown | Piece::Used => return false,
                Piece::Freed => any = true,
                Piece::Zeros => any |= self.wanted.zeros,
                Piece::Gone => {}
            }
        }
        any
    }

    /// The next dead sectors that follow each other, `most` at most and as many as are not `busy`; they
    /// are not given again.
    pub fn take_dead(&mut self, most: u64, busy: impl Fn(u64) -> bool) -> Option<(u64, u64)> {
        let unit = u64::from(self.unit_sectors());
        let free = |sector: u64| !(sector..sector + unit).any(&busy);
        loop {
            let first = self.dead.iter().copied().find(|sector| free(*sector))?;
            let mut end = first;
            while end - first < most && self.dead.contains(&end) && free(end) {
                self.dead.remove(&end);
                if !self.is_dead(end) {
                    break;
                }
                end += unit;
            }
            if end > first {
                return Some((first, end - first));
            }
        }
    }

    /// Bitmaps that were read, not written, must have the checksums that their descriptors say. Those
    /// that have not are not known.
    pub fn doubt_bitmaps(&mut self) {
        self.doubt_used();
        for known in &mut self.groups {
            if let (Some(group), Bits::Seen { bits, .. }) = (&known.group, &known.bits)
                && !group.is_sum_of(bits, &self.sb)
            {
                known.bits = Bits::Unknown;
            }
        }
    }

    /// Descriptors that were read while others may have written them say nothing of what was never used.
    pub fn forget_unused(&mut self) {
        for known in self.groups.iter_mut().filter(|known| matches!(known.bits, Bits::Clear)) {
            known.bits = Bits::Unknown;
        }
    }

    /// What is dead stays until somebody writes to it or to its bitmap.
    pub fn wait_for_writes(&mut self) {
        self.dead.clear();
    }

    /// Looks at every block again.
    pub fn sweep(&mut self) {
        for group in 0..self.sb.groups {
            for piece in 0..self.per_table {
                self.look(group, piece);
            }
        }
    }

    /// Nothing of it is in a journal that must be replayed, and nobody has it mounted.
    pub fn is_clean(&self) -> bool {
        Tables::<[u8]>::refusal(&self.sb).is_none()
    }

    /// The superblock was written; the volume has so many bytes.
    pub fn superblock_is(&mut self, content: Content<'_>, volume_bytes: u64) -> Change {
        let said = match content {
            Content::Written(bytes) => {
                match bytes.get(1024..2048).and_then(|b| b.try_into().ok()) {
                    Some(bytes) => Superblock::parse(bytes, volume_bytes),
                    None => return Change::None,
                }
            }
            Content::Gone => Err(Ext4Error::None("it was discarded")),
            // The next write of it will say.
            Content::Unsure => return Change::None,
        };
        match said {
            Ok(sb) if sb.is_like(&self.sb) => {
                let was = self.is_clean();
                let journal =
                    |sb: &Superblock| sb.has(Feature::HAS_JOURNAL).then_some(sb.journal_inode);
                let same_journal = journal(&self.sb) == journal(&sb);
                self.sb = sb;
                if !same_journal {
                    self.lose_log();
                    self.settle();
                }
                if self.sb.has_errors {
                    self.lose_found();
                }
                if !self.is_clean() || was {
                    return Change::None;
                }
                // The journal is empty, and every bitmap the newest.
                self.found.push(Found::Settled);
                Change::Unmounted
            }
            Ok(sb) => Change::Other(Box::new(sb)),
            // It was written while it changed: the next one will say.
            Err(Ext4Error::Checksum) => Change::None,
            Err(why) => Change::Ended(why),
        }
    }
}

/// Runs with one more behind them.
fn joined(mut runs: Vec<Range<u64>>, run: Range<u64>) -> Vec<Range<u64>> {
    match runs.last_mut() {
        Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
        _ => runs.push(run),
    }
    runs
}

#[cfg(test)]
mod tests;
