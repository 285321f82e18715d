//! Damage of every structure is found, and mended without a loss elsewhere.
//!
//! Owns: the list of what is planted. Promises: each is found by a check, `repair` ends in a check that
//! finds nothing, and what was not touched reads as before. Never: leaves a checksum wrong unless that
//! is what is planted.

use super::image::{
    FAR, Image, Left, NOW, Names, contents, get32, get64, look, put32, put64, ruin, text, wanted,
};
use flashlane_base::{Lba, Ns, Rng, SECTOR_BYTES, crc32c};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_parafs::{
    Fs, FsError, Make, Medium, New, ROOT, Rename, Repaired, Report, Unread, check, mkfs, repair,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::files::{DIR, FILE, content, create, make_unshared, ram, run, seeds, small};
use flashlane_testkit::{Keep, Overlay, Ram};
use std::sync::Arc;

/// The least that there must be.
const LEAST: usize = 200;

/// A corruption.
struct Planted {
    name: String,
    left: Left,
    /// Names that it may change, and all below them.
    touches: Vec<&'static str>,
    strike: Box<dyn Fn(&Image)>,
}

/// All of them.
struct List(Vec<Planted>);

impl List {
    fn add(
        &mut self,
        name: impl Into<String>,
        touches: &[&'static str],
        strike: impl Fn(&Image) + 'static,
    ) {
        let (name, touches, strike) = (name.into(), touches.to_vec(), Box::new(strike));
        self.0.push(Planted { name, left: Left::Unmounted, touches, strike });
    }

    fn in_use(
        &mut self,
        name: impl Into<String>,
        touches: &[&'static str],
        strike: impl Fn(&Image) + 'static,
    ) {
        self.add(name, touches, strike);
        self.0.last_mut().expect("it was added").left = Left::InUse;
    }
}

fn ino(path: &str) -> u32 {
    Image::ino(Left::Unmounted, path)
}

/// What was not touched reads as before; what is there besides lies in /lost+found.
fn compare(found: &Names, left: Left, touches: &[&str]) -> Result<(), String> {
    let below = |path: &str, of: &str| {
        path == of || of == "/" || path.strip_prefix(of).is_some_and(|rest| rest.starts_with('/'))
    };
    let touched = |path: &str| touches.iter().any(|of| below(path, of));
    for (path, seen) in wanted(left) {
        if !touched(path) && found.get(path) != Some(seen) {
            return Err(format!("{path} is {:?}, not {seen:?}", found.get(path)));
        }
    }
    for (path, seen) in found {
        let known = wanted(left).contains_key(path) || below(path, "/lost+found");
        if !known && !touched(path) {
            return Err(format!("{path} is new"));
        }
        // If a node is lost, the pages that it may have named are lost, too.
        if let Err(e) = seen
            && !(touched(path) && e.to_string().contains("a repair gave it up"))
        {
            return Err(format!("{path} can't be read: {e}"));
        }
    }
    Ok(())
}

/// They are directories of which a file has a second name, or are above those.
fn touches_names(touches: &[&str]) -> bool {
    let below = |of: &str| {
        of == "/"
            || ["/dir/link", "/dir/below/deep/another"].iter().any(|name| {
                name.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
    };
    touches.iter().any(|of| below(of))
}

/// Strikes, checks, mends, compares.
fn try_one(planted: &Planted) -> Result<(), String> {
    let image = Image::new(planted.left);
    (planted.strike)(&image);
    let (left, touches) = (planted.left, planted.touches.clone());
    // A repair must refuse, and then may give data up, only if something can't be read and files,
    // a checkpoint, or the search for fsyncs (the update window) depend on it. It mends any other
    // damage without giving anything up.
    let may_count = ["newest checkpoint", "older checkpoint: its head", "window"];
    let loses = !touches.is_empty() || may_count.iter().any(|of| planted.name.starts_with(of));
    let gives_up = planted.name.ends_with("can't be read") && loses;
    // A second name of a file is in no inode.
    let has_names = touches_names(&planted.touches);
    let device: Arc<Overlay> = image.device;
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let before = check(&cx, &medium()).await.map_err(|e| format!("check: {e}"))?;
        if before.found == 0 && before.notes.is_empty() {
            return Err("it is not found".into());
        }
        let gives_up = gives_up || has_names && loses_names_only(&before);
        let unread = if gives_up { Unread::GiveUp } else { Unread::Refuse };
        if gives_up {
            let refused = repair(&cx, &medium(), NOW, Unread::Refuse).await;
            if !matches!(refused, Err(FsError::Unread(_))) {
                return Err("it is given up unasked".into());
            }
        }
        let done = repair(&cx, &medium(), NOW, unread).await;
        let done = done.map_err(|e| format!("repair: {e}"))?;
        if done.after.found > 0 {
            return Err(format!("it is not mended: {:?} of {before:?}", done.after.problems));
        }
        let mounted = Fs::mount(&cx, medium(), small()).await;
        let fs = mounted.map_err(|e| format!("mount: {e}"))?.0;
        compare(&look(&cx, &fs).await, left, &touches)
            .map_err(|why| format!("{why}; found were {:?}", before.problems))?;
        fs.unmount(&cx).await.map_err(|e| format!("unmount: {e}"))?;
        let after = check(&cx, &medium()).await.map_err(|e| format!("check: {e}"))?;
        match after.found {
            0 => Ok(()),
            _ => Err(format!("behind a mount: {:?}", after.problems)),
        }
    })
}

fn superblocks(list: &mut List) {
    for copy in [0, 1] {
        let name = |what: &str| format!("superblock copy {copy}: {what}");
        list.add(name("a bit of it"), &[], move |i| i.spoil(copy, |b| b[40] ^= 4));
        list.add(name("zeros"), &[], move |i| i.spoil(copy, |b| b.fill(0)));
        list.add(name("can't be read"), &[], move |i| i.device.lose(copy));
        let fields: [(&str, usize, u32); 13] = [
            ("magic", 0, 7),
            ("major version", 8, 5),
            ("the version behind", 8, 4),
            ("the version before", 8, 1),
            ("identity", 16, 99),
            ("regions", 32, 2),
            ("segments of a region", 36, 60),
            ("pages of a segment", 40, 16),
            ("sectors of a page", 44, 2),
            ("in-place region", 48, 4000),
            ("reserved segments", 56, 9999),
            ("bytes of a sector", 60, 8),
            ("kind of medium", 64, 0),
        ];
        for (what, at, value) in fields {
            list.add(name(what), &[], move |i| i.change(copy, |b| put32(b, at, value)));
        }
    }
}

fn packs(list: &mut List) {
    for newest in [true, false] {
        let name =
            |what: &str| format!("{} checkpoint: {what}", if newest { "newest" } else { "older" });
        let at = move |i: &Image, what: u64| {
            let pack = i.pack(newest);
            [pack.at, pack.at + 1, i.foot(&pack)][what as usize]
        };
        for (part, what) in [(0, "head"), (1, "body"), (2, "foot")] {
            list.add(name(&format!("a bit of its {what}")), &[], move |i| {
                i.spoil(at(i, part), |b| b[20] ^= 1);
            });
            list.add(name(&format!("zeros as its {what}")), &[], move |i| {
                i.spoil(at(i, part), |b| b.fill(0));
            });
            list.add(name(&format!("its {what} can't be read")), &[], move |i| {
                i.device.lose(at(i, part));
            });
        }
        list.add(name("length"), &[], move |i| i.change(at(i, 0), |b| put64(b, 16, 1 << 40)));
        list.add(name("version of the head"), &[], move |i| {
            i.change(at(i, 0), |b| put64(b, 8, 77));
        });
        list.add(name("version of the foot"), &[], move |i| {
            i.change(at(i, 2), |b| put64(b, 8, 77));
        });
    }
    let field = |list: &mut List, what: &str, at: usize, value: u32| {
        list.add(format!("checkpoint: {what} {value}"), &[], move |i| {
            i.change_pack(&i.pack(true), |b| put32(b, at, value));
        });
    };
    for value in [0, 999] {
        field(list, "kept pages", 8, value);
        field(list, "nodes", 20, value);
        field(list, "files", 24, value);
    }
    field(list, "next node", 16, 0);
    field(list, "next node", 16, u32::MAX);
    for number in 0..3 {
        list.add(format!("checkpoint: copy of sector {number} of the nodes"), &[], move |i| {
            let pack = i.pack(true);
            i.change_pack(&pack, |b| b[pack.nat_copies] ^= 1 << number);
            i.spoil(i.table_at(true, number), |b| b[100] ^= 1);
        });
    }
    list.add("checkpoint: copy of the segment table", &[], |i| {
        let pack = i.pack(true);
        i.change_pack(&pack, |b| b[pack.sit_copies] ^= 1);
        i.spoil(i.table_at(false, 0), |b| b[100] ^= 1);
    });
    for head in 0..6 {
        list.add(
            format!("checkpoint: head {head} fills a segment of another one"),
            &[],
            move |i| {
                let pack = i.pack(true);
                let others = pack.heads.iter().enumerate().filter(|(other, _)| *other != head);
                let body = i.body(pack.at);
                let open = others.flat_map(|(_, other)| other.open.first().copied()).next();
                let at = open.expect("one is open");
                let (other, page) = (get32(&body, at), get32(&body, at + 4));
                i.change_pack(&pack, |b| pack.heads[head].fill(b, other, page));
            },
        );
        list.add(format!("checkpoint: head {head} fills what is valid"), &[], move |i| {
            let pack = i.pack(true);
            let (segment, _) = i.place(i.nat(ino("/large")).1);
            i.change_pack(&pack, |b| pack.heads[head].fill(b, segment, 0));
        });
    }
    list.add("checkpoint: a head's next segment is valid", &[], |i| {
        let pack = i.pack(true);
        let (segment, _) = i.place(i.nat(ino("/large")).1);
        let next = pack.heads.iter().find_map(|head| head.next.first().copied());
        match next {
            Some(at) => i.change_pack(&pack, |b| put32(b, at, segment)),
            None => i.change_pack(&pack, |b| {
                let head = &pack.heads[0];
                put32(b, head.at + 4, 1);
                let at = head.at + 8 + 8 * head.open.len();
                b.splice(at..at, segment.to_le_bytes());
            }),
        }
    });
    for (what, ino) in [("of no file", 1300_u32), ("0", 0)] {
        list.add(format!("checkpoint: a file without a name: {what}"), &[], move |i| {
            let pack = i.pack(true);
            i.change_pack(&pack, |b| {
                put32(b, pack.orphans, 1);
                b.extend(ino.to_le_bytes());
            });
        });
    }
    list.in_use("checkpoint: a file without a name twice", &[], |i| {
        let pack = i.pack(true);
        i.change_pack(&pack, |b| {
            let first = get32(b, pack.orphans + 4);
            put32(b, pack.orphans + 8, first);
        });
    });
    list.in_use("checkpoint: it forgets a file without a name", &[], |i| {
        let pack = i.pack(true);
        i.change_pack(&pack, |b| {
            put32(b, pack.orphans, 1);
            b.truncate(pack.orphans + 8);
        });
    });
    for what in ["a bit of it", "its number", "can't be read"] {
        list.in_use(format!("window: {what}"), &[], move |i| match what {
            "its number" => i.change(i.area(b"pWIN")[0], |b| b[8] ^= 1),
            "a bit of it" => i.spoil(i.area(b"pWIN")[0], |b| b[40] ^= 1),
            _ => i.device.lose(i.area(b"pWIN")[0]),
        });
    }
}

/// Nodes that tables lead to: what they are, and how they are found.
type Victim = (&'static str, fn(&Image) -> u32);

fn node_of(i: &Image, path: &str, ofs: u32) -> u32 {
    let nodes = i.nodes_of(ino(path));
    nodes.into_iter().find(|(number, _)| *number == ofs).expect("it has one").1
}

const N: u32 = (4096 - 48) / 4;
/// Of a doubly indirect tree: its root, below that an indirect node, below that a direct one.
const ROOT_OFS: u32 = 3 + 2 * (N + 1);

fn victims() -> Vec<Victim> {
    vec![
        ("root", |_| 1),
        ("an inode", |_| ino("/dir/a")),
        ("an inline file", |_| ino("/dir/below/deep/c")),
        ("a directory", |_| ino("/dir/below")),
        ("a directory of many", |_| ino("/many")),
        ("a direct node", |i| node_of(i, "/far", 1)),
        ("an indirect node", |i| node_of(i, "/far", 3)),
        ("a direct node below", |i| node_of(i, "/far", 4)),
        ("a doubly indirect node", |i| node_of(i, "/far", ROOT_OFS)),
        ("attributes", |i| node_of(i, "/large", u32::MAX)),
    ]
}

fn tables(list: &mut List) {
    for (what, nid) in victims() {
        let entry = |list: &mut List, how: &str, change: fn(&Image, &mut [u8])| {
            list.add(format!("node table, {what}: {how}"), &[], move |i| {
                i.change_nat(nid(i), |entry| change(i, entry));
            });
        };
        entry(list, "nothing", |_, e| e.fill(0));
        entry(list, "no file", |_, e| put32(e, 0, 0));
        entry(list, "another file", |_, e| put32(e, 0, 2000));
        entry(list, "no page", |_, e| put32(e, 4, 0));
        entry(list, "nowhere", |_, e| put32(e, 4, 1 << 30));
        entry(list, "another node's page", |i, e| {
            put32(e, 4, i.nat(ino("/empty")).1);
        });
    }
    list.add("node table: a node that there is not", &[], |i| {
        let addr = i.nat(ino("/small")).1;
        i.change_nat(900, |e| {
            put32(e, 0, 900);
            put32(e, 4, addr);
        });
    });
    list.add("node table: a node 0", &[], |i| i.change_nat(0, |e| put32(e, 0, 5)));
    for number in 0..3 {
        let name = |what: &str| format!("node table, sector {number}: {what}");
        list.add(name("a bit of it"), &[], move |i| {
            i.spoil(i.table_at(true, number), |b| b[50] ^= 1);
        });
        list.add(name("zeros"), &[], move |i| i.spoil(i.table_at(true, number), |b| b.fill(0)));
        list.add(name("can't be read"), &[], move |i| i.device.lose(i.table_at(true, number)));
        list.add(name("its number"), &[], move |i| {
            i.change(i.table_at(true, number), |b| b[8] ^= 1);
        });
    }
    let places: [Victim; 4] = [
        ("a node", |i| i.nat(ino("/dir/a")).1),
        ("an indirect node", |i| i.nat(node_of(i, "/far", 3)).1),
        ("a page of a file", |i| i.page_of(ino("/dir/a"), 1)),
        ("a page of a directory", |i| i.page_of(ino("/dir"), 0)),
    ];
    for (what, addr) in places {
        list.add(format!("segment table: {what} counts as garbage"), &[], move |i| {
            let (segment, page) = i.place(addr(i));
            i.change_segment(segment, |e| e[16 + page as usize / 8] &= !(1 << (page % 8)));
        });
        list.add(format!("segment table: all of the segment of {what} counts as garbage"), &[], {
            move |i| i.change_segment(i.place(addr(i)).0, |e| e[16..].fill(0))
        });
        list.add(format!("segment table: all of the segment of {what} counts as valid"), &[], {
            move |i| i.change_segment(i.place(addr(i)).0, |e| e[16..].fill(0xff))
        });
        list.add(format!("segment table: the segment of {what} is of no head"), &[], move |i| {
            i.change_segment(i.place(addr(i)).0, |e| e[0] = 77);
        });
        list.add(format!("segment table: the segment of {what} is of another head"), &[], {
            move |i| i.change_segment(i.place(addr(i)).0, |e| e[0] = if e[0] < 3 { 4 } else { 0 })
        });
        let name = |how: &str| format!("summary of {what}: {how}");
        let summary = move |i: &Image| {
            let (segment, page) = i.place(addr(i));
            (i.area(b"pSUM"), segment, page)
        };
        let at = move |i: &Image| {
            let (area, segment, _) = summary(i);
            let is = |at: &&u64| get32(&i.device.sector(**at), 8) == segment;
            *area.iter().find(is).expect("it has one")
        };
        list.add(name("a bit of it"), &[], move |i| i.spoil(at(i), |b| b[60] ^= 1));
        list.add(name("zeros"), &[], move |i| i.spoil(at(i), |b| b.fill(0)));
        list.add(name("can't be read"), &[], move |i| i.device.lose(at(i)));
        list.add(name("its number"), &[], move |i| i.change(at(i), |b| b[8] ^= 1));
        let word = move |i: &Image| 32 + 8 * summary(i).2 as usize;
        list.add(name("another node"), &[], move |i| {
            i.change(at(i), |b| b[word(i)] ^= 1);
        });
        list.add(name("another word"), &[], move |i| {
            i.change(at(i), |b| b[word(i) + 4] ^= 1);
        });
    }
    for what in ["a bit of it", "zeros", "can't be read", "its number"] {
        list.add(format!("segment table, a sector: {what}"), &[], move |i| {
            let at = i.table_at(false, 0);
            match what {
                "a bit of it" => i.spoil(at, |b| b[50] ^= 1),
                "zeros" => i.spoil(at, |b| b.fill(0)),
                "can't be read" => i.device.lose(at),
                _ => i.change(at, |b| b[8] ^= 1),
            }
        });
    }
    list.add("both tables", &[], |i| {
        i.spoil(i.table_at(false, 0), |b| b[50] ^= 1);
        (0..3).for_each(|sector| i.spoil(i.table_at(true, sector), |b| b[50] ^= 1));
    });
    list.add("both tables and all summaries", &[], |i| {
        i.spoil(i.table_at(false, 0), |b| b[50] ^= 1);
        (0..3).for_each(|sector| i.spoil(i.table_at(true, sector), |b| b[50] ^= 1));
        i.area(b"pSUM").into_iter().for_each(|at| i.spoil(at, |b| b[50] ^= 1));
    });
    list.add("both checkpoints", &[], |i| {
        i.spoil(i.pack(true).at, |b| b[50] ^= 1);
        i.spoil(i.pack(false).at, |b| b[50] ^= 1);
    });
}

fn inodes(list: &mut List) {
    let set = |list: &mut List, path: &'static str, what: &str, at: usize, value: u32| {
        list.add(format!("inode of {path}: {what} {value}"), &[path], move |i| {
            i.change_node(ino(path), |b| put32(b, at, value));
        });
    };
    for path in ["/dir/a", "/dir/below", "/small", "/to", "/null"] {
        let touches = [path, "/dir/below/deep/another"];
        for (what, value) in [("0", 0), ("a socket's", 0o14), ("beyond all", 0o17)] {
            list.add(format!("inode of {path}: type {what}"), &touches, move |i| {
                i.change_node(ino(path), |b| b[1] = b[1] & 0x0f | value << 4);
            });
        }
        for links in [0, 9, u32::MAX] {
            set(list, path, "links", 4, links);
        }
        for pages in [0, 77, u32::MAX] {
            set(list, path, "pages", 24, pages);
        }
        set(list, path, "attributes in node", 88, 1300);
        set(list, path, "attributes in node", 88, u32::MAX);
        list.add(format!("inode of {path}: attributes in its own node"), &[path], move |i| {
            i.change_node(ino(path), |b| put32(b, 88, ino(path)));
        });
        list.add(format!("inode of {path}: a child that is not there"), &[path], move |i| {
            i.change_node(ino(path), |b| put32(b, 360, 1301));
        });
        list.add(format!("inode of {path}: a child of another file"), &[path, "/far"], move |i| {
            let child = node_of(i, "/far", 1);
            i.change_node(ino(path), |b| put32(b, 360, child));
        });
        set(list, path, "levels", 96, 70);
        set(list, path, "parent", 84, u32::MAX);
    }
    for path in ["/dir/below", "/many"] {
        for (what, at, value) in [
            ("size", 16, 3),
            ("levels", 96, 0),
            ("levels", 96, 9),
            ("entries", 100, 0),
            ("entries", 100, 5000),
            ("parent", 84, 0),
            ("parent", 84, 77),
        ] {
            set(list, path, what, at, value);
        }
        list.add(format!("inode of {path}: inline"), &[path], move |i| {
            i.change_node(ino(path), |b| b[2] |= 1);
        });
    }
    for path in ["/dir/a", "/large", "/far"] {
        list.add(format!("inode of {path}: inline"), &[path], move |i| {
            i.change_node(ino(path), |b| b[2] |= 1);
        });
    }
    for path in ["/small", "/dir/below/deep/c", "/to"] {
        list.add(format!("inode of {path}: not inline"), &[path, "/dir/below/deep"], move |i| {
            i.change_node(ino(path), |b| b[2] &= !1);
        });
    }
    list.add("inode of /small: longer than it can be", &["/small", "/dir/below/deep"], |i| {
        i.change_node(ino("/small"), |b| put32(b, 16, 9999));
    });
    set(list, "/dir/a", "size", 20, u32::MAX);
    for (path, touches) in [
        ("/dir/a", vec!["/dir/a"]),
        ("/small", vec!["/small", "/dir/below/deep/another"]),
        ("/dir/below", vec!["/dir/below"]),
        ("/many", vec!["/many"]),
        ("/large", vec!["/large", "/dir/link"]),
        ("/dir", vec!["/dir", "/large", "/small"]),
        ("/empty", vec!["/empty"]),
    ] {
        list.add(format!("inode of {path}: a bit of it"), &touches, move |i| {
            i.spoil(i.page_at(i.nat(ino(path)).1), |b| b[12] ^= 1);
        });
        list.add(format!("inode of {path}: can't be read"), &touches, move |i| {
            i.device.lose(i.page_at(i.nat(ino(path)).1));
        });
        for (what, at) in [("node", 48), ("file", 44), ("number", 40)] {
            list.add(format!("inode of {path}: it is another {what}"), &touches, move |i| {
                i.change_node(ino(path), |b| put32(b, 4096 - at, 1200));
            });
        }
    }
    list.add("root: a bit of it", &["/"], |i| {
        i.spoil(i.page_at(i.nat(1).1), |b| b[12] ^= 1);
    });
    list.add("root: it is a file", &["/"], |i| i.change_node(1, |b| b[1] = 0x81));
    list.add("root: a parent", &[], |i| i.change_node(1, |b| put32(b, 84, ino("/dir"))));
    let attributes = |list: &mut List, what: &str, change: fn(&mut [u8])| {
        list.add(format!("attributes: {what}"), &["/large", "/dir/link"], move |i| {
            i.change_node(node_of(i, "/large", u32::MAX), change);
        });
    };
    attributes(list, "more than there are", |b| b[0] = 9);
    attributes(list, "fewer than there are", |b| b[0] = 1);
    attributes(list, "a name of no bytes", |b| b[2] = 0);
    attributes(list, "a value that is too long", |b| b[5] = 0xff);
    attributes(list, "not in their order", |b| b[11] = b'z');
    attributes(list, "something behind them", |b| b[3000] = 1);
    list.add("attributes: a bit of them", &["/large", "/dir/link"], |i| {
        i.spoil(i.page_at(i.nat(node_of(i, "/large", u32::MAX)).1), |b| b[12] ^= 1);
    });
}

fn trees(list: &mut List) {
    let addresses: [Victim; 4] = [
        ("nowhere", |_| 1 << 30),
        ("at a node", |i| i.nat(1).1),
        ("at another file's page", |i| i.page_of(ino("/large"), 0)),
        ("at a page of a directory", |i| i.page_of(ino("/many"), 1)),
    ];
    for (what, addr) in addresses {
        list.add(format!("inode of /dir/a: page 2 lies {what}"), &["/dir/a"], move |i| {
            let addr = addr(i);
            i.change_node(ino("/dir/a"), |b| put32(b, 384 + 8, addr));
        });
        list.add(format!("direct node: its page lies {what}"), &["/far"], move |i| {
            let addr = addr(i);
            let slot = FAR[1] - 916;
            i.change_node(node_of(i, "/far", 1), |b| put32(b, 4 * slot as usize, addr));
        });
        let touches = ["/dir", "/large", "/small"];
        list.add(format!("directory: its page lies {what}"), &touches, move |i| {
            let addr = addr(i);
            i.change_node(ino("/dir"), |b| put32(b, 384, addr));
        });
    }
    list.add("inode of /dir/a: page 2 is a hole", &["/dir/a"], |i| {
        i.change_node(ino("/dir/a"), |b| put32(b, 384 + 8, 0));
    });
    list.add("inode of /dir/a: page 2 is kept", &["/dir/a"], |i| {
        i.change_node(ino("/dir/a"), |b| put32(b, 384 + 8, u32::MAX));
    });
    list.add("inode of /dir/a: page 2 is garbage", &["/dir/a"], |i| {
        // What lay there before the last sync.
        let garbage = (1..i.segments * i.segment_pages).find(|addr| {
            let (segment, page) = i.place(*addr);
            let mut valid = true;
            i.change_segment(segment, |e| valid = e[16 + page as usize / 8] >> (page % 8) & 1 == 1);
            !valid && i.device.sector(i.page_at(*addr)).iter().any(|b| *b != 0)
        });
        let garbage = garbage.expect("there is some");
        i.change_node(ino("/dir/a"), |b| put32(b, 384 + 8, garbage));
    });
    let nodes = [1, 2, 3, 4, ROOT_OFS, ROOT_OFS + 1];
    for ofs in nodes {
        list.add(format!("node {ofs} of /far: a bit of it"), &["/far"], move |i| {
            i.spoil(i.page_at(i.nat(node_of(i, "/far", ofs)).1), |b| b[12] ^= 1);
        });
        list.add(format!("node {ofs} of /far: another number"), &["/far"], move |i| {
            i.change_node(node_of(i, "/far", ofs), |b| put32(b, 4096 - 40, 9));
        });
        list.add(format!("node {ofs} of /far: another file's"), &["/far", "/large"], move |i| {
            let large = ino("/large");
            i.change_node(node_of(i, "/far", ofs), |b| put32(b, 4096 - 44, large));
        });
    }
    for slot in 0..5 {
        list.add(format!("inode of /far: child {slot} is forgotten"), &[], move |i| {
            i.change_node(ino("/far"), |b| {
                // One that it does not have becomes one that is not there.
                let child = get32(b, 360 + 4 * slot);
                put32(b, 360 + 4 * slot, if child == 0 { 1302 } else { 0 });
            });
        });
        list.add(format!("inode of /far: child {slot} is the next one"), &["/far"], move |i| {
            i.change_node(ino("/far"), |b| {
                let other = get32(b, 360 + 4 * ((slot + 2) % 5));
                put32(b, 360 + 4 * slot, if other == 0 { 1304 } else { other });
            });
        });
    }
    list.add("indirect node: a child is forgotten", &[], |i| {
        i.change_node(node_of(i, "/far", 3), |b| b[..4].fill(0));
    });
    list.add("indirect node: a child is its parent", &["/far"], |i| {
        let parent = node_of(i, "/far", 3);
        i.change_node(parent, |b| put32(b, 40, parent));
    });
}

/// Where entries of a page of a directory stand: bits, heads, names.
const HEADS_AT: usize = 28;
const NAMES_AT: usize = HEADS_AT + 202 * 12;

/// The page of a directory that has a name, and the place of its entry.
fn entry(i: &Image, dir: &str, name: &str) -> (u64, usize) {
    for slot in 0..900 {
        let addr = i.page_of(ino(dir), slot);
        if addr == 0 {
            continue;
        }
        let bytes = i.device.sector(i.page_at(addr));
        for slot in 0..202 {
            let (at, text) = (HEADS_AT + 12 * slot, NAMES_AT + 8 * slot);
            let length = usize::from(bytes[at + 8]);
            if length == name.len() && &bytes[text..text + length] == name.as_bytes() {
                return (i.page_at(addr), slot);
            }
        }
    }
    panic!("no {name} in {dir}");
}

fn entries(list: &mut List) {
    let names: [(&str, &str, &[&'static str]); 3] = [
        ("/dir", "a", &["/dir/a"]),
        ("/dir", "below", &["/dir/below", "/dir/a", "/dir/link", "/large", "/small"]),
        ("/many", "8 xxxxxxxx", &["/many"]),
    ];
    for (dir, name, touches) in names {
        let mut touches = touches.to_vec();
        // What a name with another letter is.
        touches.extend(["/dir/below", "/dir/c", "/dir/`elow"]);
        let mut change = |what: &str, strike: fn(&mut [u8], usize)| {
            list.add(format!("entry {name} of {dir}: {what}"), &touches, move |i| {
                let (at, slot) = entry(i, dir, name);
                i.change_names(at, |b| strike(b, slot));
            });
        };
        change("no file", |b, s| put32(b, HEADS_AT + 12 * s + 4, 0));
        change("a file that is not there", |b, s| put32(b, HEADS_AT + 12 * s + 4, 1303));
        change("a number that can't be", |b, s| put32(b, HEADS_AT + 12 * s + 4, u32::MAX));
        change("the root", |b, s| put32(b, HEADS_AT + 12 * s + 4, 1));
        change("type 0", |b, s| b[HEADS_AT + 12 * s + 10] = 0);
        change("another type", |b, s| b[HEADS_AT + 12 * s + 10] ^= 6);
        change("the hash", |b, s| b[HEADS_AT + 12 * s] ^= 1);
        change("a length of 0", |b, s| b[HEADS_AT + 12 * s + 8] = 0);
        change("too short", |b, s| b[HEADS_AT + 12 * s + 8] -= 1);
        change("too long", |b, s| b[HEADS_AT + 12 * s + 8] += 50);
        change("longer than a page", |b, s| b[HEADS_AT + 12 * s + 9] = 0xff);
        change("a letter", |b, s| b[NAMES_AT + 8 * s] ^= 2);
        change("a slash", |b, s| b[NAMES_AT + 8 * s] = b'/');
        change("a zero", |b, s| b[NAMES_AT + 8 * s] = 0);
        change("its place is free", |b, s| b[s / 8] &= !(1 << (s % 8)));
        change("its spare byte", |b, s| b[HEADS_AT + 12 * s + 11] = 1);
    }
    list.add("directory: a place is taken by nothing", &[], |i| {
        let (at, _) = entry(i, "/dir", "a");
        i.change_names(at, |b| b[20] |= 1);
    });
    list.add("directory: a second place of a name is free", &[], |i| {
        let (at, slot) = entry(i, "/many", "8 xxxxxxxx");
        i.change_names(at, |b| b[(slot + 1) / 8] &= !(1 << ((slot + 1) % 8)));
    });
    // No checksum is right here: entries by the names in inodes, and by counts of names.
    for (dir, name) in [("/dir", "a"), ("/dir", "link"), ("/many", "8 xxxxxxxx")] {
        for (what, at) in [("file", HEADS_AT + 4), ("length", HEADS_AT + 8), ("letter", NAMES_AT)] {
            // A bit of the only name of a file that is elsewhere.
            let touches: &[&str] = match (name, what) {
                ("link", _) => &["/dir/link", "/large"],
                _ => &[],
            };
            list.add(format!("directory: a bit of the {what} of {name}"), touches, move |i| {
                let (page, slot) = entry(i, dir, name);
                let step = if at == NAMES_AT { 8 } else { 12 };
                i.spoil(page, |b| b[at + step * slot] ^= 1);
            });
        }
    }
    let all = ["/dir", "/large", "/small"];
    list.add("directory: zeros", &all, |i| {
        let (at, _) = entry(i, "/dir", "a");
        i.spoil(at, |b| b.fill(0));
    });
    list.add("directory: anything", &all, |i| {
        let (at, _) = entry(i, "/dir", "a");
        i.spoil(at, |b| b.iter_mut().enumerate().for_each(|(k, b)| *b = (k * 37 / 8) as u8));
    });
    list.add("directory: all ones", &all, |i| {
        let (at, _) = entry(i, "/dir", "a");
        i.spoil(at, |b| b.fill(0xff));
    });
    list.add("directory: can't be read", &all, |i| i.device.lose(entry(i, "/dir", "a").0));
    list.add("directory: it lies in itself", &["/dir/below"], |i| {
        let (at, slot) = entry(i, "/dir/below", "deep");
        i.change_names(at, |b| put32(b, HEADS_AT + 12 * slot + 4, ino("/dir/below")));
    });
    list.add("directory: a name twice", &["/dir/a"], |i| {
        let (at, slot) = entry(i, "/dir", "a");
        i.change_names(at, |b| {
            let head = b[HEADS_AT + 12 * slot..][..12].to_vec();
            let free = (0..202).rev().find(|s| b[s / 8] >> (s % 8) & 1 == 0).expect("one");
            b[free / 8] |= 1 << (free % 8);
            b[HEADS_AT + 12 * free..][..12].copy_from_slice(&head);
            b[NAMES_AT + 8 * free] = b'a';
        });
    });
    list.add("directory: a name where it is not looked for", &[], |i| {
        let (at, slot) = entry(i, "/many", "8 xxxxxxxx");
        let before = i.device.sector(at);
        let head = before[HEADS_AT + 12 * slot..][..12].to_vec();
        let text = before[NAMES_AT + 8 * slot..][..16].to_vec();
        // The second level has two buckets of two pages.
        let bucket = 1 - crc32c(b"8 xxxxxxxx") as usize % 2;
        let other = i.page_at(i.page_of(ino("/many"), 2 + 2 * bucket));
        i.change_names(at, |b| {
            b[HEADS_AT + 12 * slot..][..12].fill(0);
            [slot, slot + 1].iter().for_each(|s| b[s / 8] &= !(1 << (s % 8)));
        });
        i.change_names(other, |b| {
            let taken = |b: &[u8], s: usize| b[s / 8] >> (s % 8) & 1 == 1;
            let s = (0..202).find(|s| !taken(b, *s) && !taken(b, s + 1)).expect("room");
            [s, s + 1].iter().for_each(|s| b[s / 8] |= 1 << (s % 8));
            b[HEADS_AT + 12 * s..][..12].copy_from_slice(&head);
            b[NAMES_AT + 8 * s..][..16].copy_from_slice(&text);
        });
    });
}

fn all() -> Vec<Planted> {
    let mut list = List(Vec::new());
    superblocks(&mut list);
    packs(&mut list);
    tables(&mut list);
    inodes(&mut list);
    trees(&mut list);
    entries(&mut list);
    list.0
}

/// Nodes of /far are lost. Pages that only they named are errors after a repair, and not zeros.
/// Nodes below a lost indirect node are found again.
#[test]
fn pages_of_a_lost_node_are_errors_and_not_zeros() {
    // Lengths of /far in pages: with `less`, node 4 is the only node that can be below node 3. Each
    // row: length, lost nodes, true if the node address table is lost as well, and true if /far
    // gives a read error after the repair.
    let (all, less) = (2_060_001, 3_001);
    let nodes: [(u64, &[u32], bool, bool); 9] = [
        (all, &[1], false, true),
        (all, &[2], false, true),
        (all, &[4], false, true),
        (all, &[3], false, false),
        (all, &[ROOT_OFS], false, false),
        (less, &[3], false, false),
        (less, &[3, 4], false, true),
        (all, &[1], true, true),
        (all, &[4], true, true),
    ];
    for (pages, lost, table, is_error) in nodes {
        let image = Image::new(Left::Unmounted);
        let device = image.device.clone();
        let before = run(1, async move |cx| {
            let fs =
                Fs::mount(&cx, Medium::Linear(device), small()).await.expect("it is mounted").0;
            fs.truncate(&cx, ino("/far"), pages * 4096, NOW).await.expect("it is shorter");
            let before = look(&cx, &fs).await;
            fs.unmount(&cx).await.expect("it is written");
            before
        });
        for ofs in lost {
            let at = image.page_at(image.nat(node_of(&image, "/far", *ofs)).1);
            match table {
                // Of a node whose sum is wrong nobody knows that it was one.
                true => image.spoil(at, |b| b[12] ^= 1),
                false => image.device.lose(at),
            }
        }
        for number in (0..3).filter(|_| table) {
            image.spoil(image.table_at(true, number), |b| b[50] ^= 1);
        }
        let device = image.device;
        let found = run(1, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            let done = repair(&cx, &medium(), NOW, Unread::GiveUp).await.expect("it is mended");
            assert_eq!(done.after.found, 0, "{:?}", done.after.problems);
            let (fs, _) = Fs::mount(&cx, medium(), small()).await.expect("it is mounted");
            look(&cx, &fs).await
        });
        match &found["/far"] {
            Ok(seen) => {
                assert!(!is_error && Ok(seen) == before["/far"].as_ref(), "{lost:?}: {seen:?}");
            }
            Err(e) => {
                let says = e.to_string();
                assert!(is_error && says.contains("a repair gave it up"), "{lost:?}: {says}");
            }
        }
    }
}

/// The newest copy of a file's inode can't be read, and the segment table is lost. Older copies in
/// the log are not taken for it: the file is gone after a repair.
#[test]
fn an_older_copy_of_a_node_is_not_taken() {
    for path in ["/large", "/dir/below/deep/d"] {
        let image = Image::new(Left::Unmounted);
        image.device.lose(image.page_at(image.nat(ino(path)).1));
        let segments = image.area(b"pSIT").len() as u64 / 2;
        (0..segments).for_each(|n| image.device.lose(image.table_at(false, n as u32)));
        let device = image.device;
        let found = run(1, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            let refused = repair(&cx, &medium(), NOW, Unread::Refuse).await;
            assert!(matches!(refused, Err(FsError::Unread(_))), "{refused:?}");
            let done = repair(&cx, &medium(), NOW, Unread::GiveUp).await.expect("it is mended");
            assert_eq!(done.after.found, 0, "{:?}", done.after.problems);
            let (fs, _) = Fs::mount(&cx, medium(), small()).await.expect("it is mounted");
            look(&cx, &fs).await
        });
        assert_eq!(found.get(path), None);
    }
}

#[test]
fn what_is_planted_is_found_and_mended() {
    assert_eq!(SECTOR_BYTES, 4096);
    let all = all();
    assert!(all.len() >= LEAST, "{}", all.len());
    let mut bad = Vec::new();
    for planted in &all {
        if let Err(why) = try_one(planted) {
            bad.push(format!("{}: {why}", planted.name));
        }
    }
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), all.len(), bad.join("\n"));
}

#[test]
fn what_is_sound_is_left_alone() {
    for left in [Left::Unmounted, Left::InUse] {
        let image = Image::new(left);
        let device = image.device.clone();
        let before = device.contents();
        run(1, async move |cx| {
            let medium = Medium::Linear(device.clone());
            let done = repair(&cx, &medium, NOW, Unread::Refuse).await.expect("it is one");
            assert_eq!((done.before.problems, done.found), (Vec::new(), 0));
            assert!(device.contents() == before, "nothing was written");
        });
    }
}

/// A device that loses what was not flushed, with this damage.
fn on_ram(planted: &Planted, seed: u64) -> Arc<Ram> {
    let image = Image::new(planted.left);
    (planted.strike)(&image);
    let device = ram(image.device.sectors() / 256, seed);
    let (to, from) = (device.clone(), image.device);
    run(seed, async move |cx| {
        for at in 0..from.sectors() {
            let sector = from.sector(at);
            let io = Io::write(Lba::new(at), 1, false, &sector);
            to.start(&cx, io).await.expect("it is written");
        }
        to.start(&cx, Io::flush()).await.expect("it is there");
    });
    device
}

/// All that a repair would give up are names of files.
fn loses_names_only(report: &Report) -> bool {
    report.lost.keys().eq(&["names of files"])
}

/// A repair that gives up names of files, and nothing else.
async fn mend(cx: &Cx, medium: &Medium) -> Result<Repaired, FsError> {
    let gives_up = check(cx, medium).await.is_ok_and(|report| loses_names_only(&report));
    let unread = if gives_up { Unread::GiveUp } else { Unread::Refuse };
    repair(cx, medium, NOW, unread).await
}

/// Sectors that a whole repair of this device writes.
fn writes(device: &Arc<Ram>, seed: u64) -> u64 {
    let before = device.puts();
    let used = device.clone();
    run(seed, async move |cx| {
        mend(&cx, &Medium::Linear(used)).await.expect("it can be looked at");
    });
    device.puts() - before
}

/// The power goes when a repair has written so many sectors.
fn cut_repair(device: &Arc<Ram>, seed: u64, writes: u64) {
    let clock = Virtual::new(1, seed, CostTable::zero());
    let (cx, used) = (clock.cx(), device.clone());
    let upto = device.puts() + writes;
    let lived = async move {
        let (its, repaired) = (cx.clone(), used.clone());
        cx.spawn(async move {
            drop(mend(&its, &Medium::Linear(repaired)).await);
        });
        // A repair writes as many as the one before, and this ends.
        while used.puts() < upto {
            cx.sleep(Ns::from_us(1)).await;
        }
    };
    clock.run(lived).expect("it goes on");
    drop(clock);
    device.power_cut(Keep::Drawn(seed));
}

#[test]
fn a_repair_that_is_cut_is_begun_anew() {
    let all = all();
    // Where both checkpoints are lost nodes count without one.
    let lost = all.iter().find(|planted| planted.name == "both checkpoints").expect("it is there");
    for seed in seeds(0..100) {
        println!("FLASHLANE_SEED={seed}: begins");
        let mut rng = Rng::stream(seed, "cut", 0);
        let any = &all[rng.below(all.len() as u64) as usize];
        let planted = if seed < 60 { any } else { lost };
        let writes = writes(&on_ram(planted, seed), seed);
        let device = on_ram(planted, seed);
        cut_repair(&device, seed, rng.below(writes + 1));
        let (left, touches) = (planted.left, planted.touches.clone());
        let done = run(seed, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            let done = mend(&cx, &medium()).await.map_err(|e| format!("repair: {e}"))?;
            if done.after.found > 0 {
                return Err(format!("it is not mended: {:?}", done.after.problems));
            }
            let mounted = Fs::mount(&cx, medium(), small()).await;
            let fs = mounted.map_err(|e| format!("mount: {e}"))?.0;
            compare(&look(&cx, &fs).await, left, &touches)
        });
        done.unwrap_or_else(|why| panic!("{}: {why}", planted.name));
    }
}

