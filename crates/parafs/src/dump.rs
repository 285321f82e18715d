//! What lies on the medium, for people.
//!
//! Owns: the words for each structure, the way to a path without a mount. Promises: reads only;
//! what can't be read is said in its place, and the rest is shown. Never: mends or believes: `fsck`
//! says what is wrong.

use crate::error::{FsError, Result};
use crate::format::shared::{self, Lying};
use crate::format::{
    Addr, Dentries, Footer, HEADS, Heads, Inode, LEVELS_MAX, NAT_ENTRIES, NO_NODE, NatEntry, Nid,
    NodeKind, NodePage, Owner, Pack, ROOT, SECTOR, SegmentEntry, Slots, SummarySector, Superblock,
    Tree, get16, name_hash,
};
use crate::fs::bit;
use crate::medium::{Medium, Written};
use crate::mount;
use flashlane_rt::Cx;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Superblock, checkpoints, heads, files to be deleted.
    All,
    Superblock,
    Checkpoints,
    Heads,
    Orphans,
    Segment(u32),
    Node(Nid),
    /// From the root of the file system on.
    Path(String),
}

/// Words that say what is shown, for messages.
pub const DUMP_WORDS: &str =
    "superblock, checkpoints, heads, orphans, segment NUMBER, node NUMBER, or a path: /dir/file";

impl What {
    /// Reads words of a command line: see [`DUMP_WORDS`].
    ///
    /// # Errors
    /// They are none of those.
    pub fn parse(words: &[String]) -> std::result::Result<What, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let number = |word: &str| {
            word.parse().map_err(|_| format!("`{word}` is no number from 0 to {}", u32::MAX))
        };
        Ok(match words[..] {
            [] => What::All,
            ["superblock"] => What::Superblock,
            ["checkpoint" | "checkpoints"] => What::Checkpoints,
            ["heads"] => What::Heads,
            ["orphans"] => What::Orphans,
            ["segment", n] => What::Segment(number(n)?),
            ["node", n] => What::Node(number(n)?),
            [path] if path.starts_with('/') => What::Path(path.into()),
            _ => {
                return Err(format!(
                    "`{}` can't be shown; what can: {DUMP_WORDS}",
                    words.join(" ")
                ));
            }
        })
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::All => f.write_str("file system"),
            What::Superblock => f.write_str("superblock"),
            What::Checkpoints => f.write_str("checkpoint"),
            What::Heads => f.write_str("head"),
            What::Orphans => f.write_str("file to be deleted"),
            What::Segment(segment) => write!(f, "segment {segment}"),
            What::Node(nid) => write!(f, "node {nid}"),
            What::Path(path) => f.write_str(path),
        }
    }
}

/// Heads by their numbers.
const HEATS: [&str; HEADS as usize] =
    ["hot nodes", "warm nodes", "cold nodes", "hot data", "warm data", "cold data"];

struct View<'a> {
    cx: &'a Cx,
    medium: &'a Medium,
    sb: Superblock,
    pack: Pack,
    tree: Tree,
    slots: Slots,
}

/// A text that shows it.
///
/// # Errors
/// There is no file system, no such segment, node or path, or what leads there can't be read.
pub async fn dump(cx: &Cx, medium: &Medium, what: &What) -> Result<String> {
    let mut out = String::new();
    if matches!(what, What::All | What::Superblock | What::Checkpoints) {
        // They may be all that there is.
        let sb = mount::superblock(cx, medium).await?;
        if *what != What::Checkpoints {
            say_superblock(&mut out, cx, medium, &sb).await?;
        }
        if *what != What::Superblock {
            say_checkpoints(&mut out, cx, medium, &sb).await?;
        }
        if *what != What::All {
            return Ok(out);
        }
    }
    let (sb, pack) = match mount::open(cx, medium).await {
        Ok((sb, newest)) => (sb, newest.pack),
        Err(_) if *what == What::All => return Ok(out),
        Err(e) => return Err(e),
    };
    let (tree, slots) = (sb.tree(), sb.slots());
    let view = View { cx, medium, sb, pack, tree, slots };
    let said = match what {
        What::Segment(segment) => return view.segment(&mut out, *segment).await.map(|()| out),
        What::Node(nid) => return view.node(&mut out, *nid).await.map(|()| out),
        What::Path(path) => {
            let ino = view.resolve(path).await?;
            view.node(&mut out, ino).await?;
            view.pages(&mut out, ino).await
        }
        What::Heads => view.heads(&mut out),
        What::Orphans => view.orphans(&mut out),
        _ => view.heads(&mut out).and_then(|()| view.orphans(&mut out)),
    };
    said.map_err(|_| FsError::Invalid("a text that has no room"))?;
    Ok(out)
}

