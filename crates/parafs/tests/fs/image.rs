//! A file system with every structure, and its bytes as docs/PARAFS.md has them.
//!
//! Owns: where structures lie, found by their magics and not by the code under test; their checksums;
//! what a whole walk over the names finds. Promises: a change keeps every checksum right unless it is
//! about one.

use flashlane_base::{Lba, SECTOR_BYTES, crc32c, crc32c_append};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_parafs::{Attributes, Fallocate, Fs, FsError, Medium, New, ROOT, Seek, Set, Time};
use flashlane_rt::Cx;
use flashlane_testkit::files::{
    DIR, FILE, LINK, create, make_on, make_unshared, new, now, ram, run, small,
};
use flashlane_testkit::{Overlay, Ram};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// When a repair is done.
pub(crate) const NOW: Time = Time { seconds: 1_000_000, nanos: 0 };

/// Where a long file has pages, in pages of 4 KiB: of each kind of node that names pages.
pub(crate) const FAR: [u64; 5] = [0, 1_000, 2_500, 3_000, 2_060_000];

pub(crate) fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"))
}

pub(crate) fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// How it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Unmounted,
    /// While it worked: two files without a name, fsyncs behind the checkpoint.
    InUse,
    /// As `Unmounted`; small nodes share pages.
    Shared,
    /// As `InUse`; small nodes share pages.
    SharedInUse,
}

impl Left {
    pub(crate) const ALL: [Left; 4] =
        [Left::Unmounted, Left::InUse, Left::Shared, Left::SharedInUse];

    pub(crate) fn in_use(self) -> bool {
        matches!(self, Left::InUse | Left::SharedInUse)
    }

    pub(crate) fn shares(self) -> bool {
        matches!(self, Left::Shared | Left::SharedInUse)
    }
}

/// Bytes of `length` that tell where they are from.
pub(crate) fn text(seed: u64, length: usize) -> Vec<u8> {
    (0..length).map(|i| (seed.wrapping_mul(31) + i as u64 * 7 + (i as u64 >> 8)) as u8).collect()
}

/// The bytes of the file system, made once.
pub(crate) fn base(left: Left) -> Arc<Vec<u8>> {
    static MADE: [OnceLock<Arc<Vec<u8>>>; 4] = [const { OnceLock::new() }; 4];
    MADE[left as usize].get_or_init(|| make(left)).clone()
}

fn make(left: Left) -> Arc<Vec<u8>> {
    let device = ram(12, 7);
    let used = device.clone();
    run(7, async move |cx| {
        let medium = Medium::Linear(used.clone());
        let made = match left.shares() {
            true => make_on(&cx, medium, 1).await,
            false => make_unshared(&cx, medium, 1).await,
        };
        made.expect("it is made");
        let mount = async || {
            let mounted = Fs::mount(&cx, Medium::Linear(used.clone()), small()).await;
            mounted.expect("it is mounted").0
        };
        let fs = mount().await;
        fill(&cx, &fs).await;
        fs.unmount(&cx).await.expect("it is written");
        // The checkpoint before the one that counts says the same.
        let fs = mount().await;
        match left.in_use() {
            false => fs.unmount(&cx).await.expect("it is written"),
            true => use_it(&cx, &fs).await,
        }
        used.start(&cx, Io::flush()).await.expect("it is there");
    });
    contents(device)
}

/// All that a device holds.
pub(crate) fn contents(device: Arc<Ram>) -> Arc<Vec<u8>> {
    run(7, async move |cx| {
        let mut bytes = vec![0; device.info().capacity as usize * SECTOR_BYTES];
        for (at, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            device.start(&cx, Io::read(Lba::new(at as u64), 1, sector)).await.expect("read");
        }
        Arc::new(bytes)
    })
}

/// Overwrites sectors of a device.
pub(crate) fn ruin(device: &Arc<Ram>, sectors: Vec<u64>) {
    let used = device.clone();
    run(1, async move |cx| {
        for at in sectors {
            let io = Io::write(Lba::new(at), 1, true, &[0x55; SECTOR_BYTES]);
            used.start(&cx, io).await.expect("it is written");
        }
    });
}

