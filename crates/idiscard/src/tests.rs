//! The layer under hosts that do several things at once, on a device whose requests overlap.

use crate::state::{State, Task};
use crate::{Ghosts, IDISCARD, Idiscard, Wanted};
use flashlane_base::{Lba, Ns, Rng};
use flashlane_ext4::Content;
use flashlane_ftl::block::{BlockDev, BlockError, BlockInfo, BlockOp, Extent, Io, Started};
use flashlane_ftl::layer::{Kind, Layer, Seam, Stop};
use flashlane_rt::{CostTable, Cx, Join, Virtual};
use flashlane_testkit::ext4::{self as made, IN_BLOCK, Inode, PER_GROUP, TABLE_BLOCKS};
use flashlane_testkit::ram::Ram;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

const INODES: Ghosts = Ghosts { wanted: Wanted::INODES, watch: false };
const ZEROS: Ghosts = Ghosts { wanted: Wanted { zeros: true, ..Wanted::INODES }, watch: false };

/// Sectors of the drive: a file system, and room behind it.
const DRIVE: u64 = 2 * made::BLOCKS;

/// Runs `main` on a layer on a drive of which these sectors were written before.
fn on_layer<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    ghosts: Ghosts,
    held: Vec<(u64, Vec<u8>)>,
    main: impl FnOnce(Arc<Idiscard>, Arc<Ram>, Cx) -> F + 'static,
) -> T {
    let ram = Arc::new(Ram::new(DRIVE, 4096, Ns::from_us(100), seed));
    let run = Virtual::new(1, seed, CostTable::zero());
    let (cx, below) = (run.cx(), ram.clone());
    let ended = run.run(async move {
        for (sector, bytes) in &held {
            write(&*below, &cx, *sector, bytes).await;
        }
        let layer = Idiscard::start_on(&cx, below.clone(), ghosts).await;
        let value = main(layer.clone(), below, cx.clone()).await;
        layer.stop(&cx, Stop::Clean).await.expect("it ends");
        value
    });
    ended.expect("nobody waits for ever")
}

async fn write(device: &dyn BlockDev, cx: &Cx, sector: u64, bytes: &[u8]) {
    let io = Io::write(Lba::new(sector), (bytes.len() / 4096) as u32, false, bytes);
    device.start(cx, io).await.expect("a write");
}

async fn read(device: &dyn BlockDev, cx: &Cx, sector: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    device.start(cx, Io::read(Lba::new(sector), 1, &mut bytes)).await.expect("a read");
    bytes
}

/// A fresh file system, unmounted.
fn fresh() -> Vec<(u64, Vec<u8>)> {
    let bitmap = |group| (made::bitmap_at(group), made::bitmap(|_| false));
    vec![
        (0, made::superblock(true, made::GROUPS)),
        (made::DESCRIPTORS, made::descriptors()),
        bitmap(0),
        bitmap(1),
    ]
}

fn counted(layer: &Idiscard, name: &str) -> u64 {
    let all = layer.counted();
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}")).value
}

/// What a kernel has in memory; one write of a block at a time is under way, as its buffers are locked.
struct Kernel {
    layer: Arc<Idiscard>,
    inodes: RefCell<Vec<Inode>>,
    /// What was written last of each block of a table.
    written: RefCell<Vec<Vec<u8>>>,
}

impl Kernel {
    fn new(layer: Arc<Idiscard>) -> Rc<Kernel> {
        Rc::new(Kernel {
            layer,
            inodes: RefCell::new(vec![Inode::Never; 2 * PER_GROUP]),
            written: RefCell::new(vec![vec![0; 4096]; TABLE_BLOCKS]),
        })
    }

    fn set(&self, inode: usize, to: Inode) {
        self.inodes.borrow_mut()[inode] = to;
    }

    async fn write_table(&self, cx: &Cx, block: usize) {
        let bytes = made::table(block, &self.inodes.borrow());
        self.written.borrow_mut()[block].clone_from(&bytes);
        write(&*self.layer, cx, made::table_at(block), &bytes).await;
    }

