//! What files the program reads and writes: which are refused, and what stays as it was.

use crate::harness::{Done, EXPERIMENT, Here, JOB, MSR, TRACE, here, says};

/// A result never takes the place of what it is made from.
#[test]
fn what_is_read_is_not_overwritten() {
    let h = here();
    let files = [("e.toml", EXPERIMENT), ("job.fio", JOB), ("t.txt", TRACE), ("r.json", "{}")];
    files.iter().for_each(|(name, text)| drop(h.file(name, text)));
    for args in [
        &["run", "e.toml", "--html", "e.toml"][..],
        &["run", "job.fio", "--csv", "./job.fio"],
        &["run", "t.txt", "--json", "t.txt"],
        &["sweep", "e.toml", "--vary", "run.seed=1,2", "--csv", "e.toml"],
        &["compare", "e.toml", "r.json", "--json", "r.json"],
        &["trace", "info", "t.txt", "--json", "t.txt"],
        &["trace", "convert", "t.txt", "t.txt"],
    ] {
        h.run(args).refused(2, &["would replace", "give it another file"]);
    }
    h.run("trace convert t.txt o --json o").refused(2, &["both want o"]);
    for (name, text) in files {
        assert_eq!(std::fs::read_to_string(h.path(name)).expect("it is there"), text);
    }
    assert_eq!(h.files().len(), 4);
}

/// What is read more than once can't be a pipe, and every command says so in the same words.
#[test]
fn standard_input_is_refused_by_every_command_alike() {
    let h = here();
    for args in [
        &["run", "-"][..],
        &["check", "-"],
        &["sweep", "-", "--vary", "run.seed=1,2"],
        &["compare", "-", "/dev/stdin"],
        &["torture", "-"],
        &["trace", "info", "-"],
        &["trace", "validate", "/dev/stdin"],
        &["trace", "convert", "-", "out.parquet"],
    ] {
        h.run(args).refused(2, &["it is no regular file, and is read more than once: save it"]);
    }
    assert!(h.files().is_empty(), "{:?}", h.files());
}

/// The mark that some editors put before a text is named.
#[test]
fn a_byte_order_mark_is_named() {
    let h = here();
    for (name, text) in [("job.fio", JOB), ("t.txt", TRACE), ("e.toml", EXPERIMENT)] {
        h.file(name, format!("\u{feff}{text}"));
        h.run(&["check", name]).refused(2, &[name, "begins with a byte order mark: save it as"]);
    }
    h.run("trace info t.txt").refused(2, &["begins with a byte order mark"]);
    let utf16: Vec<u8> = TRACE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    h.file("wide.txt", [&[0xff, 0xfe][..], &utf16].concat());
    h.run("trace info wide.txt").refused(2, &["UTF-16", "save it as UTF-8"]);
}

/// A file that was cut in its last number is good as it stands: what can be known is said.
#[test]
fn a_last_line_without_its_end_is_said() {
    let h = here();
    let whole = "0 0 0 8 0\n10 0 8 80 0\n";
    h.file("whole.txt", whole);
    h.file("cut.txt", &whole[..whole.len() - 1]);
    for verb in ["info", "validate"] {
        let says = |file: &str| h.run(&["trace", verb, file]).good().out;
        assert!(says("cut.txt").contains("the last line has no end: was the file cut?"));
        assert!(!says("whole.txt").contains("no end"));
    }
    let json = |file: &str| h.run(&["trace", "info", file, "--json", "-"]).good().json();
    assert_eq!(
        (&json("cut.txt")["unended"], &json("whole.txt")["unended"]),
        (&true.into(), &false.into())
    );
}

/// A name that promises a packed file is refused before anything runs, with what to do.
#[test]
fn an_output_that_sounds_packed_is_refused() {
    let h = here();
    h.file("t.csv", MSR);
    h.file("e.toml", EXPERIMENT);
    let says = ["t.txt.gz", "not written packed", "write t.txt, then `gzip` it", "gzip > t.txt.gz"];
    h.run("trace convert t.csv t.txt.gz --to msr").refused(2, &says);
    h.run("run e.toml --json r.json.zst").refused(2, &["not written packed", "zstd"]);
    assert_eq!(h.files(), ["e.toml", "t.csv"]);
}

