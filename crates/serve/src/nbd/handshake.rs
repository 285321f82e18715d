//! What server and client agree on before the first request.
//!
//! Owns: the options and their answers. Promises: an option that is not known, or whose data makes no
//! sense, is refused in words and the client may go on; a client that keeps asking is left, and so is one
//! that takes too long. Never: gives an export that the client has not named, but for the only one by
//! the empty name.

use super::input::Input;
use super::wire::{self, Contexts, OptionHead, Wanted, can, info, option, reply};
use super::{BYTES_MAX, CLIENTS_MAX, PREFERRED_BYTES};
use crate::Export;
use std::io;
use std::sync::Arc;

/// Bytes of an option's data at most; more are passed over.
const DATA_MAX: usize = 8 << 10;
/// Bytes that are passed over at most.
const PASSED_MAX: u32 = 1 << 20;
/// Options of a client at most.
const OPTIONS_MAX: usize = 256;

/// What was agreed on.
pub(super) struct Agreed {
    pub(super) export: Arc<Export>,
    /// Replies come in chunks, and errors with words.
    pub(super) structured: bool,
    /// The client may ask which blocks hold anything.
    pub(super) allocation: bool,
}

/// What comes after an option.
enum Next {
    More,
    /// The transmission begins.
    Begin(Arc<Export>),
    End,
}

/// What an export can do. With structured replies, [`can::DF`] too.
const CAN: u16 = can::HAS_FLAGS
    | can::FLUSH
    | can::FUA
    | can::TRIM
    | can::WRITE_ZEROES
    | can::MULTI_CONN
    | can::FAST_ZERO;

/// What one that is served read-only can do.
const CAN_READ: u16 = can::HAS_FLAGS | can::READ_ONLY | can::FLUSH | can::FUA | can::MULTI_CONN;

