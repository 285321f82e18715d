//! Chains, requests and what outlives a server, in memory of this file's own.

use super::chain::{Chain, Malformed};
use super::config::{DATA_PIECES, DISCARD_BYTES, RANGES, space};
use super::control::is_bell;
use super::inflight::{Region, Track};
use super::request::{Refused, Request};
use super::ring::{Broken, Ring};
use super::{Memory, QUEUES};
use crate::Export;
use crate::noting::Noting;
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_testkit::ram::Ram;
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

const BASE: u64 = 0x10000;
const BYTES: u64 = 0x20000;
const SIZE: u16 = 16;
/// Rings of a queue whose table is at [`BASE`].
const AVAILABLE: u64 = BASE + 0x1000;
const USED: u64 = BASE + 0x2000;
const NEXT: u16 = 1;
const WRITES: u16 = 2;
const INDIRECT: u16 = 4;

fn memory() -> Memory {
    let mapped = GuestMemoryMmap::from_ranges(&[(GuestAddress(BASE), BYTES as usize)]);
    Memory::new(mapped.expect("memory")).expect("a range")
}

fn export() -> Export {
    Export::new("ram", Arc::new(Ram::new(64, SECTOR_BYTES, Ns::ZERO, 1)))
}

fn describe(memory: &Memory, place: u64, at: u64, bytes: u32, flags: u16, next: u16) {
    let descriptor = Descriptor::new(at, bytes, flags, next);
    memory.write_obj(descriptor, GuestAddress(BASE + 16 * place)).expect("a place");
}

fn walk(memory: &Memory, head: u16) -> Result<Chain, Malformed> {
    Chain::walk(memory, GuestAddress(BASE), SIZE, head)
}

#[test]
fn a_chain_has_as_many_pieces_as_guests_are_told_and_no_more() {
    let memory = memory();
    let table = BASE + 0x8000;
    for (pieces, is_one) in [(DATA_PIECES + 2, true), (DATA_PIECES + 100, false)] {
        for i in 0..pieces {
            let flags = if i + 1 == pieces { WRITES } else { NEXT };
            let descriptor = Descriptor::new(BASE + 0x4000, 16, flags, i as u16 + 1);
            let place = GuestAddress(table + 16 * u64::from(i));
            memory.write_obj(descriptor, place).expect("a place");
        }
        describe(&memory, 0, table, 16 * pieces, INDIRECT, 0);
        assert_eq!(walk(&memory, 0).is_ok(), is_one, "{pieces}");
    }
}

#[test]
fn pieces_are_copied_across_their_borders() {
    let memory = memory();
    let (a, b) = (BASE + 0x4000, BASE + 0x5000);
    describe(&memory, 0, a, 3, NEXT, 1);
    describe(&memory, 1, b, 0, NEXT, 2);
    describe(&memory, 2, b, 5, NEXT, 3);
    describe(&memory, 3, a + 100, 2, WRITES | NEXT, 4);
    describe(&memory, 4, b + 100, 4, WRITES, 0);
    memory.write_slice(b"abc", GuestAddress(a)).expect("a place");
    memory.write_slice(b"defgh", GuestAddress(b)).expect("a place");
    let chain = walk(&memory, 0).expect("a chain");
    assert_eq!((chain.readable, chain.writable, chain.is_inside), (8, 6, true));
    let mut some = [0; 5];
    chain.get(&memory, 2, &mut some).expect("it is there");
    assert_eq!(&some, b"cdefg");
    assert!(chain.get(&memory, 4, &mut some).is_err(), "four are left");
    chain.put(&memory, 1, b"xyz").expect("it has room");
    assert!(chain.put(&memory, 4, b"xyz").is_err(), "two are left");
    let mut back = [0; 2];
    memory.read_slice(&mut back, GuestAddress(b + 100)).expect("a place");
    assert_eq!(&back, b"yz");
}

proptest! {
    /// Whatever is in a table, a walk ends, and what it says to be inside can be copied.
    #[test]
    fn any_table_ends(
        places in prop::collection::vec(
            (0..4u64, 0..0x30000u64, prop_oneof![0..0x8000u32, any::<u32>()], 0..8u16, 0..20u16),
            SIZE as usize..=SIZE as usize,
        ),
        head in 0..20u16,
    ) {
        let (memory, export) = (memory(), export());
        for (i, (kind, at, bytes, flags, next)) in places.into_iter().enumerate() {
            let at = match kind {
                0 => u64::MAX - at,
                1 => BASE + at % 0x100 * 16,
                _ => at,
            };
            describe(&memory, i as u64, at, bytes, flags, next);
        }
        if let Ok(chain) = walk(&memory, head) {
            let mut some = vec![0; chain.readable.min(BYTES) as usize];
            let copied = chain.get(&memory, 0, &mut some);
            prop_assert!(copied.is_ok() || !chain.is_inside || chain.readable > BYTES);
            let _ = Request::of(&chain, &memory, &export);
        }
    }
}

