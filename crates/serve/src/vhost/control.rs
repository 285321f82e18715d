//! A front end.
//!
//! Owns: what it has said over the socket, the tasks of its rings, its end. Promises: where it changes memory or
//! rings nothing is under way, and nothing is taken meanwhile; what it has in flight is bounded; a message that
//! makes no sense ends the connection. Never: waits for the rest of a message that has begun, or for room for an
//! answer, with the core.
//!
//! The crate `vhost` reads a message in one go, and waits for all of it. So it is only called when a whole message
//! has come, and when the socket has room for an answer.

use super::config::{self, EVENT_IDX, FEATURES, FLUSH, PROTOCOL};
use super::inflight::Region;
use super::request::{Request, answer};
use super::ring::{Broken, Ring, Taken};
use super::{BUDGET, FIRST_WORD, Memory, QUEUES};
use crate::stop::first;
use crate::{Export, Stop};
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_rt::{Credits, Cx, Notify, Watched};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use vhost::vhost_user::message::{
    FrontendReq, MAX_MSG_SIZE, VhostTransferStateDirection, VhostTransferStatePhase,
    VhostUserConfigFlags, VhostUserInflight, VhostUserLog, VhostUserMemoryRegion,
    VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandler};
use vm_memory::{GuestAddress, GuestRegionMmap};

/// Request, flags, bytes that follow.
const HEAD_BYTES: usize = 12;
/// Longest of those that the crate takes; a longer one it refuses without reading it.
const BODY_BYTES: u32 = MAX_MSG_SIZE as u32;
/// Requests of a ring in a row before others have their turn.
const IN_A_ROW: u32 = 16;
/// Buffers that are kept for later requests, and the longest of them.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 256 << 10;

/// Memory as the front end knows it.
#[derive(Clone, Copy)]
struct Window {
    theirs: u64,
    bytes: u64,
    at: u64,
}

/// A disk as one front end has it.
struct Device {
    export: Rc<Export>,
    /// Features that the guest has taken.
    features: Cell<u64>,
    memory: RefCell<Option<Rc<Memory>>>,
    windows: RefCell<Vec<Window>>,
    rings: Vec<Ring>,
    /// What is in flight, in sectors.
    room: Credits,
    buffers: RefCell<Vec<Vec<u8>>>,
    /// Tasks of rings and of requests.
    tasks: Cell<u32>,
    /// Nothing is taken.
    is_paused: Cell<bool>,
    is_broken: Cell<bool>,
    changed: Notify,
}

/// Serves a front end to its end, or until the stop.
///
/// # Errors
/// The connection failed.
pub(super) async fn attend(
    cx: &Cx,
    socket: UnixStream,
    export: &Rc<Export>,
    stop: &Stop,
) -> io::Result<()> {
    // What is read by the crate blocks, and is there.
    socket.set_nonblocking(false)?;
    let device = Rc::new(Device::new(export.clone()));
    // It wants an `Arc`; all of it stays on this core.
    #[allow(clippy::arc_with_non_send_sync)]
    let messages = Arc::new(Messages(device.clone()));
    let mut handler = BackendReqHandler::from_stream(socket.try_clone()?, messages);
    let socket = cx.watch(socket)?;
    let first_word = first(socket.io(whole_message), cx.sleep(FIRST_WORD));
    if !matches!(stop.unless_up(cx, first_word).await, Some(Ok(Ok(_)))) {
        return Ok(());
    }
    loop {
        let broken = device.changed.wait(cx, || device.is_broken.get());
        let next = first(socket.io(whole_message), broken);
        let Some(Ok(Ok(request))) = stop.unless_up(cx, next).await else { break };
        let changes = changes_rings(request);
        if changes {
            device.pause(cx).await;
        }
        if handler.handle_request().is_err() {
            break;
        }
        if changes {
            device.go_on(cx);
        }
    }
    // What has begun ends.
    device.pause(cx).await;
    Ok(())
}

