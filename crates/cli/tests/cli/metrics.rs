//! Metrics of a drive in use: by HTTP, by the control socket, and `flashlane top`.

use crate::harness::{Here, Holder, KINDS, says};
use crate::serve::{Client, FUA, SECTOR, TRIM, made, pattern, stopped};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

/// Series of a text, by name and labels as they stand there.
type Series = BTreeMap<String, f64>;

fn series(text: &str) -> Series {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let each = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        (series.to_string(), value.parse().expect("a number"))
    });
    let all: Vec<_> = each.collect();
    let (count, series) = (all.len(), Series::from_iter(all));
    assert_eq!(series.len(), count, "no series comes twice");
    series
}

/// What a server that speaks HTTP answers.
fn spoken(mut socket: impl Read + Write, says: &str) -> String {
    socket.write_all(says.as_bytes()).expect("it listens");
    let mut heard = String::new();
    socket.read_to_string(&mut heard).expect("text");
    heard
}

fn scraped(h: &Here, socket: &str) -> Series {
    let socket = UnixStream::connect(h.path(socket)).expect("somebody listens");
    let heard = spoken(socket, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, text) = heard.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    series(text)
}

fn json(h: &Here, line: &str) -> serde_json::Value {
    serde_json::from_str(&h.run(line).good().out).expect("JSON")
}

/// A series of the target.
fn of(series: &Series, name: &str, more: &str) -> f64 {
    let key = format!("flashlane_{name}{{device=\"a.img\",target=\"db\"{more}}}");
    *series.get(&key).unwrap_or_else(|| panic!("no {key} in {series:#?}"))
}

/// One of a device.
fn of_device(series: &Series, name: &str) -> f64 {
    series[&format!("{name}{{device=\"a.img\"}}")]
}

fn served(h: &Here) -> Holder {
    h.hold_with("serve a.img --null-latency --nbd unix:s --metrics unix:m", "m")
}

#[test]
fn values_move_as_requests_do() {
    for kind in KINDS {
        let h = made(kind);
        let server = served(&h);
        let before = scraped(&h, "m");
        let mut c = Client::connect(&h.path("s"), "db");
        for i in 0..10 {
            assert_eq!(c.write(0, i * 40_960, &pattern(i as u8, 10)), 0);
        }
        assert_eq!(c.write(FUA, 0, &pattern(9, 1)), 0);
        c.flush();
        c.flush();
        assert_eq!(c.read(40_960, 3 * SECTOR).len(), 3 * SECTOR);
        assert_eq!(c.ask(TRIM, 0, 81_920, 5 * 4_096), 0);
        let after = scraped(&h, "m");
        let moved = |name: &str, more: &str| of(&after, name, more) - of(&before, name, more);
        assert_eq!(moved("host_write_bytes_total", ""), 101.0 * 4096.0, "{kind}");
        assert_eq!(moved("host_read_bytes_total", ""), 3.0 * 4096.0, "{kind}");
        assert_eq!(moved("host_discard_bytes_total", ""), 5.0 * 4096.0, "{kind}");
        for (op, requests) in [("write", 11.0), ("read", 1.0), ("discard", 1.0), ("flush", 2.0)] {
            let op = format!(",op=\"{op}\"");
            assert_eq!(moved("request_duration_seconds_count", &op), requests, "{kind}: {op}");
            assert_eq!(moved("request_errors_total", &op), 0.0, "{kind}: {op}");
            let within = format!("{op},le=\"+Inf\"");
            assert_eq!(moved("request_duration_seconds_bucket", &within), requests);
        }
        assert!(moved("flushes_total", "") >= 2.0, "{kind}");
        // What the target programmed, by reason, is what the medium counted since.
        let programmed = |series: &Series, name: &str| -> f64 {
            let name = format!("flashlane_{name}{{");
            series.iter().filter(|(key, _)| key.starts_with(&name)).map(|(_, n)| n).sum()
        };
        let by = |name: &str| programmed(&after, name) - programmed(&before, name);
        assert_eq!(by("nand_program_bytes_total"), by("media_program_bytes_total"), "{kind}");
        // Other verbs say the same.
        let smart = json(&h, "drive smart a.img --json -");
        let now = scraped(&h, "m");
        for (key, name) in [
            ("data_units_written", "nvme_data_units_written_total"),
            ("data_units_read", "nvme_data_units_read_total"),
            ("power_cycles", "nvme_power_cycles_total"),
            ("media_errors", "nvme_media_errors_total"),
        ] {
            let units: f64 = smart[key].as_str().expect("a string").parse().expect("a number");
            assert_eq!(of_device(&now, name), units, "{kind}: {key}");
        }
        let spare = smart["avail_spare"].as_f64().expect("a number") / 100.0;
        assert_eq!(of_device(&now, "nvme_available_spare_ratio"), spare);
        let seen = json(&h, "top a.img --once --json -");
        assert_eq!(seen["targets"][0]["stats"]["host_written"], 101, "{kind}");
        assert_eq!(seen["targets"][0]["layer"], kind);
        assert_eq!(seen["smart"], smart, "{kind}");
        let same = series(&h.run("top a.img --prometheus").good().out);
        assert_eq!(of(&same, "host_write_bytes_total", ""), 101.0 * 4096.0);
        assert!(same.keys().eq(now.keys()), "{kind}: the same series");
        let text = h.run("top a.img --once").good().out;
        says(&text, &["a.img: target db", "ops/s", "channels and dies", "room and GC", "p99.9"]);
        drop(c);
        stopped(server);
        assert!(!h.path("m").exists(), "{kind}: the socket's name is given back");
    }
}

