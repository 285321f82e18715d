//! A front end.
//!
//! Owns: what it has said over the socket, the tasks of its rings, its end. Promises: where it changes memory or
//! rings nothing is under way, and nothing is taken meanwhile; what it has in flight is bounded; a message that
//! makes no sense ends the connection. Never: knows how messages are laid out ([`super::wire`] does).

use super::config::{self, EVENT_IDX, FLUSH, PROTOCOL};
use super::inflight::Region;
use super::request::{Request, answer};
use super::ring::{Broken, Ring, Taken};
use super::wire::{Message, Nonsense, Reply, can, request};
use super::{BUDGET, FIRST_WORD, Memory, QUEUES};
use crate::buffers::Buffers;
use crate::stop::first;
use crate::{Export, Stop};
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_rt::{Credits, Cx, Notify, Watched};
use rustix::fs::{OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fcntl_setfl};
use std::cell::{Cell, RefCell};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

/// What of the protocol is offered.
const CAN: u64 = can::MQ | can::REPLY_ACK | can::BACKEND_REQ | can::CONFIG | can::INFLIGHT;
/// Requests of a ring in a row before others have their turn.
const IN_A_ROW: u32 = 16;

/// Memory as the front end knows it.
#[derive(Clone, Copy)]
struct Window {
    theirs: u64,
    bytes: u64,
    at: u64,
}

/// A disk as one front end has it.
struct Device {
    export: Arc<Export>,
    /// Features that the guest has taken, and the front end.
    features: Cell<u64>,
    protocol: Cell<u64>,
    /// Where the front end listens for requests. It stays open.
    asks: RefCell<Option<File>>,
    memory: RefCell<Option<Rc<Memory>>>,
    windows: RefCell<Vec<Window>>,
    rings: Vec<Ring>,
    /// What is in flight, in sectors.
    room: Credits,
    buffers: Buffers,
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
/// The socket can't be watched.
pub(super) async fn attend(
    cx: &Cx,
    socket: UnixStream,
    export: &Arc<Export>,
    stop: &Stop,
) -> io::Result<()> {
    let (socket, device) = (cx.watch(socket)?, Rc::new(Device::new(export.clone())));
    let talk = first(device.converse(cx, &socket), device.breaks(cx));
    let _ = stop.unless_up(cx, talk).await;
    // What has begun ends.
    device.pause(cx).await;
    Ok(())
}

/// Before any other message what is under way ends.
fn is_harmless(of: u32) -> bool {
    matches!(
        of,
        request::GET_FEATURES
            | request::GET_PROTOCOL_FEATURES
            | request::GET_QUEUE_NUM
            | request::GET_CONFIG
            | request::SET_CONFIG
            | request::SET_VRING_CALL
            | request::SET_VRING_ERR
            | request::SET_BACKEND_REQ_FD
    )
}

/// Who rings there, or looks whether it was rung, waits for nobody. A file on a disk may have others wait.
pub(super) fn is_bell(file: &File) -> bool {
    let waits = |of: Metadata| {
        let kind = of.file_type();
        kind.is_file() || kind.is_dir() || kind.is_block_device() || kind.is_char_device()
    };
    file.metadata().is_ok_and(|of| !waits(of)) || mutant!("serve.any-bell")
}

impl Device {
    fn new(export: Arc<Export>) -> Device {
        Device {
            export,
            features: Cell::default(),
            protocol: Cell::default(),
            asks: RefCell::default(),
            memory: RefCell::default(),
            windows: RefCell::default(),
            rings: (0..QUEUES).map(|_| Ring::new()).collect(),
            room: Credits::new(BUDGET / SECTOR_BYTES as u64),
            buffers: Buffers::default(),
            tasks: Cell::default(),
            is_paused: Cell::default(),
            is_broken: Cell::default(),
            changed: Notify::new(),
        }
    }