async fn fill(cx: &Cx, fs: &Arc<Fs>) {
    let t = now(cx);
    let dir = create(cx, fs, ROOT, "dir", DIR).await.ino;
    let below = create(cx, fs, dir, "below", DIR).await.ino;
    let deep = create(cx, fs, below, "deep", DIR).await.ino;
    let many = create(cx, fs, ROOT, "many", DIR).await.ino;
    create(cx, fs, ROOT, "empty", DIR).await;
    let write = async |dir, name: &str, at: u64, bytes: Vec<u8>| {
        let ino = create(cx, fs, dir, name, FILE).await.ino;
        fs.write(cx, ino, at, &bytes, t).await.expect("room");
        ino
    };
    let small = write(ROOT, "small", 0, text(1, 500)).await;
    let large = write(ROOT, "large", 0, text(2, 90_000)).await;
    write(dir, "a", 0, text(3, 20_000)).await;
    write(below, "b", 0, text(4, 9_000)).await;
    write(deep, "c", 0, text(5, 100)).await;
    let deeper = write(deep, "d", 0, text(6, 30_000)).await;
    let far = write(ROOT, "far", 0, Vec::new()).await;
    for page in FAR {
        let bytes = text(page, 6_000);
        fs.write(cx, far, page * 4096, &bytes, t).await.expect("room");
    }
    for i in 0..160 {
        let long = "x".repeat(i % 90);
        let ino = create(cx, fs, many, &format!("{i} {long}"), FILE).await.ino;
        if i % 5 == 0 {
            fs.write(cx, ino, 0, &text(i as u64, 60), t).await.expect("room");
        }
    }
    for i in (0..160).step_by(7) {
        let name = format!("{i} {}", "x".repeat(i % 90));
        fs.unlink(cx, many, name.as_bytes(), t).await.expect("it is there");
    }
    let kept = write(ROOT, "kept", 0, text(8, 5_000)).await;
    fs.fallocate(cx, kept, (0, 60_000), Fallocate::Keep, false, t).await.expect("room");
    fs.fallocate(cx, large, (20_000, 20_000), Fallocate::Punch, true, t).await.expect("a hole");
    fs.link(cx, large, dir, b"link", t).await.expect("room");
    fs.link(cx, small, deep, b"another", t).await.expect("room");
    let target = New { target: b"dir/below".to_vec(), ..new(LINK) };
    fs.create(cx, ROOT, b"to", &target, t).await.expect("room");
    let device = New { rdev: 0x0103, ..new(0o020_600) };
    fs.create(cx, ROOT, b"null", &device, t).await.expect("room");
    fs.create(cx, ROOT, b"pipe", &new(0o010_600), t).await.expect("room");
    for (ino, name, bytes) in [(large, "user.a", 100), (large, "user.b", 900), (dir, "user.c", 7)] {
        let value = text(ino.into(), bytes);
        fs.set_xattr(cx, ino, (name.as_bytes(), &value), Set::Any, t).await.expect("room");
    }
    fs.sync(cx).await.expect("it is written");
    // Garbage of older versions.
    for ino in [large, deeper] {
        fs.write(cx, ino, 4096, &text(9, 8192), t).await.expect("room");
        fs.sync(cx).await.expect("it is written");
    }
}

async fn use_it(cx: &Cx, fs: &Arc<Fs>) {
    let t = now(cx);
    for name in ["gone", "gone too"] {
        let ino = create(cx, fs, ROOT, name, FILE).await.ino;
        fs.write(cx, ino, 0, &text(10, 9_000), t).await.expect("room");
        fs.open(cx, ino).await.expect("it is there");
        fs.unlink(cx, ROOT, name.as_bytes(), t).await.expect("it is there");
    }
    fs.sync(cx).await.expect("it is written");
    let young = create(cx, fs, ROOT, "young", FILE).await.ino;
    fs.write(cx, young, 0, &text(11, 9_000), t).await.expect("room");
    fs.fsync(cx, young, false).await.expect("it is written");
    let large = fs.lookup(cx, ROOT, b"large").await.expect("it is there").ino;
    fs.write(cx, large, 0, &text(12, 4096), t).await.expect("room");
    fs.fsync(cx, large, false).await.expect("it is written");
}

