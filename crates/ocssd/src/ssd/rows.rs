//! Runs and row parts into array operations: one for each page row, with its time.
//!
//! Owns: [`Times`], the split of a run into rows and planes. Promises: all sectors of a row, over
//! all its planes, are one operation, unless the command asks for fewer planes at once.
//! Never: looks at content.

use super::decode::{RowPart, Run};
use super::{Chan, Command, Ssd};
use crate::device::CellMode;
use crate::spec::DeviceSpec;
use flashlane_base::{Ns, VECTOR_MAX};
use flashlane_media::pairing::PageMap;
use flashlane_media::timing::{ArrayOp, Kind, ProgramNow};

/// Times of array operations by page type and cell mode.
pub(super) struct Times {
    pub(super) read: Vec<Ns>,
    pub(super) program: Vec<Ns>,
    pub(super) erase: Ns,
    pub(super) slc: Option<crate::spec::SlcSpec>,
    pub(super) pages: Option<PageMap>,
    /// Bus time by number of sectors, up to a row.
    pub(super) transfer: Vec<Ns>,
}

impl Times {
    #[inline]
    fn pick(&self, list: &[Ns], row: u32) -> Ns {
        if list.len() == 1 {
            return list[0];
        }
        let kind = self.pages.as_ref().map_or(0, |p| p.kind(row));
        list[(kind as usize).min(list.len() - 1)]
    }

    #[inline]
    pub(super) fn read(&self, row: u32, mode: CellMode) -> Ns {
        match (mode, &self.slc) {
            (CellMode::Slc, Some(slc)) => slc.read,
            _ => self.pick(&self.read, row),
        }
    }

    #[inline]
    pub(super) fn program(&self, row: u32, mode: CellMode) -> Ns {
        match (mode, &self.slc) {
            (CellMode::Slc, Some(slc)) => slc.program,
            _ => self.pick(&self.program, row),
        }
    }

    pub(super) fn erase(&self, mode: CellMode) -> Ns {
        match (mode, &self.slc) {
            (CellMode::Slc, Some(slc)) => slc.erase,
            _ => self.erase,
        }
    }
}

impl Times {
    pub(super) fn new(spec: &DeviceSpec) -> Times {
        let row = spec.geometry().sectors_per_row();
        Times {
            read: spec.timing.read.clone(),
            program: spec.timing.program.clone(),
            erase: spec.timing.erase,
            slc: spec.cells.slc,
            pages: spec.page_map(),
            // A vector may name a sector of a row more than once, each time on the bus.
            transfer: (0..=row.max(VECTOR_MAX as u32)).map(|n| spec.transfer(n)).collect(),
        }
    }
}

/// What `queue_rows` makes of a run.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) ready: Ns,
    pub(super) retries: u32,
}

impl Ssd {
    /// Queues the array operation of one row, or lets it be over at once on a null device.
    #[inline]
    pub(super) fn queue_op(&self, chan: &mut Chan, op: ArrayOp, now: Ns) {
        if self.options.timing {
            chan.time.submit(&op, now);
        } else if op.kind == Kind::Erase {
            chan.cells.drop_shelved(op.token);
        }
    }

    /// Splits sectors of a run into rows and queues an operation for each. Reads wait for the next
    /// run, which may be of the same row: see `flush_read`.
    #[inline]
    pub(super) fn queue_rows(&self, chan: &mut Chan, cmd: &mut Command<'_>, run: &Run, job: Job) {
        if !self.options.timing {
            return;
        }
        let mode = chan.cells.chunk(run.index).mode;
        let (row, in_row) = self.row.div_rem(run.sector);
        let one_row = cmd.planes == 0 && in_row + run.n <= self.geo.sectors_per_row();
        if job.kind == Kind::Program && one_row {
            let op = ProgramNow {
                die: run.die,
                part: cmd.part,
                chunk: run.chunk,
                sector: run.sector,
                count: run.n,
                ready: job.ready,
                transfer: self.times.transfer[run.n as usize],
                array: self.times.program(row, mode),
            };
            if chan.time.program_now(&op, cmd.now) {
                return;
            }
        }
        self.queue_row_by_row(chan, cmd, run, job, mode);
    }

