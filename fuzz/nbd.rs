//! A hostile client of the NBD server, over a pair of sockets, in virtual time.
//!
//! Owns: what the client says (the input as it is, then as a script of options and requests whose lengths
//! are right), how it behaves meanwhile, how replies are read. Promises: the server ends with the client,
//! in bounded time; what it answers to a script is whole replies, to requests that were made. Never: opens
//! a listener, or knows how the server does it.

use super::client::{END_MAX, End, STOPPED_AT, converse};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_rt::{CostTable, Virtual};
use flashlane_serve::{Client, Export, Stop, nbd};
use flashlane_testkit::Ram;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

pub(crate) const NAMES: [&str; 1] = ["nbd"];

/// Sectors of the export.
const SECTORS: u64 = 64;

/// Does with `bytes` what the target does, if it is this one.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    NAMES.contains(&target).then(|| {
        let script = Script::of(bytes);
        let mut served = false;
        for end in [End::Listens, End::Goes, End::Stays] {
            talk(bytes, end);
            let answers = talk(&script.said, end);
            if end == End::Listens && !script.has_raw {
                served |= check(&answers, &script);
            }
        }
        served
    })
}

/// A conversation: everything that the client heard.
fn talk(said: &[u8], end: End) -> Vec<u8> {
    let clock = Virtual::new(1, 1, CostTable::zero());
    let (cx, said) = (clock.cx(), said.to_vec());
    let heard = clock.run(async move {
        let (theirs, socket) = UnixStream::pair().expect("a pair of sockets");
        for end in [&theirs, &socket] {
            end.set_nonblocking(true).expect("a socket");
        }
        let device = Arc::new(Ram::new(SECTORS, SECTOR_BYTES, Ns::from_us(20), 1));
        let exports = [Arc::new(Export::new("disk", device))];
        let stop = Arc::new(Stop::default());
        let (server, theirs_stop) = (cx.clone(), stop.clone());
        let served = cx.spawn_join(async move {
            nbd::attend(&server, Client::Unix(theirs), &exports, &theirs_stop).await;
        });
        let heard = converse(&cx, &socket, &said, end).await;
        match end {
            End::Listens => {}
            End::Goes => drop(socket),
            End::Stays => {
                cx.sleep(STOPPED_AT).await;
                stop.raise(&cx);
            }
        }
        served.await;
        assert!(cx.now() < END_MAX, "{end:?}: {}", cx.now());
        heard
    });
    heard.expect("the server ends with its client")
}

/// What an input is as a script: the first byte of an item says what it is, of three kinds.
struct Script {
    said: Vec<u8>,
    /// Some of it has no form: what is answered can't be foretold.
    has_raw: bool,
    /// How often each thing is asked for.
    asked: BTreeMap<u64, u32>,
}

impl Script {
    /// Cookies say what was asked for, so that a reply says what it must look like.
    fn of(mut bytes: &[u8]) -> Script {
        let mut script =
            Script { said: 3u32.to_be_bytes().to_vec(), has_raw: false, asked: BTreeMap::new() };
        while let Some((kind, rest)) = bytes.split_first() {
            bytes = match kind % 8 {
                0 => script.raw(rest),
                1..=3 => script.option(rest),
                _ => script.request(rest),
            };
        }
        script
    }