/// A symbolic link, a folder or a socket under the name of a result is refused before anything
/// runs, and stays; pipes, character devices and descriptors are written to.
#[cfg(unix)]
#[test]
fn nothing_but_a_regular_file_is_replaced_by_a_result() {
    use std::os::unix::fs::symlink;
    let h = here();
    h.file("t.csv", MSR);
    std::fs::create_dir(h.path("there")).expect("a folder");
    h.file("there/old.json", "old");
    let links = [("old", "there/old.json"), ("new", "there/new.json"), ("ring", "ring")];
    for (link, to) in links {
        symlink(to, h.path(link)).expect("a link");
        let says = ["cannot write", link, "a symbolic link", "name a regular file"];
        h.run(&["trace", "info", "t.csv", "--json", link]).refused(2, &says);
        h.run(&["trace", "convert", "t.csv", link, "--to", "msr"]).refused(2, &says);
        assert!(h.path(link).is_symlink(), "{link}");
    }
    let _socket = std::os::unix::net::UnixListener::bind(h.path("socket")).expect("a socket");
    h.run("trace info t.csv --json socket").refused(2, &["a socket"]);
    h.run("trace info t.csv --json there").refused(2, &["a folder"]);
    assert_eq!(std::fs::read(h.path("there/old.json")).expect("a file"), b"old");
    assert!(!h.path("there/new.json").exists());
    symlink("t.csv", h.path("to-input")).expect("a link");
    h.run("trace info t.csv --json to-input").refused(2, &["would replace"]);

    let whole = h.run("trace info t.csv --json -").good().out;
    for stdout in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        assert_eq!(h.run(&["trace", "info", "t.csv", "--json", stdout]).good().out, whole);
    }
    h.run("trace convert t.csv - --json /dev/stdout").refused(2, &["both want standard output"]);
    let said = h.run("trace info t.csv --json /dev/stderr");
    assert_eq!((said.code, &said.err), (0, &whole));
    let pipe = h.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).expect("a pipe");
    let reader = std::thread::spawn(move || std::fs::read_to_string(pipe).expect("its bytes"));
    h.run("trace info t.csv --json pipe").good();
    assert_eq!(reader.join().expect("no panic"), whole);
    assert!(special(&h, "pipe") && special(&h, "socket") && special(&h, "there"));
}

fn special(h: &Here, name: &str) -> bool {
    std::fs::symlink_metadata(h.path(name)).is_ok_and(|there| !there.is_file())
}

/// A result that can't be written takes no other with it: the text is printed, other files are whole.
#[test]
fn a_full_disk_under_one_result_costs_no_other() {
    let h = here();
    h.file("e.toml", EXPERIMENT.to_string() + "size = \"8MiB\"\n");
    h.file("t.csv", MSR);
    h.run("drive create a.img --preset tiny").good();
    let full = |args: &[&str], prints: &str| {
        let done = h.run(args);
        assert_eq!(done.code, 2, "{args:?}: {done:?}");
        assert!(done.out.contains(prints), "`{prints}` is missing, {args:?}: {done:?}");
        says(
            &done.err,
            &["cannot write /dev/full: No space left", "make room there, or name another"],
        );
        done
    };
    let all = ["--json", "/dev/full", "--html", "/dev/full", "--csv", "r.csv", "--report", "all"];
    let done = full(&[&["run", "e.toml"], &all[..]].concat(), "fingerprint");
    assert_eq!(done.err.matches("cannot write /dev/full").count(), 2, "{}", done.err);
    let lines = |name: &str| std::fs::read_to_string(h.path(name)).expect(name).lines().count();
    assert_eq!((lines("r.csv"), lines("all/results.csv")), (2, 2));
    assert!(h.path("all/report.html").is_file() && h.path("all/results.json").is_file());
    let json = ["--json", "/dev/full"];
    for (args, prints) in [
        (&["sweep", "e.toml", "--vary", "run.seed=1,2"][..], "2 points"),
        (&["compare", "e.toml", "e.toml", "--seeds", "2"], "95%"),
        (&["torture", "--target", "ram", "--seeds", "1"], "No failure"),
        (&["trace", "info", "t.csv"], "MSR Cambridge"),
        (&["trace", "convert", "t.csv", "t.parquet"], "t.parquet"),
        (&["drive", "info", "a.img"], "uuid"),
        (&["lnvm", "create", "a.img", "-n", "raw", "-t", "raw", "-b", "0", "-e", "1"], "raw"),
    ] {
        full(&[args, &json].concat(), prints);
    }
    full(&["bench", "--calibrate", "--rounds", "1", "-o", "/dev/full"], "ns");
    // Nor does a standard output that is full.
    let mut run = h.command("run e.toml --json r.json");
    let full = std::fs::File::create("/dev/full").expect("it is everywhere");
    let done = Done::of(run.stdout(full).output().expect("the program starts"));
    assert!(done.code == 2 && done.err.contains("standard output: No space left"), "{done:?}");
    assert!(lines("r.json") > 100);
}
