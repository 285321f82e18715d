//! A drive in use: the process that has it open answers the verbs of others through `DRIVE.ctl`.
//!
//! Real processes: a run on a target of a drive that goes on until it is ended, and verbs against it. What
//! the socket is sent here is also what no client of ours sends: garbage, half a line, a line without end,
//! another version. The run must not notice.

use crate::harness::{self, Done, ENDLESS, Here, here, pause, says};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A drive with two pblk targets; `db` is the one that is run on.
fn drive() -> Here {
    let h = harness::drive();
    h.run("lnvm create a.img -n db -t pblk -b 0 -e 1").good();
    h.run("lnvm create a.img -n log -t pblk -b 2 -e 3").good();
    h
}

fn lnvm(h: &Here, args: &str) -> Done {
    h.run(&format!("lnvm {args}"))
}

/// The run that has `a.img` goes on meanwhile: what it has written grows.
fn goes_on(h: &Here) {
    let written = || {
        let smart = h.run("drive smart a.img --json -").good().json();
        smart["ocp"]["Physical media units written"]["lo"].as_u64().unwrap()
    };
    let first = written();
    let mut tries = 0;
    while written() == first {
        tries += 1;
        assert!(tries < 500, "nothing is written");
        pause();
    }
}

#[test]
fn verbs_work_on_a_drive_in_use() {
    let h = drive();
    let mut holder = h.hold("a.img", "db", "a.img.ctl");
    let pid = holder.id();
    let there = std::fs::symlink_metadata(h.path("a.img.ctl")).unwrap();
    assert!(there.file_type().is_socket());
    assert_eq!(there.permissions().mode() & 0o777, 0o600);
    let info = h.run("drive info a.img --json -").good().json();
    assert_eq!(info["in_use"]["process"], pid);
    assert_eq!(info["in_use"]["targets"][0], "db");
    let text = h.run("drive info a.img").good().out;
    assert!(text.contains(&format!("by process {pid}, target `db`")), "{text}");
    goes_on(&h);
    let list = lnvm(&h, "list a.img").good().out;
    assert!(list.contains("Number of targets: 2") && list.contains("log"), "{list}");
    let info = lnvm(&h, "info a.img --json -").good().json();
    assert_eq!(info["targets"][0]["in_use_by"], pid);
    assert!(info["targets"][0]["pblk"]["write_amp_mileage"].as_str().unwrap().starts_with("user:"));
    // What its cores have waited for so far, of the target in use only.
    let waited = &info["targets"][0]["contention"];
    assert!(waited["queues"][0]["depth_max"].as_u64().unwrap() > 0, "{waited:#}");
    assert!(waited["locks"][0]["acquired"].as_u64().unwrap() > 0, "{waited:#}");
    assert_eq!(info["targets"][1]["contention"], Value::Null);
    let text = lnvm(&h, "info a.img -n db").good().out;
    assert!(text.contains("  ring 0 ") && text.contains("  semaphores "), "{text}");
    assert_eq!(info["targets"][1]["stopped_cleanly"], true, "{info:#}");
    assert_eq!(
        info["device"]["lightnvm"]["num_channels"]
            .as_u64()
            .or(info["device"]["lightnvm"]["groups"].as_u64()),
        Some(2)
    );
    assert!(lnvm(&h, "id-ns a.img").good().out.starts_with("ver"));
    let log = lnvm(&h, "chunk-log a.img").good().out;
    assert!(log.starts_with("Total chunks in namespace: 256\n"), "{log}");
    let bytes = h.command("lnvm chunk-log a.img -o binary").output().unwrap().stdout;
    assert_eq!(bytes.len(), 256 * 32);
    // Blocks and the target in use are not to be touched; neither is the drive as a whole.
    let in_use = format!("in use by process {pid}");
    lnvm(&h, "diag-set-bbtbl a.img -c 0 -l 0 -b 7 -v 8").refused(2, &["a.img", "`db`"]);
    lnvm(&h, "remove a.img -n db").refused(2, &["`db`", &in_use]);
    lnvm(&h, "remove a.img -n dbb").refused(2, &["no target `dbb`", "db, log"]);
    lnvm(&h, "create a.img -n x -t raw").refused(2, &["a.img", &in_use]);
    lnvm(&h, "factory a.img").refused(2, &["a.img", &in_use]);
    h.run("drive upgrade a.img").refused(2, &["a.img", &in_use]);
    h.run("drive create a.img --preset tiny --force").refused(2, &[&in_use]);
    h.run("run endless.fio --drive a.img --target log").refused(2, &[&in_use]);
    // Another target can go, and then its blocks can be marked.
    lnvm(&h, "remove a.img -n log").good();
    lnvm(&h, "diag-set-bbtbl a.img -c 1 -l 0 -b 7 -v 8").good();
    assert!(holder.is_running());
    let done = holder.interrupt();
    assert!(done.out.contains("target `db` of a.img"), "{done:?}");
    assert_eq!(h.files(), ["a.img", "endless.fio"], "the socket is gone");
    let list = lnvm(&h, "list a.img").good().out;
    assert!(list.contains("Number of targets: 1"), "{list}");
    assert!(lnvm(&h, "chunk-log a.img").good().out.contains("OFFLINE"));
}

