//! SQLite's VFS (its interface to the operating system), which asks the run for everything.
//!
//! Owns: the table of functions that SQLite calls, the files that a connection has open, the shared
//! memory of its WAL index. Promises: all that it does to files, to time and to chance goes
//! through the [`Line`] of the thread that calls; a thread without a line, or whose run has ended,
//! gets an I/O error. The WAL index has 32 KiB for 4,096 frames and lies on the heap. Never: locks:
//! a database has one connection, so nobody competes for it.
//!
//! Functions and result codes: <https://www.sqlite.org/c3ref/vfs.html>, <https://www.sqlite.org/c3ref/io_methods.html>.

use super::baton::{Answer, Ask, FileKind, Line};
use flashlane_parafs::Nid;
use libsqlite3_sys as ffi;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The name that connections give for it.
pub(super) const NAME: &CStr = c"flashlane";
/// Bytes of a path, with its NUL.
const PATH_MAX: c_int = 512;
/// Days from the beginning of the Julian period to 1970, in milliseconds.
const JULIAN_1970: i64 = 210_866_760_000_000;

thread_local! {
    /// To the run that this thread belongs to.
    static LINE: RefCell<Option<Line>> = const { RefCell::new(None) };
}

/// From now on what SQLite does on this thread is asked of this run.
pub(super) fn belong_to(line: Line) {
    LINE.set(Some(line));
}

/// Asks the run. `failed` is what SQLite gets to know if the run can't do it.
fn ask(what: Ask, failed: c_int) -> Result<Answer, c_int> {
    let answer = LINE.with_borrow_mut(|line| line.as_mut().and_then(|line| line.ask(what)));
    match answer {
        Some(Answer::Full) => Err(ffi::SQLITE_FULL),
        Some(Answer::Failed) | None => Err(failed),
        Some(answer) => Ok(answer),
    }
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(ffi::SQLITE_OK)
}

/// Makes the VFS known to SQLite, once in a process.
///
/// # Errors
/// SQLite's code: it has no memory.
pub(super) fn register() -> Result<(), c_int> {
    static DONE: OnceLock<c_int> = OnceLock::new();
    let rc = *DONE.get_or_init(|| {
        let vfs = ffi::sqlite3_vfs {
            iVersion: 2,
            szOsFile: size_of::<File>() as c_int,
            mxPathname: PATH_MAX,
            pNext: null_mut(),
            zName: NAME.as_ptr(),
            pAppData: null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_pathname),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: Some(current_time),
            xGetLastError: None,
            xCurrentTimeInt64: Some(current_time_int64),
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        };
        // SAFETY: SQLite keeps the pointer; what is leaked stays where it is.
        unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0) }
    });
    if rc == ffi::SQLITE_OK { Ok(()) } else { Err(rc) }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// What SQLite has room for in each of its files: its own head, and ours.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    open: *mut Open,
}

/// An open file.
struct Open {
    ino: Nid,
    kind: FileKind,
    /// Regions of the WAL index.
    shm: Vec<Box<[u64]>>,
}

/// The file behind SQLite's pointer.
///
/// # Safety
/// `file` was opened by [`open`] and not closed since, and nobody else has this reference: SQLite
/// calls from the one thread of the connection, one call at a time.
unsafe fn of<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Open {
    // SAFETY: `open` has put a box there, which `close` takes away.
    unsafe { &mut *(*file.cast::<File>()).open }
}

/// The path behind a pointer.
///
/// # Safety
/// It is NULL or ends with a NUL.
unsafe fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives `szOsFile` bytes at `file`, a name, and NULL or room for flags.
    unsafe {
        (*file).pMethods = std::ptr::null();
        let kind = match flags {
            of if of & ffi::SQLITE_OPEN_MAIN_DB != 0 => FileKind::Database,
            _ => FileKind::Journal,
        };
        // Without a name it is a temporary file: those are kept in memory (`temp_store`).
        let Some(name) = text(name) else { return ffi::SQLITE_CANTOPEN };
        let create = flags & ffi::SQLITE_OPEN_CREATE != 0;
        match ask(Ask::Open { name, create }, ffi::SQLITE_CANTOPEN) {
            Ok(Answer::File(ino)) => {
                let open = Box::new(Open { ino, kind, shm: Vec::new() });
                (*file.cast::<File>()).open = Box::into_raw(open);
                (*file).pMethods = &METHODS;
                if !out_flags.is_null() {
                    *out_flags = flags;
                }
                ffi::SQLITE_OK
            }
            Ok(_) => ffi::SQLITE_CANTOPEN,
            Err(rc) => rc,
        }
    }
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: a path of SQLite's ends with a NUL.
    let Some(name) = (unsafe { text(name) }) else { return ffi::SQLITE_IOERR_DELETE };
    match ask(Ask::Delete { name, sync: sync != 0 }, ffi::SQLITE_IOERR_DELETE) {
        Ok(Answer::Missing) => ffi::SQLITE_IOERR_DELETE_NOENT,
        other => code(other.map(drop)),
    }
}