/// The request of a message that is here as a whole, and can be answered at once.
fn whole_message(socket: &UnixStream) -> io::Result<u32> {
    let mut head = [0; HEAD_BYTES];
    let (_, here) = recv(socket, &mut head[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    if here == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let word = |at: usize| u32::from_ne_bytes(*head[at..].first_chunk().expect("four bytes"));
    let (needs, is_sane) = (HEAD_BYTES as u64 + u64::from(word(8)), word(8) <= BODY_BYTES);
    if here < HEAD_BYTES || is_sane && ioctl_fionread(socket)? < needs {
        // The rest may never come.
        return match is_over(socket) {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        };
    }
    match ready(socket).contains(PollFlags::OUT) {
        true => Ok(word(0)),
        false if is_over(socket) => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn ready(socket: &UnixStream) -> PollFlags {
    let mut this = [PollFd::new(socket, PollFlags::OUT | PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut this, Some(&now)); // not ready, then
    this[0].revents()
}

fn is_over(socket: &UnixStream) -> bool {
    ready(socket).intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

/// Before such a message what is under way ends.
fn changes_rings(request: u32) -> bool {
    use FrontendReq as Req;
    let harmless = [
        Req::GET_FEATURES,
        Req::GET_PROTOCOL_FEATURES,
        Req::GET_QUEUE_NUM,
        Req::GET_CONFIG,
        Req::SET_CONFIG,
        Req::SET_VRING_CALL,
        Req::SET_VRING_ERR,
    ];
    !harmless.iter().any(|known| u32::from(*known) == request)
}

impl Device {
    fn new(export: Rc<Export>) -> Device {
        Device {
            export,
            features: Cell::default(),
            memory: RefCell::default(),
            windows: RefCell::default(),
            rings: (0..QUEUES).map(|_| Ring::new()).collect(),
            room: Credits::new(BUDGET / SECTOR_BYTES as u64),
            buffers: RefCell::default(),
            tasks: Cell::default(),
            is_paused: Cell::default(),
            is_broken: Cell::default(),
            changed: Notify::new(),
        }
    }

    /// Takes nothing more, and waits until nothing is under way.
    async fn pause(&self, cx: &Cx) {
        self.is_paused.set(true);
        self.changed.wake(cx);
        let is_quiet = || self.tasks.get() == 0 || mutant!("serve.base-while-under-way");
        self.changed.wait(cx, is_quiet).await;
    }

    /// Takes requests of every ring that has what it needs.
    fn go_on(self: &Rc<Self>, cx: &Cx) {
        self.is_paused.set(false);
        let Some(memory) = self.memory.borrow().clone() else { return };
        for (index, ring) in self.rings.iter().enumerate() {
            let kick = ring.kick.borrow().clone();
            match (ring.begin(&memory), kick) {
                (Ok(true), Some(kick)) => {
                    let (device, theirs, memory) = (self.clone(), cx.clone(), memory.clone());
                    self.task(cx, async move {
                        let kick = theirs.watch(kick).map_err(|_| Broken);
                        let ring = &device.rings[index];
                        let ended = match kick {
                            Ok(kick) => {
                                device.attend_ring(&theirs, ring, index, &memory, &kick).await
                            }
                            Err(broken) => Err(broken),
                        };
                        device.note(&theirs, ended);
                    });
                }
                (Ok(_), _) => {}
                (Err(broken), _) => self.note(cx, Err(broken)),
            }
        }
    }

    /// Begins a task that a pause waits for.
    fn task(self: &Rc<Self>, cx: &Cx, work: impl Future<Output = ()> + 'static) {
        let (device, theirs) = (self.clone(), cx.clone());
        self.tasks.set(self.tasks.get() + 1);
        cx.spawn(async move {
            work.await;
            device.tasks.set(device.tasks.get() - 1);
            if device.tasks.get() == 0 {
                device.changed.wake(&theirs);
            }
        });
    }

    /// The connection ends where a queue makes no sense.
    fn note(&self, cx: &Cx, done: std::result::Result<(), Broken>) {
        if done.is_err() {
            self.is_broken.set(true);
            self.changed.wake(cx);
        }
    }

    /// Takes requests of a ring and begins them, until the pause.
    async fn attend_ring(
        self: &Rc<Self>,
        cx: &Cx,
        ring: &Ring,
        index: usize,
        memory: &Rc<Memory>,
        kick: &Watched<Rc<File>>,
    ) -> std::result::Result<(), Broken> {
        loop {
            ring.look(memory)?;
            let mut in_a_row = 0;
            while !self.is_paused.get()
                && let Some(taken) = ring.take(memory)?
            {
                self.start(cx, index, taken, memory).await;
                in_a_row += 1;
                if in_a_row == IN_A_ROW {
                    in_a_row = 0;
                    cx.yield_now().await;
                }
            }
            // Nobody reads what was written to the kick: each write is an edge.
            let rung = kick.io(|_| match ring.listen(memory) {
                Ok(false) => Err(io::ErrorKind::WouldBlock.into()),
                listens => Ok(listens),
            });
            match first(self.changed.wait(cx, || self.is_paused.get()), rung).await {
                Ok(()) => return Ok(()),
                Err(rung) => drop(rung.unwrap_or(Err(Broken))?),
            }
        }
    }

    /// Begins a request as soon as there is room for it.
    async fn start(self: &Rc<Self>, cx: &Cx, index: usize, taken: Taken, memory: &Rc<Memory>) {
        let Taken { head, chain } = taken;
        let Ok(chain) = chain else {
            // There is no place for a status.
            return self.note(cx, self.rings[index].end(memory, head, 0));
        };
        let request = match Request::of(&chain, memory, &self.export) {
            Ok(request) => request,
            Err(refused) => {
                let bytes = answer(&chain, memory, Err(refused));
                return self.note(cx, self.rings[index].end(memory, head, bytes));
            }
        };
        let mut room = request.room().div_ceil(SECTOR_BYTES as u64).max(1);
        if mutant!("serve.ring-unbounded") {
            room = 0;
        }
        self.room.acquire(cx, room).await;
        let (device, theirs, memory) = (self.clone(), cx.clone(), memory.clone());
        self.task(cx, async move {
            let ring = &device.rings[index];
            let early = mutant!("serve.told-early");
            if early {
                device.note(&theirs, ring.end(&memory, head, 1));
            }
            let through = device.features.get() & FLUSH == 0;
            let mut buffer = device.buffers.borrow_mut().pop().unwrap_or_default();
            let export = &device.export;
            let done =
                request.perform(&theirs, &chain, &memory, export, through, &mut buffer).await;
            device.keep(buffer);
            let bytes = answer(&chain, &memory, done);
            if !early {
                device.note(&theirs, ring.end(&memory, head, bytes));
            }
            device.room.release(&theirs, room);
        });
    }

    fn keep(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < KEPT && (1..=KEPT_BYTES).contains(&buffer.capacity()) {
            buffers.push(buffer);
        }
    }

    fn ring(&self, index: impl Into<u32>) -> Result<&Ring> {
        self.rings.get(index.into() as usize).ok_or(Error::InvalidParam)
    }

    /// Where an address of the front end's lies in the guest's memory.
    fn at(&self, theirs: u64) -> Result<GuestAddress> {
        let windows = self.windows.borrow();
        let inside = |w: &&Window| theirs >= w.theirs && theirs - w.theirs < w.bytes;
        let found = windows.iter().find(inside).ok_or(Error::InvalidParam)?;
        Ok(GuestAddress(found.at + (theirs - found.theirs)))
    }
}

/// What front ends may say, for the crate that reads it.
struct Messages(Rc<Device>);

fn no_such<T>() -> Result<T> {
    Err(Error::InvalidOperation("not known here"))
}

fn broken(broken: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(io::Error::other(broken))
}

impl VhostUserBackendReqHandler for Messages {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&self) -> Result<()> {
        no_such()
    }

    fn get_features(&self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        self.0.features.set(features);
        for ring in &self.0.rings {
            ring.set_event_idx(features & EVENT_IDX != 0);
            // Without the protocol's features nobody enables a ring.
            if features & PROTOCOL == 0 {
                ring.is_enabled.set(true);
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let (mut maps, mut windows) = (Vec::new(), Vec::new());
        for (region, file) in regions.iter().zip(files) {
            // Memory that goes away takes this process with it. Where the file allows it, it stays.
            let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
            let at = GuestAddress(region.guest_phys_addr);
            let map = GuestRegionMmap::new(region.mmap_region(file)?, at);
            maps.push(map.ok_or(Error::InvalidParam)?);
            windows.push(Window {
                theirs: region.user_addr,
                bytes: region.memory_size,
                at: region.guest_phys_addr,
            });
        }
        maps.sort_by_key(vm_memory::GuestMemoryRegion::start_addr);
        let memory = Memory::from_regions(maps).map_err(broken)?;
        *self.0.memory.borrow_mut() = Some(Rc::new(memory));
        *self.0.windows.borrow_mut() = windows;
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, places: u32) -> Result<()> {
        self.0.ring(index)?.resize(places).map_err(broken)
    }

    fn set_vring_addr(
        &self,
        index: u32,
        _: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        let ring = self.0.ring(index)?;
        let at = |theirs| self.0.at(theirs);
        ring.place(at(descriptors)?, at(available)?, at(used)?).map_err(broken)
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        let base = base.try_into().map_err(|_| Error::InvalidParam)?;
        self.0.ring(index)?.set_position(base);
        Ok(())
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.0.ring(index)?;
        ring.halt();
        Ok(VhostUserVringState::new(index, ring.position().into()))
    }

    fn set_vring_kick(&self, index: u8, file: Option<File>) -> Result<()> {
        // Nobody polls here.
        let file = file.ok_or(Error::InvalidParam)?;
        *self.0.ring(index)?.kick.borrow_mut() = Some(Rc::new(file));
        Ok(())
    }

    fn set_vring_call(&self, index: u8, file: Option<File>) -> Result<()> {
        if let Some(file) = &file {
            let flags = fcntl_getfl(file).map_err(broken)?;
            fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(broken)?;
        }
        *self.0.ring(index)?.call.borrow_mut() = file;
        Ok(())
    }

    fn set_vring_err(&self, index: u8, _: Option<File>) -> Result<()> {
        self.0.ring(index).map(|_| ())
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        Ok(QUEUES as u64)
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.0.ring(index)?.is_enabled.set(enable);
        Ok(())
    }

    fn get_config(&self, offset: u32, bytes: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        config::space(&self.0.export, offset, bytes).ok_or(Error::InvalidParam)
    }

    /// A guest may write to it, and nothing there changes.
    fn set_config(&self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        Ok(())
    }

    fn set_gpu_socket(&self, _: GpuBackend) -> Result<()> {
        no_such()
    }

    fn get_shared_object(&self, _: VhostUserSharedMsg) -> Result<File> {
        no_such()
    }

    fn get_inflight_fd(&self, wish: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wish;
        let region = Region::new(num_queues, queue_size).map_err(Error::ReqHandlerError)?;
        let file = region.file().map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(region.bytes, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&self, kept: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *kept;
        let region = Region::of(file, mmap_offset, mmap_size, num_queues, queue_size);
        let region = region.map_err(Error::ReqHandlerError)?;
        for (index, ring) in self.0.rings.iter().enumerate() {
            let has = index < usize::from(num_queues);
            ring.set_track(has.then(|| region.track(index, queue_size)));
        }
        Ok(())
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        no_such()
    }

    fn add_mem_region(
        &self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        no_such()
    }

    fn remove_mem_region(&self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        no_such()
    }

    fn set_device_state_fd(
        &self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        no_such()
    }

    fn check_device_state(&self) -> Result<()> {
        no_such()
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        no_such()
    }

    fn set_log_base(&self, _: &VhostUserLog, _: File) -> Result<()> {
        no_such()
    }
}