/// Writes to a text; that does not fail.
fn put(out: &mut String, line: fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
}

async fn say_superblock(out: &mut String, cx: &Cx, medium: &Medium, sb: &Superblock) -> Result<()> {
    let (layout, shape) = (&sb.layout, &sb.layout.shape);
    put(out, format_args!("superblock"));
    for copy in 0..mount::SUPERBLOCKS {
        match mount::superblock_copy(cx, medium, copy).await {
            Ok(other) if other == *sb => put(out, format_args!("  copy {copy}: whole")),
            Ok(_) => put(out, format_args!("  copy {copy}: whole, and says something else")),
            Err(e) => put(out, format_args!("  copy {copy}: {}", e.why())),
        }
    }
    let uuid: String = sb.uuid.iter().map(|b| format!("{b:02x}")).collect();
    let kind = if sb.linear { "a block device" } else { "flash with S-FTL" };
    put(out, format_args!("  label \"{}\", identity {uuid}, on {kind}", sb.label));
    let (regions, each) = (shape.regions, shape.region_segments);
    put(
        out,
        format_args!("  {regions} regions of {each} segments of {} pages", shape.segment_pages),
    );
    put(out, format_args!("  a page has {} bytes", shape.page_bytes()));
    put(out, format_args!("  {} segments are not for files", sb.reserved_segments));
    put(out, format_args!("  at most {} nodes", layout.nids - 1));
    put(out, format_args!("areas, in sectors of 4 KiB of the in-place region"));
    let areas = [
        ("superblock", 0, mount::SUPERBLOCKS),
        ("checkpoint, place 0", layout.packs[0], layout.pack_sectors),
        ("checkpoint, place 1", layout.packs[1], layout.pack_sectors),
        ("update window", layout.window, layout.window_sectors),
        ("segment table", layout.sit, 2 * u64::from(layout.sit_sectors)),
        ("node address table", layout.nat, 2 * u64::from(layout.nat_sectors)),
        ("summaries", layout.summaries, layout.end - layout.summaries),
    ];
    for (what, at, sectors) in areas {
        put(out, format_args!("  {what:<20} {at:>8} to {:>8}", at + sectors - 1));
    }
    Ok(())
}

async fn say_checkpoints(
    out: &mut String,
    cx: &Cx,
    medium: &Medium,
    sb: &Superblock,
) -> Result<()> {
    let newest =
        mount::newest_pack(cx, medium, &sb.layout).await.ok().map(|newest| newest.pack.version);
    for place in 0..sb.layout.packs.len() {
        let pack = match mount::pack(cx, medium, &sb.layout, place).await {
            Ok(pack) => pack,
            Err(e) => {
                let mut head = vec![0; SECTOR];
                let read = medium.read_meta(cx, sb.layout.packs[place], &mut head).await;
                let why = match read.is_ok() && head.iter().all(|b| *b == 0) {
                    true => "none was written there yet".to_string(),
                    false => format!("it is not whole: {}", e.why()),
                };
                put(out, format_args!("checkpoint in place {place}: {why}"));
                continue;
            }
        };
        let counts = if newest == Some(pack.version) { ", which counts" } else { "" };
        let Pack { version, .. } = pack;
        put(out, format_args!("checkpoint {version} in place {place}{counts}"));
        let how = if pack.clean { "by an unmount" } else { "in use" };
        put(out, format_args!("  written {how}"));
        let Pack { nodes, files, kept, next_nid, generation, .. } = pack;
        put(out, format_args!("  {files} files, {nodes} nodes, room kept for {kept} pages"));
        put(out, format_args!("  next node {next_nid}, next generation {generation}"));
        let (nat, sit) = (pack.nat.len(), pack.sit.len());
        put(out, format_args!("  beside the tables: {nat} nodes, {sit} segments"));
        put(out, format_args!("  {} files to be deleted or cut", pack.orphans.len()));
    }
    Ok(())
}