    /// Hears what the front end says, and does it, to its end.
    async fn converse(
        self: &Rc<Self>,
        cx: &Cx,
        socket: &Watched<UnixStream>,
    ) -> Result<(), Nonsense> {
        let Ok(said) = first(Message::receive(socket), cx.sleep(FIRST_WORD)).await else {
            return Ok(());
        };
        let mut next = said?;
        while let Some(mut message) = next {
            let changes = !is_harmless(message.request);
            if changes {
                self.pause(cx).await;
            }
            let done = self.obey(&mut message);
            let asks = message.needs_reply() && self.protocol.get() & can::REPLY_ACK != 0;
            match &done {
                Ok(Reply::Body(body)) => message.reply(socket, body, None).await?,
                Ok(Reply::WithFile(body, file)) => message.reply(socket, body, Some(file)).await?,
                Ok(Reply::Done) | Err(_) if asks => {
                    let word = u64::from(done.is_err()).to_ne_bytes();
                    message.reply(socket, &word, None).await?;
                }
                Ok(Reply::Done) | Err(_) => {}
            }
            done?;
            if changes {
                self.go_on(cx);
            }
            next = Message::receive(socket).await?;
        }
        Ok(())
    }

    /// Waits until a queue makes no sense.
    async fn breaks(&self, cx: &Cx) {
        self.changed.wait(cx, || self.is_broken.get()).await;
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
    fn note(&self, cx: &Cx, done: Result<(), Broken>) {
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
    ) -> Result<(), Broken> {
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
            let (export, buffers) = (&device.export, &device.buffers);
            let done = request.perform(&theirs, &chain, &memory, export, through, buffers).await;
            let bytes = answer(&chain, &memory, done);
            if !early {
                device.note(&theirs, ring.end(&memory, head, bytes));
            }
            device.room.release(&theirs, room);
        });
    }

    fn ring(&self, index: u32) -> Result<&Ring, Nonsense> {
        self.rings.get(index as usize).ok_or(Nonsense)
    }

    /// Where an address of the front end's lies in the guest's memory.
    fn at(&self, theirs: u64) -> Result<GuestAddress, Nonsense> {
        let windows = self.windows.borrow();
        let inside = |w: &&Window| theirs >= w.theirs && theirs - w.theirs < w.bytes;
        let found = windows.iter().find(inside).ok_or(Nonsense)?;
        Ok(GuestAddress(found.at + (theirs - found.theirs)))
    }

