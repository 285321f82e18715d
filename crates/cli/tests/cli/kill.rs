//! A process that writes to a target of a drive is killed (`kill -9`); what it had flushed is there.
//!
//! A round: this test program starts itself as the writer, which mounts the target, writes and flushes
//! without end, and prints how far it had come whenever a flush has returned. It is killed at a random
//! moment, also while it mounts. Then the target is mounted here and every sector is read: it holds the
//! newest version that was flushed, or one that was written after it. What was found may not go back
//! in any later round. The next writer finds a target that was stopped cleanly.
//!
//! `FLASHLANE_KILLS` is the number of rounds (20; `tests/kill.sh` does 200), `FLASHLANE_KILL_SEED` where
//! the moments are drawn from. `--nocapture` shows each round.

use crate::harness::drive;
use flashlane_base::{Lba, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{BlockDev, BlockOp, Io};
use flashlane_ftl::layer::Recovered;
use flashlane_lab::experiment::DriveTarget;
use flashlane_lab::lnvm::show::recovery_text;
use flashlane_lab::stack::{MountHow, Stack, target_of_drive};
use flashlane_ocssd::SsdOptions;
use flashlane_rt::{CostTable, Cx, Virtual};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Sectors that are written to: few, so that they are written again and again, and garbage is collected.
const REGION: u64 = 3000;
/// Writes between two flushes, at most.
const BATCH: u64 = 8;

fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ n >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

/// Where the `i`-th write goes.
fn place(i: u64) -> u64 {
    mixed(i) % REGION
}

/// What the `i`-th write writes; no two are alike anywhere.
fn content(i: u64) -> Vec<u8> {
    let word = |k: u64| (i + 1).wrapping_mul(0x1_0000_0001).wrapping_add(k << 48).to_le_bytes();
    (0..SECTOR_BYTES as u64 / 8).flat_map(word).collect()
}

/// Which write a sector is of; `None` for zeros.
fn write_of(sector: &[u8]) -> Option<u64> {
    if sector.iter().all(|b| *b == 0) {
        return None;
    }
    let mut first = [0; 8];
    first.copy_from_slice(&sector[..8]);
    let i = (u64::from_le_bytes(first) & 0xffff_ffff) - 1;
    assert_eq!(sector, content(i), "a sector that nobody wrote");
    Some(i)
}

async fn mount(cx: &Cx, image: &Path) -> Stack {
    let on = DriveTarget { image: image.into(), name: "t".into(), how: MountHow::default() };
    let target = target_of_drive(&on, &SsdOptions::default()).expect("a target of the drive");
    Stack::build(cx, &target, 1).await.unwrap_or_else(|e| panic!("mounting: {e}"))
}

async fn io(cx: &Cx, dev: &Arc<dyn BlockDev>, op: BlockOp, lba: u64, buf: &mut [u8]) {
    let sectors = (buf.len() / SECTOR_BYTES) as u32;
    let io = Io::of(op, Lba::new(lba), sectors, false, buf);
    dev.start(cx, io).await.unwrap_or_else(|e| panic!("{op:?} at {lba}: {e}"));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("somebody reads");
}

#[allow(clippy::disallowed_methods)] // for who runs the test by hand
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What pblk says of its mount.
fn account(stack: &Stack) -> Recovered {
    stack.mounted().and_then(|m| m.recovery.clone()).expect("a pblk says how it was mounted")
}

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "the process that `flushed_sectors_survive_kill_9` kills; alone it does nothing"]
fn writer() {
    let Some(image) = std::env::var_os("FLASHLANE_WRITER").map(PathBuf::from) else {
        return;
    };
    let from = number("FLASHLANE_FROM").expect("a number");
    let vm = Virtual::new(1, from, CostTable::zero());
    let cx = vm.cx();
    vm.run(async move {
        let stack = mount(&cx, &image).await;
        let recovery = account(&stack);
        say(&format!("mounted {}", if recovery.clean == Some(true) { "clean" } else { "unclean" }));
        let dev = stack.block();
        let mut i = from;
        loop {
            for _ in 0..1 + mixed(i) % BATCH {
                io(&cx, &dev, BlockOp::Write, place(i), &mut content(i)).await;
                i += 1;
            }
            io(&cx, &dev, BlockOp::Flush, 0, &mut Vec::new()).await;
            say(&format!("flushed {i}"));
        }
    })
    .expect("it is killed");
}