    async fn write_bits(&self, cx: &Cx, group: usize) {
        let bytes = made::bitmap(|i| self.inodes.borrow()[group * PER_GROUP + i].is_used());
        write(&*self.layer, cx, made::bitmap_at(group), &bytes).await;
    }

    /// A block that nobody writes now is as it was written last, or it was dead and is zeros.
    async fn check(&self, cx: &Cx, block: usize) {
        let held = read(&*self.layer, cx, made::table_at(block)).await;
        let inodes = &self.inodes.borrow()[block * IN_BLOCK..(block + 1) * IN_BLOCK];
        let dead = inodes.iter().all(|inode| !inode.is_used());
        let same = held == self.written.borrow()[block];
        let gone = dead && held.iter().all(|byte| *byte == 0);
        assert!(same || gone, "block {block} is lost: {inodes:?}");
    }

    async fn sync(&self, cx: &Cx) {
        for block in 0..TABLE_BLOCKS {
            self.write_table(cx, block).await;
        }
        for group in 0..made::GROUPS {
            self.write_bits(cx, group).await;
        }
        cx.sleep(Ns::from_ms(10)).await;
    }

    /// A task for each block: it makes and removes inodes and writes its block, while others do.
    fn work(self: &Rc<Kernel>, cx: &Cx, block: usize, seed: u64) -> Join<()> {
        let (me, theirs) = (self.clone(), cx.clone());
        cx.spawn_join(async move {
            let mut rng = Rng::stream(seed, "block", block as u64);
            for _ in 0..30 {
                let inode = block * IN_BLOCK + rng.below(2) as usize;
                let now = me.inodes.borrow()[inode];
                let to = match (now, rng.below(2)) {
                    (Inode::Never | Inode::Freed, 0) => Inode::Linked,
                    (Inode::Never | Inode::Freed, _) => Inode::Nameless,
                    _ => Inode::Freed,
                };
                me.set(inode, to);
                me.write_table(&theirs, block).await;
                if rng.below(3) == 0 {
                    me.write_bits(&theirs, block * IN_BLOCK / PER_GROUP).await;
                }
                if rng.below(2) == 0 {
                    theirs.sleep(Ns::from_ns(rng.below(300_000))).await;
                    me.check(&theirs, block).await;
                }
            }
        })
    }
}

/// Whatever overlaps: each block of a table is as it was written last, or it was dead and is zeros.
#[test]
fn writes_and_discards_of_a_block_are_in_order() {
    let mut discarded = 0;
    for seed in 0..60 {
        discarded += on_layer(seed, INODES, fresh(), move |layer, ram, cx| async move {
            let kernel = Kernel::new(layer.clone());
            // The first two of the block 0 stand for reserved ones.
            let tasks: Vec<Join<()>> =
                (1..TABLE_BLOCKS).map(|block| kernel.work(&cx, block, seed)).collect();
            for task in tasks {
                task.await;
            }
            cx.sleep(Ns::from_ms(10)).await;
            for block in 0..TABLE_BLOCKS {
                kernel.check(&cx, block).await;
            }
            kernel.sync(&cx).await;
            for block in 0..TABLE_BLOCKS {
                let held = read(&*ram, &cx, made::table_at(block)).await;
                let inodes = &kernel.inodes.borrow()[block * IN_BLOCK..(block + 1) * IN_BLOCK];
                let dead = inodes.iter().all(|inode| !inode.is_used());
                let ghost = dead && held.iter().any(|byte| *byte != 0);
                assert!(!ghost, "seed {seed}: block {block} is dead, and holds inodes");
            }
            counted(&layer, "discarded_sectors")
        });
    }
    assert!(discarded > 300, "{discarded}");
}