unsafe extern "C" fn access(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    _: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: a path of SQLite's ends with a NUL; there is room for the answer.
    unsafe {
        let Some(name) = text(name) else { return ffi::SQLITE_IOERR_ACCESS };
        let found = ask(Ask::Exists { name }, ffi::SQLITE_IOERR_ACCESS);
        code(found.map(|answer| *out = (!matches!(answer, Answer::Missing)).into()))
    }
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: a path of SQLite's ends with a NUL; at `out` there are `room` bytes.
    unsafe {
        let bytes = CStr::from_ptr(name).to_bytes_with_nul();
        if bytes.len() > room as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        out.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, count: c_int, out: *mut c_char) -> c_int {
    // The run seeds SQLite's own generator before each turn, so this is asked for by nobody.
    // SAFETY: at `out` there are `count` bytes.
    unsafe { out.write_bytes(0, count as usize) };
    count
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    let asked = ask(Ask::Sleep(microseconds.max(0) as u64), 0);
    if asked.is_ok() { microseconds } else { 0 }
}

/// Milliseconds since the beginning of the Julian period.
fn julian_ms() -> Result<i64, c_int> {
    match ask(Ask::Time, ffi::SQLITE_ERROR)? {
        Answer::Number(ns) => Ok(JULIAN_1970 + (ns / 1_000_000) as i64),
        _ => Err(ffi::SQLITE_ERROR),
    }
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    // SAFETY: there is room for the answer.
    code(julian_ms().map(|ms| unsafe { *out = ms as f64 / 86_400_000.0 }))
}

unsafe extern "C" fn current_time_int64(_: *mut ffi::sqlite3_vfs, out: *mut i64) -> c_int {
    // SAFETY: there is room for the answer.
    code(julian_ms().map(|ms| unsafe { *out = ms }))
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: it is open, and not used any more.
    let open = unsafe { Box::from_raw((*file.cast::<File>()).open) };
    code(ask(Ask::Close(open.ino), ffi::SQLITE_IOERR_CLOSE).map(drop))
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    count: c_int,
    at: i64,
) -> c_int {
    // SAFETY: it is open; at `into` there are `count` bytes, which are written before they are read.
    let (open, room) = unsafe {
        into.write_bytes(0, count as usize);
        (of(file), std::slice::from_raw_parts_mut(into.cast::<u8>(), count as usize))
    };
    let asked = Ask::Read { ino: open.ino, kind: open.kind, at: at as u64, bytes: room.len() };
    match ask(asked, ffi::SQLITE_IOERR_READ) {
        Ok(Answer::Bytes(bytes)) => {
            room[..bytes.len()].copy_from_slice(&bytes);
            match bytes.len() < room.len() {
                true => ffi::SQLITE_IOERR_SHORT_READ,
                false => ffi::SQLITE_OK,
            }
        }
        Ok(_) => ffi::SQLITE_IOERR_READ,
        Err(rc) => rc,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    count: c_int,
    at: i64,
) -> c_int {
    // SAFETY: it is open; at `from` there are `count` bytes.
    let (open, data) =
        unsafe { (of(file), std::slice::from_raw_parts(from.cast::<u8>(), count as usize)) };
    let (ino, kind) = (open.ino, open.kind);
    let asked = Ask::Write { ino, kind, at: at as u64, data: data.to_vec() };
    code(ask(asked, ffi::SQLITE_IOERR_WRITE).map(drop))
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    // SAFETY: it is open.
    let ino = unsafe { of(file) }.ino;
    code(ask(Ask::Truncate { ino, size: size as u64 }, ffi::SQLITE_IOERR_TRUNCATE).map(drop))
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: it is open.
    let open = unsafe { of(file) };
    let data_only = flags & ffi::SQLITE_SYNC_DATAONLY != 0;
    let asked = Ask::Sync { ino: open.ino, kind: open.kind, data_only };
    code(ask(asked, ffi::SQLITE_IOERR_FSYNC).map(drop))
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, out: *mut i64) -> c_int {
    // SAFETY: it is open, and there is room for the answer.
    unsafe {
        match ask(Ask::Size(of(file).ino), ffi::SQLITE_IOERR_FSTAT) {
            Ok(Answer::Number(size)) => {
                *out = size as i64;
                ffi::SQLITE_OK
            }
            Ok(_) => ffi::SQLITE_IOERR_FSTAT,
            Err(rc) => rc,
        }
    }
}

/// Nobody else has the database open.
unsafe extern "C" fn lock(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: there is room for the answer.
    unsafe { *out = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

/// What SQLite's own VFS for Unix says.
unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    4_096
}

/// What SQLite's own VFS for Unix says: a write changes nothing but the bytes that it names.
unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: it is open, and there is room for the answer. A region stays where it is until the
    // file is closed or unmapped: its box does not move.
    unsafe {
        let shm = &mut of(file).shm;
        while extend != 0 && shm.len() <= region as usize {
            shm.push(vec![0; bytes as usize / size_of::<u64>()].into());
        }
        *out = shm.get_mut(region as usize).map_or(null_mut(), |of| of.as_mut_ptr().cast());
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn shm_lock(_: *mut ffi::sqlite3_file, _: c_int, _: c_int, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn shm_barrier(_: *mut ffi::sqlite3_file) {}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: it is open, and SQLite has let go of its regions.
    unsafe { of(file) }.shm.clear();
    ffi::SQLITE_OK
}