/// A die that is dead after a clean stop costs what was on it: `lnvm info`, `top` and the metrics
/// of the server say how much, and why.
#[test]
fn what_a_mount_has_lost_is_said() {
    let h = made("pftl");
    h.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=1m\n");
    h.run("run w.fio --drive a.img").good();
    assert_eq!(json(&h, "lnvm info a.img --json -")["targets"][0]["lost"], serde_json::Value::Null);
    h.run("drive inject a.img die_fail --at 'pu 1'").good();
    let server = served(&h);
    let seen = scraped(&h, "m");
    let lost = of(&seen, "mount_lost_sectors", ",cause=\"dead_pu\"");
    assert!(lost > 0.0);
    assert_eq!(of(&seen, "mount_lost_sectors", ",cause=\"unreadable_chunk\""), 0.0);
    assert!(of(&seen, "mount_unreadable_sectors", "") + of(&seen, "mount_torn_units", "") >= 0.0);
    let top = json(&h, "top a.img --once --json -");
    assert_eq!(top["targets"][0]["lost"]["sectors"]["dead_pu"].as_f64(), Some(lost));
    let info = json(&h, "lnvm info a.img --json -")["targets"][0]["lost"].clone();
    assert_eq!(info["logical_sectors"].as_f64(), Some(lost), "{info:#}");
    assert_eq!(info["ranges"][0]["cause"], "PU 1 is dead", "{info:#}");
    let text = h.run("lnvm info a.img -n db").good().out;
    says(&text, &["at the mount", &format!("LOST: {lost} logical sectors: "), "(PU 1 is dead)"]);
    server.kill();
}

