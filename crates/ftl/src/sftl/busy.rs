//! How much the page-mapped region has under way, by channel.
//!
//! Owns: [`Watched`]. Promises: what was submitted counts until it has ended. Never: changes a command,
//! or when it goes.
//!
//! The file system schedules the commands of its segments by channel (ParaFS paper, 3.4). Those of the
//! page-mapped region lie on the same flash, and the region itself decides when they go.

use flashlane_base::{Geometry, Ns, Ppa, PpaFormat};
use flashlane_ocssd::device::{ChunkInfo, Completion, Device, Op, Request, Ticket, Traits};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// What a channel has under way, in sectors; erases in chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    pub reads: u32,
    pub writes: u32,
    pub erases: u32,
}

impl Busy {
    fn of(&mut self, op: Op) -> Option<&mut u32> {
        match op {
            Op::Read => Some(&mut self.reads),
            Op::Write => Some(&mut self.writes),
            Op::Reset => Some(&mut self.erases),
            _ => None,
        }
    }
}

/// A device of which is known what it has under way.
pub(super) struct Watched {
    inner: Arc<dyn Device>,
    all: Mutex<Under>,
}

#[derive(Default)]
struct Under {
    channels: Vec<Busy>,
    /// Of each command: what it does, and where.
    commands: BTreeMap<u64, (Op, Vec<(u32, u32)>)>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Device>) -> Watched {
        let channels = vec![Busy::default(); inner.geometry().channels as usize];
        Watched { inner, all: Mutex::new(Under { channels, commands: BTreeMap::new() }) }
    }

    /// What a channel has under way.
    pub(super) fn busy(&self, channel: u32) -> Busy {
        self.all.lock().channels.get(channel as usize).copied().unwrap_or_default()
    }
}

impl Device for Watched {
    flashlane_ocssd::as_below!(inner: geometry format traits expect chunk_report);

    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        let (op, pus) = (request.op, self.geometry().pus_per_channel);
        let mut by_channel: Vec<(u32, u32)> = Vec::with_capacity(1);
        for location in request.addrs.iter().filter_map(|addr| self.format().unpack(*addr)) {
            let channel = location.pu / pus;
            match by_channel.last_mut() {
                Some((last, n)) if *last == channel => *n += 1,
                _ => by_channel.push((channel, 1)),
            }
        }
        let ticket = self.inner.submit_at(cx, request, arrives);
        let mut all = self.all.lock();
        for (channel, n) in &by_channel {
            let busy = all.channels.get_mut(*channel as usize).and_then(|busy| busy.of(op));
            busy.into_iter().for_each(|count| *count += n);
        }
        all.commands.insert(ticket.id, (op, by_channel));
        ticket
    }

    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<Completion> {
        let id = ticket.id;
        let done = self.inner.finish(cx, ticket);
        if done.is_ready() {
            let mut all = self.all.lock();
            let (op, by_channel) = all.commands.remove(&id).unwrap_or((Op::Flush, Vec::new()));
            for (channel, n) in by_channel {
                let busy = all.channels.get_mut(channel as usize).and_then(|busy| busy.of(op));
                busy.into_iter().for_each(|count| *count -= n);
            }
        }
        done
    }
}
