//! Why an operation failed.
//!
//! Owns: [`FsError`], its number for a system call. Promises: nothing that came from outside is a
//! panic. Never: says what to do with a drive; messages of mkfs and mount do.

use crate::format::FormatError;

/// Why an operation failed. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("the name is taken")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("it is a directory")]
    IsDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("the name is too long: at most 255 bytes")]
    NameTooLong,
    #[error("an argument can't be: {0}")]
    Invalid(&'static str),
    #[error("no space left")]
    NoSpace,
    #[error("the file would be too large")]
    TooLarge,
    #[error("too many links")]
    TooManyLinks,
    #[error("no such extended attribute")]
    NoAttribute,
    #[error("the extended attributes have no room for it")]
    AttributeSpace,
    #[error("not supported")]
    Unsupported,
    #[error("the file is not there any more")]
    Stale,
    #[error("the file system is read-only: {0}")]
    ReadOnly(String),
    #[error("the medium can't give or take it: {0}")]
    Io(String),
    #[error(
        "{0} can't be read, and the repair would have to give them up, so it has changed nothing. \
         If the fault may pass, repair again after that; `--accept-lost` gives them up for good"
    )]
    Unread(String),
    #[error("the file system is damaged ({0}); unmount it and run `flashlane fsck --repair`")]
    Damaged(String),
}

impl FsError {
    /// What is wrong, for somebody who says where and what to do.
    pub(crate) fn why(&self) -> String {
        match self {
            FsError::Damaged(why) | FsError::Io(why) => why.clone(),
            e => e.to_string(),
        }
    }

    /// The number of a system call's error on Linux.
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotFound => 2,
            FsError::Io(_) | FsError::Unread(_) => 5,
            FsError::Exists => 17,
            FsError::NotDirectory => 20,
            FsError::IsDirectory => 21,
            FsError::Invalid(_) => 22,
            FsError::TooLarge => 27,
            FsError::NoSpace | FsError::AttributeSpace => 28,
            FsError::ReadOnly(_) => 30,
            FsError::TooManyLinks => 31,
            FsError::NameTooLong => 36,
            FsError::NotEmpty => 39,
            FsError::NoAttribute => 61,
            FsError::Unsupported => 95,
            FsError::Stale => 116,
            FsError::Damaged(_) => 117,
        }
    }
}

impl From<FormatError> for FsError {
    fn from(e: FormatError) -> FsError {
        FsError::Damaged(e.to_string())
    }
}

pub(crate) type Result<T> = std::result::Result<T, FsError>;
