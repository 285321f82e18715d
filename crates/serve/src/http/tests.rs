//! Conversations with clients that this file plays, in virtual time.

use super::*;
use flashlane_rt::{CostTable, Virtual};
use std::io::{ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// A server with a page that counts how often it was made, and how to reach it.
fn served(cx: &Cx, name: &str) -> (SocketAddr, Arc<Stop>, flashlane_rt::Join<io::Result<()>>) {
    let name = format!("flashlane-http-{}-{name}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name");
    let listener = UnixListener::bind_addr(&address).expect("it is this test's own");
    let made = Cell::new(0);
    let make = move |_: &Cx| {
        made.set(made.get() + 1);
        format!("page {}\n", made.get())
    };
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
            Err(e) if e.kind() == ErrorKind::WouldBlock => cx.sleep(Ns::from_us(1)).await,
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

#[test]
fn clients_that_misbehave_are_left() {
    run(|cx| async move {
        let (address, stop, ended) = served(&cx, "left");
        // More head than there may be.
        let long = connect(&address, &[b'x'; HEAD_MAX + 2048]);
        assert!(hear(&cx, &long).await.starts_with("HTTP/1.1 431 "));
        // All seats are taken by those who say half a word, and one who behaves waits for one.
        let begun = cx.now();
        let half: Vec<_> = (0..CLIENTS_MAX).map(|_| connect(&address, b"GET /met")).collect();
        let good = connect(&address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(hear(&cx, &good).await.ends_with("page 1\n"));
        assert!(cx.now() - begun >= DEADLINE, "{}", cx.now());
        for socket in &half {
            assert_eq!(hear(&cx, socket).await, "", "they are left");
        }
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

#[test]
fn a_head_ends_with_an_empty_line() {
    assert_eq!(end_of(b"a: b\r\n\r\nrest"), Some(8));
    assert_eq!(end_of(b"a: b\n\nrest"), Some(6));
    assert_eq!(end_of(b"a: b\r\n"), None);
    assert_eq!(parse(b"").map_err(|r| r.0), Err(400));
}
