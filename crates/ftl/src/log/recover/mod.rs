//! Mounting a target that is on the medium: after a clean stop, a power cut, or a cut in here.
//!
//! Owns: the order of the steps (FORMAT.md, section 10), each a file: [`survey`] looks at the
//! medium, [`history`] reads the log, [`facts`] says what it means, [`log`] whether that is all of
//! it, [`scan`] what lines hold, [`replay`] makes the map of it; then the target writes again.
//! Promises: what was flushed is there, what was not is old or new; each corrupt layer falls back
//! to the next, never to wrong data; what can't be read is unknown, never taken for what was not
//! written; a cut or a refusal anywhere in here changes nothing of that. Never: erases anything
//! that a record or a checkpoint still names.
//!
//! The life of a mount: chunk report → anchors → pairs of the log, each block from the copy that has it →
//! the valid part of the last pair copied to a fresh one, in a new generation → `started` → checkpoint
//! into the map → lines that were open since, by closing metadata or sector by sector → discards and
//! poisoned sectors → open lines closed, a checkpoint → users.

mod facts;
mod history;
mod log;
mod replay;
mod scan;
mod survey;

use super::create::{CreateError, Layout, Stored, divided, shape_of};
use super::flash::Flash;
use super::format::{FormatError, LBA_ANCHOR, LBA_LOG, LogEntry, Record, Uuid, unpack_entry};
use super::journal::{Journal, Segment};
use super::pool::{Line, MOST_CLOSING, Restored, Shape};
use super::{HostFtl, LineState};
use crate::block::BlockError;
use crate::layer::LostSectors;
use facts::{Facts, Told};
use flashlane_base::{Ns, mutant};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState, Device};
use flashlane_rt::sync::Ordering;
use flashlane_rt::{Cx, Join};
use history::History;
use replay::{FromCheckpoint, Replay};
use scan::{Ahead, Content, Reader, Span};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use survey::Survey;
pub(super) use survey::padded_end;

pub use scan::Place;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// The target, if several may have been on these chunks; `None` is the one of the newest anchor.
    pub uuid: Option<Uuid>,
    /// Write nothing: the map is built, reads work, everything else is refused.
    pub read_only: bool,
    /// Mount writable although units behind the frontier can't be read: every sector that may have
    /// been in them in a newer copy is an error until it is written or discarded. If the log tells
    /// what these units held, only their sectors are errors; else all sectors that may be older.
    pub accept_lost: bool,
    /// Mount although both checkpoints are unreadable: discarded sectors may come back.
    pub undo_discards: bool,
}

/// Why a target could not be mounted. Nothing was erased, nor anything written but padding and a copy of
/// the end of its log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    #[error("no pblk target is on these PUs; create one first")]
    NoTarget,
    /// There are anchors, but no record of the log can be read.
    #[error("the FTL log can't be read at all: neither copy of any of its blocks is intact")]
    LogLost,
    #[error("{0}")]
    Newer(FormatError),
    /// Written by a later minor version.
    /// [`MountOptions::read_only`] mounts it all the same.
    #[error("a newer flashlane has written to this target: use that one to write to it")]
    NewerMinor,
    /// The device is not the one it was created on.
    #[error("the target was created on {created}, this is {found}")]
    Device { created: String, found: String },
    #[error("the target's configuration in the FTL log can't be used: {0}")]
    Config(String),
    #[error("the target's configuration can't be used: {0}")]
    Layout(#[from] CreateError),
    /// Something that must be in the log is not.
    /// [`MountOptions::read_only`] mounts it all the same.
    #[error("{0}")]
    Damaged(String),
    /// Written chunks can't be read, on more than one PU: both copies of a newer log may be in
    /// them.
    #[error(
        "{} can't be read, and nothing says what they hold: both copies of the newest records of the \
         FTL log may be there",
        places(chunks)
    )]
    Unknown {
        /// Such chunks as (PU, chunk of the PU); of a dead PU the PU alone.
        chunks: Vec<(u32, Option<u32>)>,
    },
    /// Both checkpoints are unreadable. [`MountOptions::undo_discards`] mounts it all the same.
    #[error(
        "{shards} shards of the map can't be read from either checkpoint: they can be rebuilt from the \
         lines, but sectors that were discarded may come back"
    )]
    CheckpointsLost { shards: usize },
    /// Units that must be readable are not. [`MountOptions::accept_lost`] mounts it all the same, and so does
    /// [`MountOptions::read_only`].
    #[error(
        "{count} write units can't be read, in {}: a mount would lose the sectors in them, and \
         every sector whose newest version may have been there",
        places(chunks)
    )]
    LostUnits {
        count: usize,
        /// The chunks that hold them, as (PU, chunk of the PU); a dead PU once, with `None`.
        chunks: Vec<(u32, Option<u32>)>,
    },
    /// The host could not give a sector of the device's image. What it holds may be younger than what can
    /// be read. [`MountOptions::accept_lost`] mounts it all the same.
    #[error(
        "the host can't give or take sector {} of chunk {}: the image is damaged, or its disk fails; older \
         copies of what is there would be taken for it", first.1, first.0
    )]
    Host {
        /// Chunk of the target and sector.
        first: Place,
    },
    /// The first records of the new life could not be written.
    #[error("the target could not be started: {0}")]
    Start(#[from] BlockError),
}