#[test]
fn who_asks_for_something_else_is_told_so() {
    let h = made("pblk");
    let mut command =
        h.command("serve a.img --null-latency --nbd unix:s --metrics tcp:127.0.0.1:0");
    let log = h.path("said");
    let said = std::fs::File::create(&log).expect("a file");
    command.stdout(said).stderr(Stdio::null());
    let mut server = command.spawn().expect("the program starts");
    let ready = || {
        let said = std::fs::read_to_string(&log).expect("a file");
        said.lines().find_map(|l| l.strip_prefix("ready metrics:tcp:").map(String::from))
    };
    let address = loop {
        match ready() {
            Some(address) => break address,
            None => crate::harness::pause(),
        }
    };
    let ask = |says: &str| spoken(TcpStream::connect(&address).expect("it listens"), says);
    says(&ask("GET / HTTP/1.1\r\n\r\n"), &["200 OK", "/metrics"]);
    says(&ask("GET /metric HTTP/1.1\r\n\r\n"), &["404 Not Found", "there is /metrics"]);
    says(&ask("PUT /metrics HTTP/1.1\r\n\r\n"), &["405 Method Not Allowed", "Allow: GET, HEAD"]);
    says(&ask("what\r\n\r\n"), &["400 Bad Request", "Connection: close"]);
    // One that never asks does not keep others waiting, nor the server from its end.
    let silent = TcpStream::connect(&address).expect("it listens");
    let url = format!("http://{address}/metrics");
    match Command::new("curl").args(["-sS", "--fail", &url]).output() {
        Ok(curl) => {
            assert!(curl.status.success(), "{curl:?}");
            let text = String::from_utf8(curl.stdout).expect("text");
            assert_eq!(of(&series(&text), "host_write_bytes_total", ""), 0.0);
        }
        Err(_) => assert!(ask("GET /metrics HTTP/1.1\r\n\r\n").contains("host_write_bytes_total")),
    }
    let id = server.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert!(server.wait().expect("it ends").success());
    drop(silent);
}

#[test]
fn what_can_t_be_had_is_said() {
    let h = made("pblk");
    h.run("top a.img").refused(2, &["--once"]);
    h.run("top a.img --once").refused(2, &["a.img", "nobody uses the drive"]);
    h.run("top nothing.img --once").refused(2, &["nothing.img"]);
    h.run("top a.img --json -").refused(2, &["--once"]);
    h.run("top a.img --every 1ms").refused(2, &["100ms"]);
    h.run("run --metrics unix:m").refused(2, &["--drive"]);
    h.run("run --drive a.img --metrics unix:m").refused(2, &["--clock real", "virtual time"]);
    h.run("serve a.img --nbd unix:s --metrics m").refused(2, &["unix:PATH or tcp:HOST:PORT"]);
    let server = served(&h);
    h.run("drive create b.img --preset tiny").good();
    h.run("lnvm create b.img -n db -t pblk").good();
    h.run("serve b.img --nbd unix:t --metrics unix:m").refused(2, &["unix:m", "listens there"]);
    // A terminal is needed without --once, whoever uses the drive.
    h.run("top a.img").refused(2, &["no terminal", "--once"]);
    stopped(server);
}

/// A run on the real clock has the page, and one in virtual time answers by the control socket.
#[test]
fn runs_on_a_drive_are_watched() {
    let h = made("pblk");
    h.file(
        "endless.fio",
        "[x]\nrw=randwrite\nbs=4k\nsize=1m\niodepth=4\ntime_based\nruntime=1000000s\nfsync=16\n",
    );
    let line = "run endless.fio --drive a.img --target db --clock real --metrics unix:m";
    let run = h.hold_with(line, "m");
    let first = scraped(&h, "m");
    crate::harness::pause();
    let second = scraped(&h, "m");
    let of = |s: &Series| of(s, "request_duration_seconds_count", ",op=\"write\"");
    assert!(of(&second) >= of(&first));
    run.interrupt();
    let run = h.hold("a.img", "db", "a.img.ctl");
    // The drive answers before its target is mounted.
    let looks = || json(&h, "top a.img --once --json -");
    let seen =
        std::iter::repeat_with(looks).take(100).find(|seen| seen["targets"][0]["layer"] != "");
    let seen = seen.expect("the target is mounted");
    assert!(seen["medium"]["name"].as_str().expect("a name").starts_with("tiny"), "{seen}");
    run.interrupt();
}