/// What a file is: its attributes, extended attributes, and content, where it has any.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) ino: u32,
    pub(crate) kind: u16,
    about: (u16, u32, u32, u32, u64),
    links: u32,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    content: Vec<(u64, Vec<u8>)>,
}

impl Seen {
    /// The same file, whatever names it has.
    pub(crate) fn same(&self, other: &Seen) -> bool {
        *self == Seen { links: self.links, ..other.clone() }
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pieces: Vec<(u64, usize, u32)> =
            self.content.iter().map(|(at, bytes)| (*at, bytes.len(), crc32c(bytes))).collect();
        let Seen { ino, kind, about, links, xattrs, .. } = self;
        let xattrs: Vec<u32> = xattrs.iter().map(|(_, value)| crc32c(value)).collect();
        write!(f, "{ino} {kind:o} {about:?} {links} {xattrs:?} {pieces:?}")
    }
}

/// All names, and what they lead to.
pub(crate) type Names = BTreeMap<String, Result<Seen, FsError>>;

async fn look_at(cx: &Cx, fs: &Arc<Fs>, ino: u32) -> Result<Seen, FsError> {
    let Attributes { mode, links, uid, gid, rdev, size, .. } = fs.attributes(cx, ino).await?;
    let kind = mode >> 12;
    let mut xattrs = Vec::new();
    for name in fs.xattr_names(cx, ino).await? {
        let value = fs.xattr(cx, ino, &name).await?;
        xattrs.push((name, value));
    }
    let mut content = Vec::new();
    match kind {
        0o10 => {
            let mut at = 0;
            while let Some(from) = fs.seek(cx, ino, at, Seek::Data).await? {
                let to = fs.seek(cx, ino, from, Seek::Hole).await?.unwrap_or(size);
                // What says that it is longer than the medium is not read whole.
                let mut bytes = vec![0; (to - from).min(1 << 20) as usize];
                fs.read(cx, ino, from, &mut bytes).await?;
                content.push((from, bytes));
                at = to.max(from + 1);
                if content.len() > 10_000 {
                    break;
                }
            }
        }
        0o12 => content.push((0, fs.read_link(cx, ino).await?)),
        _ => {}
    }
    let size = if kind == 0o04 { 0 } else { size };
    let links = if kind == 0o04 { 0 } else { links };
    Ok(Seen { ino, kind, about: (mode, uid, gid, rdev, size), links, xattrs, content })
}

/// Everything that names lead to; an error stands where something can't be read.
pub(crate) async fn look(cx: &Cx, fs: &Arc<Fs>) -> Names {
    let mut names = Names::new();
    let mut waiting = vec![(ROOT, String::new())];
    names.insert("/".into(), look_at(cx, fs, ROOT).await);
    while let Some((dir, path)) = waiting.pop() {
        let mut at = 0;
        loop {
            let some = match fs.read_dir(cx, dir, at, 64).await {
                Ok(some) => some,
                Err(e) => {
                    names.insert(format!("{path}/?"), Err(e));
                    break;
                }
            };
            let Some(last) = some.last() else { break };
            if last.next <= at {
                break;
            }
            at = last.next;
            for entry in some {
                let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
                let seen = look_at(cx, fs, entry.ino).await;
                // A damaged one may lie in itself.
                if seen.as_ref().is_ok_and(|seen| seen.kind == 0o04)
                    && path.matches('/').count() < 12
                    && names.len() < 20_000
                {
                    waiting.push((entry.ino, path.clone()));
                }
                names.insert(path, seen);
            }
        }
    }
    names
}