/// A host that writes a block twice at once does not know what it holds, and neither do we.
#[test]
fn of_two_writes_at_once_nothing_is_known() {
    let mut stayed = 0;
    for seed in 0..40 {
        stayed += on_layer(seed, INODES, fresh(), |layer, ram, cx| async move {
            let block = made::table_at(1);
            let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
            inodes[IN_BLOCK] = Inode::Freed;
            let freed = made::table(1, &inodes);
            inodes[IN_BLOCK] = Inode::Nameless;
            let used = made::table(1, &inodes);
            let tasks: Vec<Join<()>> = [freed, used.clone()]
                .into_iter()
                .map(|bytes| {
                    let (layer, theirs) = (layer.clone(), cx.clone());
                    cx.spawn_join(async move { write(&*layer, &theirs, block, &bytes).await })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            let before = read(&*ram, &cx, block).await;
            cx.sleep(Ns::from_ms(10)).await;
            assert_eq!(read(&*ram, &cx, block).await, before, "it was discarded");
            u32::from(before == used)
        });
    }
    assert!((5..35).contains(&stayed), "{stayed}: either may be there");
}

/// At the start everything is read, and what is dead goes; of a file system that was not unmounted only
/// what is written later.
#[test]
fn what_was_dead_before_goes_at_the_start() {
    for is_clean in [true, false] {
        let mut held = fresh();
        held[0].1 = made::superblock(is_clean, made::GROUPS);
        let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
        inodes[IN_BLOCK] = Inode::Freed;
        held.push((made::table_at(1), made::table(1, &inodes)));
        let gone = on_layer(1, INODES, held, |layer, ram, cx| async move {
            cx.sleep(Ns::from_ms(10)).await;
            let first = read(&*ram, &cx, made::table_at(1)).await;
            // It is unmounted now.
            write(&*layer, &cx, 0, &made::superblock(true, made::GROUPS)).await;
            cx.sleep(Ns::from_ms(10)).await;
            [first, read(&*ram, &cx, made::table_at(1)).await].map(|b| b.iter().all(|b| *b == 0))
        });
        assert_eq!(gone, [is_clean, true]);
    }
}

/// `mkfs` on a drive in use, then another file system, then one in a partition.
#[test]
fn what_begins_later_is_followed_and_what_ends_is_not() {
    on_layer(3, ZEROS, Vec::new(), |layer, ram, cx| async move {
        assert_eq!(counted(&layer, "file_systems"), 0);
        // Blocks of zeros, and blocks of removed inodes, count for a file system only.
        let dies = |at: u64| {
            let (layer, ram, cx) = (layer.clone(), ram.clone(), cx.clone());
            async move {
                let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
                inodes[IN_BLOCK] = Inode::Freed;
                write(&*layer, &cx, at + made::table_at(1), &made::table(1, &inodes)).await;
                write(&*layer, &cx, at + made::bitmap_at(0), &made::bitmap(|_| false)).await;
                cx.sleep(Ns::from_ms(10)).await;
                read(&*ram, &cx, at + made::table_at(1)).await.iter().all(|b| *b == 0)
            }
        };
        assert!(!dies(0).await, "there is no file system");
        write(&*layer, &cx, 0, &made::superblock(true, made::GROUPS)).await;
        cx.sleep(Ns::from_ms(10)).await;
        assert!(!dies(0).await, "its descriptors were not seen");
        write(&*layer, &cx, made::DESCRIPTORS, &made::descriptors()).await;
        assert!(dies(0).await);
        // XFS begins with its name, and has nothing of ext4's.
        let mut xfs = vec![0; 4096];
        xfs[..4].copy_from_slice(b"XFSB");
        write(&*layer, &cx, 0, &xfs).await;
        cx.sleep(Ns::from_ms(10)).await;
        assert!(!dies(0).await, "it is XFS");
        assert_eq!(counted(&layer, "file_systems"), 0);
        let mut mbr = vec![0; 4096];
        mbr[446 + 4] = 0x83;
        mbr[446 + 8..446 + 12].copy_from_slice(&(256u32 * 8).to_le_bytes());
        mbr[446 + 12..446 + 16].copy_from_slice(&(made::BLOCKS as u32 * 8).to_le_bytes());
        mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
        write(&*layer, &cx, 0, &mbr).await;
        cx.sleep(Ns::from_ms(10)).await;
        write(&*layer, &cx, 256, &made::superblock(true, made::GROUPS)).await;
        write(&*layer, &cx, 256 + made::DESCRIPTORS, &made::descriptors()).await;
        assert!(dies(256).await);
        let said = layer.said().join("\n");
        for what in ["is followed", "nothing is discarded any more", "partition at byte 1048576"] {
            assert!(said.contains(what), "{what}: {said}");
        }
        // The table goes, and with it the partition.
        write(&*layer, &cx, 0, &xfs).await;
        cx.sleep(Ns::from_ms(10)).await;
        assert!(!dies(256).await);
    });
}

/// What was written before a file system was followed is read when it is unmounted.
#[test]
fn what_was_written_before_is_found_behind_an_unmount() {
    on_layer(4, ZEROS, Vec::new(), |layer, ram, cx| async move {
        // As `mkfs` does: the superblock comes last.
        let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
        inodes[IN_BLOCK] = Inode::Freed;
        inodes[2 * IN_BLOCK] = Inode::Linked;
        for block in 1..3 {
            write(&*layer, &cx, made::table_at(block), &made::table(block, &inodes)).await;
        }
        let bits = made::bitmap(|i| inodes[i].is_used());
        write(&*layer, &cx, made::bitmap_at(0), &bits).await;
        write(&*layer, &cx, made::DESCRIPTORS, &made::descriptors()).await;
        for is_clean in [true, false, true] {
            let held = read(&*ram, &cx, made::table_at(1)).await;
            assert!(held.iter().any(|byte| *byte != 0), "nobody has unmounted it");
            write(&*layer, &cx, 0, &made::superblock(is_clean, made::GROUPS)).await;
            cx.sleep(Ns::from_ms(10)).await;
        }
        let [dead, used] = [1, 2].map(made::table_at);
        assert!(read(&*ram, &cx, dead).await.iter().all(|byte| *byte == 0));
        assert!(read(&*ram, &cx, used).await.iter().any(|byte| *byte != 0));
    });
}

fn begin(state: &mut State, sector: u64) {
    let watched = state.watched(&(sector..sector + 1));
    state.begin(BlockOp::Write, &(sector..sector + 1), &watched);
}

fn end(state: &mut State, sector: u64, bytes: &[u8]) -> bool {
    let watched = state.watched(&(sector..sector + 1));
    state.end(BlockOp::Write, &(sector..sector + 1), &watched, |_| Content::Written(bytes))
}

/// What was written while descriptors were read is what counts.
#[test]
fn a_reading_does_not_go_over_a_write() {
    let mut state = State::new(DRIVE, INODES);
    state.divide(None);
    state.follow(0, superblock(), false);
    state.begin_reading();
    begin(&mut state, made::DESCRIPTORS);
    let new = made::descriptors();
    assert!(end(&mut state, made::DESCRIPTORS, &new));
    let at = made::DESCRIPTORS..made::DESCRIPTORS + 1;
    let mut old = made::descriptors();
    old[8] = 40;
    assert!(!state.was_read(&(0..DRIVE), at, Some(&old)), "it is older");
    assert_eq!(state.watched(&(0..100)).len(), 2 + 2 * 2 + TABLE_BLOCKS);
    assert_eq!(state.next(9), None::<Task>);
}

/// Who mounts it writes its superblock first. What was read then may be older than what follows.
#[test]
fn a_file_system_that_is_mounted_is_read_no_further() {
    on_layer(5, INODES, Vec::new(), |layer, ram, cx| async move {
        let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
        inodes[IN_BLOCK] = Inode::Freed;
        let dead = made::table_at(1);
        write(&*layer, &cx, dead, &made::table(1, &inodes)).await;
        write(&*layer, &cx, made::DESCRIPTORS, &made::descriptors()).await;
        write(&*layer, &cx, 0, &made::superblock(false, made::GROUPS)).await;
        cx.sleep(Ns::from_ms(10)).await;
        for is_clean in [true, false] {
            write(&*layer, &cx, 0, &made::superblock(is_clean, made::GROUPS)).await;
        }
        cx.sleep(Ns::from_ms(10)).await;
        write(&*layer, &cx, made::DESCRIPTORS, &made::descriptors()).await;
        write(&*layer, &cx, made::bitmap_at(0), &made::bitmap(|_| false)).await;
        cx.sleep(Ns::from_ms(10)).await;
        assert!(read(&*ram, &cx, dead).await.iter().any(|byte| *byte != 0), "it was read");
        write(&*layer, &cx, 0, &made::superblock(true, made::GROUPS)).await;
        cx.sleep(Ns::from_ms(10)).await;
        assert!(read(&*ram, &cx, dead).await.iter().all(|byte| *byte == 0));
    });
}

fn superblock() -> flashlane_ext4::Superblock {
    let block = made::superblock(true, made::GROUPS);
    let sb = block[1024..2048].try_into().expect("its bytes");
    flashlane_ext4::Superblock::parse(sb, DRIVE * 4096).expect("one")
}

/// A file system ends while a discard in it is under way: who writes there next waits.
#[test]
fn a_discard_is_waited_for_when_its_file_system_has_ended() {
    let mut state = State::new(DRIVE, INODES);
    state.divide(None);
    state.follow(0, superblock(), false);
    let mut inodes = vec![Inode::Never; 2 * PER_GROUP];
    inodes[IN_BLOCK] = Inode::Freed;
    let dead = made::table_at(1);
    for (sector, bytes) in [
        (made::DESCRIPTORS, made::descriptors()),
        (made::bitmap_at(0), made::bitmap(|_| false)),
        (dead, made::table(1, &inodes)),
    ] {
        begin(&mut state, sector);
        end(&mut state, sector, &bytes);
    }
    assert_eq!(state.next(9), Some(Task::Discard(dead..dead + 1)));
    begin(&mut state, 0);
    assert!(end(&mut state, 0, &[0; 4096]));
    let watched = state.watched(&(dead..dead + 9));
    assert!(state.is_discarding(&watched));
    assert!(state.watched_runs().contains(&(dead..dead + 1)));
    state.discarded(dead..dead + 1, true);
    state.end_discard();
    assert!(!state.is_discarding(&watched));
}

/// Of an MBR's entries two may begin at the same byte, with blocks of different sizes.
#[test]
fn of_two_partitions_with_one_start_the_one_that_fits_is_followed() {
    let mut state = State::new(DRIVE, INODES);
    let bytes = |from: u64, sectors: u64| (from * 4096..(from + sectors) * 4096, 512);
    let parts = vec![bytes(256, 125), bytes(256, made::BLOCKS)];
    let tables = crate::partitions::Tables { parts, any: true, ..Default::default() };
    state.divide(Some((tables, [0].into())));
    let block = made::superblock(true, made::GROUPS);
    begin(&mut state, 256);
    assert!(end(&mut state, 256, &block));
    let followed: Vec<bool> = state.volumes.iter().map(|v| v.shadow.is_some()).collect();
    assert_eq!(followed, [false, true]);
    assert!(state.shadow(&(256..256 + made::BLOCKS)).is_some());
}

#[test]
fn a_store_without_content_is_refused() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    let refused = run.run(async move {
        let below = Seam::Block(Arc::new(Ram::new(64, 8, Ns::ZERO, 1)));
        let settings = INODES.to_settings();
        IDISCARD.create(&cx, below, &settings).await.err().expect("it is refused").to_string()
    });
    assert!(refused.expect("it ends").contains("device.store"));
}

const ALL: Ghosts = Ghosts { wanted: Wanted::ALL, watch: false };

/// A block of a file, behind all metadata.
const DATA: u64 = 200;

/// A kernel that has everything in memory, and writes what it is told to.
struct Small {
    layer: Arc<Idiscard>,
    ram: Arc<Ram>,
    cx: Cx,
}

impl Small {
    async fn new(layer: Arc<Idiscard>, ram: Arc<Ram>, cx: Cx, has_journal: bool) -> Small {
        let small = Small { layer, ram, cx };
        let sb = match has_journal {
            true => made::superblock_with_journal(false),
            false => made::superblock(false, made::GROUPS),
        };
        small.write(0, &sb).await;
        // It looks for it.
        small.cx.sleep(Ns::from_ms(10)).await;
        small.write(made::DESCRIPTORS, &made::descriptors()).await;
        if has_journal {
            let mut table = made::table(0, &[Inode::Linked; PER_GROUP]);
            made::put_journal_inode(&mut table);
            small.write(made::table_at(0), &table).await;
        }
        small.bits(true).await;
        small.data(7).await;
        small
    }

    async fn write(&self, sector: u64, bytes: &[u8]) {
        write(&*self.layer, &self.cx, sector, bytes).await;
    }

    /// The bitmap, where the file has its block or not.
    async fn bits(&self, has: bool) {
        let log = made::JOURNAL..made::JOURNAL + u64::from(made::JOURNAL_BLOCKS);
        let used = |block: u64| block < 150 || block == DATA && has || log.contains(&block);
        let bytes = made::blocks(0, used);
        self.write(made::blocks_at(0), &bytes).await;
    }

    async fn data(&self, byte: u8) {
        self.write(DATA, &[byte; 4096]).await;
    }

    async fn journal(&self, start: u32) {
        self.write(made::JOURNAL, &made::journal(start)).await;
    }

    async fn flush(&self) {
        self.layer.start(&self.cx, Io::flush()).await.expect("a flush");
        self.cx.sleep(Ns::from_ms(10)).await;
    }

    /// The drive holds something there.
    async fn holds(&self, sector: u64) -> bool {
        read(&*self.ram, &self.cx, sector).await.iter().any(|byte| *byte != 0)
    }
}

fn on_small<F: Future<Output = ()> + 'static>(
    has_journal: bool,
    main: impl Fn(Rc<Small>) -> F + 'static + Copy,
) {
    for seed in 0..20 {
        on_layer(seed, ALL, Vec::new(), move |layer, ram, cx| async move {
            main(Rc::new(Small::new(layer, ram, cx, has_journal).await)).await;
        });
    }
}

