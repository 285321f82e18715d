//! Small fixed runs, for counting instructions under callgrind (`make instructions`).
//!
//! Owns: one run per benchmark of `bench/instructions.sh`. Promises: the same program does the same
//! work each time, whatever the machine; only what happens inside [`region_of_interest`] is to be
//! counted; a run that goes wrong ends with an error. Never: measures, or reads a clock.
//!
//! Use: `instructions --list` names the benchmarks; `instructions NAME` runs one, and prints how
//! many units of work the region has done and what a unit is.

use flashlane_base::{Lba, Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_lab::execute::{How, Outcome, execute};
use flashlane_lab::experiment::{Base, Experiment, Target};
use flashlane_lab::run::{Monitor, Unwatched};
use flashlane_lab::stack::Stack;
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_serve::{Client, Export, Stop, nbd};
use std::cell::Cell;
use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

/// A benchmark: its name, what a unit of its work is, its run. A run gives the units that its
/// region has done.
type Benchmark = (&'static str, &'static str, fn() -> u64);

const BENCHMARKS: [Benchmark; 10] = [
    ("pblk-fill", "programmed sector", || blocks(PBLK, &FILL)),
    ("pblk-writes", "programmed sector", || blocks(PBLK, &WRITES)),
    ("pblk-reads", "read sector", || blocks(PBLK, &READS)),
    ("qblk-writes", "programmed sector", || blocks(QBLK, &WRITES)),
    ("pftl-writes", "programmed sector", || blocks(PFTL, &WRITES)),
    ("pftl-reads", "read sector", || blocks(PFTL, &READS)),
    ("slc-tlc-writes", "programmed sector", || blocks(SLC_TLC, &WRITES)),
    ("replay", "request", replay),
    ("parafs", "call", parafs),
    ("nbd", "request", nbd_requests),
];

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    if name == "--list" {
        BENCHMARKS.iter().for_each(|(name, ..)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let Some((_, unit, run)) = BENCHMARKS.iter().find(|(known, ..)| *known == name) else {
        eprintln!("instructions: no benchmark `{name}`; `instructions --list` names them");
        return ExitCode::from(2);
    };
    println!("{} {unit}", run());
    ExitCode::SUCCESS
}

/// What callgrind counts: it is told this function's name, and counts from its begin to its end.
#[inline(never)]
fn region_of_interest(work: &mut dyn FnMut()) {
    work();
}

/// Runs a future in virtual time as the region that is counted.
fn counted<T: 'static>(run: &Virtual, main: impl Future<Output = T> + 'static) -> T {
    let (mut main, mut out) = (Some(main), None);
    region_of_interest(&mut || {
        let main = main.take().expect("a region runs once");
        out = Some(run.run(main).expect("no stall"));
    });
    out.expect("the region has run")
}

/// 64 MiB of flash on four PUs, so that a fill and steady writes with GC take a moment.
const DEVICE: &str = "[run]\ncosts = \"zero\"\nfill = \"none\"\n[device]\npreset = \"tiny\"\n\
                      geometry.chunks_per_pu = 64\n";
const PBLK: &str = "[[target]]\nkind = \"pblk\"\nover_provisioning_percent = 25\n";
const QBLK: &str = "[[target]]\nkind = \"qblk\"\nover_provisioning_percent = 25\n";
const PFTL: &str = "[[target]]\nkind = \"pftl\"\nover_provisioning_percent = 25\n";
const SLC_TLC: &str = "[[target]]\nkind = \"slc-tlc\"\nover_provisioning_percent = 25\n";
/// All of a sector is kept: a client of NBD sees it.
const CONTENTS: &str = "store = \"memory\"\n";
/// A workload, where an experiment must have one and none is used.
const NO_WORK: &str = "[[workload]]\nrw = \"randwrite\"\nio_size = \"4KiB\"\n";

/// Single sectors, 32 at a time.
struct Phase {
    op: BlockOp,
    random: bool,
    /// Requests as a share of the logical sectors, percent.
    percent: u64,
    /// Phases that come before it on a fresh device.
    before: &'static [Phase],
}

const FILL: Phase = Phase { op: BlockOp::Write, random: false, percent: 100, before: &[] };
/// After as many sectors as it takes until GC moves about as much in each part of the run.
const WRITES: Phase =
    Phase { op: BlockOp::Write, random: true, percent: 15, before: &[FILL, AGED] };
const AGED: Phase = Phase { op: BlockOp::Write, random: true, percent: 30, before: &[] };
const READS: Phase = Phase { op: BlockOp::Read, random: true, percent: 150, before: &[FILL] };

fn experiment(text: &str) -> Experiment {
    let parsed = Experiment::parse("instructions.toml", text, &Base::of(Path::new("")), &[]);
    parsed.map_err(|e| e.to_string()).expect("a good experiment")
}

/// A target on a fresh device, in virtual time without costs.
fn built(store: &str, target: &str) -> (Virtual, Stack) {
    let target = experiment(&[DEVICE, store, target, NO_WORK].concat()).targets.remove(0);
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    let stack = run.run(async move { Stack::build(&cx, &target, 1).await }).expect("no stall");
    (run, stack.expect("it fits the device"))
}

/// Counts a phase on a target that has gone through the phases before it.
fn blocks(target: &str, phase: &'static Phase) -> u64 {
    let (run, stack) = built("", target);
    for before in phase.before {
        run.run(requests(run.cx(), stack.block(), before, 1)).expect("no stall");
    }
    let programmed = stack.stats().programmed_total();
    let done = counted(&run, requests(run.cx(), stack.block(), phase, 2));
    match phase.op {
        BlockOp::Read => done,
        _ => stack.stats().programmed_total() - programmed,
    }
}

/// Does the requests of a phase; each content names its sector. Returns how many there were.
async fn requests(cx: Cx, dev: Arc<dyn BlockDev>, phase: &'static Phase, salt: u64) -> u64 {
    let capacity = dev.info().capacity;
    let count = capacity * phase.percent / 100;
    let next = Rc::new(Cell::new(0u64));
    let mut tasks = Vec::new();
    for task in 0..32u64 {
        let (cx2, dev, next) = (cx.clone(), dev.clone(), next.clone());
        let mut rng = Rng::stream(salt, "instructions", task);
        tasks.push(cx.spawn_join(async move {
            let mut buf = vec![0u8; dev.info().content_bytes];
            let mut draw = || {
                let at = next.get();
                next.set(at + 1);
                let lba = if phase.random { rng.below(capacity) } else { at };
                (at < count).then(|| {
                    dev.expect(phase.op, Lba::new(lba));
                    lba
                })
            };
            let mut ahead = draw();
            while let Some(lba) = ahead {
                ahead = draw();
                buf[..8].copy_from_slice(&lba.to_le_bytes());
                let io = Io::of(phase.op, Lba::new(lba), 1, false, &mut buf);
                dev.start(&cx2, io).await.expect("no faults are injected");
                assert!(buf[..8] == lba.to_le_bytes(), "wrong data");
            }
        }));
    }
    for task in tasks {
        task.await;
    }
    count
}

/// Counts a whole experiment, from the trace's first byte to the last check.
fn executed(text: &str) -> Outcome {
    let experiment = experiment(text);
    let watch = |_: &Target| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    let mut outcome = None;
    region_of_interest(&mut || outcome = Some(execute(&experiment, How::default(), &watch)));
    let outcome = outcome.expect("the region has run").map_err(|e| e.to_string()).expect("it runs");
    assert!(!outcome.is_bad(), "laws, rules and contents");
    outcome
}

/// A recording in Parquet on pblk, several times over.
fn replay() -> u64 {
    let work = "[[workload]]\ntrace = \"bundled:varmail-ordered.warm\"\nreplay = \"closed\"\nloops = 1\n\
                scale_to_device = true\n";
    let outcome = executed(&[DEVICE, PBLK, work].concat());
    outcome.runs.iter().map(|run| run.measured.recorder.requests).sum()
}

/// Files of a mail server on ParaFS on S-FTL: small writes, fsync, deletes.
fn parafs() -> u64 {
    let outcome = executed(
        "[device]\npreset = \"parafs\"\ngeometry.channels = 2\ngeometry.chunks_per_pu = 96\n\
         geometry.pages_per_block = 64\n[[target]]\nkind = \"parafs\"\ncache_pages = 256\n\
         cache_nodes = 256\ndirty_pages = 128\n[[workload]]\nfiles = \"varmail\"\nnfiles = 100\n\
         filesize = \"16KiB\"\nnthreads = 4\nwritten = \"1MiB\"\n",
    );
    outcome.runs.iter().map(|run| run.measured.recorder.requests).sum()
}

/// One client's requests to a block SSD, both ends of the socket in this process: half writes, half
/// reads of what was written.
fn nbd_requests() -> u64 {
    const BATCHES: u64 = 100;
    let (run, stack) = built(CONTENTS, PFTL);
    let exports: Arc<[Arc<Export>]> = Arc::new([Arc::new(Export::new("a", stack.block()))]);
    let (theirs, socket) = UnixStream::pair().expect("a pair");
    for end in [&socket, &theirs] {
        end.set_nonblocking(true).expect("a socket");
    }
    let cx = run.cx();
    cx.clone().spawn(async move {
        nbd::attend(&cx, Client::Unix(theirs), &exports, &Arc::new(Stop::default())).await;
    });
    let client = Rc::new(NbdClient { socket, cx: run.cx() });
    let begun = client.clone();
    run.run(async move { begun.begin().await }).expect("no stall");
    counted(&run, async move {
        for batch in 0..BATCHES {
            client.batch(batch).await;
        }
    });
    BATCHES * BATCH
}

/// How long the client waits before it looks again: a look costs more than the rest of a request.
const LOOK: Ns = Ns::from_us(50);

/// A client that says and hears bytes, and looks again a little later where there are none.
struct NbdClient {
    socket: UnixStream,
    cx: Cx,
}

impl NbdClient {
    async fn hear(&self, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            match (&self.socket).read(&mut into[done..]) {
                Ok(n) => {
                    assert!(n > 0, "the server has ended");
                    done += n;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.cx.sleep(LOOK).await,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn say(&self, bytes: &[u8]) {
        let said = (&self.socket).write(bytes).expect("a socket has room for one request");
        assert_eq!(said, bytes.len());
    }

    /// Chooses the export named `a` in the oldest way: one option, one answer.
    async fn begin(&self) {
        let (mut hello, mut size_and_flags) = ([0; 18], [0; 10]);
        self.hear(&mut hello).await;
        self.say(&3u32.to_be_bytes());
        self.say(b"IHAVEOPT\0\0\0\x01\0\0\0\x01a");
        self.hear(&mut size_and_flags).await;
    }

    /// Writes at once, or reads of what the batch before has written; replies come in any order.
    async fn batch(&self, batch: u64) {
        let is_write = batch.is_multiple_of(2);
        let numbers = batch / 2 * BATCH..(batch / 2 + 1) * BATCH;
        for number in numbers.clone() {
            self.say(&request(is_write, number));
        }
        let mut heard = [0; 16 + BYTES];
        let heard = &mut heard[..if is_write { 16 } else { 16 + BYTES }];
        for _ in numbers.clone() {
            self.hear(heard).await;
            let number = u64::from_be_bytes(heard[8..16].try_into().expect("eight bytes"));
            assert!(heard[4..8] == [0; 4] && numbers.contains(&number), "no error");
            assert!(heard[16..] == [number as u8; BYTES][..heard.len() - 16], "what was written");
        }
    }
}

/// Of a request of NBD.
const BYTES: usize = 2 * SECTOR_BYTES;
/// Requests of the client at a time.
const BATCH: u64 = 16;

/// Two sectors, at a place of their own in each batch.
fn request(is_write: bool, number: u64) -> Vec<u8> {
    let mut said = Vec::with_capacity(28 + BYTES);
    said.extend(0x2560_9513u32.to_be_bytes());
    said.extend([0, 0]);
    said.extend(u16::from(is_write).to_be_bytes());
    said.extend(number.to_be_bytes());
    said.extend((number * 7 % 512 * BYTES as u64).to_be_bytes());
    said.extend((BYTES as u32).to_be_bytes());
    if is_write {
        said.resize(28 + BYTES, number as u8);
    }
    said
}
