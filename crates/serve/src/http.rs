//! HTTP: a page for programs that watch a drive (the little of HTTP/1.1 that a scrape needs).
//!
//! Owns: the listener, clients, heads of requests, answers. Promises: those of [`crate`]; one page,
//! made when it is asked for; a client sends at most [`HEAD_MAX`] bytes of head, has [`DEADLINE`]
//! for everything, and is answered once; clients that are slow to ask or to take the answer make
//! room for others where all seats are taken; who wants something else is told so in words; the
//! core has as long for others as the last page took to make. Never: reads a body, keeps a
//! connection, knows what is on the page.

use crate::seats::{Seat, Seats};
use crate::stop::first;
use crate::{Client, Listener, Stop};
use flashlane_base::{Ns, mutant};
use flashlane_rt::{Cx, Watched};
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;

/// Longest head of a request.
const HEAD_MAX: usize = 8 << 10;
/// What a client may send beyond its head, so that closing does not take the answer back.
const REST_MAX: usize = 64 << 10;
/// Clients at a time.
const CLIENTS_MAX: usize = 128;
/// Where all seats are taken a client that has this process wait for so long gives its seat to the
/// next one.
const PATIENCE: Ns = Ns::from_ms(100);
/// A client has so long to ask and to take the answer.
const DEADLINE: Ns = Ns::from_secs(10);
/// At a stop an answer under way has so long.
const PARTING: Ns = Ns::from_secs(1);
/// Where no client can be accepted (descriptors have run out) it is tried again after this.
const AGAIN: Ns = Ns::from_ms(100);

/// A page: its name, its type, and what makes it.
pub struct Page {
    /// `/metrics`.
    pub path: &'static str,
    pub content_type: &'static str,
    pub make: Box<dyn Fn(&Cx) -> String>,
}

/// What clients share.
struct Site {
    page: Page,
    /// The page is not made again before.
    rested: Cell<Ns>,
}

/// Answers clients until the stop, and ends when the last one is gone.
///
/// # Errors
/// The listener can't be watched.
pub async fn serve(cx: &Cx, listener: Listener, page: Page, stop: Arc<Stop>) -> io::Result<()> {
    let listener = listener.watched(cx)?;
    let site = Rc::new(Site { page, rested: Cell::new(Ns::ZERO) });
    let seats = Seats::new(CLIENTS_MAX, PATIENCE, PATIENCE);
    while let Some(accepted) = stop.unless_up(cx, listener.io(|listener| listener.accept())).await {
        let Ok(client) = accepted else {
            let _ = stop.unless_up(cx, cx.sleep(AGAIN)).await;
            continue;
        };
        let Some(number) = stop.unless_up(cx, seats.take(cx)).await else { break };
        let seat = seats.sit(cx, number);
        let (stop, site, cx) = (stop.clone(), site.clone(), cx.clone());
        cx.clone().spawn(async move {
            let over = async {
                stop.wait(&cx).await;
                cx.sleep(parting()).await;
            };
            let over = first(first(cx.sleep(deadline()), over), seat.is_wanted());
            // What goes wrong with a client ends that client.
            let _ = first(attend(&cx, client, &site, &seat), over).await;
        });
    }
    drop(listener);
    seats.all(cx).await;
    Ok(())
}

fn deadline() -> Ns {
    if mutant!("serve.http-waits") { DEADLINE.times(100) } else { DEADLINE }
}

fn parting() -> Ns {
    match () {
        () if mutant!("serve.http-cut-off") => Ns::ZERO,
        () if mutant!("serve.http-stop-waits") => DEADLINE,
        () => PARTING,
    }
}

/// One client. It may be given up at any time.
async fn attend(cx: &Cx, client: Client, site: &Site, seat: &Seat) -> io::Result<()> {
    let client = cx.watch(client)?;
    let mut head = Vec::with_capacity(1024);
    let asked = loop {
        let mut part = [0; 1024];
        let n = client.io(|client| client.read(&mut part)).await?;
        if n == 0 {
            // It has gone, or asks nothing more; half a head is worth an answer.
            break if head.is_empty() { return Ok(()) } else { parse(&head) };
        }
        head.extend_from_slice(&part[..n]);
        // How long it may be does not depend on the pieces in which it comes.
        let fits = |end: &usize| *end <= HEAD_MAX || mutant!("serve.http-head-by-pieces");
        if let Some(end) = end_of(&head).filter(fits) {
            break parse(&head[..end]);
        }
        if head.len() > HEAD_MAX && !mutant!("serve.http-head-endless") {
            let why = format!("the head of a request has at most {HEAD_MAX} bytes");
            break Err(Refusal(431, "Request Header Fields Too Large", why));
        }
    };
    seat.idles(false);
    let answer = match asked {
        Ok(asked) => answer(cx, site, &asked).await,
        Err(refusal) => refusal.answer("", true),
    };
    seat.idles(true);
    say(&client, &answer).await?;
    part(&client).await
}

