//! A connection to SQLite, on a thread of its own.
//!
//! Owns: the connection, what it is told ([`Command`]) and what comes of that ([`Reply`]).
//! Promises: an error says the statement and SQLite's own words; whatever happens, the connection is closed.
//! Never: knows the run; the VFS does.

use super::vfs;
use libsqlite3_sys as ffi;
use std::ffi::{CStr, CString, c_int};
use std::ptr::null_mut;

/// What a thread does with its connection.
pub(super) enum Command {
    /// Opens the database of this name, with these settings.
    Open {
        name: String,
        settings: Vec<String>,
    },
    /// Executes a statement; `?1` is a number, `?2` a value.
    Query {
        sql: &'static str,
        id: i64,
        value: Vec<u8>,
    },
    /// Executes one for several rows, in one transaction.
    Each {
        sql: &'static str,
        rows: Vec<(i64, Vec<u8>)>,
    },
    Close,
}

/// Rows: the first column as a number, the last as bytes.
pub(super) type Reply = Result<Vec<(i64, Vec<u8>)>, Failure>;

/// SQLite could not do it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) sql: String,
    /// Its result code.
    pub(super) code: c_int,
    pub(super) says: String,
}

/// The connection of a thread.
#[derive(Default)]
pub(super) struct Client(Option<Connection>);

impl Client {
    pub(super) fn execute(&mut self, command: Command) -> Reply {
        let Command::Open { name, settings } = &command else {
            let Some(connection) = &self.0 else {
                return Err(failure("", ffi::SQLITE_MISUSE, "no database is open".into()));
            };
            return match command {
                Command::Query { sql, id, value } => connection.query(sql, id, &value),
                Command::Each { sql, rows } => connection.each(sql, &rows),
                Command::Close | Command::Open { .. } => {
                    self.0.take().map_or(Ok(Vec::new()), Connection::close)
                }
            };
        };
        let connection = self.0.insert(Connection::open(name)?);
        for sql in settings {
            connection.query(sql, 0, &[])?;
        }
        Ok(Vec::new())
    }
}

fn failure(sql: &str, code: c_int, says: String) -> Failure {
    Failure { sql: sql.to_string(), code, says }
}

/// A database handle that is open.
struct Connection(*mut ffi::sqlite3);

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it was opened, has no statement left, and nobody uses it any more.
        unsafe { ffi::sqlite3_close(self.0) };
    }
}

/// A statement that is prepared.
struct Statement(*mut ffi::sqlite3_stmt);

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: it was prepared (or is NULL, which is allowed), and nobody uses it any more.
        unsafe { ffi::sqlite3_finalize(self.0) };
    }
}

impl Connection {
    fn open(name: &str) -> Result<Connection, Failure> {
        let bad = |code, says: &str| failure("open", code, says.to_string());
        vfs::register().map_err(|rc| bad(rc, "its VFS could not be registered"))?;
        let path = CString::new(name).map_err(|_| bad(ffi::SQLITE_CANTOPEN, "NUL in a name"))?;
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_NOMUTEX;
        let mut db = null_mut();
        // SAFETY: both names end with a NUL. The handle is to be closed whether this fails or not.
        let (rc, connection) = unsafe {
            let rc = ffi::sqlite3_open_v2(path.as_ptr(), &mut db, flags, vfs::NAME.as_ptr());
            (rc, Connection(db))
        };
        if rc == ffi::SQLITE_OK { Ok(connection) } else { Err(connection.failure("open", rc)) }
    }

    /// Closes it, and says what came of that: the last one writes a WAL back.
    fn close(self) -> Reply {
        // SAFETY: it is open, and has no statement left. If it fails it stays open, and is dropped.
        match unsafe { ffi::sqlite3_close(self.0) } {
            ffi::SQLITE_OK => {
                std::mem::forget(self);
                Ok(Vec::new())
            }
            rc => Err(self.failure("close", rc)),
        }
    }

    fn failure(&self, sql: &str, code: c_int) -> Failure {
        // SAFETY: it is open (or NULL, which is allowed), and the text is copied before the next call.
        let says = unsafe { CStr::from_ptr(ffi::sqlite3_errmsg(self.0)) };
        failure(sql, code, says.to_string_lossy().into_owned())
    }

    fn query(&self, sql: &str, id: i64, value: &[u8]) -> Reply {
        let text = CString::new(sql).map_err(|_| failure(sql, ffi::SQLITE_MISUSE, "NUL".into()))?;
        let mut raw = null_mut();
        // SAFETY: the connection is open and the text ends with a NUL.
        let rc =
            unsafe { ffi::sqlite3_prepare_v2(self.0, text.as_ptr(), -1, &mut raw, null_mut()) };
        let statement = Statement(raw);
        let good = |rc| if rc == ffi::SQLITE_OK { Ok(()) } else { Err(self.failure(sql, rc)) };
        good(rc)?;
        // SAFETY: the statement is prepared. It does not outlive this function, `value` does.
        unsafe {
            let parameters = ffi::sqlite3_bind_parameter_count(raw);
            if parameters > 0 {
                good(ffi::sqlite3_bind_int64(raw, 1, id))?;
            }
            if parameters > 1 {
                let (at, bytes) = (value.as_ptr().cast(), value.len() as c_int);
                good(ffi::sqlite3_bind_blob(raw, 2, at, bytes, ffi::SQLITE_STATIC()))?;
            }
        }
        let mut rows = Vec::new();
        loop {
            // SAFETY: as above.
            match unsafe { ffi::sqlite3_step(raw) } {
                ffi::SQLITE_ROW => rows.push(row(&statement)),
                ffi::SQLITE_DONE => break,
                rc => return Err(self.failure(sql, rc)),
            }
        }
        Ok(rows)
    }

    /// One transaction; if it fails it is rolled back.
    fn each(&self, sql: &str, rows: &[(i64, Vec<u8>)]) -> Reply {
        self.query("BEGIN", 0, &[])?;
        let each = || {
            rows.iter().try_for_each(|(id, value)| self.query(sql, *id, value).map(drop))?;
            self.query("COMMIT", 0, &[])
        };
        each().inspect_err(|_| {
            // SQLite may have rolled it back itself; then there is none.
            let _ = self.query("ROLLBACK", 0, &[]);
        })
    }
}

/// The row that a statement has stepped to.
fn row(statement: &Statement) -> (i64, Vec<u8>) {
    // SAFETY: the statement has a row; its bytes are copied before the next call.
    unsafe {
        let last = ffi::sqlite3_column_count(statement.0) - 1;
        let id = if last > 0 { ffi::sqlite3_column_int64(statement.0, 0) } else { 0 };
        let bytes = ffi::sqlite3_column_blob(statement.0, last).cast::<u8>();
        let count = ffi::sqlite3_column_bytes(statement.0, last) as usize;
        let none = bytes.is_null();
        (id, if none { Vec::new() } else { std::slice::from_raw_parts(bytes, count).to_vec() })
    }
}