/// Chunks in words, the first few of them.
fn places(chunks: &[(u32, Option<u32>)]) -> String {
    const SHOWN: usize = 6;
    let place = |(pu, chunk): &(u32, Option<u32>)| match chunk {
        Some(chunk) => format!("chunk {chunk} of PU {pu}"),
        None => format!("all chunks of PU {pu}"),
    };
    let mut text: Vec<String> = chunks.iter().take(SHOWN).map(place).collect();
    if chunks.len() > SHOWN {
        text.push(format!("{} chunks more", chunks.len() - SHOWN));
    }
    text.join(", ")
}

/// What a mount did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The target had been stopped: the map is the checkpoint.
    pub clean: bool,
    /// Which life this is.
    pub generation: u32,
    /// Records read from the log.
    pub records: u64,
    /// Lines replayed by closing metadata, and sector by sector.
    pub lines_replayed: u64,
    pub lines_scanned: u64,
    /// Units whose program the power cut tore, as far as can be told: (chunk, sector).
    pub torn_units: Vec<Place>,
    /// Units behind the frontier that can't be read.
    pub lost_units: Vec<Place>,
    /// Sectors of a unit.
    pub unit: u32,
    /// The first sector that the host could not give, where [`MountOptions::accept_lost`] made nothing of it.
    pub host_failed: Option<Place>,
    /// Sectors whose place in the map led nowhere: reads of them fail.
    pub astray: u64,
    /// Logical sectors of which reads fail, as far as the mount knows, in ascending order.
    pub lost_sectors: Vec<LostSectors>,
    /// Sectors of padding written so that the ends of open chunks can be read.
    pub padded_sectors: u64,
    /// The steps with the time each took.
    pub steps: Vec<(&'static str, Ns)>,
}

/// Names steps and takes their times.
struct Clock {
    last: Ns,
}

impl Clock {
    fn step(&mut self, cx: &Cx, report: &mut Recovery, name: &'static str) {
        report.steps.push((name, cx.now() - self.last));
        self.last = cx.now();
    }
}

/// Reads that were begun early.
struct Early {
    map: Join<FromCheckpoint>,
    lines: BTreeMap<u32, Ahead>,
}

/// A line with what is known of its chunks.
struct Found {
    id: u32,
    told: Told,
    spans: Vec<Span>,
}

impl HostFtl {
    /// Mounts the target that is on `device` (give it the partition it was created on) and starts its
    /// background tasks on the caller's core.
    pub async fn mount(
        cx: &Cx,
        device: Arc<dyn Device>,
        options: MountOptions,
    ) -> Result<Arc<HostFtl>, MountError> {
        let shape = shape_of(&*device);
        let mut report = Recovery { unit: shape.unit, ..Recovery::default() };
        let mut clock = Clock { last: cx.now() };
        let mut survey = Survey::take(Flash::new(device), shape, options.read_only);
        let read = log::read(cx, &mut survey, options.uuid).await;
        check_host(&survey.flash, &options)?;
        let (mut history, facts, hidden) = read?;
        report.records = history.entries.len() as u64;
        clock.step(cx, &mut report, "log");
        check(&history, &facts, &options)?;
        hidden.check(&options)?;
        let stored = Stored::decode(&facts.config).map_err(MountError::Config)?;
        stored.check_device(&shape)?;
        survey.make_readable(cx, facts.checkpoints.iter().flat_map(|c| c.chunks())).await;
        let ftl = HostFtl::assemble(cx, &survey, &history, &facts, stored)?;
        report.padded_sectors = survey.padded;
        let mut lines = found_lines(&ftl.shape, &survey, &facts);
        let mut early = ftl.read_early(cx, &survey, &facts, &lines);
        let began = ftl.begin_life(cx, &mut history, &mut lines, &options);
        let began = began.await.map(|padded| report.padded_sectors += padded);
        clock.step(cx, &mut report, "log copied, started, open lines padded");
        let map = early.map.await;
        clock.step(cx, &mut report, "checkpoint");
        let rebuilt = match began {
            Ok(()) => {
                let found = (&facts, &lines[..], map);
                let ahead = &mut early.lines;
                ftl.rebuild_map(cx, found, ahead, &options, &mut report, &mut clock).await
            }
            Err(error) => Err(error),
        };
        // What nobody asked for ends first: nothing of a mount goes on behind it.
        for ahead in early.lines.into_values() {
            ahead.ended().await;
        }
        check_host(&ftl.flash, &options)?;
        let contents = rebuilt?;
        report.host_failed = ftl.flash.host_failed();
        report.generation = ftl.journal.generation;
        if !options.read_only {
            ftl.settle(cx, lines, contents, &report).await?;
            if !mutant!("log.mount-unsettled") {
                ftl.outlive_host(cx).await?;
            }
            clock.step(cx, &mut report, "checkpoint written");
        }
        *ftl.recovery.lock() = Some(report);
        if !options.read_only {
            ftl.start(cx);
        }
        Ok(ftl)
    }

