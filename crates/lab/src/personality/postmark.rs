//! Postmark: a mail server's small files, made, read, appended to and deleted by one thread.
//!
//! Owns: its words and their defaults ([`Postmark`]), which files there are ([`Set`]), what a
//! transaction is. Promises: each transaction picks with the same chances whatever happened before;
//! no two files have one name. Never: deletes what is left at the end, as the program does when its
//! transactions are over.
//!
//! A transaction is two things, as in Katcher's paper (TR3022): read a file or append to one, and
//! make a file or delete one. With `fsync`, what was written is durable before its file is closed:
//! the ParaFS paper's Table 2 has it so.

use super::{Bench, Hands, Job};
use flashlane_base::{Bytes, Ns, Rng};
use flashlane_files::{Call, Kind};
use flashlane_parafs::{FsError, Nid};
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::cell::RefCell;

/// Its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Postmark {
    /// Files at first.
    pub number: u64,
    /// Sizes of new files; appends let them grow to `size_high`.
    pub size_low: Bytes,
    pub size_high: Bytes,
    pub subdirectories: u64,
    /// Tenths of the transactions that read, and don't append; that make, and don't delete.
    pub bias_read: u64,
    pub bias_create: u64,
    /// Read and written at once.
    pub read: Bytes,
    pub write: Bytes,
    pub fsync: bool,
    /// After so many it is over.
    pub transactions: Option<u64>,
}

impl Default for Postmark {
    fn default() -> Postmark {
        Postmark {
            // ParaFS paper, Table 2: 10,000 files of 512 bytes; here that is their mean, so that
            // there is something to append.
            number: 10_000,
            size_low: Bytes::new(256),
            size_high: Bytes::new(768),
            subdirectories: 0,
            // Of ten transactions 3 read, 7 append and 5 make a file: 20 reads to 80 writes.
            bias_read: 3,
            bias_create: 5,
            // Postmark's own.
            read: Bytes::new(512),
            write: Bytes::new(512),
            fsync: true,
            transactions: None,
        }
    }
}

impl Postmark {
    pub(super) fn first_pages(&self, page: u64) -> u64 {
        let each = 1 + self.size_high.get().div_ceil(page);
        // A name takes less than 64 bytes of its folder.
        self.number * each + 2 * (1 + self.subdirectories) + (self.number * 64).div_ceil(page)
    }

    pub(crate) fn described(&self) -> Value {
        let Postmark { number, size_low, size_high, subdirectories, .. } = *self;
        let Postmark { bias_read, bias_create, read, write, fsync, transactions, .. } = *self;
        json!({
            "program": "postmark",
            "number": number,
            "size_low_bytes": size_low.get(),
            "size_high_bytes": size_high.get(),
            "subdirectories": subdirectories,
            "bias_read": bias_read,
            "bias_create": bias_create,
            "read_bytes": read.get(),
            "write_bytes": write.get(),
            "fsync": fsync,
            "transactions": transactions,
        })
    }
}

/// Which files there are.
pub(super) struct Set {
    settings: Postmark,
    rng: Rng,
    folders: Vec<Nid>,
    /// Numbers of those that are there, and of those that may be used again.
    there: Vec<usize>,
    gone: Vec<usize>,
    /// Files that have got a name.
    named: u64,
    transactions: u64,
}

impl Set {
    pub(super) fn new(settings: &Postmark, seed: u64) -> Set {
        Set {
            settings: settings.clone(),
            rng: Rng::stream(seed, "postmark", 0),
            folders: Vec::new(),
            there: Vec::new(),
            gone: (0..settings.number as usize).rev().collect(),
            named: 0,
            transactions: 0,
        }
    }

    /// A number and a place for a new file, and its size.
    fn new_file(&mut self, job: &Job) -> (usize, u64) {
        let file = self.gone.pop().unwrap_or_else(|| job.contents.borrow_mut().add());
        self.named += 1;
        let folder = self.folders[self.rng.below(self.folders.len() as u64) as usize];
        let place = (folder, self.named.to_string());
        let mut places = job.places.borrow_mut();
        if places.len() <= file {
            places.resize(file + 1, place.clone());
        }
        places[file] = place;
        let (low, high) = (self.settings.size_low.get(), self.settings.size_high.get());
        (file, low + self.rng.below(high - low + 1))
    }