/// A new file system on a device, and files in it that no checkpoint has.
async fn with_files(cx: &Cx, device: &Arc<Ram>) -> (Arc<Fs>, Vec<u32>) {
    let medium = Medium::Linear(device.clone());
    make_unshared(cx, medium.clone(), 1).await.expect("it is made");
    let fs = Fs::mount(cx, medium, small()).await.expect("it is mounted").0;
    let mut files = Vec::new();
    for i in 0..SYNCED {
        files.push(create(cx, &fs, ROOT, &format!("{i}"), FILE).await.ino);
    }
    (fs, files)
}

/// Files whose fsyncs lie in a segment that a head had next at the checkpoint, and in others that the
/// window names; and a superblock that lost a copy. A repair writes as many nodes again.
fn synced(seed: u64) -> Arc<Ram> {
    let device = ram(26, seed);
    let used = device.clone();
    run(seed, async move |cx| {
        let (fs, files) = with_files(&cx, &used).await;
        // The head of nodes gets two segments, and has one of them left at the checkpoint.
        for upto in [SYNCED / 6, SYNCED] {
            fs.sync(&cx).await.expect("it is written");
            for (i, ino) in files[..upto].iter().enumerate() {
                fs.write(&cx, *ino, 0, &text((upto + i) as u64, 300), NOW).await.expect("room");
                fs.fsync(&cx, *ino, false).await.expect("it is written");
            }
        }
        let io = Io::write(Lba::new(1), 1, true, &[0; SECTOR_BYTES]);
        used.start(&cx, io).await.expect("it is written");
    });
    device.power_cut(Keep::Oldest);
    device
}