    /// What the mount did that this life began with; `None` for a target that was created in it.
    pub fn recovery(&self) -> Option<Recovery> {
        self.recovery.lock().clone()
    }

    /// The target as the log describes it, with an empty map.
    fn assemble(
        cx: &Cx,
        survey: &Survey,
        history: &History,
        facts: &Facts,
        stored: Stored,
    ) -> Result<Arc<HostFtl>, MountError> {
        let shape = divided(survey.shape, &stored.config);
        let ws_min = survey.flash.geo.ws_min;
        let layout =
            Layout::plan(&shape, ws_min, stored.good_chunks, &stored.config, stored.rings)?;
        let owners = facts.owners();
        let in_use: usize = facts.lines.values().map(|told| told.chunks.len()).sum();
        if owners.len() != in_use {
            return Err(MountError::Damaged("two lines of the FTL log share a chunk".into()));
        }
        let pool_chunks = shape.pool_lines();
        let strays = |(id, told): (&u32, &Told)| {
            told.chunks.iter().any(|chunk| chunk / pool_chunks != id / pool_chunks)
        };
        if facts.lines.iter().any(strays) {
            return Err(MountError::Damaged("a line of the FTL log leaves its channel".into()));
        }
        let meta = metadata_chunks(history, facts);
        let segments = history.parts.iter().map(|part| Segment {
            pair: part.pair,
            first_sequence: part.first_sequence,
            is_begun: true,
        });
        let journal = Journal::resume(
            (history.uuid, stored.config.flush_records),
            history.generation + u32::from(!mutant!("log.generation-stands")),
            segments.collect(),
            (history.next_sequence(), history.last_pair + 1),
            history.anchor_counter,
        );
        let reserve = layout.meta_chunks.saturating_sub(meta.len() as u64);
        let next_line = facts.last_line + 1;
        let ftl =
            HostFtl::build(cx, survey.flash.clone(), stored, shape, layout, next_line, journal);
        ftl.pools.reserve_meta(reserve);
        for (chunk, info) in (0u32..).zip(&survey.chunks) {
            let whole = info.length == shape.chunk_sectors || info.state != ChunkState::Free;
            let free = info.state != ChunkState::Offline
                && whole
                && !owners.contains_key(&chunk)
                && !meta.contains(&chunk)
                && !facts.retired.contains(&chunk);
            let mut p = ftl.pools.of_chunk(chunk).lock();
            p.set_erases(chunk, info.erases);
            if facts.retired.contains(&chunk) {
                p.retired_chunks.push(chunk);
            }
            if free {
                p.put_chunk(chunk, info.state != ChunkState::Free);
            }
        }
        ftl.pools.get(0).lock().programmed[Cause::PaddingGc as usize] = survey.padded;
        for (id, told) in &facts.lines {
            told.chunks.iter().for_each(|chunk| ftl.lines.set_line(*chunk, *id));
            // Not known, so as high as any.
            if !mutant!("log.line-stamps-forgotten") {
                ftl.lines.raise_stamp(*id, facts.ceiling);
            }
        }
        if !mutant!("log.floor-forgotten") {
            ftl.floor.store(facts.ceiling, Ordering::SeqCst);
        }
        ftl.ceiling.store(facts.ceiling, Ordering::SeqCst);
        ftl.note_widths(facts.lines.values().map(|told| told.chunks.len() as u32));
        let kept = facts.checkpoints.iter().rev();
        let kept = kept.map(|c| (c.position, c.open_sequence(), c.chunks()));
        ftl.checkpoints.resume(kept, facts.next_checkpoint);
        Ok(ftl)
    }