/// What should be there.
pub(crate) fn wanted(left: Left) -> &'static Names {
    static SEEN: [OnceLock<Names>; 4] = [const { OnceLock::new() }; 4];
    SEEN[left as usize].get_or_init(|| {
        let device = Arc::new(Overlay::new(base(left)));
        run(1, async move |cx| {
            let mounted = Fs::mount(&cx, Medium::Linear(device), small()).await;
            look(&cx, &mounted.expect("it is mounted").0).await
        })
    })
}

/// A head in a checkpoint: where it stands, what it fills (segment, page), and what it has next.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) at: usize,
    pub(crate) open: Vec<usize>,
    pub(crate) next: Vec<usize>,
}

impl Head {
    /// It fills this segment from a page on.
    pub(crate) fn fill(&self, body: &mut Vec<u8>, segment: u32, page: u32) {
        if self.open.is_empty() {
            put32(body, self.at, 1);
            body.splice(self.at + 8..self.at + 8, [0; 8]);
        }
        put32(body, self.at + 8, segment);
        put32(body, self.at + 12, page);
    }
}

/// A checkpoint: its place, and where the parts of its body begin.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    pub(crate) at: u64,
    pub(crate) body: usize,
    pub(crate) nat_copies: usize,
    pub(crate) sit_copies: usize,
    /// Entries (number, where it stands) of the journals.
    pub(crate) nat: Vec<(u32, usize)>,
    pub(crate) sit: Vec<(u32, usize)>,
    pub(crate) heads: Vec<Head>,
    /// Where the count of orphans stands.
    pub(crate) orphans: usize,
}

/// The body of a node in a page that nodes share: its first byte, and its length.
fn body_of(page: &[u8], entry: usize) -> (usize, usize) {
    let words = get32(page, entry + 12);
    (4 * (words & 0xffff) as usize, 4 * (words >> 16) as usize)
}

fn put_body(page: &mut [u8], entry: usize, (at, length): (usize, usize)) {
    put32(page, entry + 12, (at / 4) as u32 | ((length / 4) as u32) << 16);
}

/// A file system that is being damaged.
pub(crate) struct Image {
    pub(crate) device: Arc<Overlay>,
    pub(crate) meta: u64,
    pub(crate) segment_pages: u32,
    pub(crate) segments: u32,
    /// Small nodes share pages.
    pub(crate) shares: bool,
    areas: BTreeMap<[u8; 4], Vec<u64>>,
}

impl Image {
    pub(crate) fn new(left: Left) -> Image {
        Image::on(base(left))
    }

    pub(crate) fn on(bytes: Arc<Vec<u8>>) -> Image {
        let device = Arc::new(Overlay::new(bytes));
        let sb = device.sector(0);
        let mut areas: BTreeMap<[u8; 4], Vec<u64>> = BTreeMap::new();
        let meta = get64(&sb, 48);
        for at in 0..meta {
            let magic = device.sector(at)[..4].try_into().expect("four");
            areas.entry(magic).or_default().push(at);
        }
        let (segment_pages, segments) = (get32(&sb, 40), get32(&sb, 32) * get32(&sb, 36));
        let shares = get32(&sb, 64) & 2 == 2;
        Image { device, meta, segment_pages, segments, shares, areas }
    }

    /// Sectors of the in-place region that begin with this.
    pub(crate) fn area(&self, magic: &[u8; 4]) -> Vec<u64> {
        self.areas.get(magic).cloned().unwrap_or_default()
    }

    /// Changes a sector; its checksum is right afterwards.
    pub(crate) fn change(&self, at: u64, change: impl FnOnce(&mut [u8])) {
        let mut sector = self.device.sector(at);
        change(&mut sector);
        let sum = crc32c_append(crc32c(&sector[..4]), &sector[8..]);
        put32(&mut sector, 4, sum);
        self.device.put(at, sector);
    }

    /// Changes bytes, and no checksum.
    pub(crate) fn spoil(&self, at: u64, change: impl FnOnce(&mut [u8])) {
        let mut sector = self.device.sector(at);
        change(&mut sector);
        self.device.put(at, sector);
    }