    /// Does what a message says.
    fn obey(&self, message: &mut Message) -> Result<Reply, Nonsense> {
        let mut words = message.words();
        let long = |value: u64| Ok(Reply::Body(value.to_ne_bytes().to_vec()));
        match message.request {
            request::SET_OWNER | request::RESET_OWNER => {}
            request::GET_FEATURES => return long(config::features(&self.export)),
            request::SET_FEATURES => self.take_features(words.long()?)?,
            request::GET_PROTOCOL_FEATURES => return long(CAN),
            request::SET_PROTOCOL_FEATURES => match words.long()? {
                features if features & !CAN == 0 => self.protocol.set(features),
                _ => return Err(Nonsense),
            },
            request::GET_QUEUE_NUM => return long(QUEUES as u64),
            request::SET_MEM_TABLE => self.share(message)?,
            request::SET_VRING_NUM => {
                let (index, places) = (words.word()?, words.word()?);
                self.ring(index)?.resize(places)?;
            }
            request::SET_VRING_ADDR => {
                let (index, _flags) = (words.word()?, words.word()?);
                let (descriptors, used, available) = (words.long()?, words.long()?, words.long()?);
                let at = |theirs| self.at(theirs);
                self.ring(index)?.place(at(descriptors)?, at(available)?, at(used)?)?;
            }
            request::SET_VRING_BASE => {
                let (index, base) = (words.word()?, words.word()?);
                self.ring(index)?.set_position(base.try_into().map_err(|_| Nonsense)?);
            }
            request::GET_VRING_BASE => {
                let index = words.word()?;
                let ring = self.ring(index)?;
                ring.halt();
                let position = u32::from(ring.position());
                return Ok(Reply::Body([index, position].map(u32::to_ne_bytes).concat()));
            }
            request::SET_VRING_KICK => {
                // Nobody polls here.
                let (index, file) = message.queue_and_file()?;
                let file = file.filter(is_bell).ok_or(Nonsense)?;
                *self.ring(index)?.kick.borrow_mut() = Some(Rc::new(file));
            }
            request::SET_VRING_CALL => {
                let (index, file) = message.queue_and_file()?;
                if let Some(file) = &file {
                    if !is_bell(file) {
                        return Err(Nonsense);
                    }
                    // Where it is full the guest has been rung often enough.
                    let flags = fcntl_getfl(file).map_err(io::Error::from)?;
                    fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
                }
                self.ring(index)?.set_call(file);
            }
            request::SET_VRING_ERR => {
                self.ring(message.queue_and_file()?.0)?;
            }
            request::SET_VRING_ENABLE => {
                let (index, enable) = (words.word()?, words.word()?);
                self.ring(index)?.is_enabled.set(enable != 0);
            }
            request::GET_CONFIG => {
                let (offset, bytes) = (words.word()?, words.word()?);
                let space = config::space(&self.export, offset, bytes).ok_or(Nonsense)?;
                return Ok(Reply::Body([message.body.get(..12).ok_or(Nonsense)?, &space].concat()));
            }
            // There is nothing to ask a front end for.
            request::SET_BACKEND_REQ_FD => *self.asks.borrow_mut() = Some(message.file()?),
            // A guest may write to it, and nothing there changes.
            request::SET_CONFIG => {}
            request::GET_INFLIGHT_FD => {
                let (_, _, queues, places) =
                    (words.long()?, words.long()?, words.short()?, words.short()?);
                let region = Region::new(queues, places)?;
                let mut body = [region.bytes, 0].map(u64::to_ne_bytes).concat();
                body.extend([queues, places].map(u16::to_ne_bytes).concat());
                // As long as its layout in C.
                body.extend([0; 4]);
                return Ok(Reply::WithFile(body, region.file));
            }
            request::SET_INFLIGHT_FD => {
                let (bytes, offset, queues, places) =
                    (words.long()?, words.long()?, words.short()?, words.short()?);
                let region = Region::of(message.file()?, offset, bytes, queues, places)?;
                for (index, ring) in self.rings.iter().enumerate() {
                    let has = index < usize::from(queues);
                    ring.set_track(has.then(|| region.track(index, places)));
                }
            }
            _ => return Err(Nonsense),
        }
        Ok(Reply::Done)
    }

    fn take_features(&self, features: u64) -> Result<(), Nonsense> {
        if features & !config::features(&self.export) != 0 {
            return Err(Nonsense);
        }
        self.features.set(features);
        for ring in &self.rings {
            ring.set_event_idx(features & EVENT_IDX != 0);
            // Without the protocol's features nobody enables a ring.
            if features & PROTOCOL == 0 {
                ring.is_enabled.set(true);
            }
        }
        Ok(())
    }

    /// Maps the memory that a message shares.
    fn share(&self, message: &mut Message) -> Result<(), Nonsense> {
        let files = std::mem::take(&mut message.files);
        let mut words = message.words();
        let (regions, _padding) = (words.word()?, words.word()?);
        if regions as usize != files.len() {
            return Err(Nonsense);
        }
        let (mut maps, mut windows) = (Vec::new(), Vec::new());
        for file in files {
            let (at, bytes, theirs, offset) =
                (words.long()?, words.long()?, words.long()?, words.long()?);
            // Memory that its file has no more ends the connection (`super::shared`). Where the
            // file allows it, what is there stays.
            let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
            let end = offset.checked_add(bytes).ok_or(Nonsense)?;
            let is_there = end <= file.metadata()?.len() || mutant!("serve.memory-beyond-its-file");
            if !is_there || theirs.checked_add(bytes).is_none() {
                return Err(Nonsense);
            }
            let map = MmapRegion::from_file(FileOffset::new(file, offset), bytes as usize);
            let map = GuestRegionMmap::new(map.map_err(|_| Nonsense)?, GuestAddress(at));
            maps.push(map.ok_or(Nonsense)?);
            windows.push(Window { theirs, bytes, at });
        }
        maps.sort_by_key(GuestMemoryRegion::start_addr);
        let memory = GuestMemoryMmap::from_regions(maps).map_err(|_| Nonsense)?;
        let memory = Memory::new(memory)?;
        *self.memory.borrow_mut() = Some(Rc::new(memory));
        *self.windows.borrow_mut() = windows;
        Ok(())
    }
}
