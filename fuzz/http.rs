//! A hostile client of the HTTP page, over a socket, in virtual time.
//!
//! Owns: what the client says (the input), how it behaves meanwhile, how answers are read. Promises: the server has
//! answered in time or left; there is one whole answer at most, the one that a plain reading of the head asks for; the
//! page is made for whoever gets it and for nobody else; who comes next is served; a stop ends it all. Never: knows
//! how the server does it.

use super::client::{END_MAX, End, converse};
use flashlane_base::Ns;
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_serve::http::{self, Page};
use flashlane_serve::{Listener, Stop};
use std::cell::Cell;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const NAMES: [&str; 1] = ["http"];

/// What the page says, with a number behind it.
const PAGE: &str = "a page\n";
/// Who asks for it as it should be asked for.
const GOOD: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";
/// Who has asked nothing whole is left by then.
const LEFT_BY: Ns = Ns::from_secs(11);
/// A stop takes no longer.
const STOP_MAX: Ns = Ns::from_secs(2);
/// A longer head is refused.
const HEAD_MAX: usize = 8 << 10;

/// Does with `bytes` what the target does, if it is this one.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    NAMES.contains(&target).then(|| {
        let mut accepted = false;
        for end in [End::Listens, End::Goes, End::Stays] {
            let (answer, made) = talk(bytes, end);
            if end == End::Listens {
                let code = check(&answer, bytes);
                let pages = answer.ends_with(PAGE.as_bytes()) || is_head_of_page(bytes, code);
                assert_eq!(made, u64::from(pages), "pages that were made for this client");
                accepted = code == Some(200);
            }
        }
        accepted
    })
}

/// A conversation, and one of somebody else behind it: what the first client heard, and how many pages it cost.
fn talk(said: &[u8], end: End) -> (Vec<u8>, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("flashlane-fuzz-http-{}-{number}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("a name of its own");
    let clock = Virtual::new(1, 1, CostTable::zero());
    let (cx, said) = (clock.cx(), said.to_vec());
    let heard = clock.run(async move {
        let (made, stop) = (Rc::new(Cell::new(0)), Arc::new(Stop::default()));
        let (server, raised, counts) = (cx.clone(), stop.clone(), made.clone());
        let make = move |_: &Cx| {
            counts.set(counts.get() + 1);
            PAGE.to_owned()
        };
        let page = Page { path: "/metrics", content_type: "text/plain", make: Box::new(make) };
        let served = cx.spawn_join(async move {
            http::serve(&server, Listener::Unix(listener), page, raised).await
        });
        let client = || {
            let socket = UnixStream::connect_addr(&address).expect("somebody listens");
            socket.set_nonblocking(true).expect("a socket");
            socket
        };
        let first = client();
        let heard = converse(&cx, &first, &said, end).await;
        let pages = made.get();
        assert!(end != End::Listens || cx.now() < LEFT_BY, "it was waited for: {}", cx.now());
        let first = (end == End::Stays).then_some(first);
        // Whatever became of that one.
        let answer = converse(&cx, &client(), GOOD, End::Listens).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(PAGE.as_bytes()));
        let stopped = cx.now();
        stop.raise(&cx);
        served.await.expect("it could listen");
        assert!(cx.now() - stopped < STOP_MAX && cx.now() < END_MAX, "{end:?}: {}", cx.now());
        drop(first);
        (heard, pages)
    });
    heard.expect("the server ends")
}

/// One whole answer, the one that this head asks for, or none: its status.
fn check(answer: &[u8], said: &[u8]) -> Option<u16> {
    let wants = status_of(said);
    if answer.is_empty() {
        assert_eq!(wants, None, "nobody answers");
        return None;
    }
    let answer = std::str::from_utf8(answer).expect("an answer is text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let mut lines = head.split("\r\n");
    let first = lines.next().expect("a head has a line");
    let code = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split(' ').next());
    let code: u16 = code.expect("a status").parse().expect("a number");
    let lengths: Vec<_> = lines.filter_map(|line| line.strip_prefix("Content-Length: ")).collect();
    let [length] = lengths[..] else { panic!("an answer has one length: {head}") };
    let length: usize = length.parse().expect("a number");
    // Who asks for a head alone gets no more, unless what was asked could not be read.
    let is_head = matches!(code, 200 | 404) && said.starts_with(b"HEAD ");
    assert_eq!(body.len(), if is_head { 0 } else { length }, "{answer}");
    assert_eq!(Some(code), wants, "{answer}");
    Some(code)
}

/// What a plain reading of what was said is answered with.
fn status_of(said: &[u8]) -> Option<u16> {
    if said.is_empty() {
        return None;
    }
    // A head ends with the first line of nothing, and one of no end is as it was when its client ended.
    let mut head = said.len();
    for at in 0..said.len() {
        if said[at..].starts_with(b"\n\n") || said[at..].starts_with(b"\r\n\r\n") {
            head = at + if said[at] == b'\n' { 2 } else { 4 };
            break;
        }
    }
    if head > HEAD_MAX {
        return Some(431);
    }
    let Ok(text) = std::str::from_utf8(&said[..head]) else { return Some(400) };
    let ended = |line: &'_ str| match line.strip_suffix('\n') {
        Some(line) => line.strip_suffix('\r').unwrap_or(line).to_owned(),
        None => line.to_owned(),
    };
    let lines: Vec<String> = text.split_inclusive('\n').map(ended).collect();
    let words: Vec<&str> = lines[0].split(' ').collect();
    let [method, path, version] = words[..] else { return Some(400) };
    if !version.starts_with("HTTP/1.") {
        return Some(505);
    }
    let fields = lines[1..].iter().take_while(|line| !line.is_empty());
    if fields.into_iter().any(|line| !line.contains(':')) {
        return Some(400);
    }
    let path = path.split(['?', '#']).next().expect("a first part");
    Some(match (method, path) {
        ("GET" | "HEAD", "/" | "/metrics") => 200,
        ("GET" | "HEAD", _) => 404,
        _ => 405,
    })
}

/// Such an answer has no body to be known by.
fn is_head_of_page(said: &[u8], code: Option<u16>) -> bool {
    let path = said.strip_prefix(b"HEAD ").and_then(|rest| rest.split(|byte| *byte == b' ').next());
    let path = path.map(|path| path.split(|byte| b"?#".contains(byte)).next());
    code == Some(200) && path == Some(Some(b"/metrics"))
}