    /// Length, bytes.
    fn raw<'a>(&mut self, from: &'a [u8]) -> &'a [u8] {
        let (data, rest) = counted(from);
        self.has_raw |= !data.is_empty();
        self.said.extend(data);
        rest
    }

    /// Number, length, data.
    fn option<'a>(&mut self, from: &'a [u8]) -> &'a [u8] {
        let Some((number, rest)) = from.split_first() else { return from };
        let (data, rest) = counted(rest);
        self.said.extend(b"IHAVEOPT");
        self.said.extend(u32::from(*number).to_be_bytes());
        self.said.extend((data.len() as u32).to_be_bytes());
        self.said.extend(data);
        rest
    }

    /// Flags, command, first sector, sectors. Large numbers mean what is no whole sectors, or beyond the end.
    fn request<'a>(&mut self, from: &'a [u8]) -> &'a [u8] {
        let Some((&[flags, command, first, count], rest)) = from.split_first_chunk() else {
            return &[];
        };
        let in_bytes = |n: u8| match n {
            0..=0xef => u64::from(n) * SECTOR_BYTES as u64,
            _ => u64::MAX << (8 * (n & 7)),
        };
        let command = u16::from(command);
        let (offset, mut bytes) = (in_bytes(first), in_bytes(count) as u32);
        if command == 1 {
            bytes %= 1 << 20; // its data is said, too
        }
        let cookie = u64::from(command) << 32 | u64::from(bytes);
        *self.asked.entry(cookie).or_default() += 1;
        self.said.extend(0x2560_9513u32.to_be_bytes());
        self.said.extend(u16::from(flags).to_be_bytes());
        self.said.extend(command.to_be_bytes());
        self.said.extend(cookie.to_be_bytes());
        self.said.extend(offset.to_be_bytes());
        self.said.extend(bytes.to_be_bytes());
        if command == 1 {
            self.said.resize(self.said.len() + bytes as usize, flags);
        }
        rest
    }
}

/// Bytes behind their number.
fn counted(from: &[u8]) -> (&[u8], &[u8]) {
    let Some((count, rest)) = from.split_first() else { return (from, from) };
    rest.split_at(rest.len().min(usize::from(*count)))
}

/// Takes so many bytes of the answers.
fn take<'a>(from: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (head, rest) = from.split_at_checked(bytes).expect("a reply ends before its end");
    *from = rest;
    head
}

fn word(from: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(from[at..at + 4].try_into().expect("four bytes"))
}

/// The answers are whole; true when a request was answered well.
fn check(answers: &[u8], script: &Script) -> bool {
    let mut rest = answers;
    if script.said.len() < 8 && rest.is_empty() {
        return false;
    }
    assert_eq!(&take(&mut rest, 18)[..16], b"NBDMAGICIHAVEOPT");
    let size = SECTORS * SECTOR_BYTES as u64;
    while rest.starts_with(&0x0003_e889_0455_65a9u64.to_be_bytes()) {
        let head = take(&mut rest, 20);
        take(&mut rest, word(head, 16) as usize);
    }
    if rest.starts_with(&size.to_be_bytes()) {
        take(&mut rest, 10);
    }
    let (mut served, mut asked) = (false, script.asked.clone());
    while !rest.is_empty() {
        let head = take(&mut rest, 16);
        let (command, bytes) = (word(head, 8) as u16, word(head, 12));
        let cookie = u64::from(command) << 32 | u64::from(bytes);
        let times = asked.get_mut(&cookie).filter(|times| **times > 0);
        *times.expect("a reply that nobody waits for") -= 1;
        match word(head, 0) {
            0x6744_6698 => {
                let error = word(head, 4);
                served |= error == 0;
                if error == 0 && command == 0 {
                    take(&mut rest, bytes as usize);
                }
            }
            0x668e_33ef => {
                assert_eq!(head[4..6], [0, 1], "a reply has one chunk");
                let length = word(take(&mut rest, 4), 0);
                let payload = take(&mut rest, length as usize);
                match (head[6..8].try_into().map(u16::from_be_bytes).expect("two bytes"), command) {
                    (1, 0) => assert_eq!(length, bytes + 8),
                    (5, 7) => assert!(length >= 12 && length % 8 == 4 && word(payload, 4) <= bytes),
                    (0x8001, _) => assert!(word(payload, 0) != 0 && length > 6),
                    other => panic!("a chunk of {other:?}"),
                }
                served |= head[6] == 0;
            }
            other => panic!("{other:#x} begins no reply"),
        }
    }
    served
}