#[test]
fn a_block_that_is_free_goes_behind_a_flush() {
    on_small(false, |s| async move {
        s.flush().await;
        assert!(s.holds(DATA).await, "it is used");
        s.bits(false).await;
        s.cx.sleep(Ns::from_ms(10)).await;
        assert!(s.holds(DATA).await, "its bitmap may get lost");
        s.flush().await;
        assert!(!s.holds(DATA).await);
        let freed = counted(&s.layer, "discarded_freed_sectors");
        assert!(freed > 0 && counted(&s.layer, "discarded_sectors") == 0);
    });
}

/// Whoever takes it again writes it, before the bitmap or behind it.
#[test]
fn a_block_that_somebody_has_written_since_stays() {
    on_small(false, |s| async move {
        s.bits(false).await;
        s.data(9).await;
        s.flush().await;
        assert!(s.holds(DATA).await, "it was written behind the bitmap");
        s.bits(true).await;
        let (beside, cx) = (s.clone(), s.cx.clone());
        let joined = s.cx.spawn_join(async move {
            cx.sleep(Ns::from_us(10)).await;
            beside.data(10).await;
        });
        s.bits(false).await;
        joined.await;
        s.flush().await;
        assert!(s.holds(DATA).await, "it was written beside the bitmap");
        s.bits(true).await;
        s.bits(false).await;
        s.flush().await;
        assert!(!s.holds(DATA).await);
    });
}