/// A run on the real clock: it answers as one in virtual time does, its drive is used meanwhile, and a second run finds it
/// as it was left.
#[test]
fn a_drive_on_the_real_clock_answers() {
    let h = drive();
    h.file("endless.fio", ENDLESS);
    let run = ["run", "endless.fio", "--drive", "a.img", "--target", "db", "--clock", "real"];
    let mut holder = h.hold_with(&run, "a.img.ctl");
    let pid = holder.id();
    let info = h.run("drive info a.img --json -").good().json();
    assert_eq!(info["in_use"]["process"], pid);
    goes_on(&h);
    lnvm(&h, "knobs a.img -n db gc_enabled=0").good();
    h.run("drive snapshot a.img s.img").good();
    assert!(holder.is_running());
    let done = holder.interrupt();
    assert!(done.out.contains("real clock: no fingerprint"), "{done:?}");
    assert_eq!(h.files(), ["a.img", "endless.fio", "s.img"], "the socket is gone");
    h.file("read.fio", "[r]\nrw=read\nbs=64k\nsize=1m\n");
    let run = ["run", "read.fio", "--drive", "a.img", "--target", "db", "--json", "-"];
    let virtual_run = h.run(&run).good().json();
    assert_eq!(virtual_run["configuration"]["clock"], "virtual");
    let run = h.run(&[&run[..], &["--clock", "real"]].concat()).good().json();
    assert_eq!(run["runs"][0]["mount"]["recovery"]["clean"], true, "{run:#}");
    assert_eq!(run["runs"][0]["failed_requests"], 0);
    assert_eq!(run["runs"][0]["counter_laws"], "hold");
    assert_eq!(run["configuration"]["clock"], "real");
    assert_eq!(run["runs"][0]["fingerprint"], "none");
    let busy = run["runs"][0]["cpu"]["busy_ratio"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{busy}");
    // Power cuts reach it, too.
    let holder = h.hold_with("run endless.fio --drive a.img --target db --clock real", "a.img.ctl");
    h.run("drive inject a.img power_cut").good();
    drop(holder);
    assert!(h.run("drive check a.img").good().out.ends_with("good\n"));
}

/// On the real clock requests may be far apart: Ctrl-C is heard between them. What the real clock can't do is said.
#[test]
fn a_slow_run_on_the_real_clock_hears_ctrl_c() {
    let h = drive();
    h.file("slow.fio", "[w]\nrw=write\nbs=4k\nsize=1m\nrate_iops=1\nfsync=4\n");
    let run = ["run", "slow.fio", "--drive", "a.img", "--target", "db", "--clock", "real"];
    let holder = h.hold_with(&run, "a.img.ctl");
    let done = holder.interrupt();
    assert!(done.out.contains("INTERRUPTED"), "{done:?}");
    let cores = [&run[..], &["--set", "run.host_cores=2"]].concat();
    h.run(&cores).refused(2, &["2 host cores", "run.host_cores=1"]);
    h.run("run slow.fio --clock real").refused(2, &["--drive"]);
    assert_eq!(h.files(), ["a.img", "slow.fio"]);
}

#[test]
fn a_snapshot_of_a_drive_in_use_is_a_drive() {
    let h = drive();
    let mut holder = h.hold("a.img", "db", "a.img.ctl");
    h.run("drive snapshot a.img s.img").good();
    h.run("drive clone a.img c.img").good();
    h.run("drive snapshot a.img s.img").refused(2, &["s.img", "exists"]);
    h.run("drive snapshot a.img no/s.img").refused(2, &["no/s.img"]);
    let checked = h.run("drive check a.img").good().out;
    assert!(checked.contains("snapshot") && checked.ends_with("good\n"), "{checked}");
    assert!(holder.is_running());
    assert_eq!(h.files(), ["a.img", "a.img.ctl", "c.img", "endless.fio", "s.img"]);
    let uuid =
        |file: &str| h.run(&["drive", "info", file, "--json", "-"]).good().json()["uuid"].clone();
    assert_eq!(uuid("s.img"), uuid("a.img"));
    assert_ne!(uuid("c.img"), uuid("a.img"));
    // They open while the drive is still in use: what was flushed is there, the rest as after a power cut.
    h.file("read.fio", "[r]\nrw=read\nbs=64k\nsize=8m\n");
    for copy in ["s.img", "c.img"] {
        assert!(h.run(&["drive", "check", copy]).good().out.ends_with("good\n"));
        let run = ["run", "read.fio", "--drive", copy, "--target", "db", "--json", "-"];
        let run = h.run(&run).good().json();
        assert_eq!(run["runs"][0]["mount"]["recovery"]["clean"], false);
        assert_eq!(run["runs"][0]["failed_requests"], 0, "{run:#}");
        assert_eq!(run["runs"][0]["counter_laws"], "hold");
    }
    holder.interrupt();
}

#[test]
fn a_socket_that_a_killed_process_left_is_replaced() {
    let h = drive();
    h.hold("a.img", "db", "a.img.ctl").kill();
    assert!(h.path("a.img.ctl").exists(), "nobody was left to remove it");
    // The lock decides: nobody has the drive.
    let info = h.run("drive info a.img --json -").good().json();
    assert_eq!(info["in_use"], Value::Null);
    let holder = h.hold("a.img", "db", "a.img.ctl");
    let info = h.run("drive info a.img --json -").good().json();
    assert_eq!(info["in_use"]["process"], holder.id());
    holder.interrupt();
    assert_eq!(h.files(), ["a.img", "endless.fio"]);
    // Something else of that name stays, and nothing is run.
    h.file("a.img.ctl", "mine");
    h.run("run endless.fio --drive a.img --target db").refused(2, &["a.img.ctl", "move it away"]);
    assert_eq!(std::fs::read(h.path("a.img.ctl")).unwrap(), b"mine");
    // Held by who does not listen: it is said who, as ever.
    let _held =
        flashlane_ocssd::Ssd::open_image(&h.path("a.img"), &flashlane_ocssd::OpenImage::default());
    let me = format!("process {}", std::process::id());
    h.run("drive smart a.img").refused(2, &["in use by", &me]);
}

/// A line of what the holder says.
fn line(reader: &mut impl BufRead) -> Value {
    let mut text = String::new();
    reader.read_line(&mut text).expect("a line");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

/// What the holder answers to these bytes.
fn said(h: &Here, bytes: &[u8]) -> Value {
    let stream = UnixStream::connect(h.path("a.img.ctl")).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let mut reader = BufReader::new(&stream);
    let greeting = line(&mut reader);
    assert_eq!(
        (greeting["flashlane"].as_str(), &greeting["version"]),
        (Some("drive control"), &1.into())
    );
    // It may be refused, and closed, before all is sent.
    let _ = (&stream).write_all(bytes);
    line(&mut reader)
}

fn kill(signal: &str, pid: u32) {
    let kill = std::process::Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(kill.expect("kill is everywhere").success());
}

/// A holder that is stopped (Ctrl-Z): who it is is said, after a while that is not a minute; continued, it
/// answers.
#[test]
fn a_stopped_holder_is_named() {
    let h = drive();
    let holder = h.hold("a.img", "db", "a.img.ctl");
    let pid = holder.id();
    kill("-STOP", pid);
    let says = [&format!("process {pid}"), "is stopped", &format!("`kill -CONT {pid}`")[..]];
    h.run("drive smart a.img").refused(2, &says);
    kill("-CONT", pid);
    h.run("drive smart a.img").good();
    holder.interrupt();
}

/// The power of a drive in use goes: the run ends and says so, what it had flushed is there at the next mount.
#[test]
fn the_power_of_a_drive_in_use_is_cut() {
    let h = drive();
    h.file("r.fio", "[r]\nrw=read\nbs=64k\nsize=8m\n");
    h.run("drive inject a.img power_cut").refused(2, &["a.img", "nobody uses"]);
    for round in 1..=5 {
        let mut holder = h.hold("a.img", "db", "a.img.ctl");
        (0..round * 3).for_each(|_| pause());
        let cut = h.run("drive inject a.img power_cut --json -").good().json();
        assert!(cut["at_ns"].is_u64(), "{cut}");
        let done = holder.output();
        assert_eq!((done.code, &done.out[..]), (130, ""), "{done:?}");
        says(&done.err, &["`db`", "a.img", "the power of the drive was cut"]);
        assert_eq!(h.files(), ["a.img", "endless.fio", "r.fio"], "the socket is gone");
        let smart = h.run("drive smart a.img --json -").good().json();
        assert_eq!(smart["unsafe_shutdowns"], round.to_string());
        let run =
            h.run("run r.fio --drive a.img --target db --json -").good().json()["runs"][0].clone();
        assert_eq!(run["mount"]["recovery"]["clean"], false, "{run:#}");
        assert_eq!((&run["failed_requests"], &run["counter_laws"]), (&0.into(), &"hold".into()));
    }
    assert!(h.run("drive check a.img").good().out.ends_with("good\n"));
}

#[test]
fn garbage_is_answered_in_words_and_the_run_goes_on() {
    let h = drive();
    let mut holder = h.hold("a.img", "db", "a.img.ctl");
    let refused = |bytes: &[u8], says: &str| {
        let said = said(&h, bytes);
        assert!(said["refused"].as_str().unwrap_or_default().contains(says), "{said}");
    };
    refused(b"GET / HTTP/1.1\r\n\r\n", "send one line of JSON");
    refused(b"\xff\xfe\x00\n", "send one line of JSON");
    refused(b"\n", "send one line of JSON");
    refused(b"[1,2]\n", "no version");
    refused(b"{\"version\":2,\"ask\":\"smart\"}\n", "version 2");
    refused(b"{\"version\":1,\"ask\":\"format_everything\"}\n", "can't be asked");
    refused(b"{\"version\":1,\"ask\":{\"id_ns\":{\"namespace\":-1}}}\n", "can't be asked");
    refused(b"{\"version\":1,\"ask\":{\"inject\":{\"plan\":\"[[fault]]\"}}}\n", "kind");
    refused(b"{\"version\":1,\"ask\":{\"copy\":{\"to\":\"/\",\"clone\":false}}}\n", "/");
    let deep = [b"{\"version\":1,\"ask\":".as_slice(), &b"[".repeat(100_000), b"\n"].concat();
    refused(&deep, "send one line of JSON");
    refused(&b"x".repeat(300 << 10), "at most");
    let places = "{\"version\":1,\"ask\":{\"set_bad_block\":{\"channel\":4294967295,\"lun\":0,\
                  \"plane\":0,\"block\":0,\"mark\":8}}}\n";
    refused(places.as_bytes(), "channel 4294967295");
    assert!(
        said(&h, b"{\"version\":1,\"ask\":\"smart\"}\nand more\n")["answer"]["text"].is_string()
    );
    // Clients that say nothing, or half of something, or take no answer, keep nobody from being heard.
    let idle: Vec<UnixStream> = (0..20)
        .map(|i| {
            let mut stream = UnixStream::connect(h.path("a.img.ctl")).unwrap();
            if i % 2 == 0 {
                stream.write_all(b"{\"version\":1,").unwrap();
            } else if i % 3 == 0 {
                stream.write_all(b"{\"version\":1,\"ask\":\"chunk_log\"}\n").unwrap();
            }
            stream
        })
        .collect();
    h.run("drive smart a.img").good();
    // Those that said nothing made room, and are told so.
    let mut rest = String::new();
    idle[1].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (&idle[1]).read_to_string(&mut rest).unwrap();
    assert!(rest.contains("others wait to ask theirs"), "{rest}");
    drop(idle);
    h.run("drive smart a.img").good();
    assert!(holder.is_running());
    holder.interrupt();
}

#[test]
fn many_clients_at_a_time_are_all_answered() {
    let h = drive();
    let mut holder = h.hold("a.img", "db", "a.img.ctl");
    const ASKS: [&str; 5] = ["\"smart\"", "\"info\"", "\"list\"", "\"chunk_log\"", "\"faults\""];
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = |i: usize| format!("{{\"version\":1,\"ask\":{}}}\n", ASKS[i % ASKS.len()]);
        let h = &h;
        let clients: Vec<_> =
            (0..100).map(|i| scope.spawn(move || said(h, ask(i).as_bytes()))).collect();
        clients.into_iter().map(|c| c.join().expect("answered")).collect()
    });
    assert!(answers.iter().all(|a| a["answer"]["json"].is_string()));
    assert!(holder.is_running());
    holder.interrupt();
}

