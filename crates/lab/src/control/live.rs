//! A drive in use, as the run's thread knows it: answers questions, helps a run that can't go on.
//!
//! Owns: which verb may be done to a drive under a run, and how. Promises: what only looks changes nothing
//! of the run; a copy is the drive at a commit made for it; the target in use is neither removed nor its
//! blocks marked. Never: waits for virtual time.

use super::power::Switch;
use super::server::{Job, Questions};
use super::socket::path_of;
use super::{Answer, Ask, ControlError, Listening, io_error};
use crate::drive::{DriveError, Look, faults};
use crate::lnvm::show::InUse;
use crate::lnvm::{Block, Drive, LnvmError, bad_blocks, knobs, remove_of, show};
use crate::metrics::{Looked, Snapshot, look};
use crate::tap::{Tap, TapError};
use crate::trace::Recording;
use flashlane_base::Ns;
use flashlane_ftl::layer::Layer;
use flashlane_media::fault::FaultPlan;
use flashlane_ocssd::CopyKind;
use flashlane_rt::{Cx, Idle, Opened, Port};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A drive that is in use by this process.
pub(crate) struct Live {
    drive: Drive,
    target: String,
    /// The target's layer, once it is mounted.
    layer: RefCell<Option<Arc<dyn Layer>>>,
    /// Its top, at the same times.
    tap: RefCell<Option<Arc<Tap>>>,
    /// A knob was turned back against its owner.
    lifted: Cell<bool>,
    notes: RefCell<Vec<String>>,
    /// Threads that end recordings.
    ending: RefCell<Vec<JoinHandle<()>>>,
    /// The power of the drive, where the run can do without.
    switch: Option<Rc<Switch>>,
}

/// A drive whose holder listens, until it is dropped.
pub(crate) struct Attended {
    _port: Opened,
    _listening: Listening,
}

/// The same, until it is taken out.
pub(crate) type Attending = Rc<RefCell<Option<Attended>>>;

impl Live {
    /// A drive with the target that is about to be used, and its power.
    pub(crate) fn new(drive: Drive, target: &str, switch: Option<Rc<Switch>>) -> Rc<Live> {
        Rc::new(Live {
            drive,
            switch,
            target: target.into(),
            layer: RefCell::new(None),
            tap: RefCell::new(None),
            lifted: Cell::new(false),
            notes: RefCell::default(),
            ending: RefCell::default(),
        })
    }

    /// Listens at the drive's control socket, and answers between the steps of a run.
    ///
    /// # Errors
    /// The socket's place can't be had.
    pub(crate) fn attend(self: &Rc<Live>, cx: &Cx) -> Result<Attending, ControlError> {
        let image = &self.drive.path;
        let path = path_of(image).map_err(|e| io_error("find", image, e))?;
        let (listening, bell, questions) = Listening::begin(&path)?;
        let port = cx.open_port(&bell, Holder { live: self.clone(), questions });
        let attended = Attended { _port: port, _listening: listening };
        let attended = Rc::new(RefCell::new(Some(attended)));
        if let Some(switch) = &self.switch {
            switch.wire(&self.drive, &attended);
        }
        Ok(attended)
    }

    /// The target is mounted.
    pub(crate) fn set_target(&self, layer: Arc<dyn Layer>, tap: Arc<Tap>) {
        *self.layer.borrow_mut() = Some(layer);
        *self.tap.borrow_mut() = Some(tap);
    }

    /// The target is being stopped: its knobs are not to be turned any more.
    pub(crate) fn take_target(&self) {
        self.layer.borrow_mut().take();
        self.tap.borrow_mut().take();
        self.settle();
    }

    /// Recordings that were to end have their names.
    fn settle(&self) {
        for thread in self.ending.take() {
            let _ = thread.join(); // who asked has heard of it
        }
    }

    /// Ends the recording. Its file may take long, so another thread waits for that.
    fn stop_recording(&self, job: Job) {
        let Ask::StopRecording { target } = &job.ask else { return };
        let taken = self.tap_of(target).and_then(|tap| tap.take().map_err(|e| self.at(&e)));
        let recording = match taken {
            Ok(recording) => recording,
            Err(why) => return job.answer(|_| Err(why)),
        };
        let at = format!("{}: target `{}`", self.drive.path.display(), self.target);
        let end = Arc::new(Mutex::new(Some((job, recording, at))));
        let theirs = end.clone();
        let thread = std::thread::Builder::new().name("record end".into());
        match thread.spawn(move || end_of(&theirs)) {
            Ok(thread) => {
                let mut ending = self.ending.borrow_mut();
                ending.retain(|thread| !thread.is_finished());
                ending.push(thread);
            }
            // Where there is no room for one, this one waits.
            Err(_) => end_of(&end),
        }
    }

    /// The target that is in use, once it is mounted.
    pub(crate) fn layer(&self) -> Option<Arc<dyn Layer>> {
        self.layer.borrow().clone()
    }

    /// Notes something that did not go as asked for.
    pub(crate) fn note(&self, what: String) {
        self.notes.borrow_mut().push(what);
    }