/// A replay writes what a bitmap was once. The block was freed and given away again before the crash.
#[test]
fn a_replay_frees_nothing() {
    on_small(true, |s| async move {
        s.journal(5).await;
        s.data(9).await;
        s.flush().await;
        s.bits(false).await;
        s.flush().await;
        s.bits(true).await;
        s.journal(9).await;
        s.flush().await;
        assert!(s.holds(DATA).await, "the newest bitmap has it");
        s.bits(false).await;
        s.flush().await;
        assert!(s.holds(DATA).await, "a newer bitmap may follow");
        s.journal(12).await;
        s.cx.sleep(Ns::from_ms(10)).await;
        assert!(s.holds(DATA).await, "what was written may get lost");
        s.flush().await;
        assert!(!s.holds(DATA).await);
    });
}

#[test]
fn what_recovery_does_not_read_goes_behind_a_flush() {
    on_small(true, |s| async move {
        let log = [10, 30].map(|block| made::JOURNAL + block);
        for block in log {
            s.write(block, &[1; 4096]).await;
        }
        s.journal(5).await;
        s.flush().await;
        s.journal(20).await;
        s.cx.sleep(Ns::from_ms(10)).await;
        assert!(s.holds(log[0]).await, "that recovery begins behind it may get lost");
        s.flush().await;
        assert!(!s.holds(log[0]).await && s.holds(log[1]).await);
        s.journal(5).await;
        s.write(log[0], &[2; 4096]).await;
        s.flush().await;
        assert!(s.holds(log[0]).await && !s.holds(log[1]).await, "the log went round");
        assert!(s.holds(made::JOURNAL).await, "the superblock is none of the log");
        // Unmounted.
        s.journal(0).await;
        s.flush().await;
        assert!(!s.holds(log[0]).await && s.holds(made::JOURNAL).await);
    });
}