/// Segments of nodes, and a half.
const SYNCED: usize = 144;

#[test]
fn a_repair_that_is_cut_has_kept_what_was_durable() {
    for seed in 0..40 {
        repaired_twice(synced, seed, async move |cx, fs| {
            for i in 0..SYNCED {
                let found = fs.lookup(cx, ROOT, format!("{i}").as_bytes()).await;
                let ino = found.expect("it was made durable").ino;
                let same = content(cx, fs, ino).await == text((SYNCED + i) as u64, 300);
                assert!(same, "{seed}: file {i}");
            }
        });
    }
}

/// Cuts the repair of a device at a moment of the seed, repairs it again, and looks at what is there.
fn repaired_twice(
    made: impl Fn(u64) -> Arc<Ram>,
    seed: u64,
    look: impl AsyncFn(&Cx, &Arc<Fs>) + 'static,
) {
    let writes = writes(&made(seed), seed);
    let device = made(seed);
    cut_repair(&device, seed, Rng::stream(seed, "part", 0).below(writes + 1));
    run(seed, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert_eq!(done.after.problems, [""; 0]);
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        look(&cx, &fs).await;
    });
}

/// A file whose fsync lies in segments that only the window named, which can't be read.
fn windowless(seed: u64) -> Arc<Ram> {
    let device = ram(26, seed);
    let used = device.clone();
    run(seed, async move |cx| {
        let medium = Medium::Linear(used.clone());
        make_unshared(&cx, medium.clone(), 1).await.expect("it is made");
        let fs = Fs::mount(&cx, medium, small()).await.expect("it is mounted").0;
        let ino = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        fs.sync(&cx).await.expect("it is written");
        // More than the segments have that the checkpoint's heads had.
        for i in 0..100 {
            fs.write(&cx, ino, 0, &text(i, 300), NOW).await.expect("room");
            fs.fsync(&cx, ino, false).await.expect("it is written");
        }
        // A page and a node beside the inode.
        for (at, content) in [(BEYOND, 1), (0, 2)] {
            fs.write(&cx, ino, at, &text(content, 300), NOW).await.expect("room");
            fs.fsync(&cx, ino, false).await.expect("it is written");
        }
    });
    let window = Image::on(contents(device.clone())).area(b"pWIN");
    assert!(!window.is_empty());
    ruin(&device, window);
    device.power_cut(Keep::Oldest);
    device
}