    /// Begins what only reads, beside what is written first: the checkpoint, and open lines as far as the
    /// medium gives them back already.
    fn read_early(
        self: &Arc<Self>,
        cx: &Cx,
        survey: &Survey,
        facts: &Facts,
        lines: &[Found],
    ) -> Early {
        let (me, their_cx) = (self.clone(), cx.clone());
        let checkpoints = facts.checkpoints.clone();
        let load = async move { replay::load(&me, &their_cx, &checkpoints).await };
        let map = cx.spawn_join(load);
        let reader = Rc::new(self.reader(facts.ceiling));
        let readable = |span: &Span| {
            let info = &survey.chunks[span.chunk as usize];
            let window = if info.state == ChunkState::Open { self.shape.window } else { 0 };
            (*span, info.write_pointer.saturating_sub(window))
        };
        let ahead =
            |line: &Found| (line.id, reader.scan_ahead(cx, line.spans.iter().map(readable)));
        let lines = lines.iter().filter(|l| l.told.closed.is_none()).map(ahead).collect();
        Early { map, lines }
    }

    /// The first writes of this life: the valid part of the log, an anchor, `started`; then how far open
    /// lines had been written, and their padding. Returns the sectors of that.
    async fn begin_life(
        self: &Arc<Self>,
        cx: &Cx,
        history: &mut History,
        lines: &mut [Found],
        options: &MountOptions,
    ) -> Result<u64, MountError> {
        if options.read_only && !mutant!("log.read-only-starts") {
            self.give_up(cx, "it was mounted read-only");
            return Ok(0);
        }
        let records = |(_, records): (u64, &[LogEntry])| {
            records.iter().map(|entry| entry.record.clone()).collect::<Vec<_>>()
        };
        let tail = history.tail().map(records);
        self.renew_log(cx, tail, std::mem::take(&mut history.superseded)).await?;
        self.pad_open_lines(cx, lines).await
    }

    /// Pads the ends of open lines' chunks so that they can be read. Before that it is on record how far
    /// they had been written: only there may something be torn, however often this is cut.
    async fn pad_open_lines(
        self: &Arc<Self>,
        cx: &Cx,
        lines: &mut [Found],
    ) -> Result<u64, MountError> {
        let open = |l: &&mut Found| l.told.closed.is_none() && l.spans.iter().any(|s| s.end > 0);
        let mut record = 0;
        let unknown = |l: &&mut Found| l.told.frontier.is_none();
        let unknown = |l: &&mut Found| unknown(l) && !mutant!("log.frontier-unrecorded");
        for line in lines.iter_mut().filter(open).filter(unknown) {
            let pointers: Vec<u32> = line.spans.iter().map(|s| s.end).collect();
            line.told.frontier = Some(pointers.clone());
            let (id, sequence) = (line.id, line.told.sequence);
            record = self.journal.append(Record::Frontier { line: id, sequence, pointers });
        }
        if !mutant!("log.frontier-later") {
            self.commit(cx, record).await?;
        }
        let mut tasks = Vec::new();
        for line in lines.iter_mut().filter(open) {
            for span in &line.spans {
                // As it is now: while its log could not be read, it may have been padded as a part
                // of that.
                let info = self.chunk_info(span.chunk);
                if info.state != ChunkState::Open || mutant!("log.open-lines-unpadded") {
                    continue;
                }
                let (me, their_cx) = (self.clone(), cx.clone());
                let (chunk, end, from) = (span.chunk, span.end, info.write_pointer);
                tasks.push(cx.spawn_join(async move {
                    let (flash, shape) = (&me.flash, &me.shape);
                    let at = (chunk, end, from);
                    let to = survey::repadded_end(flash, &their_cx, shape, at).await;
                    survey::pad(flash, &their_cx, chunk, (from, to), shape.unit).await
                }));
            }
        }
        let mut padded = 0;
        for task in tasks {
            padded += task.await;
        }
        self.pools.get(0).lock().programmed[Cause::PaddingGc as usize] += padded;
        Ok(padded)
    }