#[test]
fn a_request_behind_a_head_of_less_is_none() {
    let (memory, export) = (memory(), export());
    for bytes in [0, 8, 15] {
        describe(&memory, 0, BASE + 0x4000, bytes, NEXT, 1);
        describe(&memory, 1, BASE + 0x5000, 1, WRITES, 0);
        let chain = walk(&memory, 0).expect("a chain");
        assert_eq!(Request::of(&chain, &memory, &export), Err(Refused::Failed), "{bytes}");
    }
}

#[test]
fn the_configuration_is_laid_out_as_guests_read_it() {
    let export = export().with_sectors_of(512);
    let all = space(&export, 0, 60).expect("it is there");
    let word = |at: usize| u32::from_le_bytes(*all[at..].first_chunk().expect("a word"));
    assert_eq!((word(0), word(4)), (64 * 8, 0), "capacity");
    assert_eq!((word(8), word(12)), (0, DATA_PIECES), "size_max, seg_max");
    assert_eq!((word(20), all[24], all[32]), (512, 3, 1), "blk_size, physical, wce");
    assert_eq!(word(34) & 0xffff, QUEUES as u32, "num_queues");
    assert_eq!((word(36), word(40), word(44)), ((DISCARD_BYTES / 512) as u32, RANGES, 1));
    assert_eq!((word(48), word(52), all[56]), (65536, RANGES, 1), "zeros");
    assert_eq!(space(&export, 8, 4).expect("a part"), all[8..12]);
    assert_eq!((space(&export, 250, 6).map(|s| s.len()), space(&export, 250, 7)), (Some(6), None));
    assert_eq!(space(&export, u32::MAX, 2), None);
}

/// The next life of a server, with what the last one has left.
fn again(region: &Region) -> Track {
    let file = region.file.try_clone().expect("a descriptor");
    Region::of(file, 0, region.bytes, 2, SIZE).expect("the same").track(1, SIZE)
}

#[test]
fn what_was_under_way_is_known_to_the_next_server_in_its_order() {
    let region = Region::new(2, SIZE).expect("memory");
    let first = region.track(1, SIZE);
    assert_eq!(first.left(SIZE, 7), Ok(vec![]));
    [5, 3, 9, 0].iter().for_each(|head| first.begin(*head).expect("a place"));
    // One has ended and the guest was told; another one was told of, and then the server died.
    first.ends(3).expect("a place");
    first.ended(3, 8).expect("a place");
    assert_eq!(again(&region).left(SIZE, 8), Ok(vec![5, 9, 0]));
    first.ends(9).expect("a place");
    let second = again(&region);
    assert_eq!(second.left(SIZE, 9), Ok(vec![5, 0]));
    // What it begins comes behind them, where it dies as well.
    second.begin(1).expect("a place");
    assert_eq!(again(&region).left(SIZE, 9), Ok(vec![5, 0, 1]));
    assert!(second.begin(SIZE).is_err(), "no such place");
    assert_eq!(region.track(0, SIZE).left(SIZE, 0), Ok(vec![]), "another queue");
}

/// The server dies between any two words that it writes there. What is known then is a request that
/// was taken, in its order, until the guest was told of its end, and never after that.
#[test]
fn a_server_may_die_between_any_two_words() {
    for dies in 0.. {
        let region = Region::new(2, SIZE).expect("memory");
        let track = region.track(1, SIZE);
        assert_eq!(track.left(SIZE, 0), Ok(vec![]));
        // Places that were used before have their numbers of then.
        for (n, head) in [9, 5, 2].into_iter().enumerate() {
            track.begin(head).expect("a place");
            track.ends(head).expect("a place");
            track.ended(head, n as u16 + 1).expect("a place");
        }
        track.left.set(dies);
        let mut used = 3;
        // What is certainly under way, and what may be.
        let (mut sure, mut maybe) = (Vec::new(), None);
        let mut steps = || {
            for head in [5, 2, 9] {
                maybe = Some(head);
                track.begin(head)?;
                (sure, maybe) = ([&sure[..], &[head]].concat(), None);
            }
            for head in [2, 9, 5] {
                track.ends(head)?;
                // The guest hears of it here, by a word that is not in this memory.
                used += 1;
                sure.retain(|left| *left != head);
                track.ended(head, used)?;
            }
            Ok::<_, Broken>(())
        };
        let lives = steps().is_ok();
        let left = again(&region).left(SIZE, used).expect("it makes sense");
        let with = maybe.map(|head| [&sure[..], &[head]].concat());
        assert!(left == sure || Some(&left) == with.as_ref(), "{dies}: {left:?}, not {sure:?}");
        if lives {
            return;
        }
    }
}

