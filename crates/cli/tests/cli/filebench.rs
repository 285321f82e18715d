//! `filebench` as a person uses it: a set that is made, used and used again, and input that makes no sense.

use crate::harness::{here, says};

const SMALL: &str = "--files 60 --mean-size 4KiB --threads 3 --append-size 2KiB";

#[test]
fn a_set_is_prepared_used_and_used_again() {
    let h = here();
    std::fs::create_dir(h.path("mail")).expect("a folder");
    let made = h.run(&format!("filebench varmail mail {SMALL} --prepare-only")).good();
    says(&made.out, &["varmail in mail: ", " files of ", " prepared"]);
    assert!(h.path("mail/bigfileset").is_dir());

    let line = format!("filebench varmail mail {SMALL} --reuse --loops 7 --json -");
    let json: serde_json::Value = serde_json::from_str(&h.run(&line).good().out).expect("JSON");
    assert_eq!(json["personality"], "varmail");
    assert_eq!(json["loops"], 21);
    let count = |of: &str| json["operations"][of]["count"].as_u64();
    let per_loop = [("createfile", 1), ("fsync", 2), ("closefile", 3), ("readwholefile", 2)];
    for (kind, times) in per_loop {
        assert_eq!(count(kind), Some(21 * times), "{kind}: {json:#}");
    }
    assert_eq!(count("statfile"), None);
    assert_eq!(json["reads"]["count"], 42);
    assert_eq!(json["writes"]["count"], 42);
    assert_eq!(json["all"]["count"], 21 * 13);
    assert_eq!(json["all"]["skipped"], 0);

    let again = h.run(&format!("filebench varmail mail {SMALL} --reuse --for 50ms")).good();
    says(&again.out, &["3 threads", "operation", "appendfilerand", "all "]);
}

#[test]
fn a_proxy_server_is_filebenchs_webproxy_and_ctrl_c_ends_it() {
    let h = here();
    std::fs::create_dir(h.path("set")).expect("a folder");
    let done = h.interrupted(&format!("filebench proxyserver set {SMALL} --for 1000s"));
    assert_eq!(done.code, 130, "{done:?}");
    says(&done.out, &["webproxy in set: 3 threads", ", interrupted", "deletefile"]);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_remedy() {
    let h = here();
    std::fs::create_dir(h.path("set")).expect("a folder");
    h.file("file", "");
    h.run("filebench varmail nowhere --loops 1").refused(2, &["no folder nowhere", "mkdir"]);
    h.run("filebench varmail file --loops 1").refused(2, &["file is no folder"]);
    h.run("filebench varmail . --loops 1").refused(2, &["not empty", "--reuse"]);
    h.run("filebench varmail set").refused(2, &["when to end", "--for"]);
    h.run("filebench varmail set --reuse --loops 1").refused(2, &["prepare it first"]);
    h.run("filebench varmail set --loops 1 --files 0").refused(2, &["--files", "1 or more"]);
    h.run("filebench varmail set --loops 1 --files 9999999").refused(2, &["1000000 at most"]);
    h.run("filebench varmail set --loops 1 --threads 0").refused(2, &["--threads"]);
    h.run("filebench varmail set --loops 1 --mean-size 0KiB").refused(2, &["--mean-size"]);
    h.run("filebench varmail set --for 0s").refused(2, &["--for 0 is over"]);
    h.run("filebench varmail set --until-written 1MiB").refused(2, &["--of"]);
    h.run("filebench varmail set --until-written 1MiB --of ../x").refused(2, &["no such block"]);
    h.run("filebench varmial set --loops 1").refused(2, &["did you mean `varmail`"]);
    assert_eq!(std::fs::read_dir(h.path("set")).expect("the folder").count(), 0);
}
