//! A drive in use, as the run's thread knows it: its targets, and whoever asks about them.
//!
//! Owns: which targets are in use, their layers and tops; the port at which questions arrive. Promises: a
//! question is answered between two steps of the run, as [`answer`] says; a run that can't go on, because a
//! knob holds it up, goes on. Never: waits for virtual time.

use super::power::Switch;
use super::server::{Job, Questions};
use super::socket::path_of;
use super::{Answer, Ask, ControlError, Listening, io_error};
use crate::lnvm::{Drive, LnvmError};
use crate::metrics::{Snapshot, look};
use crate::tap::Tap;
use crate::trace::Recording;
use crate::verbs::{VerbError, answer, recorded};
use flashlane_base::Ns;
use flashlane_ftl::layer::Layer;
use flashlane_rt::{Cx, Idle, Opened, Port};
use flashlane_stack::Layers;
use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A drive that is in use by this process.
pub(crate) struct Live {
    drive: Drive,
    targets: RefCell<Vec<Target>>,
    /// Threads that end recordings.
    ending: RefCell<Vec<JoinHandle<()>>>,
    /// The power of the drive, where the run can do without.
    switch: Option<Rc<Switch>>,
}

/// A target in use.
pub(crate) struct Target {
    pub(crate) name: String,
    /// Its layers and its top, while it is mounted.
    mounted: Option<(Layers, Arc<Tap>)>,
    /// What did not go as asked for.
    notes: Vec<String>,
    /// A knob was turned back against its owner.
    lifted: bool,
}

impl Target {
    pub(crate) fn layer(&self) -> Option<&Arc<dyn Layer>> {
        self.layers().map(Layers::target)
    }

    /// All that stands on its PUs.
    pub(crate) fn layers(&self) -> Option<&Layers> {
        self.mounted.as_ref().map(|(layers, _)| layers)
    }

    pub(crate) fn tap(&self) -> Option<&Arc<Tap>> {
        self.mounted.as_ref().map(|(_, tap)| tap)
    }
}

/// A drive whose holder listens, until it is dropped.
pub(crate) struct Attended {
    _port: Opened,
    _listening: Listening,
}

/// The same, until it is taken out.
pub(crate) type Attending = Rc<RefCell<Option<Attended>>>;

impl Live {
    /// A drive that is about to be used, and its power.
    pub(crate) fn new(drive: Drive, switch: Option<Rc<Switch>>) -> Rc<Live> {
        Rc::new(Live { drive, switch, targets: RefCell::default(), ending: RefCell::default() })
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

    /// A target will be mounted: nobody removes it any more.
    pub(crate) fn add_target(&self, name: &str) {
        if self.uses(name) {
            return;
        }
        let target = Target { name: name.into(), mounted: None, notes: Vec::new(), lifted: false };
        self.targets.borrow_mut().push(target);
    }

    fn target(&self, name: &str) -> Option<Ref<'_, Target>> {
        let all = self.targets.borrow();
        Ref::filter_map(all, |all| all.iter().find(|target| target.name == name)).ok()
    }

    fn target_mut(&self, name: &str) -> Option<RefMut<'_, Target>> {
        let all = self.targets.borrow_mut();
        RefMut::filter_map(all, |all| all.iter_mut().find(|target| target.name == name)).ok()
    }

    /// It is mounted.
    pub(crate) fn set_mounted(&self, name: &str, layers: Layers, tap: Arc<Tap>) {
        if let Some(mut target) = self.target_mut(name) {
            target.mounted = Some((layers, tap));
        }
    }

    /// It is being stopped: its knobs are not to be turned any more. Recordings that were to end have their
    /// names.
    pub(crate) fn take_mounted(&self, name: &str) {
        if let Some(mut target) = self.target_mut(name) {
            target.mounted = None;
        }
        for thread in self.ending.take() {
            let _ = thread.join(); // who asked has heard of it
        }
    }

    /// Ends a recording. Its file may take long, so another thread waits for that.
    fn stop_recording(&self, cx: &Cx, job: Job) {
        let Ask::StopRecording { target } = &job.ask else { return };
        let (target, recording) = match (InUse { live: self, cx }).take_recording(target.as_deref())
        {
            Ok(taken) => taken,
            Err(why) => return job.answer(|_| Err(why.to_string())),
        };
        let path = self.drive.path.clone();
        let end = Arc::new(Mutex::new(Some((job, recording))));
        let theirs = end.clone();
        let ends = move |end: &Ending| {
            let taken = end.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((job, recording)) = taken {
                let ended = recorded(&path, &target, recording);
                job.answer_beside(ended.map_err(|e| e.to_string()));
            }
        };
        let aside = ends.clone();
        let thread = std::thread::Builder::new().name("record end".into());
        match thread.spawn(move || aside(&theirs)) {
            Ok(thread) => {
                let mut ending = self.ending.borrow_mut();
                ending.retain(|thread| !thread.is_finished());
                ending.push(thread);
            }
            // Where there is no room for one, this one waits.
            Err(_) => ends(&end),
        }
    }

    /// Names of the targets in use.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.targets.borrow().iter().map(|target| target.name.clone()).collect()
    }

    pub(crate) fn uses(&self, name: &str) -> bool {
        self.target(name).is_some()
    }

    /// The layer of a target in use, once it is mounted.
    pub(crate) fn layer(&self, name: &str) -> Option<Arc<dyn Layer>> {
        self.target(name)?.layer().cloned()
    }

    /// All that stands on its PUs, once it is mounted.
    pub(crate) fn layers(&self, name: &str) -> Option<Layers> {
        self.target(name)?.layers().cloned()
    }

    /// Notes something about a target that did not go as asked for.
    pub(crate) fn note(&self, name: &str, what: String) {
        if let Some(mut target) = self.target_mut(name) {
            target.notes.push(what);
        }
    }

    /// What was noted about it.
    pub(crate) fn notes(&self, name: &str) -> Vec<String> {
        self.target(name).map_or_else(Vec::new, |target| target.notes.clone())
    }

    /// What is to be seen of the drive and its targets now.
    pub(crate) fn metrics(&self, cx: &Cx) -> Snapshot {
        look(&self.drive, &self.targets.borrow(), cx.now())
    }

    /// Nothing goes on, or it is to end, and perhaps a knob holds it up.
    pub(crate) fn unstick(&self, cx: &Cx) -> bool {
        let mut changed = false;
        for target in &mut *self.targets.borrow_mut() {
            let Some(knob) = target.layer().and_then(|layer| layer.unstick(cx)) else { continue };
            changed = true;
            if !std::mem::replace(&mut target.lifted, true) {
                let now = cx.now();
                let said = format!("{knob} could not be kept up: no room was left at {now}");
                target.notes.push(said);
            }
        }
        changed
    }
}