    /// Checkpoint, lines, records: the map. Returns what open lines hold, which is to be their closing
    /// metadata.
    async fn rebuild_map(
        self: &Arc<Self>,
        cx: &Cx,
        (facts, lines, map): (&Facts, &[Found], FromCheckpoint),
        ahead: &mut BTreeMap<u32, Ahead>,
        options: &MountOptions,
        report: &mut Recovery,
        clock: &mut Clock,
    ) -> Result<BTreeMap<u32, Content>, MountError> {
        // A young target has no checkpoint yet: its log has everything since it was created.
        let is_lost = map.missing > 0 && !(facts.checkpoints.is_empty() && facts.is_whole);
        if is_lost && !options.undo_discards && !mutant!("log.lost-checkpoints-served") {
            return Err(MountError::CheckpointsLost { shards: map.missing });
        }
        // A shard of the older checkpoint is not the map at the stop: it has to be replayed onto.
        let older = if mutant!("log.clean-with-older-shard") { 0 } else { map.older };
        report.clean = facts.stopped && map.missing + older == 0;
        let mut replay = Replay::new(self, facts, map);
        let mut contents = BTreeMap::new();
        if !report.clean {
            let (first_line, position) = replay.begins();
            let discards: Vec<_> =
                facts.discards.iter().filter(|d| d.sequence >= position).copied().collect();
            let discards = replay::merge(&discards, self.info.capacity);
            let poisons: Vec<_> =
                facts.poisons.iter().filter(|p| p.sequence >= position).copied().collect();
            let reader = Rc::new(self.reader(facts.ceiling));
            let mut asked = BTreeSet::new();
            let ranges = discards.iter().flat_map(|(from, to, _)| *from..*to);
            replay.note_conflicts(ranges, &mut asked);
            replay.note_conflicts(poisons.iter().map(|p| p.lba), &mut asked);
            let mut by_age: Vec<&Found> = lines.iter().collect();
            by_age.sort_by_key(|l| l.told.sequence);
            let (older, replayed): (Vec<&Found>, Vec<&Found>) =
                by_age.into_iter().partition(|l| l.told.sequence < first_line);
            // No stamp of what is lost in them, and nothing tells of, is larger.
            let mut bound = None;
            let bound_of = |line: &Found| line.told.bound.unwrap_or(facts.ceiling);
            for line in &replayed {
                let ahead = ahead.remove(&line.id);
                let content = self.read_line(cx, &reader, (facts, line), ahead, true).await;
                let lbas = content.entries.iter().map(|entry| unpack_entry(entry).0);
                replay.note_conflicts(lbas, &mut asked);
                note(report, &content);
                if !content.lost.is_empty() {
                    bound = bound.max(Some(bound_of(line)));
                }
                if line.told.closed.is_none() {
                    contents.insert(line.id, content);
                }
            }
            clock.step(cx, report, "lines looked through");
            let mut without_stamps = Vec::new();
            for line in older.iter().filter(|l| asked.contains(&l.told.sequence)) {
                let ahead = ahead.remove(&line.id);
                let content = self.read_line(cx, &reader, (facts, line), ahead, false).await;
                if !mutant!("log.older-stamps-unread") {
                    replay.give_stamps(&line.told.chunks, &content);
                }
                replay.bound_stamps(&content.lost, bound_of(line));
                without_stamps.extend(content.lost);
            }
            clock.step(cx, report, "stamps of older lines");
            for line in &replayed {
                match contents.get(&line.id) {
                    Some(content) => replay.claim_line(&line.told.chunks, content),
                    None => {
                        let content = self.read_line(cx, &reader, (facts, line), None, true).await;
                        replay.claim_line(&line.told.chunks, &content);
                        // The medium may have failed since it was read above.
                        let is_new = |unit: &&Place| !report.lost_units.contains(unit);
                        let [lost, told] = [&content.lost, &content.told].map(|units| {
                            units.iter().filter(is_new).copied().collect::<Vec<Place>>()
                        });
                        if !mutant!("log.lost-since-forgotten") {
                            if !lost.is_empty() {
                                bound = bound.max(Some(bound_of(line)));
                            }
                            report.lost_units.extend(lost.into_iter().chain(told));
                        }
                    }
                }
            }
            replay.claim_records(&discards, &poisons);
            if let Some(bound) = bound.filter(|_| !mutant!("log.lost-units-older")) {
                replay.poison_older(bound);
            }
            if replay.contested() > 0 {
                report.lost_units.extend(without_stamps);
            }
            clock.step(cx, report, "lines and log replayed");
        }
        (report.astray, report.lost_sectors) = replay.finish(report.clean);
        if !report.lost_units.is_empty()
            && !options.accept_lost
            && !mutant!("log.lost-units-served")
            && !options.read_only
        {
            let (count, chunks) = (report.lost_units.len(), self.in_chunks(&report.lost_units));
            return Err(MountError::LostUnits { count, chunks });
        }
        // Clean as the start may be, lines that were open get their closing metadata.
        let reader = Rc::new(self.reader(facts.ceiling));
        for line in lines.iter().filter(|l| l.told.closed.is_none()) {
            if let Entry::Vacant(place) = contents.entry(line.id) {
                let ahead = ahead.remove(&line.id);
                let read = self.read_line(cx, &reader, (facts, line), ahead, false);
                let mut content = read.await;
                // The map has what they hold already. Their closing metadata gets it from there,
                // for what is gone: so that no older copy comes back in a later life, either.
                replay::entries_of_map(self, &line.spans, &mut content, facts.ceiling);
                note(report, &content);
                place.insert(content);
            }
        }
        Ok(contents)
    }