/// Talks with a client until it has chosen an export. `None` where it leaves without one.
pub(super) async fn agree(
    input: &mut Input,
    exports: &[Arc<Export>],
) -> io::Result<Option<Agreed>> {
    let mut hello = Vec::new();
    hello.extend(wire::INIT_MAGIC.to_be_bytes());
    hello.extend(wire::OPTION_MAGIC.to_be_bytes());
    hello.extend((wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
    input.say(&hello).await?;
    let Some(flags) = input.take(4).await? else { return Ok(None) };
    let flags = u32::from_be_bytes(*flags.first_chunk().expect("four bytes"));
    if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
        return Ok(None);
    }
    let mut talk = Talk {
        exports,
        structured: false,
        allocation: None,
        zeroes: flags & u32::from(wire::NO_ZEROES) == 0,
        out: Vec::new(),
    };
    for _ in 0..OPTIONS_MAX {
        let Some(head) = input.take(wire::OPTION_BYTES).await? else { return Ok(None) };
        let Some(head) = OptionHead::decode(head) else { return Ok(None) };
        let next = if head.bytes as usize > DATA_MAX {
            if head.bytes > PASSED_MAX || !input.pass_over(head.bytes as usize).await? {
                return Ok(None);
            }
            talk.too_long(head.option)
        } else {
            let Some(data) = input.take(head.bytes as usize).await? else { return Ok(None) };
            talk.answer(head.option, data)
        };
        input.say(&std::mem::take(&mut talk.out)).await?;
        match next {
            Next::More => {}
            Next::Begin(export) => {
                let allocation = talk.allocation.is_some_and(|of| Arc::ptr_eq(&of, &export));
                let structured = talk.structured;
                return Ok(Some(Agreed { export, structured, allocation }));
            }
            Next::End => return Ok(None),
        }
    }
    Ok(None)
}

/// Tells a client that there is no seat for it: greets it, and refuses its first option.
pub(super) async fn refuse(input: &mut Input) -> io::Result<()> {
    let mut hello = Vec::new();
    hello.extend(wire::INIT_MAGIC.to_be_bytes());
    hello.extend(wire::OPTION_MAGIC.to_be_bytes());
    hello.extend((wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
    input.say(&hello).await?;
    let Some(_) = input.take(4).await? else { return Ok(()) };
    let Some(head) = input.take(wire::OPTION_BYTES).await? else { return Ok(()) };
    let Some(head) = OptionHead::decode(head) else { return Ok(()) };
    let fits = head.bytes as usize <= DATA_MAX && input.pass_over(head.bytes as usize).await?;
    // That option has no way to refuse.
    if fits && head.option != option::EXPORT_NAME {
        let why = format!(
            "all {CLIENTS_MAX} seats of this door are taken: end a client, or serve at another address"
        );
        let mut out = Vec::new();
        wire::put_option_reply(&mut out, head.option, reply::SHUTDOWN, why.as_bytes());
        input.say(&out).await?;
    }
    Ok(())
}

struct Talk<'a> {
    exports: &'a [Arc<Export>],
    structured: bool,
    /// Of which export the client wants to know what is allocated.
    allocation: Option<Arc<Export>>,
    /// The client wants zeros behind the answer to EXPORT_NAME.
    zeroes: bool,
    /// What is to be said.
    out: Vec<u8>,
}

impl Talk<'_> {
    fn refuse(&mut self, option: u32, kind: u32, why: &str) -> Next {
        wire::put_option_reply(&mut self.out, option, kind, why.as_bytes());
        Next::More
    }

    /// An option whose data was passed over.
    fn too_long(&mut self, option: u32) -> Next {
        match option {
            // This one has no way to refuse: whatever is said is the size of an export.
            option::EXPORT_NAME => return Next::End,
            option::SET_META_CONTEXT => self.allocation = None,
            _ => {}
        }
        self.refuse(option, reply::TOO_BIG, "more data than any option needs")
    }

    fn can(&self, export: &Export) -> u16 {
        let can = if export.is_read_only() { CAN_READ } else { CAN };
        if self.structured { can | can::DF } else { can }
    }

    fn find(&self, name: &str) -> Option<Arc<Export>> {
        match self.exports {
            [only] if name.is_empty() => Some(only.clone()),
            all => all.iter().find(|export| export.name == name).cloned(),
        }
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.exports.iter().map(|e| format!("`{}`", e.name)).collect();
        names.join(", ")
    }

    fn answer(&mut self, option: u32, data: &[u8]) -> Next {
        let ack = |out: &mut Vec<u8>| wire::put_option_reply(out, option, reply::ACK, &[]);
        match option {
            option::EXPORT_NAME => {
                // This option has no way to refuse.
                let Some(export) = std::str::from_utf8(data).ok().and_then(|n| self.find(n)) else {
                    return Next::End;
                };
                self.out.extend(export.bytes().to_be_bytes());
                self.out.extend(self.can(&export).to_be_bytes());
                if self.zeroes {
                    self.out.extend([0; 124]);
                }
                Next::Begin(export)
            }
            option::ABORT => {
                ack(&mut self.out);
                Next::End
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                self.refuse(option, reply::INVALID, "this option has no data")
            }
            option::LIST => {
                for export in self.exports {
                    let mut entry = (export.name.len() as u32).to_be_bytes().to_vec();
                    entry.extend(export.name.as_bytes());
                    wire::put_option_reply(&mut self.out, option, reply::SERVER, &entry);
                }
                ack(&mut self.out);
                Next::More
            }
            option::STRUCTURED_REPLY => {
                self.structured = true;
                ack(&mut self.out);
                Next::More
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(option, Contexts::decode(data))
            }
            option::INFO | option::GO => {
                let Some(wanted) = Wanted::decode(data) else {
                    return self.refuse(option, reply::INVALID, "lengths that do not fit");
                };
                let Some(export) = self.find(wanted.name) else {
                    let why = format!("no such export; there are {}", self.names());
                    return self.refuse(option, reply::UNKNOWN, &why);
                };
                self.inform(option, &export, &wanted.infos);
                ack(&mut self.out);
                if option == option::GO { Next::Begin(export) } else { Next::More }
            }
            _ => self.refuse(option, reply::UNSUPPORTED, "this server does not know the option"),
        }
    }

    fn contexts(&mut self, option: u32, wanted: Option<Contexts<'_>>) -> Next {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            // What was set before is gone, also where this is refused.
            self.allocation = None;
        }
        let Some(Contexts { name, queries }) = wanted else {
            return self.refuse(option, reply::INVALID, "lengths that do not fit");
        };
        if !self.structured {
            return self.refuse(option, reply::INVALID, "structured replies come first");
        }
        let Some(export) = self.find(name) else {
            let why = format!("no such export; there are {}", self.names());
            return self.refuse(option, reply::UNKNOWN, &why);
        };
        let asked = |query: &&[u8]| {
            **query == *wire::ALLOCATION.as_bytes() || !sets && **query == *b"base:"
        };
        let found = queries.iter().any(asked) || !sets && queries.is_empty();
        if sets {
            self.allocation = found.then_some(export);
        }
        if found {
            let entry = [&wire::ALLOCATION_ID.to_be_bytes(), wire::ALLOCATION.as_bytes()].concat();
            wire::put_option_reply(&mut self.out, option, reply::META_CONTEXT, &entry);
        }
        wire::put_option_reply(&mut self.out, option, reply::ACK, &[]);
        Next::More
    }

    /// Size, flags and limits of an export always; its name and what it is where that was asked for.
    fn inform(&mut self, option: u32, export: &Export, wanted: &[u16]) {
        let can = self.can(export);
        let mut put = |kind: u16, data: &[&[u8]]| {
            let whole = [&[&kind.to_be_bytes()[..]], data].concat().concat();
            wire::put_option_reply(&mut self.out, option, reply::INFO, &whole);
        };
        put(info::EXPORT, &[&export.bytes().to_be_bytes(), &can.to_be_bytes()]);
        let limits = [export.sector_bytes(), PREFERRED_BYTES, BYTES_MAX].map(u32::to_be_bytes);
        put(info::BLOCK_SIZE, &[&limits.concat()]);
        if wanted.contains(&info::NAME) {
            put(info::NAME, &[export.name.as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) {
            put(info::DESCRIPTION, &[b"a target on an emulated Open-Channel SSD"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_base::{Lba, SECTOR_BYTES};
    use flashlane_ftl::block::{BlockDev, BlockInfo, BlockOp, Extent, Io, Started};
    use flashlane_rt::Cx;
    use proptest::prelude::*;
    use std::sync::Arc;

    struct Nothing(BlockInfo);

    impl BlockDev for Nothing {
        fn info(&self) -> &BlockInfo {
            &self.0
        }
        fn start<'a>(&'a self, _: &'a Cx, _: Io<'a>) -> Started<'a> {
            Started::Done(Ok(()))
        }
        fn expect(&self, _: BlockOp, _: Lba) {}
        fn extent(&self, lba: Lba, most: u64) -> Extent {
            Extent::of(&self.0, lba, most, |_| false)
        }
    }

    fn exports(names: &[&str]) -> Vec<Arc<Export>> {
        let info = BlockInfo { capacity: 10, content_bytes: SECTOR_BYTES, layer: "nothing" };
        let one = |name: &&str| Arc::new(Export::new(name, Arc::new(Nothing(info.clone()))));
        names.iter().map(one).collect()
    }

    fn talk(exports: &[Arc<Export>]) -> Talk<'_> {
        Talk { exports, structured: false, allocation: None, zeroes: false, out: Vec::new() }
    }

    /// Types of the replies to one option.
    fn kinds(out: &[u8], option: u32) -> Vec<u32> {
        let (mut kinds, mut rest) = (Vec::new(), out);
        while !rest.is_empty() {
            let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
            assert_eq!(
                (&rest[..8], word(8)),
                (&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9][..], option)
            );
            kinds.push(word(12));
            rest = &rest[20 + word(16) as usize..];
        }
        kinds
    }

    /// An option with an export's name, and numbers or texts behind it.
    fn data(name: &str, behind: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes(), name.as_bytes(), behind].concat()
    }

    #[test]
    fn an_option_is_answered_by_what_it_asks_for() {
        let two = exports(&["a", "b"]);
        let asked = |option: u32, data: &[u8], structured: bool| {
            let mut talk = Talk { structured, ..talk(&two) };
            let next = talk.answer(option, data);
            (kinds(&talk.out, option), matches!(next, Next::Begin(_)), talk.allocation.is_some())
        };
        let none = [0, 0];
        let contexts = [&[0, 0, 0, 1, 0, 0, 0, 15], &b"base:allocation"[..]].concat();
        let info = vec![reply::INFO, reply::INFO, reply::ACK];
        for (option, data, structured, want, begins, knows) in [
            (
                option::LIST,
                vec![],
                false,
                vec![reply::SERVER, reply::SERVER, reply::ACK],
                false,
                false,
            ),
            (option::LIST, vec![1], false, vec![reply::INVALID], false, false),
            (option::GO, data("b", &none), false, info.clone(), true, false),
            (option::INFO, data("b", &none), false, info, false, false),
            (option::GO, data("c", &none), false, vec![reply::UNKNOWN], false, false),
            // Of several none is the one without a name.
            (option::GO, data("", &none), false, vec![reply::UNKNOWN], false, false),
            (option::GO, data("b", &[0, 9]), false, vec![reply::INVALID], false, false),
            (
                option::SET_META_CONTEXT,
                data("a", &contexts),
                false,
                vec![reply::INVALID],
                false,
                false,
            ),
            (
                option::SET_META_CONTEXT,
                data("a", &contexts),
                true,
                vec![reply::META_CONTEXT, reply::ACK],
                false,
                true,
            ),
            (option::SET_META_CONTEXT, data("a", &[0; 4]), true, vec![reply::ACK], false, false),
            (
                option::LIST_META_CONTEXT,
                data("a", &[0; 4]),
                true,
                vec![reply::META_CONTEXT, reply::ACK],
                false,
                false,
            ),
            (5, vec![], false, vec![reply::UNSUPPORTED], false, false),
        ] {
            let what = format!("option {option} with {data:?}");
            assert_eq!(asked(option, &data, structured), (want, begins, knows), "{what}");
        }
    }

    proptest! {
        /// Whatever a client asks for, the answers are whole, and an export is one of those that there are.
        #[test]
        fn arbitrary_options_never_panic(
            asked in prop::collection::vec((0u32..12, prop::collection::vec(any::<u8>(), 0..60)), 1..20),
            named in any::<bool>(),
        ) {
            let exports = exports(&["a"]);
            let mut talk = talk(&exports);
            for (option, mut data) in asked {
                if named && data.len() > 5 {
                    data[..5].copy_from_slice(&[0, 0, 0, 1, b'a']);
                }
                let next = talk.answer(option, &data);
                if option != option::EXPORT_NAME {
                    kinds(&std::mem::take(&mut talk.out), option);
                }
                if let Next::Begin(export) = next {
                    prop_assert!(Arc::ptr_eq(&export, &exports[0]));
                }
                talk.out.clear();
            }
        }
    }
}
