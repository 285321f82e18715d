//! A ParaFS image on which some bytes are not what was written: checked, mounted, used, repaired.
//!
//! Owns: the image (made once), what a change of it is. Promises: each of these ends, with words where
//! it is refused; what a repair has mended is mounted, and a check finds nothing in it. Never: knows
//! where changes come from.

use flashlane_base::{Ns, SECTOR_BYTES, crc32c, crc32c_append};
use flashlane_parafs::{
    Fs, FsError, Make, Medium, New, Options, ROOT, Time, Unread, check, mkfs, repair,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::Overlay;
use std::sync::{Arc, OnceLock};

pub(crate) const NAMES: [&str; 1] = ["parafs"];

/// Sectors of the image.
const SECTORS: usize = 8 * 256;
/// Bytes of a change: sector, place in it, whether its checksum is made right, what.
const CHANGE: usize = 9;
const NOW: Time = Time { seconds: 1, nanos: 0 };
/// What is in memory does not take long.
const VIRTUAL_MAX: Ns = Ns::from_ms(1_000);

/// True when it is mounted as it is.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    if target != NAMES[0] {
        return None;
    }
    let device = Arc::new(Overlay::new(base()));
    bytes.chunks_exact(CHANGE).for_each(|change| strike(&device, change));
    let clock = Virtual::new(1, 0, CostTable::zero());
    let cx = clock.cx();
    let done = clock.run(async move { life(&cx, device).await }).expect("it goes on");
    assert!(clock.now() < VIRTUAL_MAX, "it takes {:?}", clock.now());
    Some(done)
}

fn base() -> Arc<Vec<u8>> {
    static MADE: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    let make = || {
        let device = Arc::new(Overlay::new(Arc::new(vec![0; SECTORS * SECTOR_BYTES])));
        let made = device.clone();
        let clock = Virtual::new(1, 0, CostTable::zero());
        let cx = clock.cx();
        let filled = async move {
            let medium = Medium::Linear(made);
            let layout = medium.plan(1, 16).expect("it is large enough");
            mkfs(&cx, medium.clone(), layout, &Make::default(), NOW).await.expect("it is made");
            let fs = Fs::mount(&cx, medium, Options::default()).await.expect("it is mounted").0;
            use_it(&cx, &fs, "f").await.expect("it is used");
            fs.unmount(&cx).await.expect("it is written");
        };
        clock.run(filled).expect("it goes on");
        Arc::new(device.contents())
    };
    MADE.get_or_init(make).clone()
}

fn strike(device: &Overlay, change: &[u8]) {
    let number = |at: usize| usize::from(u16::from_le_bytes([change[at], change[at + 1]]));
    let at = (number(0) % SECTORS) as u64;
    let mut sector = device.sector(at);
    let place = number(2) % (SECTOR_BYTES - 3);
    sector[place..place + 4].copy_from_slice(&change[5..9]);
    if change[4] & 1 == 1 {
        let end = SECTOR_BYTES - 4;
        match sector[0] == b'p' && sector[1..4].is_ascii() {
            true => {
                let sum = crc32c_append(crc32c(&sector[..4]), &sector[8..]);
                sector[4..8].copy_from_slice(&sum.to_le_bytes());
            }
            false => {
                let seed = crc32c(&base()[16..32]);
                let sum = crc32c_append(seed, &sector[..end]);
                sector[end..].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
    device.put(at, sector);
}

async fn use_it(cx: &Cx, fs: &Arc<Fs>, name: &str) -> Result<(), FsError> {
    let new = |mode| New { mode, ..New::default() };
    let dir = fs.create(cx, ROOT, format!("{name} dir").as_bytes(), &new(0o040_755), NOW).await?;
    for (i, bytes) in [10, 5_000, 70_000].into_iter().enumerate() {
        let name = format!("{name} {i}");
        let ino = fs.create(cx, dir.ino, name.as_bytes(), &new(0o100_644), NOW).await?.ino;
        fs.write(cx, ino, i as u64 * 4_000_000, &vec![7; bytes], NOW).await?;
        fs.fsync(cx, ino, false).await?;
    }
    fs.sync(cx).await
}

async fn look(cx: &Cx, fs: &Arc<Fs>) -> Result<(), FsError> {
    let mut waiting = vec![(ROOT, 0)];
    while let Some((dir, depth)) = waiting.pop() {
        for entry in fs.read_dir(cx, dir, 0, 100).await? {
            let mut bytes = vec![0; 100_000];
            fs.attributes(cx, entry.ino).await?;
            match entry.kind {
                0o04 if depth < 8 => waiting.push((entry.ino, depth + 1)),
                0o10 => drop(fs.read(cx, entry.ino, 0, &mut bytes).await?),
                _ => {}
            }
        }
    }
    Ok(())
}

async fn life(cx: &Cx, device: Arc<Overlay>) -> bool {
    let medium = || Medium::Linear(device.clone());
    let refused = |e: &FsError| assert!(!e.to_string().trim().is_empty());
    let mut taken = false;
    match Fs::mount(cx, medium(), Options::default()).await {
        Ok((fs, _)) => {
            taken = true;
            let looked = look(cx, &fs).await;
            let used = use_it(cx, &fs, "g").await;
            let left = fs.unmount(cx).await;
            [looked, used, left].iter().filter_map(|done| done.as_ref().err()).for_each(refused);
        }
        Err(e) => refused(&e),
    }
    let _ = check(cx, &medium()).await.map_err(|e| refused(&e));
    match repair(cx, &medium(), NOW, Unread::GiveUp).await {
        Ok(done) => {
            assert_eq!(done.after.problems, Vec::<String>::new(), "{:?}", done.before.problems);
            let mounted = Fs::mount(cx, medium(), Options::default()).await;
            let (fs, _) = mounted.expect("what is mended is mounted");
            if let Err(e) = look(cx, &fs).await {
                // The fuzzer may have written the address that marks a page as given up.
                assert!(
                    e.to_string().contains("a repair gave it up"),
                    "what is mended is read: {e}"
                );
            }
            fs.unmount(cx).await.expect("it is written");
        }
        Err(e) => refused(&e),
    }
    taken
}