    fn pick(&mut self) -> Option<usize> {
        let n = self.there.len() as u64;
        (n > 0).then(|| self.rng.below(n) as usize)
    }

    /// What the next transaction consists of.
    fn transaction(&mut self, job: &Job) -> Vec<Call> {
        self.transactions += 1;
        let mut calls = Vec::with_capacity(8);
        let fsync = self.settings.fsync.then_some(Call::Fsync);
        let reads = self.rng.below(10) < self.settings.bias_read;
        match (reads, self.pick()) {
            (true, None) => calls.push(Call::Skip(Kind::ReadWhole)),
            (true, Some(i)) => calls.extend([Call::Open(self.there[i]), Call::Read, Call::Close]),
            (false, picked) => {
                let file = picked.map(|i| self.there[i]);
                let size =
                    file.map_or(u64::MAX, |file| job.contents.borrow().begin_read(file).end());
                match (file, self.settings.size_high.get().saturating_sub(size)) {
                    (Some(file), left @ 1..) => {
                        let bytes = 1 + self.rng.below(left);
                        calls.extend([Call::Open(file), Call::Write(Kind::Append, bytes)]);
                        calls.extend(fsync);
                        calls.push(Call::Close);
                    }
                    // It is as large as files get.
                    _ => calls.push(Call::Skip(Kind::Append)),
                }
            }
        }
        if self.rng.below(10) < self.settings.bias_create {
            let (file, bytes) = self.new_file(job);
            calls.extend([Call::Create(file), Call::Write(Kind::WriteWhole, bytes)]);
            calls.extend(fsync);
            calls.push(Call::Close);
        } else {
            let gone = self.pick().map(|i| Call::Delete(self.there.swap_remove(i)));
            calls.push(gone.unwrap_or(Call::Skip(Kind::Delete)));
        }
        calls
    }

    /// A call was done, or not.
    fn ended(&mut self, call: Call, ok: bool) {
        match call {
            Call::Create(file) if ok => self.there.push(file),
            Call::Create(file) => self.gone.push(file),
            Call::Delete(file) if ok => self.gone.push(file),
            Call::Delete(file) => self.there.push(file),
            _ => {}
        }
    }
}

/// Makes the first files.
pub(super) async fn prepare(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &RefCell<Set>,
    top: Nid,
) -> Result<(), FsError> {
    let (number, subdirectories) = {
        let set = set.borrow();
        (set.settings.number, set.settings.subdirectories)
    };
    let mut folders = Vec::new();
    for serial in 0..subdirectories {
        folders.push(bench.folder(cx, top, &format!("s{serial}")).await?);
    }
    if folders.is_empty() {
        folders.push(top);
    }
    set.borrow_mut().folders = folders;
    let mut room = Vec::new();
    for _ in 0..number {
        let (file, bytes) = set.borrow_mut().new_file(job);
        let ino = bench.create(cx, job, file).await?;
        set.borrow_mut().ended(Call::Create(file), true);
        bench.append(cx, job, (file, ino), bytes, &mut room).await?;
        bench.fs.release(cx, ino).await?;
        if !bench.made(number) {
            break;
        }
    }
    Ok(())
}

/// Does one transaction after the other.
pub(super) async fn thread(bench: &Bench, cx: &Cx, job: &Job, set: &RefCell<Set>, end: Option<Ns>) {
    let most = set.borrow().settings.transactions.unwrap_or(u64::MAX);
    let mut hands = Hands::default();
    while bench.goes_on(cx, job, end) && set.borrow().transactions < most {
        let calls = set.borrow_mut().transaction(job);
        let mut made = true;
        for call in calls {
            // One that is under way when the time is over ends where it is. Nothing is done to a
            // file that could not be made.
            if !bench.goes_on(cx, job, end) {
                break;
            }
            match call {
                Call::Skip(kind) => bench.skipped(kind),
                Call::Write(..) | Call::Read | Call::Fsync | Call::Close if !made => {}
                call => {
                    let ok = bench.timed(cx, job, call, &mut hands).await;
                    set.borrow_mut().ended(call, ok);
                    made = match call {
                        Call::Create(_) | Call::Open(_) => ok,
                        _ => made,
                    };
                }
            }
        }
        cx.yield_now().await;
    }
    bench.let_go(cx, hands).await;
}
