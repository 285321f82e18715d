//! Many at a time: they end, and what is there then is sound.

use flashlane_base::Rng;
use flashlane_parafs::{Fs, FsError, ROOT, Rename};
use flashlane_rt::Cx;
use flashlane_testkit::files::{
    DIR, FILE, Store, make_on, new, now, ram, run, seeds, small, sound_on,
};
use std::sync::Arc;

/// Operations of each.
const STEPS: u32 = 120;

/// What several may do to the same names and files at a time.
async fn step(cx: &Cx, fs: &Arc<Fs>, rng: &mut Rng, dirs: &[u32]) -> Result<(), FsError> {
    let t = now(cx);
    let dir = dirs[rng.below(dirs.len() as u64) as usize];
    let name = format!("{}", rng.below(6)).into_bytes();
    let file = || async { fs.lookup(cx, dir, &name).await.map(|found| found.ino) };
    match rng.below(16) {
        0..=2 => fs.create(cx, dir, &name, &new(FILE), t).await.map(drop),
        3 => fs.unlink(cx, dir, &name, t).await,
        4 => {
            let to = dirs[rng.below(dirs.len() as u64) as usize];
            let other = format!("{}", rng.below(6)).into_bytes();
            fs.rename(cx, (dir, &name), (to, &other), Rename::Replace, t).await
        }
        5..=9 => {
            let ino = file().await?;
            let data = vec![rng.below(256) as u8; 1 + rng.below(20_000) as usize];
            fs.write(cx, ino, rng.below(100_000), &data, t).await
        }
        10 => {
            let ino = file().await?;
            fs.truncate(cx, ino, rng.below(100_000), t).await
        }
        11 | 12 => {
            let ino = file().await?;
            let mut data = vec![0; 30_000];
            fs.read(cx, ino, rng.below(100_000), &mut data).await.map(drop)
        }
        13 | 14 => {
            let ino = file().await?;
            fs.fsync(cx, ino, rng.below(2) == 0).await
        }
        _ => fs.checkpoint(cx).await,
    }
}

fn crowd(seed: u64, store: Store, page_sectors: u32) {
    run(seed, async move |cx| {
        let medium = store.create(&cx).await;
        make_on(&cx, medium.clone(), page_sectors).await.expect("it is large enough");
        let (fs, _) = Fs::mount(&cx, medium.clone(), small()).await.expect("it is mounted");
        let mut dirs = vec![ROOT];
        for name in ["a", "b"] {
            let made = fs.create(&cx, ROOT, name.as_bytes(), &new(DIR), now(&cx)).await;
            dirs.push(made.expect("there is room").ino);
        }
        let mut all = Vec::new();
        for who in 0..8 {
            let (fs, cx, dirs) = (fs.clone(), cx.clone(), dirs.clone());
            all.push(cx.clone().spawn_join(async move {
                let mut rng = Rng::stream(seed, "crowd", who);
                for _ in 0..STEPS {
                    match step(&cx, &fs, &mut rng, &dirs).await {
                        Ok(()) => {}
                        // Others take away what one is about to use.
                        Err(FsError::NotFound | FsError::Exists | FsError::Stale) => {}
                        Err(FsError::NoSpace | FsError::IsDirectory) => {}
                        Err(FsError::NotDirectory | FsError::Invalid(_)) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            }));
        }
        for one in all {
            one.await;
        }
        assert_eq!(fs.walk(), Ok(()), "{}", fs.standing());
        fs.unmount(&cx).await.expect("it is written");
        sound_on(&cx, &medium).await;
    });
}

#[test]
fn crowds_end_and_leave_it_sound() {
    for seed in seeds(0..60) {
        println!("FLASHLANE_SEED={seed}: begins");
        match seed % 3 {
            0 => crowd(seed, Store::Ram(ram(12, seed)), 1),
            1 => crowd(seed, Store::Ram(ram(24, seed)), 2),
            _ => crowd(seed, Store::flash(2, 120, "", seed), 2),
        }
    }
}
