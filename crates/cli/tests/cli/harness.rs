//! Runs the program in a folder of its own, as a person would, and looks at what comes of it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

pub(crate) struct Here {
    folder: tempfile::TempDir,
}

pub(crate) fn here() -> Here {
    Here { folder: tempfile::tempdir().expect("a folder for this test") }
}

/// A folder. What a test that fails has left mounted there is detached.
pub(crate) struct Folder(Here);

impl Folder {
    pub(crate) fn of(here: Here) -> Folder {
        Folder(here)
    }
}

impl std::ops::Deref for Folder {
    type Target = Here;

    fn deref(&self) -> &Here {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for place in ["disk", "log", "mnt"].map(|name| self.path(name)) {
            if place.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
                continue;
            }
            let mut umount = Command::new("umount");
            let _ = umount.arg("-l").arg(place).stderr(Stdio::null()).status();
        }
    }
}

/// The words of a command: a list, or a line as a person types it, with `'` around a word that has spaces.
pub(crate) trait Line {
    fn words(&self) -> Vec<String>;
}

impl Line for str {
    fn words(&self) -> Vec<String> {
        let of = |(i, part): (usize, &str)| match i % 2 {
            0 => part.split_whitespace().map(String::from).collect(),
            _ => vec![part.to_string()],
        };
        self.split('\'').enumerate().flat_map(of).collect()
    }
}

impl Line for String {
    fn words(&self) -> Vec<String> {
        self.as_str().words()
    }
}

impl<const N: usize> Line for [&str; N] {
    fn words(&self) -> Vec<String> {
        self.iter().map(|word| word.to_string()).collect()
    }
}

impl Line for [&str] {
    fn words(&self) -> Vec<String> {
        self.iter().map(|word| word.to_string()).collect()
    }
}

impl Line for Vec<&str> {
    fn words(&self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl Here {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), text).expect("a file of this test");
        self.path(name)
    }

    pub(crate) fn command(&self, line: &(impl Line + ?Sized)) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flashlane"));
        command.args(line.words()).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, line: &(impl Line + ?Sized)) -> Done {
        Done::of(self.command(line).output().expect("the program starts"))
    }

    /// What comes of it when Ctrl-C is pressed after a while.
    pub(crate) fn interrupted(&self, line: &(impl Line + ?Sized)) -> Done {
        let child = self
            .command(line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        #[allow(clippy::disallowed_methods)] // a person waits, then presses Ctrl-C
        std::thread::sleep(Duration::from_secs(2));
        let pid = child.id().to_string();
        let kill = Command::new("kill").args(["-INT", &pid]).status().expect("kill is everywhere");
        assert!(kill.success());
        Done::of(child.wait_with_output().expect("it ends"))
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).expect("the folder of this test");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into()).collect();
        names.sort();
        names
    }
}

/// A text has all of these parts.
pub(crate) fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

/// A folder with a drive of 64 MiB raw: 2 channels of 2 LUNs, 64 chunks each.
pub(crate) fn drive() -> Here {
    let h = here();
    h.run("drive create a.img --preset tiny --set geometry.chunks_per_pu=64").good();
    h
}

/// The types of target that are block devices: what holds of one behind a door holds of all.
pub(crate) const KINDS: [&str; 4] = ["pblk", "qblk", "pftl", "slc-tlc"];

/// Months of the run's time.
pub(crate) const ENDLESS: &str =
    "[w]\nrw=randwrite\nbs=4k\nsize=8m\niodepth=4\nfsync=64\ntime_based\nruntime=9999999\n";

/// A process that has a drive open until it is ended.
pub(crate) struct Holder {
    child: Option<Child>,
}

/// A moment, while another process does something.
pub(crate) fn pause() {
    #[allow(clippy::disallowed_methods)]
    std::thread::sleep(Duration::from_millis(20));
}

impl Here {
    /// Runs on a target, and is there when the socket is.
    pub(crate) fn hold(&self, image: &str, target: &str, socket: &str) -> Holder {
        self.file("endless.fio", ENDLESS);
        self.hold_with(&["run", "endless.fio", "--drive", image, "--target", target], socket)
    }

    pub(crate) fn hold_with(&self, line: &(impl Line + ?Sized), socket: &str) -> Holder {
        self.hold_by(self.command(line), socket)
    }

    /// A process that is there when it has begun to make a file.
    pub(crate) fn hold_making(&self, line: &(impl Line + ?Sized), name: &str) -> Holder {
        let begin = format!("{name}.flashlane-new-");
        self.hold_until(self.command(line), || {
            self.files().iter().any(|name| name.starts_with(&begin))
        })
    }

    /// As `hold_with`, by another program that becomes this one.
    pub(crate) fn hold_by(&self, command: Command, socket: &str) -> Holder {
        let before = std::fs::metadata(self.path(socket)).map(|there| there.ino()).ok();
        self.hold_until(command, || {
            let there = std::fs::metadata(self.path(socket)).map(|there| there.ino()).ok();
            there.is_some() && there != before
        })
    }

    /// A process that is there when something is seen of it.
    pub(crate) fn hold_until(&self, mut command: Command, seen: impl Fn() -> bool) -> Holder {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut holder = Holder { child: Some(child.expect("the program starts")) };
        for _ in 0..3000 {
            if seen() {
                return holder;
            }
            if !holder.is_running() {
                panic!("it ended: {:?}", holder.output());
            }
            pause();
        }
        panic!("nothing is seen of it");
    }
}

impl Holder {
    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    pub(crate) fn output(&mut self) -> Done {
        Done::of(self.child.take().expect("it runs").wait_with_output().expect("it ends"))
    }

    /// Sends it a signal, `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(kill.expect("kill is everywhere").success());
    }

    /// Ended with Ctrl-C: what it says.
    pub(crate) fn interrupt(self) -> Done {
        self.signal("-INT");
        self.interrupted()
    }

    /// What it says, as somebody has interrupted it.
    pub(crate) fn interrupted(mut self) -> Done {
        let done = self.output();
        assert_eq!(done.code, 130, "{done:?}");
        done
    }

    /// `kill -9`.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it runs until it is killed");
        child.wait().expect("it is gone");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        let child = self.child.as_mut().expect("it runs");
        child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Done {
        let done = Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        };
        assert!(!done.err.contains("panicked"), "{done:?}");
        done
    }

    /// It was refused with this exit code, saying all of these, printing nothing.
    pub(crate) fn refused(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.out.is_empty(), "{self:?}");
        self::says(&self.err, says);
    }

    pub(crate) fn good(self) -> Done {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).expect("one JSON object on standard output")
    }
}

/// Small enough for a test: 64 MiB raw.
pub(crate) const EXPERIMENT: &str = r#"
name = "small"
[device]
preset = "tiny"
[device.geometry]
chunks_per_pu = 64
[[target]]
kind = "pftl"
[[workload]]
rw = "randrw"
iodepth = 8
"#;

pub(crate) const JOB: &str =
    "[global]\nioengine=libaio\nbs=4k\niodepth=4\n[w]\nrw=randwrite\nsize=2m\nfsync=64\n";

pub(crate) const TRACE: &str =
    "  8,0 0 1 0.000000000 9 Q WS 8 + 8 [a]\n  8,0 0 2 0.000100000 9 Q R 8 + 8 [a]\n";

pub(crate) const MSR: &str = "128166372003061629,web,0,Write,4096,4096,1331\n\
                   128166372013061629,web,0,Read,4096,4096,413\n";