    /// Reads what a line holds. `replayed`: the map that was loaded from the checkpoint has nothing of
    /// the line.
    async fn read_line(
        &self,
        cx: &Cx,
        reader: &Rc<Reader>,
        (facts, line): (&Facts, &Found),
        ahead: Option<Ahead>,
        replayed: bool,
    ) -> Content {
        let mut content = reader.read(cx, &line.told, &line.spans, ahead).await;
        if self.tells {
            let written = facts.written.get(&line.told.sequence);
            // A closed line may have been told of in a part of the log that is cut.
            let all = replayed && line.told.closed.is_none();
            content.take_told(reader, &line.spans, written, all);
        }
        content
    }

    fn reader(&self, ceiling: u64) -> Reader {
        Reader {
            flash: self.flash.clone(),
            shape: self.shape,
            uuid: self.journal.uuid,
            content_bytes: self.info.content_bytes,
            capacity: self.info.capacity,
            ceiling,
        }
    }

    /// The lines as they are from now on: closed ones as they were, open ones about to be, what holds
    /// nothing freed; and a checkpoint, so that nothing of before counts any more (FORMAT.md rule 6).
    async fn settle(
        self: &Arc<Self>,
        cx: &Cx,
        lines: Vec<Found>,
        mut contents: BTreeMap<u32, Content>,
        report: &Recovery,
    ) -> Result<(), MountError> {
        let mut open = Vec::new();
        let mut freed = Vec::new();
        for line in lines {
            let infos: Vec<ChunkInfo> =
                line.told.chunks.iter().map(|chunk| self.chunk_info(*chunk)).collect();
            let is_open = line.told.closed.is_none();
            // Not where losses were accepted: with the line the next mount would forget its lost
            // units, if the power fails before the checkpoint has the errors that they have become.
            let stays = !report.lost_units.is_empty() && !mutant!("log.lost-lines-freed");
            if is_open && self.lines.valid(line.id) == 0 && !stays {
                freed.push(line);
                continue;
            }
            let entries = contents.remove(&line.id).map(|content| content.entries);
            let restored = restored(&self.shape, &line, &infos, entries.filter(|_| is_open));
            self.pools.of_line(line.id).lock().restore_line(line.id, restored);
            if is_open {
                open.push(line.id);
            }
        }
        self.pools.iter().for_each(|pool| pool.lock().restored());
        if !freed.is_empty() {
            // As before any other line is freed.
            self.tell();
        }
        let mut record = 0;
        for line in &freed {
            let sequence = line.told.sequence;
            record = self.journal.append(Record::Freed { line: line.id, sequence });
        }
        self.raise_ceiling(cx).await?;
        // Behind them in the log is the ceiling's record: this waits for nothing.
        self.commit(cx, record).await?;
        for chunk in freed.iter().flat_map(|line| &line.told.chunks) {
            self.lines.set_line(*chunk, super::lines::NO_LINE);
            let info = self.chunk_info(*chunk);
            if info.state != ChunkState::Offline {
                let mut p = self.pools.of_chunk(*chunk).lock();
                p.put_chunk(*chunk, info.state != ChunkState::Free);
            }
        }
        // The checkpoint that a clean stop ends with says all that there is to say.
        let nothing_new = report.clean && open.is_empty() && freed.is_empty();
        open.iter().for_each(|line| self.pools.of_line(*line).lock().stop_filling(*line));
        // It needs nothing of what is to be closed: the map has all that is in there, and how far that had
        // been written is on record. Nor have users to wait for more than they would live.
        if !nothing_new && !mutant!("log.no-checkpoint-at-mount") {
            self.checkpoint(cx).await?;
        }
        open.iter().for_each(|line| self.close_if_ready(cx, *line));
        if !open.is_empty() {
            let (me, their_cx) = (self.clone(), cx.clone());
            self.background(cx, async move { me.log_closed(&their_cx).await });
        }
        let many = || self.pools.any(|p| p.count(LineState::Closing) > MOST_CLOSING);
        self.pool_changed.wait(cx, || !many() || self.read_only()).await;
        Ok(())
    }

