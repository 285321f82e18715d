//! Conversations with clients that this file plays, in virtual time.

use super::*;
use flashlane_rt::{CostTable, Virtual};
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// A conversation takes no longer, whatever happens in it.
const ALL_MAX: Ns = Ns::from_secs(60);

type Served = (SocketAddr, Arc<Stop>, flashlane_rt::Join<io::Result<()>>);

/// A server with a page that counts how often it was made, and how to reach it.
fn served(cx: &Cx, name: &str) -> Served {
    let made = Cell::new(0);
    served_with(cx, name, move |_: &Cx| {
        made.set(made.get() + 1);
        format!("page {}\n", made.get())
    })
}

fn served_with(cx: &Cx, name: &str, make: impl Fn(&Cx) -> String + 'static) -> Served {
    let name = format!("flashlane-http-{}-{name}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("it is this test's own");
    let page = Page { path: "/metrics", content_type: "text/odd", make: Box::new(make) };
    let (stop, theirs) = (Arc::new(Stop::default()), cx.clone());
    let stopped = stop.clone();
    let ended =
        cx.spawn_join(async move { serve(&theirs, Listener::Unix(listener), page, stopped).await });
    (address, stop, ended)
}

fn connect(address: &SocketAddr, says: &[u8]) -> UnixStream {
    let mut socket = UnixStream::connect_addr(address).expect("somebody listens");
    socket.set_nonblocking(true).expect("it can be");
    socket.write_all(says).expect("it fits");
    socket
}

/// Everything that a client hears, up to the server's end.
async fn hear(cx: &Cx, mut socket: &UnixStream) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match socket.read(&mut part) {
            Ok(0) => return String::from_utf8(all).expect("text"),
            Ok(n) => all.extend(&part[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                assert!(cx.now() < ALL_MAX, "the server does not end");
                cx.sleep(Ns::from_us(10)).await;
            }
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                return String::from_utf8(all).expect("text");
            }
            Err(e) => panic!("{e}"),
        }
    }
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Cx) -> F) {
    let vm = Virtual::new(1, 1, CostTable::zero());
    vm.run(test(vm.cx())).expect("it ends");
}

#[test]
fn what_is_asked_is_answered_once_and_in_words() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "words");
        for (says, hears, ends) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n", "page 1\n"),
            ("GET /metrics?x=1 HTTP/1.0\n\n", "HTTP/1.1 200 OK\r\n", "page 2\n"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\n"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n", "Prometheus: /metrics\n"),
            ("GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 ", "there is /metrics\n"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 ", "there is GET /metrics\n"),
            ("\r\n\r\n", "HTTP/1.1 400 ", "`GET /metrics HTTP/1.1`\n"),
            ("GET /metrics\r\n\r\n", "HTTP/1.1 400 ", "`GET /metrics HTTP/1.1`\n"),
            ("GET /metrics HTTP/1.1\r\nodd\r\n\r\n", "HTTP/1.1 400 ", "`Name: value`\n"),
            ("GET /metrics HTTP/2\r\n\r\n", "HTTP/1.1 505 ", "this speaks HTTP/1.1\n"),
        ] {
            let socket = connect(&address, says.as_bytes());
            let heard = hear(&cx, &socket).await;
            assert!(heard.starts_with(hears) && heard.ends_with(ends), "{says:?}: {heard}");
            assert!(heard.contains("\r\nConnection: close\r\n"), "{heard}");
            let (head, body) = heard.split_once("\r\n\r\n").expect("a head");
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            assert!(length == body.len() || says.starts_with("HEAD"), "{heard}");
            assert_eq!(head.contains("Allow: GET"), says.starts_with("POST"), "{heard}");
        }
        let not_text = connect(&address, b"GET /\xff HTTP/1.1\r\n\r\n");
        assert!(hear(&cx, &not_text).await.starts_with("HTTP/1.1 400 "));
        stop.raise(&cx);
        ended.await.expect("it could listen");
    });
}

/// How long a head may be does not depend on the pieces in which it comes.
#[test]
fn a_head_is_as_long_as_it_may_be_and_no_longer() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "length");
        for (bytes, code) in [(HEAD_MAX, 200), (HEAD_MAX + 1, 431), (HEAD_MAX + 2000, 431)] {
            let mut head = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
            head.resize(bytes - 4, b'x');
            head.extend(b"\r\n\r\n");
            for piece in [1000, 1024, bytes] {
                let mut socket = connect(&address, b"");
                for part in head.chunks(piece) {
                    // A server that knows enough leaves.
                    let _ = socket.write(part);
                    cx.sleep(Ns::from_us(20)).await;
                }
                let heard = hear(&cx, &socket).await;
                let wants = format!("HTTP/1.1 {code} ");
                assert!(heard.starts_with(&wants), "{bytes} bytes by {piece}: {heard}");
            }
        }
        stop.raise(&cx);
        ended.await.expect("it could listen");
    });
}

#[test]
fn who_asks_for_a_head_alone_gets_no_more() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "head");
        for path in ["/", "/metrics", "/other"] {
            let socket = connect(&address, format!("HEAD {path} HTTP/1.1\r\n\r\n").as_bytes());
            let heard = hear(&cx, &socket).await;
            assert!(heard.starts_with("HTTP/1.1 ") && heard.ends_with("\r\n\r\n"), "{heard}");
        }
        stop.raise(&cx);
        ended.await.expect("it could listen");
    });
}

/// Who goes on talking is not listened to for ever: what comes behind a head is nobody's.
#[test]
fn what_comes_behind_a_head_is_read_so_far_only() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "rest");
        let mut socket = connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut said = 0;
        loop {
            match socket.write(&[b'x'; 1024]) {
                Ok(bytes) => said += bytes,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
            assert!(cx.now() < Ns::from_secs(1), "{said} bytes were taken");
            cx.sleep(Ns::from_us(10)).await;
        }
        assert!(said > REST_MAX, "{said}");
        stop.raise(&cx);
        ended.await.expect("it could listen");
    });
}

