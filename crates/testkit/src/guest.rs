//! A virtual machine's side of a vhost-user disk, without the machine.
//!
//! Owns: memory, queues written by hand (virtio 1.2, section 2.7), the talk with the server by the crate `vhost`.
//! Promises: a queue is exactly what its caller says, also where that is nonsense; what the device has written is seen
//! as it lies in memory. Never: knows what a server should do.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Error as Talk, Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{Error, VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::bindings::virtio_ring::{
    VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
pub use virtio_bindings::virtio_blk as blk;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const NEXT: u16 = VRING_DESC_F_NEXT as u16;
pub const WRITES: u16 = VRING_DESC_F_WRITE as u16;
pub const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;

/// Where the guest's memory begins: not at zero, so that a forgotten base is noticed.
pub const BASE: u64 = 0x1_0000_0000;
/// For each queue: its rings, and the heads and statuses of its requests.
const RINGS: u64 = 256 << 10;
const REQUESTS: u64 = 128 << 10;
/// Of a request: head, status, ranges, a table of its own.
const REQUEST_BYTES: u64 = 256;
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 32;
/// Descriptors of a request.
const EACH: u16 = 3;
/// What a status is before there is one.
pub const NO_STATUS: u8 = 0xff;

/// Features and queues of a guest.
#[derive(Clone, Copy)]
pub struct Shape {
    pub queues: usize,
    pub size: u16,
    /// Bytes of data that each request may have.
    pub data: u64,
    /// Features that are offered, and not taken.
    pub without: u64,
    /// What is under way outlives the server.
    pub tracked: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { queues: 1, size: 128, data: 64 << 10, without: 0, tracked: false }
    }
}

struct Ring {
    kick: EventFd,
    call: EventFd,
    /// Requests made available, and ends seen.
    offered: u16,
    seen: u16,
    /// Requests that nobody uses.
    free: Vec<u16>,
}

pub struct Guest {
    front: Option<Frontend>,
    pub memory: GuestMemoryMmap<()>,
    file: File,
    shape: Shape,
    rings: Vec<Ring>,
    event_idx: bool,
    pub features: u64,
    inflight: Option<(VhostUserInflight, File)>,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub request: u16,
    pub status: u8,
    /// Bytes that the device says it has written.
    pub bytes: u32,
}

impl Guest {
    /// A guest with memory and nobody to talk to.
    ///
    /// # Panics
    /// The kernel gives no memory.
    pub fn new(shape: Shape) -> Guest {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory"));
        let requests = u64::from(shape.size) / u64::from(EACH);
        let data = shape.queues as u64 * requests * shape.data;
        let bytes = data + shape.queues as u64 * RINGS;
        let bytes = bytes.next_multiple_of(4096);
        ftruncate(&file, bytes).expect("memory");
        let ranges = [(GuestAddress(BASE), bytes as usize, Some(FileOffset::new(own(&file), 0)))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).expect("memory");
        let ring = |_| Ring {
            kick: EventFd::new(EFD_NONBLOCK).expect("an event"),
            call: EventFd::new(EFD_NONBLOCK).expect("an event"),
            offered: 0,
            seen: 0,
            free: (0..requests as u16).rev().collect(),
        };
        let rings = (0..shape.queues).map(ring).collect();
        let (front, inflight) = (None, None);
        Guest { front, memory, file, shape, rings, event_idx: false, features: 0, inflight }
    }

    /// # Errors
    /// The server refuses it.
    pub fn connected(path: &Path, shape: Shape) -> Result<Guest, Error> {
        let mut guest = Guest::new(shape);
        guest.connect(path)?;
        Ok(guest)
    }