/// Asks until nobody listens: how often it was answered.
fn pester(h: &Here, first: usize) -> u32 {
    let knobs = "{\"knobs\":{\"target\":\"db\",\"set\":[]}}";
    let asks = ["\"smart\"", "\"info\"", "\"chunk_log\"", "\"metrics\"", knobs];
    let mut answered = 0;
    for ask in asks.iter().cycle().skip(first) {
        let Ok(stream) = UnixStream::connect(h.path("a.img.ctl")) else { break };
        let _ = (&stream).write_all(format!("{{\"version\":1,\"ask\":{ask}}}\n").as_bytes());
        let mut all = String::new();
        let _ = (&stream).read_to_string(&mut all);
        answered += u32::from(all.contains("\"answer\""));
    }
    answered
}

/// Asked all the time or never, a run does the same things in the same order.
#[test]
fn who_looks_on_changes_nothing() {
    let run = |asked: bool| {
        let h = drive();
        h.file("w.fio", "[w]\nrw=randwrite\nbs=4k\nsize=8m\nio_size=64m\niodepth=8\nfsync=100\n");
        let args = "run w.fio --drive a.img --target db --json -";
        if !asked {
            return (h.run(args).good().json(), 0);
        }
        let mut holder = h.hold_with(args, "a.img.ctl");
        // Five ask without a pause until nobody listens any more; the run ends all the same.
        let answered = std::thread::scope(|scope| {
            let h = &h;
            let clients: Vec<_> = (0..5).map(|i| scope.spawn(move || pester(h, i))).collect();
            clients.into_iter().map(|c| c.join().expect("it ends")).sum::<u32>()
        });
        (holder.output().good().json(), answered)
    };
    let ((alone, _), (watched, answered)) = (run(false), run(true));
    assert!(answered > 3, "{answered} answers");
    assert_eq!(alone["fingerprint"], watched["fingerprint"]);
    assert_eq!(alone["runs"][0]["latency_ns"], watched["runs"][0]["latency_ns"]);
    assert_eq!(alone["runs"][0]["programmed_sectors"], watched["runs"][0]["programmed_sectors"]);
}

