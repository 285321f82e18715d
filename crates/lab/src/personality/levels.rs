//! What a file system writes to the layers below it, by level.
//!
//! Owns: the names of the levels, and how they come of what the file system counts. Promises: the
//! levels sum up to all that it writes. Never: counts.

use flashlane_ftl::layer::Counted;
use flashlane_parafs::Stats;

/// What the levels stand under in a course.
pub(crate) const FILE_SYSTEM: &str = "file_system";

/// In the order of [`levels`].
pub(crate) const LEVELS: [&str; 4] =
    ["data_sectors", "node_sectors", "cleaning_sectors", "in_place_sectors"];

/// Sectors of pages of files and folders, of nodes, of what cleaning has moved of both, of tables in
/// place.
pub(crate) fn levels(stats: &Stats, page_sectors: u64) -> [u64; 4] {
    let nodes = stats.fsync_nodes + stats.checkpoint_nodes;
    [
        stats.data_pages * page_sectors,
        nodes.saturating_sub(stats.moved_nodes) * page_sectors,
        (stats.moved_pages + stats.moved_nodes) * page_sectors,
        stats.meta_sectors,
    ]
}

pub(crate) fn counted(stats: &Stats, page_sectors: u64) -> Vec<Counted> {
    let each = LEVELS.into_iter().zip(levels(stats, page_sectors));
    each.map(|(name, value)| Counted { name, value }).collect()
}
