//! The log with what it means, read until it is all there.
//!
//! Owns: how often the log is read again over time, and which chunks may hide a newer one.
//! Promises: a log is taken for the newest only where a newer one would show: its anchor and its
//! blocks have two copies on two PUs, so chunks that can't be read hide one only if they are on two
//! PUs. Never: interprets a record, erases anything.

use super::super::format::Uuid;
use super::facts::Facts;
use super::history::{self, History};
use super::survey::{Firsts, Survey, first_program};
use super::{MountError, MountOptions, metadata_chunks};
use crate::patience::read_again;
use flashlane_base::mutant;
use flashlane_ocssd::device::ChunkState;
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};

/// Written chunks that no record accounts for and whose first record can't be read.
#[derive(Default)]
pub(super) struct Hidden {
    /// Something may have been acknowledged there.
    chunks: Vec<u32>,
    /// All chunks of these PUs are offline, and were not when the target was created.
    dead: Vec<u32>,
    /// Chunks whose only program seems torn, and that no earlier mount has padded. They hide no
    /// newer log; the mount still reads them again over time.
    begun: Vec<u32>,
    per_pu: u32,
}

impl Hidden {
    async fn of(
        cx: &Cx,
        survey: &Survey,
        firsts: &Firsts,
        log: Option<(&History, &Facts)>,
    ) -> Hidden {
        let per_pu = survey.shape.chunks_per_pu;
        let mut hidden = Hidden { per_pu, ..Hidden::default() };
        let (mut known, mut closed) = (BTreeSet::new(), BTreeSet::<u32>::new());
        if let Some((history, facts)) = log {
            known.extend(metadata_chunks(history, facts));
            known.extend(&facts.retired);
            for told in facts.lines.values() {
                known.extend(&told.chunks);
                closed.extend(told.closed.iter().flat_map(|_| &told.chunks));
            }
        }
        let named = log.iter().flat_map(|(history, _)| &history.named).flat_map(|pair| pair.chunks);
        let named: Vec<u32> = named.filter(|_| !mutant!("log.named-pair-is-erased")).collect();
        let dead = survey.dead_pus();
        let good =
            (0..survey.chunks.len() as u32).filter(|c| !survey.is_offline(*c)).count() as u64;
        let created = log.and_then(|(_, facts)| super::Stored::decode(&facts.config).ok());
        if created.is_none_or(|stored| good < stored.good_chunks) {
            hidden.dead.clone_from(&dead);
        }
        let pu = |chunk: u32| chunk / per_pu;
        let heard: BTreeSet<u32> = firsts.read.iter().map(|first| pu(first.chunk)).collect();
        let mut unread: BTreeMap<u32, u32> = BTreeMap::new();
        firsts.unread.iter().for_each(|chunk| *unread.entry(pu(*chunk)).or_default() += 1);
        // If no chunk of a PU can be read, a cut erase of one chunk is not the reason.
        let is_silent = |pu: u32| {
            !heard.contains(&pu) && unread[&pu] > 1 && !mutant!("log.silent-pu-is-erased")
        };
        for chunk in firsts.unread.iter().copied() {
            let info = &survey.chunks[chunk as usize];
            let is_open = info.state == ChunkState::Open;
            // Every chunk of a closed line is full, or a failure closed it.
            let is_known = known.contains(&chunk) && !(is_open && closed.contains(&chunk));
            // A full chunk counts as one whose erase was cut: no anchor fills its chunk, and the
            // records name each full pair of the log but the last. The chunks of the last one
            // (`named`) are erased only after a newer anchor is durable.
            let may_be_erased = !is_silent(pu(chunk)) && !named.contains(&chunk);
            let is_full = info.write_pointer >= survey.shape.chunk_sectors && may_be_erased;
            let is_dead = dead.contains(&pu(chunk));
            if is_known || is_full || is_dead {
                continue;
            }
            hidden.chunks.push(chunk);
        }
        let torn = survey.torn_at_first(cx, &hidden.chunks).await;
        hidden.chunks.retain(|chunk| !torn.contains(chunk));
        // The others hold an earlier mount's padding, which proves the tear: no need to read again.
        let is_begun = |c: &u32| survey.pointer(*c) <= first_program(&survey.shape);
        hidden.begun = torn.into_iter().filter(is_begun).collect();
        hidden
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.begun.is_empty()
    }