    /// A checkpoint: the newest one, or the one before it.
    pub(crate) fn pack(&self, newest: bool) -> Pack {
        let heads = self.area(b"pCPH");
        let version = |at: &u64| get64(&self.device.sector(*at), 8);
        let first = heads.iter().max_by_key(|at| version(at)).expect("one");
        let other = heads.iter().min_by_key(|at| version(at)).expect("one");
        let at = if newest { *first } else { *other };
        let bytes = self.body(at);
        let nat_sectors = self.area(b"pNAT").len() / 2;
        let per = (SECTOR_BYTES - 32) / self.segment_entry();
        let sit_sectors = (self.segments as usize).div_ceil(per);
        let nat_copies = 16 + 16 + 4;
        let sit_copies = nat_copies + nat_sectors.div_ceil(8);
        let mut place = sit_copies + sit_sectors.div_ceil(8);
        let mut list = |entry: usize| {
            let count = get32(&bytes, place) as usize;
            let first = place + 4;
            place = first + count * entry;
            (0..count).map(|i| first + i * entry).collect::<Vec<usize>>()
        };
        let number = |at: usize| (get32(&bytes, at), at + 4);
        let nat = list(12).into_iter().map(number).collect();
        let sit = list(4 + self.segment_entry());
        let sit = sit.into_iter().map(number).collect();
        let heads = (0..6).map(|_| {
            let at = place;
            let [open, next] = [0, 4].map(|i| get32(&bytes, at + i) as usize);
            place += 8 + 8 * open + 4 * next;
            let open: Vec<usize> = (0..open).map(|i| at + 8 + 8 * i).collect();
            let behind = at + 8 + 8 * open.len();
            Head { at, open, next: (0..next).map(|i| behind + 4 * i).collect() }
        });
        let heads = heads.collect();
        let body = bytes.len();
        Pack { at, body, nat_copies, sit_copies, nat, sit, heads, orphans: place }
    }

    pub(crate) fn body(&self, at: u64) -> Vec<u8> {
        let length = get64(&self.device.sector(at), 16) as usize;
        let sectors = length.div_ceil(SECTOR_BYTES) as u64;
        let mut bytes: Vec<u8> = (1..=sectors).flat_map(|i| self.device.sector(at + i)).collect();
        bytes.truncate(length);
        bytes
    }

    pub(crate) fn foot(&self, pack: &Pack) -> u64 {
        pack.at + 1 + pack.body.div_ceil(SECTOR_BYTES) as u64
    }

    /// Changes the body of a checkpoint; head and foot say so.
    pub(crate) fn change_pack(&self, pack: &Pack, change: impl FnOnce(&mut Vec<u8>)) {
        let mut body = self.body(pack.at);
        let before = body.len().div_ceil(SECTOR_BYTES);
        change(&mut body);
        assert_eq!(before, body.len().div_ceil(SECTOR_BYTES), "the foot stays in its place");
        for (i, piece) in body.chunks(SECTOR_BYTES).enumerate() {
            let mut sector = piece.to_vec();
            sector.resize(SECTOR_BYTES, 0);
            self.device.put(pack.at + 1 + i as u64, sector);
        }
        self.change(pack.at, |head| {
            put64(head, 16, body.len() as u64);
            put32(head, 24, crc32c(&body));
        });
        let sum = get32(&self.device.sector(pack.at), 4);
        let version = get64(&self.device.sector(pack.at), 8);
        self.change(self.foot(pack), |foot| {
            put64(foot, 8, version);
            put32(foot, 16, sum);
        });
    }

    /// Where sector `number` of a table lies that the newest checkpoint has.
    pub(crate) fn table_at(&self, nat: bool, number: u32) -> u64 {
        let pack = self.pack(true);
        let bits = if nat { pack.nat_copies } else { pack.sit_copies };
        let copy = self.body(pack.at)[bits + number as usize / 8] >> (number % 8) & 1;
        // The first copies were written by mkfs.
        let first = self.area(if nat { b"pNAT" } else { b"pSIT" })[0];
        first + 2 * u64::from(number) + u64::from(copy)
    }