/// A place in a file that its inode does not name.
const BEYOND: u64 = 64 << 20;

#[test]
fn a_repair_without_a_window_that_is_cut_has_kept_what_was_durable() {
    for seed in 0..20 {
        repaired_twice(windowless, seed, async move |cx, fs| {
            let ino = fs.lookup(cx, ROOT, b"f").await.expect("it was made durable").ino;
            for (at, content) in [(BEYOND, 1), (0, 2)] {
                let mut found = vec![0; 300];
                let read = fs.read(cx, ino, at, &mut found).await;
                assert_eq!((read, found), (Ok(300), text(content, 300)), "{seed}: at {at}");
            }
        });
    }
}

/// The last checkpoint is lost, and fsyncs behind it are there.
fn outdated(seed: u64) -> Arc<Ram> {
    let device = ram(26, seed);
    let used = device.clone();
    run(seed, async move |cx| {
        let (fs, files) = with_files(&cx, &used).await;
        for turn in 0..3 {
            fs.sync(&cx).await.expect("it is written");
            for (i, ino) in files.iter().enumerate() {
                fs.write(&cx, *ino, 0, &text((turn * SYNCED + i) as u64, 5000), NOW)
                    .await
                    .expect("room");
                fs.fsync(&cx, *ino, false).await.expect("it is written");
            }
        }
    });
    device.power_cut(Keep::Oldest);
    let at = Image::on(contents(device.clone())).pack(true).at;
    ruin(&device, vec![at]);
    device
}