/// A queue in a guest's memory, where these requests have come.
fn ring(memory: &Memory, heads: &[u16]) -> Ring {
    let ring = Ring::new();
    ring.resize(SIZE.into()).expect("a size");
    let [table, available, used] = [BASE, AVAILABLE, USED].map(GuestAddress);
    ring.place(table, available, used).expect("places");
    ring.is_enabled.set(true);
    let kick = memfd_create("kick", MemfdFlags::CLOEXEC).expect("a file");
    *ring.kick.borrow_mut() = Some(Rc::new(File::from(kick)));
    for (at, head) in (AVAILABLE + 4..).step_by(2).zip(heads) {
        describe(memory, u64::from(*head), BASE + 0x4000, 16, WRITES, 0);
        memory.write_obj(*head, GuestAddress(at)).expect("a place");
    }
    memory.write_obj(heads.len() as u16, GuestAddress(AVAILABLE + 2)).expect("a place");
    ring
}

/// The server dies at any word of its notes, while it also writes the guest's queue. The next
/// server does what the guest was not told of, and nothing else.
#[test]
fn the_next_server_does_what_the_guest_was_not_told_of() {
    let heads = [5, 2, 9];
    for dies in 0.. {
        let (memory, region) = (memory(), Region::new(2, SIZE).expect("memory"));
        let ring = ring(&memory, &heads);
        let track = region.track(1, SIZE);
        assert_eq!(track.left(SIZE, 0), Ok(vec![]));
        track.left.set(dies);
        ring.set_track(Some(track));
        let mut taken = Vec::new();
        let mut steps = || {
            assert!(ring.begin(&memory)?);
            for _ in heads {
                taken.push(ring.take(&memory)?.expect("it has come").head);
            }
            heads.iter().try_for_each(|head| ring.end(&memory, *head, 0))
        };
        let lives = steps().is_ok();
        let told: u16 = memory.read_obj(GuestAddress(USED + 2)).expect("a place");
        let left = again(&region).left(SIZE, told).expect("it makes sense");
        // They end in the order in which they came. One more may just be noted as taken.
        let sure = &taken[usize::from(told)..];
        let most = &heads[usize::from(told)..heads.len().min(taken.len() + 1)];
        assert!(left == sure || left == most, "{dies}: {left:?}, not {sure:?}");
        if lives {
            assert_eq!(usize::from(told), heads.len());
            return;
        }
    }
}

/// What a guest is shown of a disk that is served read-only, and what it may ask.
#[test]
fn a_guest_changes_nothing_of_a_disk_that_is_read_only() {
    use virtio_bindings::virtio_blk::{
        VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_WRITE_ZEROES,
    };
    for is_read_only in [true, false] {
        let (memory, export) = (memory(), export().read_only(is_read_only));
        let has = |feature: u32| super::config::features(&export) & 1 << feature != 0;
        assert_eq!(has(VIRTIO_BLK_F_RO), is_read_only);
        assert_eq!(has(VIRTIO_BLK_F_DISCARD), !is_read_only);
        assert_eq!(has(VIRTIO_BLK_F_WRITE_ZEROES), !is_read_only);
        // Head, 4096 bytes that are read, status.
        describe(&memory, 0, BASE + 0x4000, 16, NEXT, 1);
        describe(&memory, 1, BASE + 0x5000, 4096, NEXT, 2);
        describe(&memory, 2, BASE + 0x6000, 1, WRITES, 0);
        memory.write_obj(1u32, GuestAddress(BASE + 0x4000)).expect("a place");
        let chain = walk(&memory, 0).expect("a chain");
        assert_eq!(Request::of(&chain, &memory, &export).is_ok(), !is_read_only, "a write");
    }
}

