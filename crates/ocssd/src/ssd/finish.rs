//! Completions: plays the channels up to now and hands out what is over.
//!
//! Owns: the end of a command. Promises: `Ready` not before every part has ended; otherwise a later
//! time at which to ask. A ticket from before a power cut completes as failed, it never hangs.
//! Never: changes an outcome that submission decided.

use super::{Chan, Command, Ssd};
use crate::device::{Breakdown, Completion, Status, Ticket};
use flashlane_base::{Ns, VECTOR_MAX, mutant};
use flashlane_rt::Cx;
use flashlane_rt::sync::MutexGuard;
use std::task::Poll;

/// How often a flush on the real clock asks whether the host is done.
const HOST_ASKED_AFTER: Ns = Ns::from_us(100);

impl Ssd {
    /// Seals a command whose last channel may still be locked.
    #[inline]
    pub(super) fn seal_held(
        &self,
        held: Option<MutexGuard<'_, Chan>>,
        cmd: &mut Command<'_>,
    ) -> Ticket {
        match (held, cmd.home) {
            (Some(mut chan), Some((home, part))) => self.seal_in(&mut chan, cmd, home, part),
            _ => self.seal(cmd),
        }
    }

    #[inline]
    pub(super) fn finish_command(&self, cx: &Cx, now: Ns, ticket: &mut Ticket) -> Poll<Completion> {
        let (home, generation, part) =
            ((ticket.id >> 48) as usize, (ticket.id >> 32) as u16, ticket.id as u32);
        let Some(channel) = self.channels.get(home) else {
            return Poll::Ready(lost(now));
        };
        let mut guard = channel.lock();
        let chan = &mut *guard;
        let known = (part as usize) < chan.time.parts();
        let stale = known && chan.time.part(part).generation != generation;
        if !known || stale && !mutant!("device.stale-ticket") {
            return Poll::Ready(lost(now));
        }
        chan.time.settle(now);
        chan.sweep();
        let end = chan.time.part(part).end;
        if chan.time.part(part).left > 0 || end > now {
            ticket.ask_at = chan.time.ask_at(part, now);
            return Poll::Pending;
        }
        if !chan.extra[part as usize].others.is_empty() {
            let others = std::mem::take(&mut chan.extra[part as usize].others);
            drop(guard);
            return self.finish_others(cx, now, ticket, others);
        }
        if !chan.extra[part as usize].waits.is_empty() {
            let extra = &mut chan.extra[part as usize];
            let waits = (std::mem::take(&mut extra.waits), extra.since);
            drop(guard);
            return self.finish_waits(cx, now, ticket, waits);
        }
        if chan.extra[part as usize].commit != 0 {
            let number = std::mem::take(&mut chan.extra[part as usize].commit);
            drop(guard);
            return self.finish_commit(cx, now, ticket, number);
        }
        let extra = &mut chan.extra[part as usize];
        if extra.bytes_out != 0 && !extra.sent {
            extra.sent = true;
            let out = self.read_pipe.stream(end, extra.bytes_out);
            if out > end {
                extra.link += out - end;
                chan.time.delay_part(part, out);
                if out > now {
                    ticket.ask_at = out;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(close(chan, part))
    }

    /// The commit that a flush waits for; then, when it is durable or has failed, the flush itself. Virtual time stands
    /// still until the host is done: what it takes is no part of a run. On a real core others go on meanwhile.
    #[cold]
    fn finish_commit(
        &self,
        cx: &Cx,
        now: Ns,
        ticket: &mut Ticket,
        number: u64,
    ) -> Poll<Completion> {
        let (home, part) = ((ticket.id >> 48) as usize, ticket.id as u32);
        let ended = match mutant!("image.flush-unawaited") {
            true => Some(true),
            false => {
                let waits = cx.is_virtual() || mutant!("image.flush-blocks-the-core");
                self.commit_ended(number, waits)
            }
        };
        let mut chan = self.channels[home].lock();
        let extra = &mut chan.extra[part as usize];
        match ended {
            Some(true) => {}
            Some(false) => (extra.failed, extra.status) = (1, vec![Status::HostFault]),
            None => {
                extra.commit = number;
                ticket.ask_at = now + HOST_ASKED_AFTER;
                return Poll::Pending;
            }
        }
        drop(chan);
        self.finish_command(cx, now, ticket)
    }

    /// What a command waits for in the buffer; then, when it is so, the command itself.
    fn finish_waits(
        &self,
        cx: &Cx,
        now: Ns,
        ticket: &mut Ticket,
        (mut waits, mut since): (Vec<u64>, Ns),
    ) -> Poll<Completion> {
        let (home, part) = ((ticket.id >> 48) as usize, ticket.id as u32);
        let answered = self.answered(now, &mut waits, &mut since);
        let mut chan = self.channels[home].lock();
        if let Err(ask_at) = answered {
            let extra = &mut chan.extra[part as usize];
            (extra.waits, extra.since) = (waits, since);
            ticket.ask_at = ask_at;
            return Poll::Pending;
        }
        // The room that it waited for was that of programs.
        chan.time.wait_for_programs(part, since);
        drop(chan);
        self.finish_command(cx, now, ticket)
    }

    /// The parts on other channels; then, when they are over, the command itself.
    fn finish_others(
        &self,
        cx: &Cx,
        now: Ns,
        ticket: &mut Ticket,
        mut others: Vec<(u32, u32)>,
    ) -> Poll<Completion> {
        let mut ask_at = Ns::ZERO;
        let (home, part) = ((ticket.id >> 48) as usize, ticket.id as u32);
        let mut last = (Ns::ZERO, Breakdown::default());
        others.retain(|(channel, part)| {
            let mut chan = self.channels[*channel as usize].lock();
            chan.time.settle(now);
            chan.sweep();
            let p = chan.time.part(*part);
            if p.left > 0 || p.end > now {
                ask_at = ask_at.max(chan.time.ask_at(*part, now));
                return true;
            }
            if p.end >= last.0 {
                last = (p.end, chan.time.breakdown(*part));
            }
            chan.time.close_part(*part);
            false
        });
        let mut chan = self.channels[home].lock();
        if last.0 > chan.time.part(part).end {
            chan.time.take_end(part, last.0, last.1);
        }
        if !others.is_empty() {
            chan.extra[part as usize].others = others;
            ticket.ask_at = ask_at;
            return Poll::Pending;
        }
        drop(chan);
        self.spare.lock().push(others);
        // The others are gone now: what is left is a command on one channel.
        self.finish_command(cx, now, ticket)
    }
}

#[inline]
fn close(chan: &mut Chan, part: u32) -> Completion {
    let p = chan.time.part(part);
    let extra = &mut chan.extra[part as usize];
    let mut breakdown = chan.time.breakdown(part);
    breakdown.link += extra.link;
    let done = Completion {
        failed: extra.failed,
        status: match extra.failed {
            0 => Vec::new(),
            _ => std::mem::take(&mut extra.status),
        },
        finished: p.end,
        breakdown,
    };
    chan.time.close_part(part);
    done
}

/// The completion of a command that a power cut took.
#[cold]
fn lost(now: Ns) -> Completion {
    Completion {
        failed: u64::MAX,
        status: vec![Status::InvalidField; VECTOR_MAX],
        finished: now,
        breakdown: Breakdown::default(),
    }
}