    /// Connects, or does so again: queues go on where they stood.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn connect(&mut self, path: &Path) -> Result<(), Error> {
        let socket = UnixStream::connect(path).map_err(Talk::SocketConnect);
        let socket = socket.map_err(Error::VhostUserProtocol)?;
        let mut front = Frontend::from_stream(socket, 64);
        front.set_owner()?;
        let offered = front.get_features()?;
        self.features = offered & !self.shape.without;
        self.event_idx = self.features & 1 << 29 != 0;
        let knows = front.get_protocol_features()?;
        let mut takes = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK;
        if self.shape.tracked {
            takes |= VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        }
        front.set_protocol_features(takes & knows)?;
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        if self.shape.tracked {
            if self.inflight.is_none() {
                let wish = VhostUserInflight::new(0, 0, self.shape.queues as u16, self.shape.size);
                self.inflight = Some(front.get_inflight_fd(&wish)?);
            }
            let (inflight, file) = self.inflight.as_ref().expect("it was asked for");
            front.set_inflight_fd(inflight, file.as_raw_fd())?;
        }
        front.set_features(self.features)?;
        let region = self.memory.as_shared();
        front.set_mem_table(&[region])?;
        for queue in 0..self.shape.queues {
            self.set_up(&mut front, queue)?;
        }
        self.front = Some(front);
        Ok(())
    }

    fn set_up(&self, front: &mut Frontend, queue: usize) -> Result<(), Error> {
        let (table, available, used) = self.places(queue);
        let theirs = |at: u64| self.memory.theirs(at);
        front.set_vring_num(queue, self.shape.size)?;
        let places = VringConfigData {
            queue_max_size: self.shape.size,
            queue_size: self.shape.size,
            flags: 0,
            desc_table_addr: theirs(table),
            used_ring_addr: theirs(used),
            avail_ring_addr: theirs(available),
            log_addr: None,
        };
        front.set_vring_addr(queue, &places)?;
        // As QEMU does: behind what was used. What is under way is known elsewhere.
        let base: u16 = self.memory.load(GuestAddress(used + 2), Ordering::Acquire).expect("mine");
        front.set_vring_base(queue, base)?;
        front.set_vring_call(queue, &self.rings[queue].call)?;
        front.set_vring_kick(queue, &self.rings[queue].kick)?;
        front.set_vring_enable(queue, true)
    }

    /// The connection ends, as when its process is killed.
    pub fn leave(&mut self) {
        self.front = None;
    }

    /// The server's end of the conversation.
    ///
    /// # Panics
    /// There is no connection.
    pub fn front(&mut self) -> &mut Frontend {
        self.front.as_mut().expect("it is connected")
    }

    /// # Errors
    /// The server refuses it.
    pub fn config(&mut self, bytes: u32) -> Result<Vec<u8>, Error> {
        let room = vec![0; bytes as usize];
        let flags = VhostUserConfigFlags::WRITABLE;
        Ok(self.front().get_config(0, bytes, flags, &room)?.1)
    }

    /// Says that a queue has another size.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn resize(&mut self, queue: usize, size: u16) -> Result<(), Error> {
        self.front().set_vring_num(queue, size)
    }

    /// Shares more memory than its file has.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn share_too_much(&mut self) -> Result<(), Error> {
        let mut region = self.memory.as_shared();
        region.memory_size += 4096;
        self.front().set_mem_table(&[region]).map(drop)
    }

    /// Stops a queue: its position.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn halt(&mut self, queue: usize) -> Result<u32, Error> {
        self.front().get_vring_base(queue)
    }

    /// The server no longer listens to this guest.
    pub fn is_left(&mut self) -> bool {
        self.front().get_features().is_err()
    }

    /// Table of descriptors, available ring, used ring.
    pub fn places(&self, queue: usize) -> (u64, u64, u64) {
        let table = BASE + queue as u64 * RINGS;
        let available = table + 16 * u64::from(self.shape.size);
        let used = (available + 6 + 2 * u64::from(self.shape.size)).next_multiple_of(4);
        (table, available, used)
    }

    /// Head, status and table of a request.
    fn request(&self, queue: usize, request: u16) -> u64 {
        BASE + queue as u64 * RINGS + REQUESTS + u64::from(request) * REQUEST_BYTES
    }

    /// Where the data of a request is.
    pub fn data_at(&self, queue: usize, request: u16) -> u64 {
        let requests = u64::from(self.shape.size / EACH);
        let number = queue as u64 * requests + u64::from(request);
        BASE + self.shape.queues as u64 * RINGS + number * self.shape.data
    }

    /// Bytes of the memory.
    pub fn bytes(&self) -> u64 {
        self.file.metadata().expect("a file").len()
    }

    /// Cuts the memory off behind so many bytes. This guest must touch nothing of that any more,
    /// either.
    ///
    /// # Panics
    /// It can't be cut.
    pub fn cut_memory(&self, bytes: u64) {
        ftruncate(&self.file, bytes).expect("it was not sealed");
    }

    /// Rings the server, whatever it wants.
    pub fn kick(&self, queue: usize) {
        self.rings[queue].kick.write(1).expect("an event");
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).expect("a place in memory");
    }

    pub fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        self.memory.read_slice(&mut to, GuestAddress(at)).expect("a place in memory");
        to
    }

    /// Writes a descriptor, at `table` or in that of a queue.
    pub fn describe(&self, table: u64, place: u16, at: u64, bytes: u32, flags: u16, next: u16) {
        let descriptor = Descriptor::new(at, bytes, flags, next);
        let place = GuestAddress(table + 16 * u64::from(place));
        self.memory.write_obj(descriptor, place).expect("a place in memory");
    }

    /// Makes a chain available. The server is not rung.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let (_, available, _) = self.places(queue);
        let ring = &mut self.rings[queue];
        let place = available + 4 + 2 * u64::from(ring.offered % self.shape.size);
        self.memory.write_obj(head, GuestAddress(place)).expect("a place in memory");
        ring.offered = ring.offered.wrapping_add(1);
        self.set_offered(queue, self.rings[queue].offered);
    }

    /// Says that so many were made available.
    pub fn set_offered(&mut self, queue: usize, offered: u16) {
        let (_, available, _) = self.places(queue);
        let at = GuestAddress(available + 2);
        self.memory.store(offered, at, Ordering::Release).expect("a place in memory");
        self.rings[queue].offered = offered;
    }

    /// Rings the server, where it wants to be rung for what came behind `before`.
    pub fn ring(&self, queue: usize, before: u16) {
        fence(Ordering::SeqCst);
        let ((_, _, used), ring) = (self.places(queue), &self.rings[queue]);
        let wants = match self.event_idx {
            true => {
                let at = GuestAddress(used + 4 + 8 * u64::from(self.shape.size));
                let event: u16 = self.memory.load(at, Ordering::Relaxed).expect("a place");
                let now = ring.offered;
                now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
            }
            false => {
                let flags = self.memory.load::<u16>(GuestAddress(used), Ordering::Relaxed);
                flags.expect("a place") & 1 == 0
            }
        };
        if wants {
            ring.kick.write(1).expect("an event");
        }
    }

    /// How many were offered until now.
    pub fn offered(&self, queue: usize) -> u16 {
        self.rings[queue].offered
    }

    /// How many have ended, as the server has written it.
    pub fn used_index(&self, queue: usize) -> u16 {
        let at = GuestAddress(self.places(queue).2 + 2);
        self.memory.load(at, Ordering::Acquire).expect("a place in memory")
    }

    /// Has the server call when the next request ends.
    pub fn wants_call(&self, queue: usize) {
        let (_, available, _) = self.places(queue);
        let at = GuestAddress(available + 4 + 2 * u64::from(self.shape.size));
        self.memory.store(self.rings[queue].seen, at, Ordering::SeqCst).expect("a place");
        fence(Ordering::SeqCst);
    }

    /// It has called since this was asked the last time.
    pub fn was_called(&self, queue: usize) -> bool {
        self.rings[queue].call.read().is_ok()
    }

    /// The next chain that has ended, if any has: its head, and the bytes that the device says it has written.
    pub fn used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let (_, _, used) = self.places(queue);
        let ring = &mut self.rings[queue];
        let at = GuestAddress(used + 2);
        let now: u16 = self.memory.load(at, Ordering::Acquire).expect("a place in memory");
        if now == ring.seen {
            return None;
        }
        let place = used + 4 + 8 * u64::from(ring.seen % self.shape.size);
        ring.seen = ring.seen.wrapping_add(1);
        let words: [u32; 2] = self.memory.read_obj(GuestAddress(place)).expect("a place");
        Some((words[0] as u16, words[1]))
    }

    /// Begins a request, if one more is possible: head, data to give or room for `takes` bytes, status. With
    /// `indirect` the chain is in a table of its own. The server is not rung.
    pub fn begin(
        &mut self,
        queue: usize,
        kind: u32,
        sector: u64,
        gives: &[u8],
        takes: u32,
        indirect: bool,
    ) -> Option<u16> {
        let request = self.rings[queue].free.pop()?;
        let (at, data) = (self.request(queue, request), self.data_at(queue, request));
        let mut head = [0; 16];
        head[..4].copy_from_slice(&kind.to_le_bytes());
        head[8..].copy_from_slice(&sector.to_le_bytes());
        self.put(at, &head);
        self.put(at + STATUS_AT, &[NO_STATUS]);
        self.put(data, gives);
        let place = request * EACH;
        let (table, first) = match indirect {
            true => (at + TABLE_AT, 0),
            false => (self.places(queue).0, place),
        };
        let mut next = first + 1;
        self.describe(table, first, at, 16, NEXT, next);
        for (bytes, writes) in [(gives.len() as u32, 0), (takes, WRITES)] {
            if bytes > 0 {
                self.describe(table, next, data, bytes, NEXT | writes, next + 1);
                next += 1;
            }
        }
        self.describe(table, next, at + STATUS_AT, 1, WRITES, 0);
        if indirect {
            let bytes = 16 * u32::from(next + 1);
            self.describe(self.places(queue).0, place, table, bytes, INDIRECT, 0);
        }
        self.offer(queue, place);
        Some(request)
    }

    /// The next request that has ended.
    pub fn end(&mut self, queue: usize) -> Option<Ended> {
        let (head, bytes) = self.used(queue)?;
        let request = head / EACH;
        self.rings[queue].free.push(request);
        let status = self.get(self.request(queue, request) + STATUS_AT, 1)[0];
        Some(Ended { request, status, bytes })
    }

    /// Waits for the next request that ends.
    ///
    /// # Panics
    /// None does.
    pub fn wait(&mut self, queue: usize) -> Ended {
        for _ in 0..100_000_000u64 {
            if let Some(ended) = self.end(queue) {
                return ended;
            }
            std::thread::yield_now();
        }
        panic!("no request ends");
    }

    /// Does one request alone: its status.
    pub fn ask(&mut self, queue: usize, kind: u32, sector: u64, gives: &[u8]) -> u8 {
        let before = self.offered(queue);
        let request = self.begin(queue, kind, sector, gives, 0, false).expect("one is free");
        self.ring(queue, before);
        let ended = self.wait(queue);
        assert_eq!(ended.request, request);
        ended.status
    }

    /// Writes from byte `offset` on: the status.
    pub fn write(&mut self, queue: usize, offset: u64, data: &[u8]) -> u8 {
        self.ask(queue, blk::VIRTIO_BLK_T_OUT, offset / 512, data)
    }

    /// Reads from byte `offset` on.
    ///
    /// # Panics
    /// It fails.
    pub fn read(&mut self, queue: usize, offset: u64, bytes: u32) -> Vec<u8> {
        let before = self.offered(queue);
        let kind = blk::VIRTIO_BLK_T_IN;
        let request = self.begin(queue, kind, offset / 512, &[], bytes, false);
        let request = request.expect("one is free");
        self.ring(queue, before);
        let ended = self.wait(queue);
        assert_eq!(ended, Ended { request, status: 0, bytes: bytes + 1 });
        self.get(self.data_at(queue, request), bytes as usize)
    }

    /// Discards or zeroes ranges of (offset, bytes, flags): the status.
    pub fn ranges(&mut self, queue: usize, kind: u32, ranges: &[(u64, u64, u32)]) -> u8 {
        let mut words = Vec::new();
        for (offset, bytes, flags) in ranges {
            words.extend((offset / 512).to_le_bytes());
            words.extend(((bytes / 512) as u32).to_le_bytes());
            words.extend(flags.to_le_bytes());
        }
        self.ask(queue, kind, 0, &words)
    }

    pub fn flush(&mut self, queue: usize) -> u8 {
        self.ask(queue, blk::VIRTIO_BLK_T_FLUSH, 0, &[])
    }
}

fn own(file: &File) -> File {
    file.try_clone().expect("a descriptor")
}

/// The memory, as the server is told of it.
trait Shared {
    fn as_shared(&self) -> VhostUserMemoryRegionInfo;
    fn theirs(&self, at: u64) -> u64;
}

impl Shared for GuestMemoryMmap<()> {
    fn as_shared(&self) -> VhostUserMemoryRegionInfo {
        let region = vm_memory::GuestMemoryBackend::iter(self).next().expect("there is one");
        VhostUserMemoryRegionInfo::from_guest_region(region).expect("it is a file")
    }

    fn theirs(&self, at: u64) -> u64 {
        self.as_shared().userspace_addr + (at - BASE)
    }
}