    /// One operation for each row, or plane group of a row, that a run touches.
    fn queue_row_by_row(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        run: &Run,
        job: Job,
        mode: CellMode,
    ) {
        let row_sectors = self.geo.sectors_per_row();
        let step = match cmd.planes {
            0 => row_sectors,
            planes => planes as u32 * self.geo.sectors_per_page,
        };
        let mut sector = run.sector;
        let end = run.sector + run.n;
        while sector < end {
            let (row, in_row) = self.row.div_rem(sector);
            let next = match step == row_sectors {
                true => sector - in_row + step,
                false => (sector / step + 1) * step,
            }
            .min(end);
            let first_plane = self.page.div(in_row);
            let last_plane = self.page.div(in_row + next - 1 - sector);
            let array = match job.kind {
                Kind::Read => self.times.read(row, mode),
                _ => self.times.program(row, mode),
            };
            let op = ArrayOp {
                kind: job.kind,
                suspend: cmd.suspend,
                die: run.die,
                part: cmd.part,
                chunk: run.chunk,
                sector,
                count: next - sector,
                row: self.row_number(run.chunk, row),
                planes: ((1u64 << (last_plane + 1)) - (1u64 << first_plane)) as u32,
                token: 0,
                ready: job.ready,
                transfer: self.times.transfer[(next - sector) as usize],
                array,
                retry: array.times(job.retries as u64),
            };
            match job.kind == Kind::Read && cmd.planes == 0 {
                true => self.gather_read(chan, cmd, op),
                false => chan.time.submit(&op, cmd.now),
            }
            sector = next;
        }
    }

    /// Queues the sense of a row of which a command reads a part.
    #[inline]
    pub(super) fn queue_row(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        part_of: &RowPart,
        index: u32,
    ) {
        if !self.options.timing {
            return;
        }
        let page = self.geo.sectors_per_page;
        let in_plane = !(u64::MAX << page);
        let mut planes = 0;
        for plane in 0..self.geo.planes {
            planes |= u32::from(part_of.named >> (plane * page) & in_plane != 0) << plane;
        }
        let op = ArrayOp {
            kind: Kind::Read,
            suspend: cmd.suspend,
            die: part_of.die,
            part: cmd.part,
            chunk: part_of.chunk,
            sector: part_of.span().0,
            count: part_of.n as u32,
            row: self.row_number(part_of.chunk, part_of.row),
            planes,
            token: 0,
            ready: cmd.now + self.command,
            transfer: self.times.transfer[part_of.n],
            array: self.times.read(part_of.row, chan.cells.chunk(index).mode),
            retry: Ns::ZERO,
        };
        self.gather_read(chan, cmd, op);
    }

    /// A page row, counted over the die.
    #[inline]
    fn row_number(&self, chunk: u32, row: u32) -> u64 {
        chunk as u64 * self.geo.pages_per_block as u64 + row as u64
    }

    /// Sectors of one row that stand in one list are one sense, side by side or not.
    #[inline]
    fn gather_read(&self, chan: &mut Chan, cmd: &mut Command<'_>, op: ArrayOp) {
        if let Some(row) = &mut cmd.row
            && (row.row, row.die, row.part) == (op.row, op.die, op.part)
        {
            row.count += op.count;
            row.planes |= op.planes;
            row.transfer = self.times.transfer[row.count as usize];
            row.retry = row.retry.max(op.retry);
            return;
        }
        flush_read(chan, cmd);
        cmd.row = Some(op);
    }
}

/// Queues the row that was being gathered. To be called before a channel is left.
#[inline]
pub(super) fn flush_read(chan: &mut Chan, cmd: &mut Command<'_>) {
    if let Some(op) = &cmd.row {
        chan.time.submit(op, cmd.now);
        cmd.row = None;
    }
}