    /// Changes an entry of the node address table: (file, address).
    pub(crate) fn change_nat(&self, nid: u32, change: impl FnOnce(&mut [u8])) {
        let pack = self.pack(true);
        match pack.nat.iter().find(|(number, _)| *number == nid) {
            Some((_, at)) => self.change_pack(&pack, |body| change(&mut body[*at..at + 8])),
            None => self.change(self.table_at(true, nid / 508), |sector| {
                change(&mut sector[32 + 8 * (nid as usize % 508)..][..8]);
            }),
        }
    }

    /// (file, address) of a node.
    pub(crate) fn nat(&self, nid: u32) -> (u32, u32) {
        let pack = self.pack(true);
        let bytes = match pack.nat.iter().find(|(number, _)| *number == nid) {
            Some((_, at)) => self.body(pack.at)[*at..at + 8].to_vec(),
            None => self.device.sector(self.table_at(true, nid / 508))
                [32 + 8 * (nid as usize % 508)..][..8]
                .to_vec(),
        };
        let file = if self.shares { get32(&bytes, 0) << 4 >> 4 } else { get32(&bytes, 0) };
        (file, get32(&bytes, 4))
    }

    /// Bytes of an entry of the segment table: of each page a bit, or a byte with its units in use.
    fn segment_entry(&self) -> usize {
        let pages = self.segment_pages as usize;
        16 + if self.shares { pages } else { pages.div_ceil(8) }
    }

    /// Changes an entry of the segment table: kind, when, pages.
    pub(crate) fn change_segment(&self, segment: u32, change: impl FnOnce(&mut [u8])) {
        let entry = self.segment_entry();
        let pack = self.pack(true);
        match pack.sit.iter().find(|(number, _)| *number == segment) {
            Some((_, at)) => self.change_pack(&pack, |body| change(&mut body[*at..at + entry])),
            None => {
                let per = ((SECTOR_BYTES - 32) / entry) as u32;
                self.change(self.table_at(false, segment / per), |sector| {
                    change(&mut sector[32 + entry * (segment % per) as usize..][..entry]);
                });
            }
        }
    }

    /// Segment and page of an address.
    pub(crate) fn place(&self, addr: u32) -> (u32, u32) {
        ((addr - 1) / self.segment_pages, (addr - 1) % self.segment_pages)
    }

    /// The sector of a page of the log.
    pub(crate) fn page_at(&self, addr: u32) -> u64 {
        self.meta + u64::from(addr) - 1
    }

    /// A node, as it would be alone in a page.
    pub(crate) fn node(&self, nid: u32) -> Vec<u8> {
        let page = self.device.sector(self.page_at(self.nat(nid).1));
        let Some(its) = self.entry_of(&page, nid) else { return page };
        let (at, length) = body_of(&page, its);
        let mut node = vec![0; 4096];
        node[..length].copy_from_slice(&page[at..at + length]);
        node[4096 - 48..4096 - 36].copy_from_slice(&page[its..its + 12]);
        node[4096 - 32..].copy_from_slice(&page[4096 - 32..]);
        node
    }

    /// Where the entry of a node stands in a page that nodes share.
    fn entry_of(&self, page: &[u8], nid: u32) -> Option<usize> {
        let count = get32(page, 4096 - 40) as usize;
        let is_shared = get32(page, 4096 - 48) == u32::MAX && self.shares;
        let mut entries = (1..=if is_shared { count } else { 0 }).map(|i| 4096 - 48 - 16 * i);
        entries.find(|at| get32(page, *at) == nid)
    }

    /// Files of which a node lies in a page of the log.
    pub(crate) fn files_in(&self, at: u64) -> Vec<u32> {
        let page = self.device.sector(at);
        if get32(&page, 4096 - 48) != u32::MAX || !self.shares {
            return vec![get32(&page, 4096 - 44)];
        }
        let entries = (1..=get32(&page, 4096 - 40) as usize).map(|i| 4096 - 48 - 16 * i);
        entries.map(|at| get32(&page, at + 4)).collect()
    }

