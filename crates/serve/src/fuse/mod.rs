//! FUSE: a disk as a file. `losetup` makes a block device of it, on any kernel.
//!
//! Owns: the mount, the thread that reads requests, their tasks. The way of a request: [`file`] hears of it on
//! that thread, [`queue`] brings it to the core, a task here has the device do it and answers. [`place`] has
//! the file below, and [`mount`] the kernel's calls. Promises: those of [`crate`]; the kernel keeps nothing of
//! the file, so other doors may change the same device. Never: has a thread do more than read.

mod file;
mod mount;
mod place;
mod queue;

pub use mount::{MountError, Ours, Unmounted};
pub use place::{Left, Place, PlaceError, clear_directory};

use crate::buffers::Buffers;
use crate::export::zero_pieces;
use crate::{Export, Stop};
use file::{File, Work};
use flashlane_base::Ns;
use flashlane_ftl::block::BlockError;
use flashlane_rt::{Cx, Idle, Notify, Opened, Port};
use fuser::{Config, Errno, Session, SessionACL};
use queue::Queue;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

/// The thread ends with the mount, unless somebody has that in another name space: then it is left so soon.
const PARTING: Ns = Ns::from_secs(1);
const LOOK_EVERY: Ns = Ns::from_ms(1);

/// Memory that this process needs from here on is not looked for among what a file system on its own disk has
/// to write first. False where this is not permitted (it takes `CAP_SYS_RESOURCE`). Threads that are made
/// later inherit it.
pub fn keep_out_of_reclaim() -> bool {
    rustix::process::configure_io_flusher_behavior(true).is_ok()
}

/// A file that can be used, until it is dropped.
pub struct Door {
    answers: Answers,
    place: Place,
}

/// Answers to what the kernel asks, or whoever speaks for it, until they are dropped.
pub struct Answers {
    shared: Rc<Shared>,
    reader: JoinHandle<io::Result<()>>,
    _port: Opened,
}

/// What the tasks of a door have in common.
struct Shared {
    export: Arc<Export>,
    queue: Arc<Queue<Work>>,
    /// Everything that was taken is answered, and no more will come.
    ended: Notify,
    buffers: Buffers,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whoever waits in the thread is told.
        self.queue.close();
        let mut left = Vec::new();
        self.queue.take(&mut left);
        left.into_iter().for_each(|(work, _)| work.refuse(Errno::ENODEV));
    }
}

impl Answers {
    /// Begins to answer what is read there: the kernel's device, or a socket that keeps requests apart. `changed` is
    /// what the file says of when it was. Who asks has begun to: this thread waits for the first words.
    ///
    /// # Errors
    /// Who asks and this program have no version in common, or there is no room for a thread.
    pub fn begin(
        cx: &Cx,
        device: OwnedFd,
        changed: SystemTime,
        export: Arc<Export>,
    ) -> io::Result<Answers> {
        let queue = Arc::<Queue<Work>>::default();
        let file = File::new(queue.clone(), export.bytes(), changed, export.is_read_only());
        let (ended, buffers) = (Notify::new(), Buffers::default());
        let shared = Rc::new(Shared { export, queue, ended, buffers });
        let intake = Intake { shared: shared.clone(), came: Vec::new() };
        let port = cx.open_port(shared.queue.bell(), intake);
        let session = Session::from_fd(file, device, SessionACL::Owner, Config::default())?;
        let reader = std::thread::Builder::new().name("fuse".into());
        let reader = reader.spawn(move || session.run())?;
        Ok(Answers { shared, reader, _port: port })
    }

    /// Takes nothing more, and waits until what was taken is answered.
    pub async fn close(&self, cx: &Cx) {
        let Shared { queue, ended, .. } = &*self.shared;
        queue.close();
        ended.wait(cx, || queue.is_empty()).await;
    }

    /// Waits for the thread that reads, which ends with whoever asks.
    ///
    /// # Errors
    /// What was read there is no request, or could not be read.
    pub fn join(self) -> io::Result<()> {
        let Answers { reader, .. } = self;
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Door {
    /// Begins to answer what the kernel asks there.
    ///
    /// # Errors
    /// The kernel and this program have no version in common, or there is no room for a thread.
    pub fn open(cx: &Cx, mut place: Place, export: Arc<Export>) -> io::Result<Door> {
        let device = place.device().ok_or(io::ErrorKind::NotConnected)?;
        let answers = Answers::begin(cx, device, place.changed(), export)?;
        Ok(Door { answers, place })
    }

    /// Serves it until the stop: what was taken is answered, and the file is gone.
    pub async fn serve(self, cx: &Cx, stop: &Stop) -> Left {
        stop.wait(cx).await;
        self.answers.close(cx).await;
        let left = self.place.leave();
        if left == Left::Free {
            let until = cx.now() + PARTING;
            while !self.answers.reader.is_finished() && cx.now() < until {
                cx.sleep(LOOK_EVERY).await;
            }
        }
        // Where somebody still has the file open the thread tells them that it is gone, as long as this
        // process lives.
        left
    }
}

/// Where requests arrive on the core.
struct Intake {
    shared: Rc<Shared>,
    came: Vec<(Work, u64)>,
}

impl Port for Intake {
    fn serve(&mut self, cx: &Cx) {
        self.shared.queue.take(&mut self.came);
        for (work, bytes) in self.came.drain(..) {
            let (shared, theirs) = (self.shared.clone(), cx.clone());
            cx.spawn(async move {
                shared.perform(&theirs, work).await;
                if shared.queue.done(bytes) {
                    shared.ended.wake(&theirs);
                }
            });
        }
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Waits
    }
}

impl Shared {
    async fn perform(&self, cx: &Cx, work: Work) {
        let export = &*self.export;
        match work {
            Work::Read { offset, bytes, reply } => {
                let mut buffer = self.buffers.take(bytes as usize);
                match export.read(cx, offset, &mut buffer).await {
                    Ok(()) => reply.data(&buffer),
                    Err(e) => reply.error(errno(&e)),
                }
                self.buffers.keep(buffer);
            }
            Work::Write { offset, data, durable, reply } => {
                match export.write(cx, offset, &data, durable).await {
                    Ok(()) => reply.written(data.len() as u32),
                    Err(e) => reply.error(errno(&e)),
                }
            }
            Work::Flush { reply } => answer(reply, export.flush(cx).await),
            Work::Discard { offset, bytes, reply } => {
                answer(reply, export.discard(cx, offset, bytes).await);
            }
            Work::Zero { offset, bytes, reply } => {
                for piece in zero_pieces(offset, bytes) {
                    if self.queue.is_closed() {
                        return reply.error(Errno::ENODEV);
                    }
                    let bytes = piece.end - piece.start;
                    if let Err(e) = export.write_zeros(cx, piece.start, bytes).await {
                        return reply.error(errno(&e));
                    }
                }
                reply.ok();
            }
        }
    }
}

fn answer(reply: fuser::ReplyEmpty, done: Result<(), BlockError>) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

fn errno(e: &BlockError) -> Errno {
    match e {
        BlockError::Invalid { .. } => Errno::EINVAL,
        BlockError::Uncorrectable(_) => Errno::EIO,
        BlockError::ReadOnly(_) => Errno::EROFS,
    }
}
