//! What only shows when somebody interferes.

use super::*;
use crate::execute::{plan_of, scan_traces};
use crate::experiment::{Base, Experiment};
use crate::files::medium;
use crate::run::Unwatched;
use crate::stack::Stack;
use flashlane_rt::Virtual;
use std::path::Path;

const SMALL: &str = r#"
[device]
preset = "parafs"
[device.geometry]
channels = 2
chunks_per_pu = 96
pages_per_block = 64
[[target]]
kind = "parafs"
[[workload]]
files = "webserver"
nfiles = 20
nthreads = 2
ops = 2000
"#;

/// The first file below a folder.
async fn first_file(fs: &Arc<Fs>, cx: &Cx, mut folder: Nid) -> Nid {
    loop {
        let entries = fs.read_dir(cx, folder, 0, 1).await.unwrap();
        folder = entries[0].ino;
        if fs.attributes(cx, folder).await.unwrap().mode & 0o170_000 == 0o100_000 {
            return folder;
        }
    }
}

/// Somebody changes a byte of a file, or takes its end, behind the back of those who work on it.
#[test]
fn a_file_that_is_not_what_was_written_makes_the_run_bad() {
    for shorter in [false, true] {
        let base = Base::of(Path::new(""));
        let experiment = Experiment::parse("x.toml", SMALL, &base, &[]).unwrap();
        let scans = scan_traces(&experiment).unwrap();
        let target = experiment.targets[0].clone();
        let plan = plan_of(&experiment, &target, &scans);
        let vm = Virtual::new(1, 1, target.host.costs.clone());
        let cx = vm.cx();
        let measured = vm.run(async move {
            let stack = Stack::build(&cx, &target, 1).await.unwrap();
            let like = target.fs.clone().unwrap();
            let files = Files::make(&cx, medium(&stack), &like).await.unwrap();
            let begun = Rc::new(Cell::new(false));
            let begin = {
                let begun = begun.clone();
                Rc::new(move || begun.set(true))
            };
            let subject = stack.subject(begin, false);
            let (fs, theirs) = (files.fs.clone(), cx.clone());
            cx.spawn(async move {
                while !begun.get() {
                    theirs.sleep(Ns::from_us(50)).await;
                }
                let ino = first_file(&fs, &theirs, ROOT).await;
                match shorter {
                    true => fs.truncate(&theirs, ino, 1, now(&theirs)).await.unwrap(),
                    false => fs.write(&theirs, ino, 100, &[0], now(&theirs)).await.unwrap(),
                }
            });
            files.run(&cx, subject, &plan, Rc::new(Unwatched)).await.unwrap()
        });
        let recorder = measured.unwrap().recorder;
        assert!(recorder.wrong_sectors > 0, "shorter: {shorter}");
        assert!(recorder.mismatches[0].contains("bigfileset/"), "{:?}", recorder.mismatches);
    }
}