/// Where a head ends; a line may end as in files here.
fn end_of(bytes: &[u8]) -> Option<usize> {
    let at = |end: &[u8]| bytes.windows(end.len()).position(|w| w == end).map(|at| at + end.len());
    match (at(b"\r\n\r\n"), at(b"\n\n")) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A request, as far as it is looked at.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    method: String,
    path: String,
}

/// What is answered instead: status, its words, why.
#[derive(Debug, PartialEq, Eq)]
struct Refusal(u16, &'static str, String);

impl Refusal {
    fn answer(&self, more: &str, body: bool) -> Vec<u8> {
        let Refusal(code, words, why) = self;
        reply(*code, words, "text/plain; charset=utf-8", more, &format!("{why}\n"), body)
    }
}

fn bad(why: &str) -> Refusal {
    Refusal(400, "Bad Request", why.into())
}

fn parse(head: &[u8]) -> Result<Asked, Refusal> {
    let head = std::str::from_utf8(head).map_err(|_| bad("the head of the request is no text"))?;
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(path), Some(version), None) = (method, path, version, words.next())
    else {
        return Err(bad("a request begins with a line like `GET /metrics HTTP/1.1`"));
    };
    if !version.starts_with("HTTP/1.") {
        return Err(Refusal(505, "HTTP Version Not Supported", "this speaks HTTP/1.1".into()));
    }
    if lines.take_while(|line| !line.is_empty()).any(|line| !line.contains(':')) {
        return Err(bad("a line of the head is no `Name: value`"));
    }
    // Whatever is asked of the page is answered with the page.
    let path = path.split(['?', '#']).next().unwrap_or_default();
    Ok(Asked { method: method.into(), path: path.into() })
}

async fn answer(cx: &Cx, site: &Site, asked: &Asked) -> Vec<u8> {
    let page = &site.page;
    let body = asked.method == "GET";
    if !body && asked.method != "HEAD" {
        let why = format!("{} can't be done here; there is GET {}", asked.method, page.path);
        let refusal = Refusal(405, "Method Not Allowed", why);
        return refusal.answer("Allow: GET, HEAD\r\n", true);
    }
    if asked.path == "/" {
        let text = format!("flashlane: a drive in use. Metrics for Prometheus: {}\n", page.path);
        return reply(200, "OK", "text/plain; charset=utf-8", "", &text, body);
    }
    if asked.path != page.path {
        let why = format!("there is nothing at {}; there is {}", asked.path, page.path);
        return Refusal(404, "Not Found", why).answer("", body);
    }
    // Several may wait here, and each is to find the others' pages rested.
    while site.rested.get() > cx.now() && !mutant!("serve.http-page-again") {
        cx.sleep_until(site.rested.get()).await;
    }
    let began = cx.now();
    let text = (page.make)(cx);
    let made = cx.now();
    site.rested.set(made + (made - began));
    reply(200, "OK", page.content_type, "", &text, body)
}

fn reply(code: u16, words: &str, kind: &str, more: &str, text: &str, body: bool) -> Vec<u8> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {code} {words}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    );
    let mut reply = head.into_bytes();
    if body {
        reply.extend_from_slice(text.as_bytes());
    }
    reply
}

async fn say(client: &Watched<Client>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = client.io(|client| client.write(&[IoSlice::new(bytes)])).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Says that nothing more comes, and reads off what the client still sends until it goes.
async fn part(client: &Watched<Client>) -> io::Result<()> {
    client.file().end_writing()?;
    let (mut rest, mut part) = (0, [0; 4096]);
    while rest < REST_MAX || mutant!("serve.http-rest-endless") {
        match client.io(|client| client.read(&mut part)).await? {
            0 => break,
            n => rest += n,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