#[test]
fn a_repair_of_a_lost_checkpoint_that_is_cut_ends_sound() {
    for seed in 0..40 {
        repaired_twice(outdated, seed, async move |cx, fs| {
            for i in 0..SYNCED {
                let found = fs.lookup(cx, ROOT, format!("{i}").as_bytes()).await;
                let ino = found.expect("it was made durable").ino;
                let found = content(cx, fs, ino).await;
                let is_its = |turn| found == text((turn * SYNCED + i) as u64, 5000);
                assert!(found.is_empty() || (0..3).any(is_its), "{seed}: file {i}");
            }
        });
    }
}

/// No checkpoint is left, so nodes are looked for in the log. Those of the file system that was there before are
/// nobody's.
#[test]
fn nodes_of_an_older_file_system_are_not_found() {
    let device = ram(26, 1);
    let used = device.clone();
    run(1, async move |cx| {
        let medium = Medium::Linear(used);
        for (files, name) in [(100, "old"), (1, "new")] {
            make_unshared(&cx, medium.clone(), 1).await.expect("it is made");
            let fs = Fs::mount(&cx, medium.clone(), small()).await.expect("it is mounted").0;
            for i in 0..files {
                let ino = create(&cx, &fs, ROOT, &format!("{name}{i}"), FILE).await.ino;
                fs.write(&cx, ino, 0, &text(i, 5000), NOW).await.expect("room");
                fs.sync(&cx).await.expect("it is written");
            }
            fs.unmount(&cx).await.expect("it is written");
        }
    });
    let image = Image::on(contents(device.clone()));
    ruin(&device, vec![image.pack(true).at, image.pack(false).at]);
    run(2, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert_eq!((done.found, done.after.problems), (0, Vec::<String>::new()));
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        let ino = fs.lookup(&cx, ROOT, b"new0").await.expect("it is there").ino;
        assert!(content(&cx, &fs, ino).await == text(0, 5000));
    });
}

