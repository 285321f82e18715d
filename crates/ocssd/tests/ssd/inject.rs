//! Faults that are put into a drive: at work at once, kept in its image, gone on with by the next who
//! opens it; and images of format 1.0, which keep none.

use crate::common::*;

fn fresh() -> Arc<MemoryFile> {
    let spec = tiny(|s| {
        let g = &mut s.geometry;
        (g.channels, g.pus_per_channel, g.chunks_per_pu, g.mw_cunits) = (2, 1, 4, 0);
    });
    image_of(&spec)
}

fn open(file: &Arc<MemoryFile>) -> Arc<Ssd> {
    open_on(file.clone())
}

fn plan(text: &str) -> FaultPlan {
    FaultPlan::from_toml(text).unwrap()
}

const UNREADABLE: &str = "[[fault]]\nkind = \"read_uncorrectable\"\nat = \"pu 0 chunk 0 sector 1\"\n\
                          count = 2\ntimes = 2";

/// Status of each of the first four sectors.
fn read(ssd: &Arc<Ssd>) -> Vec<bool> {
    let got = Bench::new(ssd.clone()).read(&[(0, 0, 0, 4)]);
    (0..4).map(|i| got.done.status(i) == Status::Ok).collect()
}

const GOOD: [bool; 4] = [true; 4];
const BAD: [bool; 4] = [true, false, true, true];

#[test]
fn a_fault_counts_at_once_and_goes_on_in_the_next_life() {
    let file = fresh();
    let ssd = open(&file);
    assert!(ssd.keeps_faults());
    Bench::new(ssd.clone()).write_up_to(0, 0, 4, 7);
    assert_eq!(read(&ssd), GOOD);
    ssd.inject(&plan(UNREADABLE)).unwrap();
    assert_eq!(read(&ssd), GOOD, "from the second match on");
    assert_eq!(read(&ssd), BAD);
    ssd.close().unwrap();
    drop(ssd);
    // Who only looks meets none, and has none happen.
    let how = OpenImage { read_only: true, ..OpenImage::default() };
    let looking = Ssd::open_on(file.clone(), &how).unwrap();
    assert_eq!((read(&looking), looking.faults()[0].happened), (GOOD.to_vec(), 1));
    assert!(looking.inject(&plan(UNREADABLE)).is_err());
    drop(looking);
    let ssd = open(&file);
    let line = &ssd.faults()[0];
    assert_eq!((line.matched, line.happened, line.injected), (2, 1, true));
    assert_eq!(read(&ssd), BAD, "the second time");
    assert_eq!(read(&ssd), GOOD, "then no more");
    assert!(!ssd.faults()[0].is_armed());
    ssd.make_durable().unwrap();
    drop(ssd); // not closed: as at its last commit
    let ssd = open(&file);
    assert_eq!(ssd.faults()[0].happened, 2);
    assert_eq!(ssd.clear_faults().unwrap(), 1);
    drop(ssd);
    assert!(open(&file).faults().is_empty());
}

#[test]
fn a_fault_for_later_counts_from_when_it_was_injected() {
    let file = fresh();
    let ssd = open(&file);
    let bench = Bench::new(ssd.clone());
    bench.write_up_to(0, 0, 64, 7);
    let now = ssd.image_info().unwrap().clock;
    assert!(now.as_ns() > 0);
    let later = "[[fault]]\nkind = \"erase_fail\"\nafter = \"1s\"";
    ssd.inject(&plan(later)).unwrap();
    assert_eq!(ssd.faults()[0].fault.after.as_ns(), now.as_ns() + 1_000_000_000);
}

#[test]
fn what_can_t_be_is_refused_and_changes_nothing() {
    let file = fresh();
    let ssd = open(&file);
    let said = ssd.inject(&plan("[[fault]]\nkind = \"die_fail\"\npu = 2")).unwrap_err().to_string();
    assert!(said.contains("0 to 1"), "{said}");
    let many = plan(&"[[fault]]\nkind = \"bit_flip\"\n".repeat(129));
    let said = ssd.inject(&many).unwrap_err().to_string();
    assert!(said.contains("at most 128") && said.contains("clear"), "{said}");
    assert!(ssd.faults().is_empty());
    // A host that fails: not durable, so not there.
    file.fail_after(0, std::io::ErrorKind::Other);
    assert!(ssd.inject(&plan(UNREADABLE)).is_err());
    file.heal();
    assert!(ssd.faults().is_empty());
    let in_memory = Ssd::new(&tiny(|_| {}), Default::default()).unwrap();
    assert!(in_memory.inject(&plan(UNREADABLE)).unwrap_err().to_string().contains("memory"));
}

/// The plan that a run brings comes first and is not kept; 128 lines fit beside everything else.
#[test]
fn a_runs_own_plan_is_not_kept() {
    let file = fresh();
    let how = OpenImage { faults: plan("[[fault]]\nkind = \"bit_flip\""), ..OpenImage::default() };
    let ssd = Ssd::open_on(file.clone(), &how).unwrap();
    ssd.inject(&plan(UNREADABLE)).unwrap();
    ssd.set_targets(&[9; 64 << 10]).unwrap();
    for _ in 0..127 {
        ssd.inject(&plan(UNREADABLE)).unwrap();
    }
    assert_eq!(ssd.faults().len(), 129);
    ssd.close().unwrap();
    drop(ssd);
    let ssd = open(&file);
    assert_eq!((ssd.faults().len(), ssd.targets().len()), (128, 64 << 10));
}

/// An image of 1.0 stays one, and works: what is injected is forgotten when it is closed.
#[test]
fn an_image_of_1_0_keeps_none_and_stays_what_it_is() {
    let mut bytes = Vec::new();
    let mut packed = &include_bytes!("../data/image-v1.img.gz")[..];
    flate2::read::GzDecoder::new(&mut packed).read_to_end(&mut bytes).unwrap();
    let file = Arc::new(MemoryFile::new(bytes));
    let ssd = open(&file);
    assert!(!ssd.keeps_faults());
    let bad = "[[fault]]\nkind = \"read_uncorrectable\"\nat = \"pu 0 chunk 0 sector 1\"\ntimes = 2";
    ssd.inject(&plan(bad)).unwrap();
    assert_eq!(read(&ssd), BAD);
    ssd.close().unwrap();
    drop(ssd);
    let ssd = open(&file);
    assert_eq!((ssd.image_info().unwrap().version, ssd.faults().len()), ((1, 0), 0));
    assert_eq!(read(&ssd), GOOD);
    drop(ssd);
    assert_eq!(Ssd::upgrade_on(file.clone()).unwrap(), ((1, 0), (1, 2)));
    let ssd = open(&file);
    assert!(ssd.keeps_faults() && ssd.faults().is_empty());
    assert_eq!(read(&ssd), GOOD);
}