/// A bitmap of zeros takes a page, and reads the same without it; it is not taken for lost then.
#[test]
fn bitmaps_of_zeros_go() {
    on_small(false, |s| async move {
        let at = made::blocks_at(1);
        let mut block = [0; 4096];
        s.write(at, &block).await;
        s.cx.sleep(Ns::from_ms(10)).await;
        assert_eq!(counted(&s.layer, "discarded_bitmap_sectors"), 1);
        block[0] = 1;
        s.write(at, &block).await;
        s.cx.sleep(Ns::from_ms(10)).await;
        assert!(s.holds(at).await);
        assert_eq!(counted(&s.layer, "discarded_bitmap_sectors"), 1);
    });
}

/// With `watch` nothing is discarded.
#[test]
fn who_watches_discards_nothing() {
    let watch = Ghosts { watch: true, ..ALL };
    on_layer(1, watch, fresh(), |layer, ram, cx| async move {
        let kernel = Kernel::new(layer.clone());
        kernel.set(IN_BLOCK, Inode::Freed);
        kernel.sync(&cx).await;
        layer.start(&cx, Io::flush()).await.expect("a flush");
        cx.sleep(Ns::from_ms(10)).await;
        assert!(read(&*ram, &cx, made::table_at(1)).await.iter().any(|byte| *byte != 0));
        assert_eq!((counted(&layer, "discards"), counted(&layer, "file_systems")), (0, 1));
        assert!(!layer.discards());
    });
}