/// A file holds the image of another file system, whose fsyncs are as old as its own. A repair that has to
/// look everywhere takes none of them.
#[test]
fn nodes_of_another_file_system_are_not_found() {
    let life = |uuid: u8, name: &'static str, content: Vec<u8>| {
        let device = ram(12, 1);
        let used = device.clone();
        run(1, async move |cx| {
            let medium = Medium::Linear(used);
            let layout = medium.plan(1, 32).expect("it is large enough");
            let make = Make { uuid: [uuid; 16], ..Make::default() };
            mkfs(&cx, medium.clone(), layout, &make, NOW).await.expect("it is made");
            let fs = Fs::mount(&cx, medium, small()).await.expect("it is mounted").0;
            let ino = create(&cx, &fs, ROOT, name, FILE).await.ino;
            fs.write(&cx, ino, 0, &content, NOW).await.expect("room");
            fs.fsync(&cx, ino, false).await.expect("it is written");
        });
        device
    };
    let other = contents(life(9, "other", text(1, 5000)));
    let is_node = |page: &&[u8]| get32(page, 4096 - 8) == u32::from_le_bytes(*b"pNOD");
    let nodes: Vec<u8> = other.chunks(4096).filter(is_node).flatten().copied().collect();
    assert!(nodes.len() >= 2 * 4096, "the root and a file");
    let device = life(8, "copy", nodes.clone());
    let window = Image::on(contents(device.clone())).area(b"pWIN");
    assert!(!window.is_empty());
    ruin(&device, window);
    run(2, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert_eq!(done.after.problems, [""; 0]);
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        let copy = fs.lookup(&cx, ROOT, b"copy").await.expect("it was made durable").ino;
        assert!(content(&cx, &fs, copy).await == nodes);
        assert_eq!(fs.lookup(&cx, ROOT, b"other").await.err(), Some(FsError::NotFound));
    });
}