/// An answer that has begun comes to its end, where its client takes it soon; nobody else is waited for.
#[test]
fn a_stop_lets_answers_end_and_waits_for_nobody_else() {
    const BYTES: usize = 4 << 20;
    run(|cx| async move {
        let (address, stop, ended) = served_with(&cx, "stop", |_| "x".repeat(BYTES));
        let ask = || connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        let (takes, does_not, silent) = (ask(), ask(), connect(&address, b""));
        cx.sleep(Ns::from_ms(1)).await;
        let stopped = cx.now();
        stop.raise(&cx);
        cx.sleep(Ns::from_ms(1)).await;
        let heard = hear(&cx, &takes).await;
        assert!(heard.len() > BYTES, "{} bytes of it", heard.len());
        ended.await.expect("it could listen");
        let took = cx.now() - stopped;
        assert!(took <= PARTING + Ns::from_ms(1), "{took}");
        assert!(hear(&cx, &does_not).await.len() < BYTES);
        assert_eq!(hear(&cx, &silent).await, "");
        assert!(UnixStream::connect_addr(&address).is_err(), "nobody listens any more");
    });
}

/// The core has as long for others as a page has taken, however many ask for it.
#[test]
#[allow(clippy::disallowed_methods)] // a page that takes real time
fn pages_leave_the_core_as_long_as_they_took() {
    use std::time::{Duration, Instant};
    const CLIENTS: usize = 4;
    let made = Rc::new(std::cell::RefCell::new(Vec::new()));
    let theirs = made.clone();
    let main = |cx: Cx| async move {
        let make = move |_: &Cx| {
            let began = Instant::now();
            std::thread::sleep(Duration::from_millis(5));
            theirs.borrow_mut().push((began, Instant::now()));
            String::new()
        };
        let (address, stop, ended) = served_with(&cx, "pages", make);
        let ask = |_| connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        let clients: Vec<_> = (0..CLIENTS).map(ask).collect();
        for client in &clients {
            assert!(hear(&cx, client).await.starts_with("HTTP/1.1 200 "));
        }
        stop.raise(&cx);
        ended.await.expect("it could listen");
    };
    flashlane_rt::Threads::new(1, 1).run_here(main).expect("it ends");
    let made = made.borrow();
    assert_eq!(made.len(), CLIENTS);
    for pair in made.windows(2) {
        let [(began, over), (next, _)] = pair else { unreachable!("two of them") };
        assert!(*next - *over >= (*over - *began) / 2, "{:?}", *next - *over);
    }
}

#[test]
fn clients_that_misbehave_are_left() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "left");
        // More head than there may be.
        let long = connect(&address, &[b'x'; HEAD_MAX + 2048]);
        assert!(hear(&cx, &long).await.starts_with("HTTP/1.1 431 "));
        // All seats are taken by those who say half a word, and one who behaves waits for one of
        // theirs.
        let begun = cx.now();
        let half: Vec<_> = (0..CLIENTS_MAX).map(|_| connect(&address, b"GET /met")).collect();
        let good = connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(hear(&cx, &good).await.ends_with("page 1\n"));
        let took = cx.now() - begun;
        assert!(took >= PATIENCE && took < PATIENCE + Ns::from_ms(10), "{took}");
        let is_left = |mut socket: &UnixStream| {
            socket.read(&mut [0]).map_err(|e| e.kind()) != Err(ErrorKind::WouldBlock)
        };
        let left = half.iter().filter(|socket| is_left(socket)).count();
        assert_eq!(left, 1, "those whose seat nobody wants have their time");
        cx.sleep(DEADLINE).await;
        assert!(half.iter().all(is_left), "they are left");
        // One that is gone before it has asked, and one that never asks when it stops.
        drop(connect(&address, b""));
        let silent = connect(&address, b"");
        cx.sleep(Ns::from_ms(1)).await;
        let stopped = cx.now();
        stop.raise(&cx);
        ended.await.expect("it could listen");
        assert!(cx.now() - stopped <= PARTING + Ns::from_ms(1), "{}", cx.now());
        assert_eq!(hear(&cx, &silent).await, "");
    });
}

/// Those that say nothing, and those that take no answer, a wave after another: a client that
/// behaves is answered in a time that does not grow with theirs.
#[test]
fn a_slow_client_keeps_no_fast_one_waiting() {
    run(|cx| async move {
        let (address, stop, ended) = served_with(&cx, "slow", |_| "x".repeat(1 << 20));
        let slow: Vec<_> = (0..3 * CLIENTS_MAX)
            .map(|n| match n % 2 {
                0 => connect(&address, b""),
                _ => connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n"),
            })
            .collect();
        for _ in 0..3 {
            let begun = cx.now();
            let good = connect(&address, b"GET / HTTP/1.1\r\n\r\n");
            assert!(hear(&cx, &good).await.ends_with("/metrics\n"));
            let took = cx.now() - begun;
            assert!(took < Ns::from_secs(1), "{took}");
        }
        drop(slow);
        stop.raise(&cx);
        ended.await.expect("it could listen");
    });
}

#[test]
fn a_head_ends_with_an_empty_line() {
    assert_eq!(end_of(b"a: b\r\n\r\nrest"), Some(8));
    assert_eq!(end_of(b"a: b\n\nrest"), Some(6));
    assert_eq!(end_of(b"a: b\r\n"), None);
    assert_eq!(parse(b"").map_err(|r| r.0), Err(400));
}
