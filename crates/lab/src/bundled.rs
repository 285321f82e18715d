//! What comes inside the program, so that it works from any folder.
//!
//! Owns: the recorded trace, the experiment that runs without a file, CPU cost tables. Promises:
//! they are the files of the repository, byte for byte. Never: grows beyond a few MiB.

/// The trace of `traces/ext4-sqlite-git.blkparse.zst`: SQLite, git and a compiler on ext4.
pub const TRACE: (&str, &[u8]) =
    ("ext4-sqlite-git", include_bytes!("../../../traces/ext4-sqlite-git.blkparse.zst"));

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