/// The kernel writes what is left behind the superblock that says that it was unmounted.
#[test]
fn a_bitmap_that_comes_behind_the_unmount_frees() {
    on_small(true, |s| async move {
        s.journal(5).await;
        s.write(0, &made::superblock_with_journal(true)).await;
        s.bits(false).await;
        s.flush().await;
        assert!(!s.holds(DATA).await);
    });
}

/// Who has an empty log may have failed to replay it.
#[test]
fn an_empty_log_settles_nothing() {
    on_small(true, |s| async move {
        s.journal(5).await;
        s.bits(false).await;
        s.journal(0).await;
        s.flush().await;
        assert!(s.holds(DATA).await);
        s.write(0, &made::superblock_with_journal(true)).await;
        s.flush().await;
        assert!(!s.holds(DATA).await);
    });
}

/// A drive that takes writes, and makes nothing durable.
struct Unflushed(Arc<Ram>);

impl BlockDev for Unflushed {
    fn info(&self) -> &BlockInfo {
        self.0.info()
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        match io.op {
            BlockOp::Flush => Started::Done(Err(BlockError::ReadOnly("the test says so"))),
            _ => self.0.start(cx, io),
        }
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.0.extent(lba, most)
    }
}

/// What waits for a flush is given up when the drive ends and can't flush.
#[test]
fn a_stop_ends_where_nothing_can_be_flushed() {
    let ram = Arc::new(Ram::new(DRIVE, 4096, Ns::from_us(100), 1));
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    let ended = run.run(async move {
        let below = Arc::new(Unflushed(ram.clone()));
        let layer = Idiscard::start_on(&cx, below, ALL).await;
        let small = Small::new(layer.clone(), ram, cx.clone(), false).await;
        small.bits(false).await;
        small.write(0, &made::superblock(true, made::GROUPS)).await;
        cx.sleep(Ns::from_ms(10)).await;
        layer.stop(&cx, Stop::Clean).await.expect("it ends");
        small.holds(DATA).await
    });
    assert!(ended.expect("nobody waits for ever"), "nothing was durable");
}