/// Words that follow each other, as runs: (first, how many, the first one's value).
fn runs(values: impl Iterator<Item = (u64, Addr)>) -> Vec<(u64, u64, Addr)> {
    let mut found: Vec<(u64, u64, Addr)> = Vec::new();
    for (index, addr) in values.filter(|(_, addr)| *addr != Addr::NONE) {
        match found.last_mut() {
            Some((first, count, from))
                if *first + *count == index
                    && (addr == *from && !addr.is_page()
                        || from.is_page()
                            && addr.is_page()
                            && u64::from(from.0) + *count == u64::from(addr.0)) =>
            {
                *count += 1;
            }
            _ => found.push((index, 1, addr)),
        }
    }
    found
}

impl View<'_> {
    async fn read_page(&self, addr: Addr) -> Result<Vec<u8>> {
        if !self.sb.layout.has(addr) {
            return Err(FsError::Damaged(format!("page {} is not on the medium", addr.0)));
        }
        let mut bytes = vec![0; self.sb.layout.shape.page_bytes()];
        self.medium.read(self.cx, &self.sb.layout, addr, &mut bytes).await.map(|()| bytes)
    }

    async fn nat(&self, nid: Nid) -> Result<NatEntry> {
        if nid == NO_NODE || nid >= self.sb.layout.nids {
            return Err(FsError::NotFound);
        }
        if let Some((_, entry)) = self.pack.nat.iter().find(|(number, _)| *number == nid) {
            return Ok(*entry);
        }
        let (layout, sector) = (&self.sb.layout, nid / NAT_ENTRIES);
        let found = mount::nat_sector(self.cx, self.medium, layout, &self.pack, sector).await?;
        Ok(found.0[(nid % NAT_ENTRIES) as usize])
    }

    /// A node, its address, and what it says of itself.
    async fn read_node(&self, nid: Nid) -> Result<(NatEntry, Footer, Vec<u8>)> {
        let entry = self.nat(nid).await?;
        if entry.ino == 0 {
            return Err(FsError::NotFound);
        }
        let bytes = self.read_page(entry.addr).await?;
        let said = |e| FsError::Damaged(format!("node {nid} at page {}: {e}", entry.addr.0));
        let mut lying = shared::lying(&bytes, self.sb.node_seed(), |_| true).map_err(said)?;
        let at = lying.iter().position(|lying| lying.footer.nid == nid).unwrap_or(0);
        let Lying { footer, content, .. } = lying.swap_remove(at);
        Ok((entry, footer, content))
    }

    /// Where a page of a directory lies.
    async fn addr_of(&self, ino: Nid, index: u64) -> Result<Addr> {
        let Some(position) = self.tree.position(index) else { return Ok(Addr::NONE) };
        let mut nid = ino;
        for step in &position.steps {
            let (_, footer, bytes) = self.read_node(nid).await?;
            nid = NodePage::child(&bytes, footer.ofs == 0, step.slot);
            if nid == NO_NODE {
                return Ok(Addr::NONE);
            }
        }
        let (_, footer, bytes) = self.read_node(nid).await?;
        Ok(self.tree.addr(&bytes, footer.ofs == 0, position.slot))
    }

    async fn resolve(&self, path: &str) -> Result<Nid> {
        let mut ino = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let (_, _, bytes) = self.read_node(ino).await?;
            let inode = Inode::decode(&bytes);
            if inode.mode >> 12 != 0o04 {
                return Err(FsError::NotDirectory);
            }
            ino = self.lookup(ino, &inode, name.as_bytes()).await?;
        }
        Ok(ino)
    }

    async fn lookup(&self, dir: Nid, inode: &Inode, name: &[u8]) -> Result<Nid> {
        let hash = name_hash(name);
        for level in 0..inode.levels.min(LEVELS_MAX) {
            let (first, count) = Slots::bucket(level, hash);
            for page in first..first + count {
                let addr = self.addr_of(dir, page).await?;
                if !addr.is_page() {
                    continue;
                }
                let bytes = self.read_page(addr).await?;
                let wrong = |e| FsError::Damaged(format!("page {page} of directory {dir}: {e}"));
                self.slots.check(&bytes, dir, page).map_err(wrong)?;
                let entries = Dentries::new(self.slots, &bytes[..]);
                if let Some(slot) = entries.find(name, hash) {
                    return Ok(entries.get(slot).ino);
                }
            }
        }
        Err(FsError::NotFound)
    }

    fn place(&self, addr: Addr) -> String {
        if !self.sb.layout.has(addr) {
            return format!("page {}, which is not on the medium", addr.0);
        }
        let (segment, page) = self.sb.layout.segment_of(addr);
        let region = self.sb.layout.region_of(segment);
        format!("page {} (region {region}, segment {segment}, page {page} of it)", addr.0)
    }

    fn heads(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "heads of checkpoint {}", self.pack.version)?;
        let used = |head: &Heads| !head.open.is_empty() || !head.next.is_empty();
        for (at, head) in self.pack.heads.iter().enumerate().filter(|(_, head)| used(head)) {
            let (region, heat) = (at / HEADS as usize, HEATS[at % HEADS as usize]);
            let one = |(segment, page): &(u32, u32)| format!("{segment} from page {page} on");
            let open: Vec<String> = head.open.iter().map(one).collect();
            let fills = match head.open.len() {
                0 => "fills no segment".into(),
                1 => format!("fills segment {}", open[0]),
                _ => format!("fills segments {}", open.join(", ")),
            };
            let next: Vec<String> = head.next.iter().map(u32::to_string).collect();
            let next = if next.is_empty() { "none".into() } else { next.join(", ") };
            writeln!(out, "  region {region}, {heat}: {fills}; next: {next}")?;
        }
        Ok(())
    }

    fn orphans(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "files to be deleted, or to be cut to their sizes: {}",
            self.pack.orphans.len()
        )?;
        self.pack.orphans.iter().try_for_each(|ino| writeln!(out, "  file {ino}"))
    }

    async fn segment(&self, out: &mut String, segment: u32) -> Result<()> {
        let (layout, pages) = (&self.sb.layout, self.sb.layout.shape.segment_pages);
        if segment >= layout.shape.segments() {
            return Err(FsError::NotFound);
        }
        let table = mount::segment_table(self.cx, self.medium, layout, &self.pack).await?;
        let SegmentEntry { kind, changed, valid, .. } = &table[segment as usize];
        let count = (0..pages).filter(|page| bit(valid, *page)).count();
        let heat = HEATS.get(usize::from(*kind)).copied().unwrap_or("no head that there is");
        let region = layout.region_of(segment);
        put(
            out,
            format_args!("segment {segment} of region {region}: {count} of {pages} pages valid"),
        );
        let written = self.medium.written(layout, segment);
        if count == 0 && *changed == 0 && matches!(written, None | Some(Written::Pages(0))) {
            let far = if written.is_none() { ", as far as the checkpoint knows" } else { "" };
            put(out, format_args!("  it was never written{far}"));
            return Ok(());
        }
        put(out, format_args!("  filled for {heat}; changed in second {changed}"));
        let mut owners = Vec::new();
        for part in 0..layout.summary_sectors {
            let mut bytes = vec![0; SECTOR];
            let at = layout.summary_at(segment) + u64::from(part);
            let read = self.medium.read_meta(self.cx, at, &mut bytes).await;
            match read.and_then(|()| Ok(SummarySector::decode(&bytes, segment, part)?)) {
                Ok(found) => owners.extend(found.0),
                Err(e) => {
                    put(out, format_args!("  its summary: {}", e.why()));
                    break;
                }
            }
        }
        for page in (0..pages).filter(|page| bit(valid, *page)) {
            let addr = layout.addr(segment, page).0;
            let whose = match owners.get(page as usize) {
                None => "of nobody that is known".into(),
                Some(owner) if *owner == Owner::SHARED => "nodes that share it".into(),
                Some(Owner { nid, slot: Owner::NODE }) => format!("node {nid}"),
                Some(Owner { nid, slot }) => format!("word {slot} of node {nid}"),
            };
            put(out, format_args!("  page {page:>5}, address {addr:>10}: {whose}"));
        }
        Ok(())
    }

    async fn node(&self, out: &mut String, nid: Nid) -> Result<()> {
        let (entry, footer, bytes) = self.read_node(nid).await?;
        let Footer { ino, ofs, version, batch, .. } = footer;
        let kind = self.tree.kind(ofs);
        let what = match kind {
            Some((NodeKind::Inode, _)) => "inode".to_string(),
            Some((NodeKind::Direct, first)) => format!("direct node, of pages from {first} on"),
            Some((NodeKind::Indirect, _)) => "indirect node".into(),
            Some((NodeKind::Xattrs, _)) => "extended attributes".into(),
            None => "of no kind".into(),
        };
        put(out, format_args!("node {nid}: {what}, number {ofs} of file {ino}"));
        put(out, format_args!("  at {}", self.place(entry.addr)));
        let fsync = match batch.number {
            0 => String::new(),
            n => format!(", by fsync {n} ({} nodes)", batch.nodes),
        };
        put(out, format_args!("  written behind checkpoint {version}{fsync}"));
        match kind {
            Some((NodeKind::Inode, _)) => self.inode(out, &bytes),
            Some((NodeKind::Direct, first)) => {
                let words = 0..self.tree.slots as u32;
                let addr = |slot| (first + u64::from(slot), self.tree.addr(&bytes, false, slot));
                self.say_runs(out, runs(words.map(addr)));
            }
            Some((NodeKind::Indirect, _)) => {
                for slot in 0..self.tree.children as u32 {
                    match NodePage::child(&bytes, false, slot) {
                        NO_NODE => {}
                        child => put(out, format_args!("  word {slot}: node {child}")),
                    }
                }
            }
            Some((NodeKind::Xattrs, _)) => {
                let body = NodePage::body(&bytes);
                let mut at = 2;
                for _ in 0..get16(body, 0) {
                    let (name, value) = (get16(body, at) as usize, get16(body, at + 2) as usize);
                    let Some(text) = body.get(at + 4..at + 4 + name) else { break };
                    let text = text.escape_ascii();
                    put(out, format_args!("  \"{text}\": {value} bytes"));
                    at += 4 + name + value;
                }
            }
            None => {}
        }
        Ok(())
    }

    fn inode(&self, out: &mut String, bytes: &[u8]) {
        let inode = Inode::decode(bytes);
        let kind = match inode.mode >> 12 {
            0o01 => "pipe",
            0o02 => "character device",
            0o04 => "directory",
            0o06 => "block device",
            0o10 => "file",
            0o12 => "symbolic link",
            0o14 => "socket",
            _ => "no type",
        };
        let Inode { links, uid, gid, size, pages, generation, .. } = inode;
        put(out, format_args!("  {kind}, mode {:04o}, owner {uid}:{gid}", inode.mode & 0o7_777));
        put(out, format_args!("  {size} bytes, {links} links, {pages} pages with its nodes"));
        put(out, format_args!("  generation {generation}"));
        let name = inode.name.escape_ascii();
        put(out, format_args!("  last named \"{name}\" in directory {}", inode.parent));
        if inode.mode >> 12 == 0o04 {
            put(out, format_args!("  {} entries, {} levels", inode.entries, inode.levels));
        }
        if inode.rdev != 0 {
            put(out, format_args!("  device {:#x}", inode.rdev));
        }
        let times = [
            ("accessed", inode.atime),
            ("modified", inode.mtime),
            ("changed", inode.ctime),
            ("made", inode.created),
        ];
        for (what, time) in times {
            put(out, format_args!("  {what:<9} {}.{:09}", time.seconds, time.nanos));
        }
        if inode.xattrs != NO_NODE {
            put(out, format_args!("  extended attributes: node {}", inode.xattrs));
        }
        let children = ["direct", "direct", "indirect", "indirect", "doubly indirect"];
        for (slot, kind) in children.into_iter().enumerate() {
            match NodePage::child(bytes, true, slot as u32) {
                NO_NODE => {}
                child => put(out, format_args!("  {kind}: node {child}")),
            }
        }
        if inode.inline {
            put(out, format_args!("  its content lies in the inode"));
        } else {
            let words = 0..self.tree.inode_addrs as u32;
            let addr = |slot: u32| (u64::from(slot), self.tree.addr(bytes, true, slot));
            self.say_runs(out, runs(words.map(addr)));
        }
    }

    fn say_runs(&self, out: &mut String, runs: Vec<(u64, u64, Addr)>) {
        for (first, count, addr) in runs {
            let pages = match count {
                1 => format!("page {first}"),
                _ => format!("pages {first} to {}", first + count - 1),
            };
            match addr {
                Addr::KEPT => put(out, format_args!("  {pages}: room is kept")),
                Addr::LOST => put(out, format_args!("  {pages}: lost, a repair gave it up")),
                addr => put(out, format_args!("  {pages}: from {} on", self.place(addr))),
            }
        }
    }

    /// Where pages of a file lie that other nodes than its inode name.
    async fn pages(&self, out: &mut String, ino: Nid) -> fmt::Result {
        let Ok((_, _, bytes)) = self.read_node(ino).await else { return Ok(()) };
        let mut waiting: Vec<Nid> =
            (0..5).rev().map(|slot| NodePage::child(&bytes, true, slot)).collect();
        let mut seen = BTreeSet::from([NO_NODE]);
        while let Some(nid) = waiting.pop() {
            if !seen.insert(nid) {
                continue; // a damaged one may be named again and again
            }
            let (footer, bytes) = match self.read_node(nid).await {
                Ok((_, footer, bytes)) if footer.ino == ino => (footer, bytes),
                Ok(_) => {
                    writeln!(out, "node {nid}: it is another file's")?;
                    continue;
                }
                Err(e) => {
                    writeln!(out, "node {nid}: {}", e.why())?;
                    continue;
                }
            };
            match self.tree.kind(footer.ofs) {
                Some((NodeKind::Direct, first)) => {
                    writeln!(out, "node {nid}: direct, number {}", footer.ofs)?;
                    let words = 0..self.tree.slots as u32;
                    let addr =
                        |slot| (first + u64::from(slot), self.tree.addr(&bytes, false, slot));
                    self.say_runs(out, runs(words.map(addr)));
                }
                Some((NodeKind::Indirect, _)) => {
                    writeln!(out, "node {nid}: indirect, number {}", footer.ofs)?;
                    let words = (0..self.tree.children as u32).rev();
                    waiting.extend(words.map(|slot| NodePage::child(&bytes, false, slot)));
                }
                _ => writeln!(out, "node {nid}: number {} can't be", footer.ofs)?,
            }
        }
        Ok(())
    }
}