/// What this process has a drive in use for, at one moment of its run.
#[derive(Clone, Copy)]
pub(crate) struct InUse<'a> {
    pub(crate) live: &'a Live,
    pub(crate) cx: &'a Cx,
}

impl InUse<'_> {
    /// The target that is meant, and its top: the only one where none is named.
    ///
    /// # Errors
    /// There is no such target in use, several may be meant, or it is not mounted.
    pub(crate) fn tap_of(&self, name: Option<&str>) -> Result<(String, Arc<Tap>), VerbError> {
        let path = &self.live.drive.path;
        let says = |problem| VerbError::Target { path: path.clone(), problem };
        let all = self.live.targets.borrow();
        let used: Vec<String> = all.iter().map(|target| format!("`{}`", target.name)).collect();
        let used = used.join(", ");
        let target = match (name, &all[..]) {
            (Some(name), all) => {
                all.iter().find(|target| target.name == name).ok_or_else(|| {
                    let are = if all.len() == 1 { "is" } else { "are" };
                    says(format!(
                        "target `{name}` is not in use, so it is asked nothing; {used} {are}"
                    ))
                })?
            }
            (None, [one]) => one,
            (None, _) => {
                let known = format!("in use: {used}");
                return Err(LnvmError::WhichTarget { path: path.clone(), known }.into());
            }
        };
        let tap = target.tap().ok_or_else(|| {
            says(format!("target `{}` has no block device in use now", target.name))
        })?;
        Ok((target.name.clone(), tap.clone()))
    }

    /// A recording that is to end, and its target: the only one that there is where none is named.
    ///
    /// # Errors
    /// As [`InUse::tap_of`], or nothing is recorded.
    pub(crate) fn take_recording(
        &self,
        name: Option<&str>,
    ) -> Result<(String, Recording), VerbError> {
        let all = self.live.targets.borrow();
        let is_recorded = |target: &&Target| target.tap().is_some_and(|tap| tap.is_prepared());
        let mut recorded = all.iter().filter(is_recorded).map(|target| target.name.as_str());
        let only = recorded.next().filter(|_| recorded.next().is_none());
        let (target, tap) = self.tap_of(name.or(only))?;
        match tap.take() {
            Ok(recording) => Ok((target, recording)),
            Err(source) => {
                Err(VerbError::Record { path: self.live.drive.path.clone(), target, source })
            }
        }
    }
}

/// Who asked for the end of a recording.
type Ending = Mutex<Option<(Job, Recording)>>;

/// The run's end of the control socket.
struct Holder {
    live: Rc<Live>,
    questions: Questions,
}

impl Holder {
    fn answer(&self, cx: &Cx, ask: &Ask) -> Result<Answer, VerbError> {
        answer(&self.live.drive, ask, Some(InUse { live: &self.live, cx }))
    }
}

impl Port for Holder {
    fn serve(&mut self, cx: &Cx) {
        let Some(job) = self.questions.next() else { return };
        match &self.live.switch {
            Some(switch) if job.ask == Ask::PowerCut => switch.pull(cx, job),
            _ if matches!(job.ask, Ask::StopRecording { .. }) => self.live.stop_recording(cx, job),
            _ => job.answer(|ask| self.answer(cx, ask).map_err(|e| e.to_string())),
        }
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, cx: &Cx) -> Idle {
        if self.live.unstick(cx) { Idle::Changed } else { Idle::Stalled }
    }
}
