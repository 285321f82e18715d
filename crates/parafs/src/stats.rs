//! What a file system has done.
//!
//! Owns: [`Stats`]. Never: decides anything by them.

use flashlane_base::counters;

counters! {
    /// What a file system has done since it was mounted. Pages are the file system's.
    pub struct Stats {
        /// Written for files and directories, without what cleaning has moved.
        data_pages: u64, Sum, "pages", [];
        /// Nodes that fsyncs have written.
        fsync_nodes: u64, Sum, "pages", [];
        /// Pages of nodes that checkpoints have written.
        checkpoint_nodes: u64, Sum, "pages", [];
        /// Padding behind what was made durable, where pages have pairs.
        padding_pages: u64, Sum, "pages", [];
        /// Written in place: tables, summaries, checkpoints.
        meta_sectors: u64, Sum, "sectors", [];
        /// Read from the log.
        read_pages: u64, Sum, "pages", [];
        /// Checkpoints.
        checkpoints: u64, Sum, "checkpoints", [];
        /// fsyncs that were asked for.
        fsyncs: u64, Sum, "fsyncs", [];
        /// Of them, those that took a checkpoint.
        fsync_checkpoints: u64, Sum, "fsyncs", [];
        /// Segments that were cleaned because room was short.
        foreground_victims: u64, Sum, "segments", [];
        /// Segments that were cleaned in idle time.
        background_victims: u64, Sum, "segments", [];
        /// Segments that were cleaned to level wear.
        wear_victims: u64, Sum, "segments", [];
        /// Valid pages of the segments that were cleaned.
        victim_valid_pages: u64, Sum, "pages", [];
        /// Pages of files that cleaning has moved.
        moved_pages: u64, Sum, "pages", [];
        /// Nodes of the segments that were cleaned, those that a checkpoint had to write anyway left out.
        moved_nodes: u64, Sum, "pages", [];
        /// Segments that were trimmed.
        trims: u64, Sum, "segments", [];
        /// Times that an operation waited for cleaning.
        room_waits: u64, Sum, "times", [];
    }
}