    /// The chunks as the error names them.
    fn named(&self) -> Vec<(u32, Option<u32>)> {
        let dead = self.dead.iter().map(|pu| (*pu, None));
        let chunks = self.chunks.iter().map(|c| (c / self.per_pu, Some(c % self.per_pu)));
        dead.chain(chunks).collect()
    }

    /// Refuses a log that need not be the newest: before anything is written.
    pub(super) fn check(&self, options: &MountOptions) -> Result<(), MountError> {
        let chunks = self.named();
        let pus: BTreeSet<u32> = chunks.iter().map(|(pu, _)| *pu).collect();
        if pus.len() > 1 && !options.read_only && !mutant!("log.unknown-is-free") {
            return Err(MountError::Unknown { chunks });
        }
        Ok(())
    }
}

type Read = Result<(History, Facts, Hidden), MountError>;

/// Reads the log, again and again over time while something can't be read that may belong to it.
pub(super) async fn read(cx: &Cx, survey: &mut Survey, wanted: Option<Uuid>) -> Read {
    let mut firsts = survey.first_records(cx).await;
    survey.look_again();
    let mut log = read_once(cx, survey, wanted, &mut firsts).await;
    let left = if is_whole(&log, &firsts) { Vec::new() } else { vec![()] };
    read_again(cx, left, async |left| {
        survey.read_unread(cx, &mut firsts).await;
        survey.look_again();
        log = read_once(cx, survey, wanted, &mut firsts).await;
        if is_whole(&log, &firsts) { Vec::new() } else { left }
    })
    .await;
    // Nothing was found; but there is something that can't be read.
    let is_nothing = matches!(log, Err(MountError::NoTarget | MountError::LogLost));
    let hidden = Hidden::of(cx, survey, &firsts, None).await;
    if is_nothing {
        hidden.check(&MountOptions::default())?;
    }
    log
}

async fn read_once(
    cx: &Cx,
    survey: &mut Survey,
    wanted: Option<Uuid>,
    firsts: &mut Firsts,
) -> Read {
    let history = history::read(cx, survey, wanted, firsts).await;
    let is_good = history.as_ref().is_ok_and(|h| h.damage.is_none() && !h.is_torn);
    if !is_good && !mutant!("log.firsts-undoubted") {
        survey.doubt(cx, firsts).await;
    }
    survey.read_padded(cx, firsts).await;
    let mut history = history?;
    let facts = Facts::of(&history, &survey.shape);
    let hidden = Hidden::of(cx, survey, firsts, Some((&history, &facts))).await;
    hold_named_pair(survey, &mut history, &facts);
    Ok((history, facts, hidden))
}

/// Keeps the chunks of the pair that the newest anchor names until there is a newer anchor, if the
/// pair gives no block. If a mount erased them earlier and was cut, that pair would look like one
/// that was lost.
fn hold_named_pair(survey: &Survey, history: &mut History, facts: &Facts) {
    if mutant!("log.named-pair-is-free") {
        return;
    }
    let (meta, owners) = (metadata_chunks(history, facts), facts.owners());
    let is_free = |c: &u32| {
        let is_used = meta.contains(c) || owners.contains_key(c) || facts.retired.contains(c);
        !is_used && !survey.is_offline(*c)
    };
    let chunks: BTreeSet<u32> = history.named.iter().flat_map(|pair| pair.chunks).collect();
    history.superseded.extend(chunks.into_iter().filter(is_free));
}

/// Would the log be no other if all could be read? Not whether it is sound.
fn is_whole(log: &Read, firsts: &Firsts) -> bool {
    if mutant!("log.log-read-at-once") {
        return true;
    }
    match log {
        Ok((history, facts, hidden)) => {
            let damage = history.damage.is_some() || facts.damage.is_some();
            !damage && !history.is_torn && hidden.is_empty()
        }
        Err(MountError::NoTarget | MountError::LogLost) => firsts.unread.is_empty(),
        Err(_) => true,
    }
}
