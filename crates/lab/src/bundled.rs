//! What comes inside the program, so that it works from any folder.
//!
//! Owns: the recorded trace, the recordings of figures, the experiment that runs without a file, CPU cost tables. Promises:
//! they are the files of the repository, byte for byte. Never: grows beyond ten MiB.

/// The trace of `traces/ext4-sqlite-git.blkparse.zst`: SQLite, git and a compiler on ext4.
const TRACE: File =
    ("ext4-sqlite-git", include_bytes!("../../../traces/ext4-sqlite-git.blkparse.zst"));

/// A file under the name by which an experiment has it, as `bundled:NAME`.
pub type File = (&'static str, &'static [u8]);

/// What `traces/record.sh` made of a recipe: what was measured, what came before, where the journals lie.
macro_rules! recording {
    ($name:literal) => {
        [
            (
                $name,
                include_bytes!(concat!("../../../traces/figures/", $name, ".parquet")).as_slice(),
            ),
            (
                concat!($name, ".warm"),
                include_bytes!(concat!("../../../traces/figures/", $name, ".warm.parquet"))
                    .as_slice(),
            ),
            (
                concat!($name, ".truth"),
                include_bytes!(concat!("../../../traces/figures/", $name, ".truth")).as_slice(),
            ),
        ]
    };
}

/// What an application read and wrote meanwhile.
macro_rules! application {
    ($name:literal) => {
        (
            concat!($name, ".json"),
            include_bytes!(concat!("../../../traces/figures/", $name, ".json")).as_slice(),
        )
    };
}

const APPLICATIONS: &[File] = &[
    application!("fileserver-ordered"),
    application!("fileserver-data"),
    application!("varmail-ordered"),
    application!("varmail-data"),
    application!("webserver-ordered"),
    application!("webserver-data"),
    application!("proxyserver-ordered"),
    application!("proxyserver-data"),
    application!("oltp-ordered"),
    application!("oltp-data"),
];

const RECORDINGS: &[[File; 3]] = &[
    recording!("fileserver-ordered"),
    recording!("fileserver-data"),
    recording!("varmail-ordered"),
    recording!("varmail-data"),
    recording!("webserver-ordered"),
    recording!("webserver-data"),
    recording!("proxyserver-ordered"),
    recording!("proxyserver-data"),
    recording!("oltp-ordered"),
    recording!("oltp-data"),
    recording!("fio-2-ordered"),
    recording!("fio-4-ordered"),
    recording!("fio-8-ordered"),
    recording!("fio-16-ordered"),
    recording!("fio-32-ordered"),
    recording!("fio-64-ordered"),
    recording!("fio-128-ordered"),
    recording!("fallocated-2-ordered"),
    recording!("fallocated-2-data"),
    recording!("fio-2-data"),
    recording!("fio-4-data"),
    recording!("fio-8-data"),
    recording!("fio-16-data"),
    recording!("fio-32-data"),
    recording!("fio-64-data"),
    recording!("fio-128-data"),
];

/// What `traces/door.sh` made of ext4, with the contents of its metadata.
macro_rules! ghosts {
    ($name:literal) => {
        (
            concat!("ghosts-", $name),
            include_bytes!(concat!("../../../traces/figures/ghosts-", $name, ".parquet"))
                .as_slice(),
        )
    };
}

const GHOSTS: &[File] = &[
    ghosts!("files"),
    ghosts!("age"),
    ghosts!("1"),
    ghosts!("2"),
    ghosts!("3"),
    ghosts!("4"),
    ghosts!("5"),
];

/// Every file that an experiment can name.
pub fn files() -> impl Iterator<Item = File> {
    let recordings = RECORDINGS.iter().flatten().chain(APPLICATIONS).chain(GHOSTS).copied();
    std::iter::once(TRACE).chain(recordings)
}

/// `experiments/quickstart.toml`: what `flashlane run` does without a file.
pub const QUICKSTART: &str = include_str!("../../../experiments/quickstart.toml");

/// What the host's work costs where nobody says so: as measured beside pblk (LightNVM, FAST '17, 5.1).
pub const DEFAULT_COSTS: &str = "lightnvm-fast17";

/// CPU cost tables by name, beside `zero`.
pub const COSTS: &[(&str, &str)] = &[
    ("lightnvm-fast17", include_str!("../../../presets/cpu/lightnvm-fast17.toml")),
    ("linux-4.16-femu", include_str!("../../../presets/cpu/linux-4.16-femu.toml")),
    ("ours-amd-epyc-2c", include_str!("../../../presets/cpu/ours-amd-epyc-2c.toml")),
];