/// A guest that has no cache has everything durable when it is answered: writes, discards and
/// zeros.
#[test]
fn without_a_cache_everything_is_durable_when_it_is_answered() {
    use flashlane_ftl::block::BlockOp;
    use flashlane_rt::{CostTable, Virtual};
    const RANGE: u64 = BASE + 0x5000;
    for (kind, flags, through) in
        [(1, 0, true), (1, 0, false), (11, 0, true), (11, 0, false), (13, 0, true), (13, 1, true)]
    {
        let disk = Noting::new(64);
        let virt = Virtual::new(1, 1, CostTable::zero());
        let (cx, noting) = (virt.cx(), disk.clone());
        let main = async move {
            let (memory, export) = (memory(), Export::new("noting", noting.clone()));
            let bytes = if kind == 1 { 4096 } else { 16 };
            describe(&memory, 0, BASE + 0x4000, 16, NEXT, 1);
            describe(&memory, 1, RANGE, bytes, NEXT, 2);
            describe(&memory, 2, BASE + 0x6000, 1, WRITES, 0);
            memory.write_obj(kind as u32, GuestAddress(BASE + 0x4000)).expect("a place");
            let words = [8u32, 0, 8, flags].map(u32::to_le_bytes).concat();
            memory.write_slice(&words, GuestAddress(RANGE)).expect("a place");
            let chain = walk(&memory, 0).expect("a chain");
            let request = Request::of(&chain, &memory, &export).expect("it makes sense");
            let buffers = Default::default();
            let done = request.perform(&cx, &chain, &memory, &export, through, &buffers).await;
            assert_eq!(done, Ok(0), "{kind} {flags}");
            let notes = noting.notes();
            let last = notes.last().expect("it has begun something");
            assert_eq!(last.fua || last.op == BlockOp::Flush, through, "{kind} {flags}: {notes:?}");
        };
        virt.run(main).expect("it ends");
    }
}

/// A front end takes its memory away after a request was taken: no byte of it goes to the device.
#[test]
fn nothing_is_written_of_memory_that_was_taken_away() {
    use flashlane_rt::{CostTable, Virtual};
    let disk = Noting::new(64);
    let virt = Virtual::new(1, 1, CostTable::zero());
    let (cx, noting) = (virt.cx(), disk.clone());
    let main = async move {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory"));
        file.set_len(BYTES).expect("memory");
        let place = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
        let map = MmapRegion::from_file(place, BYTES as usize).expect("memory");
        let part = GuestRegionMmap::new(map, GuestAddress(BASE)).expect("an address");
        let mapped = GuestMemoryMmap::from_regions(vec![part]).expect("memory");
        let memory = Memory::new(mapped).expect("a range");
        let export = Export::new("noting", noting.clone());
        describe(&memory, 0, BASE + 0x4000, 16, NEXT, 1);
        describe(&memory, 1, BASE + 0x5000, 4096, NEXT, 2);
        describe(&memory, 2, BASE + 0x6000, 1, WRITES, 0);
        memory.write_obj(1u32, GuestAddress(BASE + 0x4000)).expect("a place");
        let chain = walk(&memory, 0).expect("a chain");
        let request = Request::of(&chain, &memory, &export).expect("it makes sense");
        assert!(!memory.is_lost());
        file.set_len(0).expect("it is cut");
        let buffers = Default::default();
        let done = request.perform(&cx, &chain, &memory, &export, false, &buffers).await;
        assert_eq!((done, noting.notes()), (Err(Refused::Failed), vec![]));
        assert!(memory.is_lost());
        assert!(walk(&memory, 0).is_err(), "zeros are no chain");
        assert!(super::ring::Ring::new().begin(&memory).is_ok(), "nothing is placed there yet");
    };
    virt.run(main).expect("it ends");
}

#[test]
fn a_bell_is_no_file_that_has_others_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let on_disk = File::create(folder.path().join("file")).expect("a file");
    let device = File::open("/dev/null").expect("it is there");
    let place = File::open(folder.path()).expect("it is there");
    for file in [on_disk, device, place] {
        assert!(!is_bell(&file), "{file:?}");
    }
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let (_reads, writes) = std::io::pipe().expect("a pipe");
    let (socket, _other) = UnixStream::pair().expect("a pair of sockets");
    for bell in [event, OwnedFd::from(writes), OwnedFd::from(socket)].map(File::from) {
        assert!(is_bell(&bell), "{bell:?}");
    }
}

#[test]
fn what_outlives_the_server_is_not_cut_off_under_it() {
    let region = Region::new(2, SIZE).expect("memory");
    assert!(region.file.set_len(0).is_err(), "a front end has it, too");
    assert_eq!(region.track(1, SIZE).left(SIZE, 7), Ok(vec![]));
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let region = Region::new(2, SIZE).expect("memory");
    let of = |offset, bytes, queues, size| {
        Region::of(region.file.try_clone().expect("a descriptor"), offset, bytes, queues, size)
    };
    assert!(of(0, region.bytes, 2, SIZE).is_ok());
    assert!(of(0, region.bytes, 3, SIZE).is_err());
    assert!(of(0, region.bytes + 4096, 2, SIZE).is_err(), "the file is shorter");
    assert!(of(u64::MAX, region.bytes, 2, SIZE).is_err());
    assert!(of(0, 1 << 40, 2, SIZE).is_err());
    assert!(Region::new(QUEUES as u16 + 1, SIZE).is_err());
    assert!(Region::new(1, 0).is_err());
    assert!(Region::new(1, u16::MAX).is_err());
}