    /// What was noted.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    fn look(&self) -> Result<Look, String> {
        Look::of(self.drive.ssd.clone(), Some(&self.target)).map_err(|e| e.to_string())
    }

    fn answer(&self, cx: &Cx, ask: &Ask) -> Result<Answer, String> {
        let drive = &self.drive;
        let said = |e: LnvmError| e.to_string();
        let drive_said = |e: DriveError| e.to_string();
        match ask {
            Ask::Info => self.look().map(|look| Answer::new((look.to_text(), look.to_json()))),
            Ask::Smart => {
                self.look().map(|look| Answer::new((look.smart_text(), look.smart_json())))
            }
            Ask::Metrics => {
                let seen = self.metrics(cx);
                Ok(Answer::new((seen.to_text(), seen.to_json())))
            }
            Ask::Copy { to, clone } => {
                let kind = if *clone { CopyKind::Clone } else { CopyKind::Snapshot };
                let copied = drive.ssd.copy_image_to(to, kind);
                copied.map(|()| Answer::default()).map_err(|e| e.to_string())
            }
            Ask::Inject { plan } => {
                let plan = FaultPlan::from_toml(plan).map_err(|e| e.to_string())?;
                faults::inject_into(&drive.ssd, &drive.path, &plan, true).map_err(drive_said)
            }
            Ask::Faults => Ok(faults::list_of(&drive.ssd)),
            Ask::ClearFaults => faults::clear_of(&drive.ssd, &drive.path).map_err(drive_said),
            Ask::PowerCut => Err(format!(
                "{}: process {} can't go on without the drive's power",
                drive.path.display(),
                std::process::id()
            )),
            Ask::List => Ok(show::list_of(drive)),
            Ask::LnvmInfo { target } => {
                // Other targets are shown on a shadow of the image: as at its last commit.
                drive.ssd.make_durable().map_err(|e| drive.at(e).to_string())?;
                let in_use = InUse { target: &self.target, layer: self.layer(), now: cx.now() };
                show::info_of(drive, target.as_deref(), Some(in_use)).map_err(said)
            }
            Ask::IdNs { namespace, human } => {
                show::id_ns_of(drive, *namespace, *human).map_err(said)
            }
            Ask::ChunkLog => Ok(show::chunk_log_of(drive)),
            Ask::BadBlocks { namespace, channel, lun } => {
                bad_blocks::bad_blocks_of(drive, *namespace, *channel, *lun).map_err(said)
            }
            Ask::SetBadBlock { channel, lun, plane, block, mark } => {
                let at = Block { channel: *channel, lun: *lun, plane: *plane, block: *block };
                bad_blocks::set_bad_block_of(drive, at, *mark).map_err(said)
            }
            Ask::Remove { target } if *target == self.target => Err(format!(
                "{}: target `{target}` is in use by process {}: it can be removed when that has ended",
                drive.path.display(),
                std::process::id()
            )),
            Ask::Remove { target } => remove_of(drive, target).map_err(said),
            Ask::Record { target, take } => {
                let tap = self.tap_of(target)?;
                let begun = tap.prepare(take.clone()).map(|()| tap.begin(cx.now()));
                begun.map(|()| Answer::default()).map_err(|e| self.at(&e))
            }
            Ask::StopRecording { .. } => Err("a recording ends beside the run".into()),
            Ask::Knobs { target, set } if *target == self.target => match self.layer() {
                Some(layer) => knobs::in_use(cx, drive, target, &*layer, set).map_err(said),
                None => knobs::of_unmounted(drive, target).map_err(said),
            },
            Ask::Knobs { target, set } => {
                drive.ssd.make_durable().map_err(|e| drive.at(e).to_string())?;
                knobs::at_rest(drive, target, set).map_err(said)
            }
        }
    }

    /// What is to be seen of the drive and its target now.
    pub(crate) fn metrics(&self, cx: &Cx) -> Snapshot {
        let requests = self.tap.borrow().as_ref().map_or_else(Vec::new, |tap| tap.requests());
        let (drive, target, layer) = (&self.drive, &*self.target, self.layer());
        look(&Looked { drive, target, layer, requests, now: cx.now() })
    }

    /// The top of the target in use; that of another is nobody's.
    fn tap_of(&self, target: &Option<String>) -> Result<Arc<Tap>, String> {
        let (path, used) = (self.drive.path.display(), &self.target);
        match target {
            Some(other) if other != used => Err(format!(
                "{path}: target `{other}` is not in use, so it is asked nothing; `{used}` is"
            )),
            _ => {
                self.tap.borrow().clone().ok_or_else(|| {
                    format!("{path}: target `{used}` has no block device in use now")
                })
            }
        }
    }

    fn at(&self, e: &TapError) -> String {
        format!("{}: target `{}`: {e}", self.drive.path.display(), self.target)
    }

    /// Nothing goes on, and perhaps a knob holds it up.
    fn unstick(&self, cx: &Cx) -> bool {
        let Some(knob) = self.layer().and_then(|layer| layer.unstick(cx)) else {
            return false;
        };
        if !self.lifted.replace(true) {
            self.note(format!("{knob} could not be kept up: no room was left at {}", cx.now()));
        }
        true
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.settle();
    }
}

/// Who asked for the end of a recording, and where.
type Ending = Mutex<Option<(Job, Recording, String)>>;

/// Ends it, and says what it came to.
fn end_of(ending: &Ending) {
    let taken = ending.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((job, recording, at)) = taken else { return };
    let ended = recording.end().map_err(|e| format!("{at}: {e}"));
    job.answer_beside(ended.and_then(|recorded| {
        let json = serde_json::to_string_pretty(&recorded).map_err(|e| e.to_string())?;
        Ok(Answer::new((format!("{recorded}\n"), json + "\n")))
    }));
}

/// The run's end of the control socket.
struct Holder {
    live: Rc<Live>,
    questions: Questions,
}

impl Port for Holder {
    fn serve(&mut self, cx: &Cx) {
        let Some(job) = self.questions.next() else { return };
        match &self.live.switch {
            Some(switch) if job.ask == Ask::PowerCut => switch.pull(cx, job),
            _ if matches!(job.ask, Ask::StopRecording { .. }) => self.live.stop_recording(job),
            _ => job.answer(|ask| self.live.answer(cx, ask)),
        }
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, cx: &Cx) -> Idle {
        if self.live.unstick(cx) { Idle::Changed } else { Idle::Stalled }
    }
}