    /// The chunks that hold `units`, each once, as (PU, chunk of the PU). A PU of which all chunks
    /// are offline is listed once, with `None`.
    fn in_chunks(&self, units: &[Place]) -> Vec<(u32, Option<u32>)> {
        let per_pu = self.shape.chunks_per_pu;
        let is_dead = |pu: u32| {
            let all = self.flash.device.chunk_report(pu, 0, per_pu);
            all.iter().all(|info| info.state == ChunkState::Offline)
        };
        let pus: BTreeSet<u32> = units.iter().map(|(chunk, _)| chunk / per_pu).collect();
        let dead: BTreeSet<u32> = pus.into_iter().filter(|pu| is_dead(*pu)).collect();
        let chunks: BTreeSet<u32> = units.iter().map(|(chunk, _)| *chunk).collect();
        let in_living = chunks.iter().filter(|chunk| !dead.contains(&(*chunk / per_pu)));
        let places = in_living.map(|chunk| (chunk / per_pu, Some(chunk % per_pu)));
        dead.iter().map(|pu| (*pu, None)).chain(places).collect()
    }

    /// Once the lines that were found open are closed, the log says so: the next start need not look.
    async fn log_closed(&self, cx: &Cx) {
        let is_left =
            |l: &Line| !l.frontier.is_empty() && (l.state == LineState::Closing || l.is_unlogged());
        let left = || self.pools.any_line(is_left);
        self.pool_changed.wait(cx, || !left() || self.read_only()).await;
        let _ = self.commit(cx, self.journal.appended()).await; // or it is read-only, and says why
    }
}

/// What the host could not give is not torn, nor gone: what it holds counts, and nobody knows it.
fn check_host(flash: &Flash, options: &MountOptions) -> Result<(), MountError> {
    match flash.host_failed() {
        Some(_) if options.accept_lost || mutant!("log.host-fault-is-torn") => Ok(()),
        Some(first) => Err(MountError::Host { first }),
        None => Ok(()),
    }
}

/// What forbids a mount before anything is built.
fn check(history: &History, facts: &Facts, options: &MountOptions) -> Result<(), MountError> {
    if options.read_only {
        return Ok(());
    }
    if history.is_newer {
        return Err(MountError::NewerMinor);
    }
    match history.damage.as_ref().or(facts.damage.as_ref()) {
        Some(damage) if !mutant!("log.damage-unsaid") => Err(MountError::Damaged(damage.clone())),
        _ => Ok(()),
    }
}

/// Chunks of the log, its anchors and the checkpoints that are kept.
fn metadata_chunks(history: &History, facts: &Facts) -> BTreeSet<u32> {
    let pairs = history.parts.iter().flat_map(|part| part.pair.chunks);
    let named = if mutant!("log.checkpoints-unnamed") { 1 } else { 2 };
    let shards = facts.checkpoints.iter().take(named).flat_map(|c| c.chunks());
    pairs.chain(history.superseded.iter().copied()).chain(shards).collect()
}