#[test]
fn a_drive_with_a_path_longer_than_an_address_can_be_used() {
    let h = here();
    let deep = format!("{}/{}", "d".repeat(90), "e".repeat(90));
    std::fs::create_dir_all(h.path(&deep)).unwrap();
    let image = format!("{deep}/{}.img", "i".repeat(90));
    h.run(&["drive", "create", &image, "--preset", "tiny", "--set", "geometry.chunks_per_pu=64"])
        .good();
    h.run(&["lnvm", "create", &image, "-n", "db", "-t", "pblk"]).good();
    let holder = h.hold(&image, "db", &format!("{image}.ctl"));
    let info = h.run(&["drive", "info", &image, "--json", "-"]).good().json();
    assert_eq!(info["in_use"]["process"], holder.id());
    holder.interrupt();
    // A name that leaves no room for `.ctl` is refused, and the drive is as it was.
    let long = format!("{}/{}", h.path("").display(), "n".repeat(253));
    std::fs::copy(h.path(&image), &long).unwrap();
    h.run(&["run", "endless.fio", "--drive", &long]).refused(2, &["shorter name"]);
    assert!(lnvm(&h, &format!("info {long}")).good().out.contains("cleanly"));
}

/// A terminal that goes away, which says so twice, ends a run as SIGTERM does: its target is stopped, not
/// left to be recovered. A run that was started to outlive it goes on.
#[test]
fn a_terminal_that_goes_away_ends_a_run_cleanly() {
    let h = drive();
    h.hold("a.img", "db", "a.img.ctl").interrupt();
    let program = env!("CARGO_BIN_EXE_flashlane");
    let run = ["run", "endless.fio", "--drive", "a.img", "--target", "db"];
    let start = |by: &[&str]| {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).arg(program).args(run).current_dir(h.path("")).stdin(Stdio::null());
        h.hold_by(command, "a.img.ctl")
    };
    let stopped = || {
        let info = lnvm(&h, "info a.img -n db --json -").good().json();
        info["targets"][0]["stopped_cleanly"].clone()
    };
    // Whatever these tests were started by: as a shell starts a program.
    for signals in [&["-HUP", "-HUP"][..], &["-TERM"]] {
        let holder = start(&["env", "--default-signal=HUP"]);
        signals.iter().for_each(|signal| holder.signal(signal));
        let done = holder.interrupted();
        assert!(done.out.contains("INTERRUPTED"), "{done:?}");
        assert_eq!(stopped(), true, "{signals:?}");
    }
    let mut holder = start(&["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]);
    holder.signal("-HUP");
    for _ in 0..50 {
        pause();
        assert!(holder.is_running(), "{:?}", holder.output());
    }
    holder.interrupt();
}
