//! What is on the screen, cell by cell where it matters.

use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// A drive of two channels with two dies each, a second and two seconds after its mount.
fn looks() -> (Snapshot, Snapshot) {
    let look = |n: u64| {
        let stats = [
            ("host_written", 1_000 * n),
            ("programmed", 1_500 * n * n),
            ("gc_moved", 500 * n),
            ("gc_victims", 2 * n),
        ];
        let mut t = TargetSnapshot {
            name: "db".into(),
            layer: "pblk".into(),
            write_amplification_ratio: Some(1.5 * n as f64),
            stats: stats.map(|(name, n)| (name.to_string(), n)).into(),
            ..TargetSnapshot::default()
        };
        let mut buckets = vec![0; 102];
        (buckets[9], buckets[40]) = (990 * n, 10 * n);
        t.requests = ["read", "write", "discard", "flush"]
            .map(|op| Latency { op: op.into(), ..Latency::default() })
            .into();
        t.requests[1] = Latency {
            op: "write".into(),
            ended: 1_000 * n,
            sum_ns: 6_000_000 * n,
            buckets,
            ..Latency::default()
        };
        t.room.free = 12;
        t.room.of = 40;
        t.room.user_slots = Some((48, 64));
        t.rings = vec![flashlane_lab::metrics::Ring { slots: 64, used: 16, ..Default::default() }];
        t.lines = [("open".to_string(), 2), ("closed".to_string(), 9)].into();
        t.knobs = [("gc_enabled".to_string(), "1".to_string())].into();
        let mut s = Snapshot {
            time_ns: n * 1_000_000_000,
            device: "my.img".into(),
            process: 7,
            targets: vec![t],
            ..Snapshot::default()
        };
        s.medium.pus_per_channel = 2;
        s.medium.channels_ns = vec![n * 100_000_000, 0];
        let busy = n * 900_000_000;
        s.medium.dies_ns = vec![[0, busy, 0], [0; 3], [n * 300_000_000, 0, 0], [0; 3]];
        s.medium.wear = [0, 3, 9];
        s.smart = serde_json::json!({ "percent_used": 1, "avail_spare": 100 });
        s
    };
    (look(1), look(2))
}

fn screen(view: View) -> Screen {
    let (earlier, now) = looks();
    Screen { view, earlier: Some(earlier), now, every: "1 s".into(), ..Screen::default() }
}

/// What is drawn, line by line.
fn drawn(screen: &Screen, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("no terminal");
    terminal.draw(|frame| draw(frame, screen)).expect("no terminal");
    let buffer = terminal.backend().buffer();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..rows).map(|y| row(y).trim_end().to_string()).collect()
}

#[track_caller]
fn has(lines: &[String], text: &str) {
    assert!(lines.iter().any(|line| line.contains(text)), "no `{text}` in\n{}", lines.join("\n"));
}

#[test]
fn the_overview_has_rates_of_the_last_second() {
    let lines = drawn(&screen(View::Overview), 80, 24);
    has(&lines, " my.img  target db (pblk)  run 2.00 s  every 1 s");
    has(&lines, " 1 overview  2 channels and dies  3 room and GC  4 latencies   h help  q quit");
    has(&lines, "write        1.00k     4.10M         0    4.61 us    5.12 us    6.00 us       0");
    has(&lines, "WA          4.500 now, 3.000 since the mount");
    has(&lines, "ring 0      [########......................] 16 of 64 slots");
    has(&lines, "free        [#########.....................] 12 of 40");
    has(&lines, "lines       closed 9, open 2");
    has(&lines, "GC          2.00 lines/s, moves 2.05M bytes/s");
    has(&lines, "reading 8%, programming 22%, erasing 0%; the busiest 90%");
    has(&lines, "0 to 9 erases of a chunk, mean 3; used 1%, spare 100%");
    assert!(!lines.iter().any(|line| line.contains("more lines")), "it fits: {lines:?}");
}

#[test]
fn the_heat_map_has_a_cell_for_each_die() {
    let lines = drawn(&screen(View::Dies), 80, 24);
    has(&lines, "0           10%  ██··");
    has(&lines, "1            0%  ▒▒··");
    has(&lines, "busy: ··");
    let mut wide = screen(View::Dies);
    wide.now.medium.pus_per_channel = 64;
    wide.now.medium.dies_ns = vec![[0; 3]; 64 * 64];
    wide.now.medium.channels_ns = vec![0; 64];
    let lines = drawn(&wide, 80, 24);
    has(&lines, "+");
    has(&lines, "more lines: make the window taller");
}

#[test]
fn other_views_help_and_small_windows() {
    let lines = drawn(&screen(View::Room), 80, 24);
    has(&lines, "knobs       gc_enabled=1");
    has(&lines, "16 of 64; full 0 times");
    let lines = drawn(&screen(View::Latency), 80, 24);
    has(&lines, "p99.9");
    has(&lines, "8.19 us");
    has(&lines, "###############");
    let lines = drawn(&Screen { help: true, paused: true, ..screen(View::Room) }, 80, 24);
    has(&lines, "paused");
    has(&lines, "another view");
    for view in View::ALL {
        for (columns, rows) in [(1, 1), (10, 2), (20, 3), (300, 90)] {
            drawn(&screen(view.0), columns, rows);
        }
        drawn(&Screen { view: view.0, ..Screen::default() }, 80, 24);
    }
}

#[test]
fn the_text_has_all_views() {
    let (_, now) = looks();
    let text = text(&now);
    for (_, name) in View::ALL {
        assert!(text.contains(&format!("\n{name}\n")), "{text}");
    }
    assert!(text.contains("my.img: target db (pblk), process 7; rates since the mount"), "{text}");
    assert!(text.contains("WA          3.000 now, 3.000 since the mount"), "{text}");
}

#[test]
fn targets_come_one_after_the_other() {
    let mut screen = screen(View::Overview);
    let log = TargetSnapshot { name: "log".into(), layer: "qblk".into(), ..Default::default() };
    screen.now.targets.push(log);
    has(&drawn(&screen, 80, 24), " my.img  target db (pblk, 1 of 2)  run 2.00 s");
    screen.next_target();
    has(&drawn(&screen, 80, 24), " my.img  target log (qblk, 2 of 2)  run 2.00 s");
    screen.next_target();
    assert_eq!(screen.target, "db");
    // One that is not in use any more.
    screen.target = "gone".into();
    has(&drawn(&screen, 80, 24), "target db (pblk, 1 of 2)");
    let text = text(&screen.now);
    assert!(text.contains("my.img: target db") && text.contains("my.img: target log"), "{text}");
    Screen::default().next_target();
}

#[test]
fn numbers_have_three_digits() {
    for (n, text) in [
        (0.0, "0"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (999.0, "999"),
        (1_000.0, "1.00k"),
        (123_456.0, "123k"),
        (4_096_000.0, "4.10M"),
        (2e9, "2.00G"),
    ] {
        assert_eq!(rate(n), text);
    }
}