/// Mounts, reads everything, stops cleanly: what each sector holds, whether the target had been stopped,
/// and the mount's account.
fn read_all(image: &Path) -> (Vec<Option<u64>>, bool, String) {
    let vm = Virtual::new(1, 1, CostTable::zero());
    let (cx, image) = (vm.cx(), image.to_path_buf());
    vm.run(async move {
        let stack = mount(&cx, &image).await;
        let dev = stack.block();
        let mut found = Vec::new();
        for lba in 0..REGION {
            let mut buf = vec![0; SECTOR_BYTES];
            io(&cx, &dev, BlockOp::Read, lba, &mut buf).await;
            found.push(write_of(&buf));
        }
        let recovery = account(&stack);
        stack.stop(&cx).await.laws.expect("counters agree");
        stack.close().expect("the image is closed");
        (found, recovery.clean == Some(true), recovery_text(&recovery))
    })
    .expect("nothing waits for ever")
}

#[test]
fn flushed_sectors_survive_kill_9() {
    let h = drive();
    let rounds = number("FLASHLANE_KILLS").unwrap_or(20);
    let seed = number("FLASHLANE_KILL_SEED").unwrap_or(1);
    h.run("lnvm create a.img -n t -t pblk -f").good();
    let image = h.path("a.img");
    let mut rng = Rng::stream(seed, "kill", 0);
    // What each sector must hold at least: one more than the write.
    let mut least = vec![0; REGION as usize];
    let (mut next, mut flushes, mut unclean) = (0, 0, 0);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
            .env("FLASHLANE_WRITER", &image)
            .env("FLASHLANE_FROM", next.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the writer starts");
        // Read as it comes: a full pipe would stop the writer.
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (tell, mounted) = channel();
        let reader = std::thread::spawn(move || {
            let mut said = Vec::new();
            while out.read_until(b'\n', &mut said)? > 0 {
                if said.ends_with(b"clean\n") {
                    let _ = tell.send(());
                }
            }
            Ok::<_, std::io::Error>(said)
        });
        // Every fourth is killed early, most likely while it mounts; the others when they have begun to write.
        let early = round % 4 == 3;
        let wait = rng.below(if early { 40 } else { 300 });
        if !early {
            // Its end, too, ends the wait: what it said is looked at below.
            let _ = mounted.recv_timeout(Duration::from_secs(60));
        }
        #[allow(clippy::disallowed_methods)] // a moment that nobody chose
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().expect("it runs until it is killed");
        let output = child.wait_with_output().expect("it is gone");
        let said = reader.join().expect("it reads").expect("a pipe");
        let said = String::from_utf8_lossy(&said);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(!err.contains("panicked"), "round {round} (seed {seed}): {said}{err}");
        assert!(!said.contains("mounted unclean"), "round {round}: it had been stopped cleanly");
        // Only whole lines count: the last may be cut off.
        let points = said.rsplit_once('\n').map_or("", |(whole, _)| whole).lines();
        let mut flushed = next;
        for point in points.filter_map(|l| l.split("flushed ").nth(1)?.trim().parse().ok()) {
            flushed = point;
            flushes += 1;
        }
        for i in next..flushed {
            least[place(i) as usize] = i + 1;
        }
        let (found, clean, account) = read_all(&image);
        println!(
            "round {round}: killed {wait} ms after it {}, {flushed} writes flushed; {account}",
            if early { "began" } else { "mounted" }
        );
        assert!(flushed == next || !clean, "round {round}: a killed target is not a stopped one");
        unclean += u64::from(!clean);
        next = flushed + BATCH;
        for (lba, found) in found.into_iter().enumerate() {
            let found = found.map_or(0, |i| {
                assert_eq!(place(i), lba as u64, "round {round}: content of another sector");
                assert!(i < next, "round {round}: sector {lba} holds a write that never was");
                i + 1
            });
            let least = &mut least[lba];
            assert!(
                found >= *least,
                "round {round} (seed {seed}): sector {lba} must hold write {} or a later one, it holds \
                 {found} (counted from 1; 0 is zeros); {account}",
                *least
            );
            *least = found;
        }
    }
    println!("{rounds} kills, {unclean} mounts after which lines were replayed, {flushes} flushes");
    assert!(flushes > rounds && unclean > 0, "the writers did something");
    h.run("drive check a.img").good();
}