    /// Changes a node; its checksum is right afterwards.
    pub(crate) fn change_node(&self, nid: u32, change: impl FnOnce(&mut [u8])) {
        let at = self.page_at(self.nat(nid).1);
        let mut page = self.device.sector(at);
        match self.entry_of(&page, nid) {
            None => change(&mut page),
            Some(its) => {
                let mut node = self.node(nid);
                change(&mut node);
                self.put_shared(&mut page, its, &node);
            }
        }
        self.seal_node(&mut page);
        self.device.put(at, page);
    }

    /// Puts a node into the page that it shares. Its body is longer if it has to.
    fn put_shared(&self, page: &mut [u8], its: usize, node: &[u8]) {
        let used = 4096 - 48 - node[..4096 - 48].iter().rev().take_while(|b| **b == 0).count();
        let (at, length) = body_of(page, its);
        let grown = used.max(length).next_multiple_of(4);
        if grown > length {
            let entries = get32(page, 4096 - 40) as usize;
            let all = (1..=entries).map(|i| 4096 - 48 - 16 * i);
            let others: Vec<usize> = all.filter(|entry| body_of(page, *entry).0 > at).collect();
            let end = 4096 - 48 - 16 * entries;
            let moved = page[at + length..end].to_vec();
            let rest = end - at - grown;
            let cut = &moved[rest..];
            assert!(cut.iter().all(|b| *b == 0), "there is room in the page");
            page[at + grown..end].copy_from_slice(&moved[..rest]);
            for entry in others {
                let (from, of) = body_of(page, entry);
                put_body(page, entry, (from + grown - length, of));
            }
        }
        page[at..at + grown].copy_from_slice(&node[..grown]);
        put_body(page, its, (at, grown));
        page[its..its + 12].copy_from_slice(&node[4096 - 48..4096 - 36]);
    }

    /// Changes a page of a directory; its seal is right afterwards.
    pub(crate) fn change_names(&self, at: u64, change: impl FnOnce(&mut [u8])) {
        let mut page = self.device.sector(at);
        let seal = page[4096 - 16..].to_vec();
        change(&mut page);
        page[4096 - 16..].copy_from_slice(&seal);
        self.seal_node(&mut page);
        self.device.put(at, page);
    }

    /// Writes the checksum of a node, or of a page of a directory. It begins with the checksum of the
    /// UUID, from major version 4 on followed by the features; in major version 1 with nothing.
    pub(crate) fn seal_node(&self, page: &mut [u8]) {
        let superblock = self.device.sector(0);
        let of_uuid = crc32c(&superblock[16..32]);
        let seed = match get32(&superblock, 8) {
            1 => 0,
            2 | 3 => of_uuid,
            _ => crc32c_append(of_uuid, &(get32(&superblock, 64) & 6).to_le_bytes()),
        };
        let end = page.len() - 4;
        let sum = crc32c_append(seed, &page[..end]);
        put32(page, end, sum);
    }

    /// Nodes of a file: (number in its tree, node).
    pub(crate) fn nodes_of(&self, ino: u32) -> Vec<(u32, u32)> {
        let all = (1..self.nids()).filter(|nid| self.nat(*nid).0 == ino);
        all.map(|nid| (get32(&self.node(nid), 4096 - 40), nid)).collect()
    }

    pub(crate) fn nids(&self) -> u32 {
        (self.segments * self.segment_pages / if self.shares { 1 } else { 2 }).max(508)
    }

    /// The address of page `slot` that an inode names.
    pub(crate) fn page_of(&self, ino: u32, slot: usize) -> u32 {
        get32(&self.node(ino), 384 + 4 * slot)
    }

    /// The number of a file.
    pub(crate) fn ino(left: Left, path: &str) -> u32 {
        let seen = wanted(left).get(path).unwrap_or_else(|| panic!("no {path}"));
        seen.as_ref().expect("it is whole").ino
    }
}
