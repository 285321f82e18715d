//! What each personality does, and with which numbers.
//!
//! Owns: the loop of a thread ([`Personality::steps`]), Filebench's defaults ([`Settings::of`]), limits.
//! Promises: what is out of its limits is said with the option that sets it. Never: does anything.

use flashlane_base::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    Fileserver,
    Varmail,
    Webserver,
    /// Some call it `proxyserver`.
    Webproxy,
}

/// What is done, without to what: results count by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Create,
    Open,
    WriteWhole,
    Append,
    AppendLog,
    ReadWhole,
    Fsync,
    Close,
    Delete,
    Stat,
}

impl Kind {
    /// In the order of results.
    pub const ALL: [Kind; 10] = [
        Kind::Create,
        Kind::Open,
        Kind::WriteWhole,
        Kind::Append,
        Kind::AppendLog,
        Kind::ReadWhole,
        Kind::Fsync,
        Kind::Close,
        Kind::Delete,
        Kind::Stat,
    ];

    /// Filebench's word; the web server's append to its log has a name of its own there.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Create => "createfile",
            Kind::Open => "openfile",
            Kind::WriteWhole => "writewholefile",
            Kind::Append => "appendfilerand",
            Kind::AppendLog => "appendlog",
            Kind::ReadWhole => "readwholefile",
            Kind::Fsync => "fsync",
            Kind::Close => "closefile",
            Kind::Delete => "deletefile",
            Kind::Stat => "statfile",
        }
    }
}

/// A line of a thread's loop.
pub type Step = Kind;

use Kind::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, Stat, WriteWhole};

/// `workloads/fileserver.f`, thread `filereaderthread`.
const FILESERVER: &[Step] =
    &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat];
/// `workloads/varmail.f`, thread `filereaderthread`.
const VARMAIL: &[Step] = &[
    Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open, ReadWhole,
    Close,
];
/// `workloads/webserver.f`, thread `filereaderthread`: ten files, then a line of the log.
const WEBSERVER: &[Step] = &[
    Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
    Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
    Open, ReadWhole, Close, Open, ReadWhole, Close, AppendLog,
];
/// `workloads/webproxy.f`, thread `proxycache`: one file in, five read. Its last line, `opslimit`, limits
/// nothing where no rate is set.
const WEBPROXY: &[Step] = &[
    Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole,
    Close, Open, ReadWhole, Close, Open, ReadWhole, Close,
];

impl Personality {
    pub const ALL: [Personality; 4] = [
        Personality::Fileserver,
        Personality::Varmail,
        Personality::Webserver,
        Personality::Webproxy,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Personality::Fileserver => "fileserver",
            Personality::Varmail => "varmail",
            Personality::Webserver => "webserver",
            Personality::Webproxy => "webproxy",
        }
    }

    /// The personality of that name.
    pub fn named(word: &str) -> Option<Personality> {
        let word = if word == "proxyserver" { "webproxy" } else { word };
        Personality::ALL.into_iter().find(|p| p.word() == word)
    }

    /// What a thread does, over and over.
    pub fn steps(self) -> &'static [Step] {
        match self {
            Personality::Fileserver => FILESERVER,
            Personality::Varmail => VARMAIL,
            Personality::Webserver => WEBSERVER,
            Personality::Webproxy => WEBPROXY,
        }
    }
}

/// Files at most: each is remembered.
pub const FILES_MAX: u64 = 1_000_000;
pub const THREADS_MAX: u32 = 1_024;
/// Mean size of a file, and most that is appended or moved at once.
pub const SIZE_MAX: Bytes = Bytes::from_gib(1);

/// The numbers of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub personality: Personality,
    /// `nfiles`: files that there are room for; some are there at first.
    pub files: u64,
    /// `meanfilesize`.
    pub mean: Bytes,
    /// `meandirwidth`: entries of a folder, on average.
    pub width: u64,
    /// `nthreads`.
    pub threads: u32,
    /// `meanappendsize`: at most so much is appended at once, and half of it on average.
    pub append: Bytes,
    /// `iosize`: whole files are read and written by so much.
    pub io: Bytes,
    /// `prealloc`: percent of the files that are there at first, on average.
    pub there_percent: u64,
    pub seed: u64,
}

impl Settings {
    /// Filebench's.
    pub fn of(personality: Personality) -> Settings {
        // nfiles, meanfilesize in KiB, meandirwidth, nthreads, prealloc; each from the head of its file.
        let (files, kib, width, threads, there_percent) = match personality {
            // fileserver.f: 10000, 128k, 20, 50, prealloc=80
            Personality::Fileserver => (10_000, 128, 20, 50, 80),
            // varmail.f: 1000, 16k, 1000000, 16, prealloc=80
            Personality::Varmail => (1_000, 16, 1_000_000, 16, 80),
            // webserver.f: 1000, 16k, 20, 100, prealloc=100
            Personality::Webserver => (1_000, 16, 20, 100, 100),
            // webproxy.f: 10000, 16k, 1000000, 100, prealloc=80
            Personality::Webproxy => (10_000, 16, 1_000_000, 100, 80),
        };
        Settings {
            personality,
            files,
            mean: Bytes::from_kib(kib),
            width,
            threads,
            // meanappendsize=16k in three of them; webproxy.f calls it meaniosize.
            append: Bytes::from_kib(16),
            // iosize=1m in all.
            io: Bytes::from_mib(1),
            there_percent,
            seed: 0,
        }
    }

    /// Whether they make sense.
    pub fn check(&self) -> Result<(), SettingsError> {
        let size = |what, option, size: Bytes| match size.get() {
            0 => Err(SettingsError::Zero { what, option }),
            n if n > SIZE_MAX.get() => {
                let most = SIZE_MAX.to_string();
                Err(SettingsError::Large { what, option, given: size.to_string(), most })
            }
            _ => Ok(()),
        };
        let count = |what, option, n: u64, most: u64| match n {
            0 => Err(SettingsError::Zero { what, option }),
            n if n > most => {
                let (given, most) = (n.to_string(), most.to_string());
                Err(SettingsError::Large { what, option, given, most })
            }
            _ => Ok(()),
        };
        count("number of files", "--files", self.files, FILES_MAX)?;
        count("number of threads", "--threads", self.threads.into(), THREADS_MAX.into())?;
        size("mean size of a file", "--mean-size", self.mean)?;
        size("largest append", "--append-size", self.append)
    }
}

/// Why settings make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error("{option}: the {what} is 0, so nothing would be done: give it 1 or more")]
    Zero { what: &'static str, option: &'static str },
    #[error("{option} {given}: the {what} is {most} at most")]
    Large { what: &'static str, option: &'static str, given: String, most: String },
}