/// The lines of the log with how far their chunks had been written.
fn found_lines(shape: &Shape, survey: &Survey, facts: &Facts) -> Vec<Found> {
    let lines = facts.lines.iter().map(|(id, told)| {
        let furthest = told.chunks.iter().map(|chunk| survey.pointer(*chunk)).max().unwrap_or(0);
        let first = shape.first_units(told.chunks.len() as u32) * shape.unit;
        let reach = |i: usize| match told.closed.is_some() {
            true => shape.chunk_sectors,
            false if i == 0 => (furthest + shape.unit + first).min(shape.chunk_sectors),
            false => (furthest + shape.unit).min(shape.chunk_sectors),
        };
        let written = facts.written.get(&told.sequence);
        let told_end = |chunk: u32| {
            let units = written.and_then(|w| w.range((chunk, 0)..=(chunk, u32::MAX)).next_back());
            units.map_or(0, |((_, sector), _)| sector + shape.unit)
        };
        let span = |(i, chunk): (usize, &u32)| {
            let recorded = told.frontier.as_ref().and_then(|f| f.get(i)).copied();
            let pointer = survey.pointer(*chunk);
            let recorded = recorded.filter(|_| !mutant!("log.frontier-ignored"));
            let is_offline = survey.is_offline(*chunk);
            let end = match recorded {
                Some(end) if mutant!("log.frontier-shrinks") => end.min(pointer),
                Some(end) => end,
                // It was offline when this mount began. It was written as far as the others, and a
                // unit that was on its way; at least as far as the log tells.
                None if is_offline && pointer == 0 => reach(i).max(told_end(*chunk)),
                None => pointer,
            };
            let is_gone = is_offline || end > pointer;
            // The power failed in the last unit of an open line's chunk, if anywhere, and may have taken
            // its page pairs along. Every unit of a closed line had ended, if perhaps badly: the last of
            // a chunk, which then was left; what it could not give back any more was sent again. Behind
            // one that ended badly come those that were in flight with it.
            let last_unit = end.saturating_sub(1) / shape.unit * shape.unit;
            let was_left = told.closed.is_some() && end < shape.chunk_sectors;
            let pairs = if mutant!("log.pair-partners-unjudged") { 0 } else { shape.pair_pads };
            let left = if mutant!("log.left-window-unjudged") { 0 } else { shape.window };
            let before = if was_left { left } else { pairs };
            let frontier = last_unit.saturating_sub(before.max(shape.behind));
            let written = if told.closed.is_some() { end } else { frontier };
            Span { chunk: *chunk, end, pointer, frontier, written, is_gone }
        };
        let spans = told.chunks.iter().enumerate().map(span).collect();
        Found { id: *id, told: told.clone(), spans }
    });
    lines.collect()
}

fn note(report: &mut Recovery, content: &Content) {
    match content.scanned {
        true => report.lines_scanned += 1,
        false => report.lines_replayed += 1,
    }
    report.torn_units.extend(&content.torn);
    report.lost_units.extend(content.lost.iter().chain(&content.told));
}

/// A line as the pool is to have it.
fn restored(
    shape: &Shape,
    line: &Found,
    infos: &[ChunkInfo],
    entries: Option<Vec<[u8; super::format::PACKED_BYTES]>>,
) -> Restored {
    let gone = |info: &ChunkInfo| {
        let early = info.state == ChunkState::Closed && info.write_pointer < shape.chunk_sectors;
        early || info.state == ChunkState::Offline
    };
    let pointer = |info: &ChunkInfo| {
        let is_whole = info.write_pointer.is_multiple_of(shape.unit);
        (!gone(info) && is_whole).then_some(info.write_pointer)
    };
    let chunks = line.told.chunks.iter().zip(infos);
    let closed = line.told.closed.iter().flatten();
    Restored {
        sequence: line.told.sequence,
        chunks: line.told.chunks.clone(),
        closing: closed.map(|p| (p.chunk, p.sector, p.count)).collect(),
        retire: chunks.filter(|(_, info)| gone(info)).map(|(chunk, _)| *chunk).collect(),
        frontier: line.told.frontier.clone().unwrap_or_default(),
        open: entries.map(|entries| (entries, infos.iter().map(pointer).collect())),
    }
}

/// Erases log and anchors of older targets on these chunks before a new one is created, so that a later
/// mount finds the new one. The oldest pair of a log first, the anchors last: however far this came, an
/// older target is there in full, or what is missing of its log is noticed, or nothing is left of it.
pub(super) async fn erase_older(cx: &Cx, flash: &Flash, shape: Shape) {
    let survey = Survey::take(flash.clone(), shape, false);
    let mut pairs: BTreeMap<(bool, u64), Vec<u32>> = BTreeMap::new();
    for first in survey.first_records(cx).await.read {
        match first.lba {
            LBA_LOG => pairs.entry((false, first.stamp)).or_default().push(first.chunk),
            LBA_ANCHOR => pairs.entry((true, 0)).or_default().push(first.chunk),
            _ => {}
        }
    }
    for chunks in pairs.into_values() {
        let erase = |chunk: u32| {
            let (flash, their_cx) = (flash.clone(), cx.clone());
            cx.spawn_join(async move { flash.reset(&their_cx, chunk).await })
        };
        let erases: Vec<_> = chunks.into_iter().map(erase).collect();
        for erase in erases {
            // One that can't be erased is bad, and a mount would not read it either.
            erase.await;
        }
    }
}
