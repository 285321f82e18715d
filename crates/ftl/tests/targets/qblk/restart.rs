//! Ends and beginnings of a target with many rings and channels (Q22, Q23).
//!
//! Owns: the tests. What a cut may leave: `story.rs::Telling`.

use crate::prelude::*;
use crate::qblk::cores::{made, qblk};

/// Q22: a stop with something in every ring: all of it is programmed, lines of all channels are closed, and
/// the next mount finds everything without a scan.
#[test]
fn q22_a_stop_drains_every_ring() {
    let b = made(qblk(3, 2, 5));
    let writes: Vec<_> =
        (0..5).map(|core| b.begin_write_on(core, u64::from(core) * 150, 126 + core, 1)).collect();
    for write in writes {
        b.wait(write).expect("a write");
    }
    assert!(b.stats().buffered_now > 0);
    let medium = b.shut_down();
    assert!(medium.lines().iter().all(|line| line.closed.is_some()));
    let b = medium.mounted();
    let did = b.recovery();
    assert!(did.clean && did.lines_scanned + did.lines_replayed == 0, "{did:?}");
    b.read_all();
    b.agrees();
}

/// Q22: a target is mounted by a host with other cores than the one that made it: it keeps its rings, and
/// everything is found, after a stop and after a cut.
#[test]
fn q22_a_mount_with_other_cores_finds_everything() {
    for cores in [1, 2, 9] {
        for cut in [false, true] {
            let b = made(qblk(3, 1, 5));
            b.fill_on_all(1);
            b.overwrite_on_all(2, 50, 2);
            b.flush_on(3);
            let mut medium = if cut { b.cut() } else { b.shut_down() };
            medium.setup.cores = cores;
            let b = medium.mounted();
            assert_eq!((b.cores(), b.of_rings("mem").len()), (cores, 5));
            b.read_all();
            b.overwrite_on_all(3, 100, 3);
            b.flush();
            medium = b.cut();
            medium.setup.cores = 5;
            let b = medium.mounted();
            b.read_all();
            b.shut_down();
        }
    }
}

/// A story of one sector and its neighbours, each version on another channel.
const STORY: [Do; 14] = [
    Do::Write(5, 1),
    Do::Write(4, 3),
    Do::Flush,
    Do::Write(5, 2),
    Do::Fua(5, 1),
    Do::Discard(4, 1),
    Do::Write(6, 6),
    Do::Write(5, 1),
    Do::Flush,
    Do::Write(4, 4),
    Do::Discard(6, 2),
    Do::Fua(5, 2),
    Do::Write(5, 1),
    Do::Flush,
];

/// Q23: versions of one sector lie on different channels, whose lines know nothing of each other: cut at
/// every command, the newest durable one is found, and no discarded one comes back.
#[test]
fn q23_versions_on_several_channels_keep_their_order() {
    for channels in [3, 5] {
        let setup = qblk(channels, 1, 1).manual_gc();
        let before = [Do::Write(0, 12), Do::Flush, Do::Rest(20_000)];
        let cuts = cut_at_each(&setup, &before, &STORY, 1);
        assert!(cuts >= 20, "{cuts}");
    }
}

/// As above, each step from another core, so from another ring and another channel's pointer; closed lines
/// among them.
#[test]
fn q23_versions_from_several_cores_keep_their_order() {
    let setup = qblk(3, 1, 4).manual_gc();
    let mut story = vec![Do::Write(0, 200), Do::Flush];
    story.extend(STORY);
    story.extend([Do::Write(20, 150), Do::Gc, Do::Rest(5_000)]);
    story.extend(STORY);
    let (b, told) = begun(&setup, None);
    let first = b.face.commands();
    tell_on_cores(&b, &story, &told);
    let last = b.face.commands();
    b.cut();
    let mut cuts = 0;
    for n in first..last {
        let stop = if n % 2 == 0 { Stop::Before(n) } else { Stop::Within(n) };
        let (b, told) = begun(&setup, Some(stop));
        b.works_until_off(telling(&b, &story, &told));
        let b = b.cut().mount(MountOptions::default()).unwrap_or_else(|e| panic!("{stop:?}: {e}"));
        let found = b.agrees_with(&told.borrow());
        b.agrees();
        let b = b.cut().mounted();
        assert_eq!(b.agrees_with(&told.borrow()), found, "{stop:?}");
        b.agrees();
        cuts += 1;
    }
    assert!(cuts > 80, "{cuts}");
}

type Told = Rc<RefCell<Telling>>;

fn begun(setup: &Setup, stop: Option<Stop>) -> (Box<Bench>, Told) {
    let Up::Running(b) = Medium::new(setup.clone()).create_until(stop) else {
        panic!("the power goes off in the story");
    };
    (b, Rc::default())
}

/// The steps one after the other, each on the next core.
fn telling(b: &Bench, story: &[Do], told: &Told) -> impl Future<Output = ()> + 'static {
    let (cx, dev, story, told) = (b.cx.clone(), b.dev.clone(), story.to_vec(), told.clone());
    let cores = b.cores();
    async move {
        for (i, step) in (0..).zip(story) {
            tell(cx.on_core(CoreId(i % cores)), dev.clone(), vec![step], told.clone()).await;
        }
    }
}

fn tell_on_cores(b: &Bench, story: &[Do], told: &Told) {
    b.wait(telling(b, story, told));
    b.sleep(Ns::from_ms(1));
}
