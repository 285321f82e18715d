//! A check of many files: what it reads, and a medium that changes its mind meanwhile.
//!
//! Owns: [`Fickle`]. Promises: nodes of small files are read once; a node that was read and can't
//! be read again ends the check, and a repair writes nothing. Never: measures time.

use super::image::{Image, Left, NOW};
use flashlane_base::Lba;
use flashlane_ftl::block::{BlockDev, BlockError, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_parafs::{Fs, FsError, Medium, ROOT, Unread, check, check_pages, repair};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use flashlane_testkit::files::{FILE, create, make_on, ram, run, small};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device that counts the reads of each sector and gives one of the log at most so many times.
struct Fickle {
    below: Arc<dyn BlockDev>,
    log: u64,
    most: u32,
    reads: Mutex<BTreeMap<u64, u32>>,
    writes: Mutex<u64>,
}

impl Fickle {
    fn new(below: Arc<dyn BlockDev>, log: u64, most: u32) -> Arc<Fickle> {
        let (reads, writes) = (Mutex::new(BTreeMap::new()), Mutex::new(0));
        Arc::new(Fickle { below, log, most, reads, writes })
    }
}

impl BlockDev for Fickle {
    fn info(&self) -> &BlockInfo {
        self.below.info()
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        match io.op {
            BlockOp::Read if io.lba.get() >= self.log => {
                let mut reads = self.reads.lock();
                let times = reads.entry(io.lba.get()).or_default();
                *times += 1;
                if *times > self.most {
                    return Started::Done(Err(BlockError::Uncorrectable(vec![io.lba])));
                }
            }
            BlockOp::Read => {}
            _ => *self.writes.lock() += 1,
        }
        self.below.start(cx, io)
    }
    fn expect(&self, op: BlockOp, lba: Lba) {
        self.below.expect(op, lba);
    }
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.below.extent(lba, most)
    }
}

/// A medium that gives each page of the log once. What a check has seen is not what it would mend.
#[test]
fn a_node_that_can_not_be_read_again_ends_a_check() {
    let image = Image::new(Left::Unmounted);
    let device = image.device;
    run(1, async move |cx| {
        let (_, layout, _) =
            check_pages(&cx, &Medium::Linear(device.clone())).await.expect("there is one");
        let log = layout.shape.meta_sectors;
        let once = || Fickle::new(device.clone(), log, 1);
        let checked = check(&cx, &Medium::Linear(once())).await;
        let says = checked.expect_err("nodes are read again").to_string();
        assert!(says.contains("can't be read again"), "{says}");
        let fickle = once();
        let mended = repair(&cx, &Medium::Linear(fickle.clone()), NOW, Unread::GiveUp).await;
        assert!(matches!(mended, Err(FsError::Io(_))), "{mended:?}");
        assert_eq!(*fickle.writes.lock(), 0, "nothing is written");
    });
}

/// Files that lie in their inodes, in a directory of more pages than a check holds.
#[test]
fn small_files_are_read_once() {
    const FILES: u64 = 9000;
    let device = ram(256, 1);
    run(1, async move |cx| {
        let medium = || Medium::Linear(device.clone());
        make_on(&cx, medium(), 1).await.expect("it is large enough");
        let fs = Fs::mount(&cx, medium(), small()).await.expect("it is mounted").0;
        for i in 0..FILES {
            let file = create(&cx, &fs, ROOT, &format!("file {i}"), FILE).await.ino;
            fs.write(&cx, file, 0, b"small", NOW).await.expect("there is room");
        }
        fs.unmount(&cx).await.expect("it is written");
        let (report, layout, _) = check_pages(&cx, &medium()).await.expect("there is one");
        assert_eq!((report.files, report.found), (FILES, 0), "{:?}", report.problems);
        assert!(report.pages > 64, "{} pages of names", report.pages);
        let counted = Fickle::new(device.clone(), layout.shape.meta_sectors, u32::MAX);
        let report = check(&cx, &Medium::Linear(counted.clone())).await.expect("there is one");
        assert_eq!(report.found, 0);
        let reads: u64 = counted.reads.lock().values().map(|times| u64::from(*times)).sum();
        let others = report.nodes - report.files + report.pages;
        assert!(reads <= report.files + 8 * others, "{reads} reads of {report:?}");
    });
}