/// The first version had no identity in the sums of nodes, and no seals on pages of directories.
#[test]
fn a_file_system_of_the_version_before_is_used_on() {
    let image = Image::new(Left::InUse);
    let device = image.device.clone();
    for at in 0..2 {
        image.change(at, |b| put32(b, 8, 1));
    }
    for at in 0..device.sectors() {
        let mut page = device.sector(at);
        if get32(&page, 4096 - 8) == u32::from_le_bytes(*b"pNOD") {
            image.seal_node(&mut page);
        } else if get32(&page, 4096 - 8) == u32::from_le_bytes(*b"pDIR") {
            // One place more, and no seal.
            page.copy_within(NAMES_AT..NAMES_AT + 202 * 8, NAMES_AT + 12);
            page[NAMES_AT..NAMES_AT + 12].fill(0);
            page[NAMES_AT + 12 + 202 * 8..].fill(0);
        } else {
            continue;
        }
        device.put(at, page);
    }
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        for again in [false, true] {
            assert_eq!(check(&cx, &medium()).await.expect("it is one").problems, [""; 0]);
            let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
            let touched = if again { &["/new"][..] } else { &[] };
            compare(&look(&cx, &fs).await, Left::InUse, touched).expect("all is there");
            if !again {
                let new = create(&cx, &fs, ROOT, "new", FILE).await.ino;
                fs.write(&cx, new, 0, &text(1, 5000), NOW).await.expect("room");
                fs.fsync(&cx, new, false).await.expect("it is written");
            }
            fs.unmount(&cx).await.expect("it is written");
        }
    });
}

/// Whoever writes a page that looks like a node gets no file by it, whatever is lost, and whatever he knows.
#[test]
fn a_page_of_a_file_is_no_node() {
    let image = Image::new(Left::Unmounted);
    let mut forged = image.node(ino("/small"));
    // Newer, and anybody's.
    forged[1] = 0x8f;
    let version = get64(&image.device.sector(image.pack(true).at), 8);
    put64(&mut forged, 4096 - 32, version);
    image.seal_node(&mut forged);
    let device = image.device;
    let used = device.clone();
    run(1, async move |cx| {
        let mounted = Fs::mount(&cx, Medium::Linear(used.clone()), small()).await;
        let fs = mounted.expect("it is mounted").0;
        fs.write(&cx, ino("/dir/a"), 4096, &forged, NOW).await.expect("room");
        fs.unmount(&cx).await.expect("it is written");
        assert_eq!(check(&cx, &Medium::Linear(used)).await.expect("it is one").problems, [""; 0]);
    });
    let base = Arc::new(device.contents());
    for lost in [0, 1, 2] {
        let device = Arc::new(Overlay::new(base.clone()));
        for at in 0..device.sectors() {
            let mut sector = device.sector(at);
            let is = |magic: &[u8; 4]| sector.starts_with(magic);
            // Where tables are lost summaries say what is a node, and the other way round.
            if is(b"pNAT") || is(b"pSIT") && lost == 1 || is(b"pSUM") && lost == 2 {
                sector[99] ^= 1;
                device.put(at, sector);
            }
        }
        run(1, async move |cx| {
            let medium = || Medium::Linear(device.clone());
            let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
            assert_eq!(done.after.problems, [""; 0]);
            let mounted = Fs::mount(&cx, medium(), small()).await;
            let fs = mounted.expect("it is mounted").0;
            let found = compare(&look(&cx, &fs).await, Left::Unmounted, &["/dir/a"]);
            found.unwrap_or_else(|why| panic!("{lost}: {why}"));
        });
    }
}

#[test]
fn a_checkpoint_that_is_lost_is_no_cut() {
    // Its fsyncs have taken segments since.
    let image = Image::on(contents(synced(1)));
    image.spoil(image.foot(&image.pack(true)), |b| b[9] ^= 1);
    let device = image.device;
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        // The one before is whole, and older than what programs had made durable.
        let mounted = Fs::mount(&cx, medium(), small()).await;
        let why = mounted.err().expect("it is refused").to_string();
        assert!(why.contains("is lost") && why.contains("`flashlane fsck --repair`"), "{why}");
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert!(done.before.found > 0 && done.after.found == 0, "{done:?}");
        assert!(Fs::mount(&cx, medium(), small()).await.is_ok());
    });
}

#[test]
fn damage_in_use_is_an_error_with_its_place() {
    let image = Image::new(Left::Unmounted);
    image.device.lose(image.page_at(image.page_of(ino("/dir/a"), 1)));
    let below = ino("/dir/below");
    image.spoil(image.page_at(image.nat(below).1), |b| b[12] ^= 1);
    let device = image.device.clone();
    run(1, async move |cx| {
        let medium = Medium::Linear(device);
        let fs = Fs::mount(&cx, medium, small()).await.expect("it is mounted").0;
        let said = |e: FsError| e.to_string();
        let mut bytes = vec![0; 20_000];
        let why = said(fs.read(&cx, ino("/dir/a"), 0, &mut bytes).await.unwrap_err());
        assert!(why.contains("page 1 of file"), "{why}");
        let why = said(fs.lookup(&cx, ino("/dir"), b"below").await.unwrap_err());
        assert!(why.contains(&format!("node {below} at page")), "{why}");
        assert!(why.contains("`flashlane fsck --repair`"), "{why}");
        // All else goes on.
        assert_eq!(fs.read(&cx, ino("/dir/a"), 8192, &mut bytes).await, Ok(20_000 - 8192));
        let made = create(&cx, &fs, ino("/dir"), "new", FILE).await.ino;
        fs.write(&cx, made, 0, &[1; 9_000], NOW).await.expect("room");
        fs.fsync(&cx, made, false).await.expect("it is written");
        fs.unmount(&cx).await.expect("it is written");
    });
    let image = Image::new(Left::Unmounted);
    (0..3).for_each(|sector| image.spoil(image.table_at(true, sector), |b| b[60] ^= 1));
    run(1, async move |cx| {
        let mounted = Fs::mount(&cx, Medium::Linear(image.device), small()).await;
        let fs = match mounted {
            Ok((fs, _)) => fs,
            Err(e) => {
                let why = e.to_string();
                assert!(why.contains("sector 0") && why.contains("fsck --repair"), "{why}");
                return;
            }
        };
        let new = New { mode: FILE, ..New::default() };
        let why = fs.create(&cx, ROOT, b"new", &new, NOW).await.unwrap_err().to_string();
        assert!(why.contains("sector 0") && why.contains("fsck --repair"), "{why}");
    });
}

/// Names in a directory, and the error that ends its listing, if one does.
async fn listing(cx: &Cx, fs: &Arc<Fs>, dir: u32) -> (usize, Option<FsError>) {
    let (mut names, mut at) = (0, 0);
    loop {
        match fs.read_dir(cx, dir, at, 64).await {
            Ok(some) if some.is_empty() => return (names, None),
            Ok(some) => {
                names += some.len();
                at = some.last().expect("it is not empty").next;
            }
            Err(e) => return (names, Some(e)),
        }
    }
}

/// A bit of a page of a directory is wrong: names in that page are errors. A listing has all others,
/// and ends with an error.
#[test]
fn a_listing_goes_on_after_a_damaged_page() {
    let image = Image::new(Left::Unmounted);
    let (at, _) = entry(&image, "/many", "8 xxxxxxxx");
    let names = |bytes: &[u8]| {
        let length = |slot: usize| bytes[HEADS_AT + 12 * slot + 8];
        (0..202).filter(|slot| length(*slot) > 0).count()
    };
    let here = names(&image.device.sector(at));
    image.spoil(at, |b| b[HEADS_AT + 5] ^= 1);
    let device = image.device.clone();
    run(1, async move |cx| {
        let fs = Fs::mount(&cx, Medium::Linear(device), small()).await.expect("it is mounted").0;
        let all = 160 - (0..160).step_by(7).count();
        let (listed, end) = listing(&cx, &fs, ino("/many")).await;
        assert_eq!(listed, all - here, "all but those of the page");
        assert!(here > 10 && matches!(end, Some(FsError::Io(_))), "{here} {end:?}");
        let name = fs.lookup(&cx, ino("/many"), b"8 xxxxxxxx").await;
        assert!(matches!(name, Err(FsError::Damaged(_))), "{name:?}");
    });
}

/// An entry says that a file is of another type than its inode says.
#[test]
fn an_entry_of_another_type_is_an_error() {
    let image = Image::new(Left::Unmounted);
    let (at, slot) = entry(&image, "/dir", "a");
    image.change_names(at, |b| b[HEADS_AT + 12 * slot + 10] ^= 6);
    let device = image.device.clone();
    run(1, async move |cx| {
        let fs = Fs::mount(&cx, Medium::Linear(device), small()).await.expect("it is mounted").0;
        let found = fs.lookup(&cx, ino("/dir"), b"a").await;
        assert!(matches!(found, Err(FsError::Damaged(_))), "{found:?}");
        assert!(fs.lookup(&cx, ino("/dir"), b"below").await.is_ok());
    });
}

/// `ln f f.bak; mv f.new f`, then the page of the directory is damaged: `f` does not get the content
/// of the older file that had this name before.
#[test]
fn a_removed_name_does_not_come_back() {
    let device = ram(12, 7);
    let used = device.clone();
    run(7, async move |cx| {
        make_unshared(&cx, Medium::Linear(used.clone()), 1).await.expect("it is made");
        let fs = Fs::mount(&cx, Medium::Linear(used), small()).await.expect("it is mounted").0;
        let make = async |name: &str, text: &[u8]| {
            let ino = create(&cx, &fs, ROOT, name, FILE).await.ino;
            fs.write(&cx, ino, 0, text, NOW).await.expect("room");
            ino
        };
        let old = make("f", b"old").await;
        fs.link(&cx, old, ROOT, b"f.bak", NOW).await.expect("room");
        make("f.new", b"new").await;
        let (from, to) = ((ROOT, &b"f.new"[..]), (ROOT, &b"f"[..]));
        fs.rename(&cx, from, to, Rename::Replace, NOW).await.expect("it is there");
        fs.unmount(&cx).await.expect("it is written");
    });
    let image = Image::on(contents(device));
    let at = image.page_at(image.page_of(1, 0));
    image.spoil(at, |b| b[NAMES_AT..].fill(0));
    let device = image.device;
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        let f = fs.lookup(&cx, ROOT, b"f").await.expect("its inode holds its name").ino;
        assert!(content(&cx, &fs, f).await == b"new");
        let found = fs.lookup(&cx, ROOT, b"lost+found").await.expect("the other one is there").ino;
        assert_eq!(listing(&cx, &fs, found).await, (1, None));
    });
}

/// A new file was made durable in a directory, and then a page of the directory is damaged. The
/// mount goes on, read-only, says where, and has what else was made durable. A repair has both
/// files.
#[test]
fn a_damaged_directory_of_a_new_file_stops_no_mount() {
    let device = ram(12, 3);
    let used = device.clone();
    let dir = run(3, async move |cx| {
        make_unshared(&cx, Medium::Linear(used.clone()), 1).await.expect("it is made");
        let fs = Fs::mount(&cx, Medium::Linear(used), small()).await.expect("it is mounted").0;
        let dir = create(&cx, &fs, ROOT, "dir", DIR).await.ino;
        create(&cx, &fs, dir, "old", FILE).await;
        fs.sync(&cx).await.expect("it is written");
        for (parent, name) in [(dir, "new"), (ROOT, "other")] {
            let made = create(&cx, &fs, parent, name, FILE).await.ino;
            fs.write(&cx, made, 0, name.as_bytes(), NOW).await.expect("room");
            fs.fsync(&cx, made, false).await.expect("it is written");
        }
        dir
    });
    device.power_cut(Keep::Oldest);
    let image = Image::on(contents(device));
    let page =
        image.page_at((0..2).map(|i| image.page_of(dir, i)).find(|at| *at > 0).expect("one"));
    image.spoil(page, |b| b[NAMES_AT] ^= 1);
    let device = image.device.clone();
    run(3, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let has = async |fs: &Arc<Fs>, dir: u32, name: &str| {
            let f = fs.lookup(&cx, dir, name.as_bytes()).await.expect("it was made durable").ino;
            assert!(content(&cx, fs, f).await == name.as_bytes(), "{name}");
        };
        let (fs, found) = Fs::mount(&cx, medium(), small()).await.expect("it goes on");
        let why = found.read_only.expect("it is read-only");
        assert!(why.contains(&format!("directory {dir}")) && why.contains("page"), "{why}");
        has(&fs, ROOT, "other").await;
        let new = New { mode: FILE, ..New::default() };
        let made = fs.create(&cx, ROOT, b"more", &new, NOW).await;
        assert!(matches!(made, Err(FsError::ReadOnly(_))), "{made:?}");
        fs.unmount(&cx).await.expect("nothing is written");
        let done = repair(&cx, &medium(), NOW, Unread::Refuse).await.expect("it is one");
        assert_eq!(done.after.problems, [""; 0]);
        let (fs, found) = Fs::mount(&cx, medium(), small()).await.expect("it is mounted");
        assert_eq!(found.read_only, None);
        has(&fs, ROOT, "other").await;
        has(&fs, dir, "new").await;
    });
}

/// A page of a directory had names of a file that nothing else has: a repair gives them up only if
/// it is told to.
#[test]
fn names_that_are_nowhere_else_are_not_given_up_unasked() {
    let device = ram(12, 4);
    let used = device.clone();
    run(4, async move |cx| {
        make_unshared(&cx, Medium::Linear(used.clone()), 1).await.expect("it is made");
        let fs = Fs::mount(&cx, Medium::Linear(used), small()).await.expect("it is mounted").0;
        let f = create(&cx, &fs, ROOT, "f", FILE).await.ino;
        for name in ["g", "h"] {
            fs.link(&cx, f, ROOT, name.as_bytes(), NOW).await.expect("room");
        }
        fs.unmount(&cx).await.expect("it is written");
    });
    let image = Image::on(contents(device));
    let page = image.page_at((0..2).map(|i| image.page_of(1, i)).find(|at| *at > 0).expect("one"));
    image.spoil(page, |b| b[NAMES_AT..].fill(0));
    let device = image.device;
    run(4, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        let report = check(&cx, &medium()).await.expect("it can be read");
        assert_eq!(report.lost.get("names of files"), Some(&2), "{report:?}");
        let refused = repair(&cx, &medium(), NOW, Unread::Refuse).await;
        assert_eq!(refused, Err(FsError::Unread("2 names of files".into())));
        assert_eq!(check(&cx, &medium()).await, Ok(report), "nothing was written");
        let done = repair(&cx, &medium(), NOW, Unread::GiveUp).await.expect("it is one");
        assert_eq!(done.after.problems, [""; 0]);
    });
}
