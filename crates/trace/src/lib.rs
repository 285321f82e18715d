//! Block traces: read, checked, converted, laid out on a device.
//!
//! Owns: the common record ([`TraceRecord`]), the formats ([`Format`]), recognition of a file by its
//! content ([`Reader::open`]), the scan that says what a trace holds ([`mod@scan`]), conversion
//! ([`mod@convert`]) and the placement of a trace's devices on ours ([`layout`]).
//! Promises: a file of any size is read in bounded memory; the first line that is not understood is
//! shown with its number, column and text; nothing is skipped without being counted.
//! Never: guesses. A trace without a usable line is an error, not an empty run. Knows no device and no stack.
//!
//! Beside them what such a file needs and others do, too: files that are read whole ([`bounded`]), latencies
//! ([`histogram`]), who looks on ([`progress`]).
//!
//! The life of a trace: [`source`] opens and decompresses, [`reader`] recognizes and cuts
//! ([`lines`]), a format parses ([`tables`] by their descriptions, [`blkparse`], [`blktrace`],
//! [`parquet`]), [`mod@scan`] looks at everything once (range, devices, order). Then either
//! [`layout`] maps to our sectors and `run` replays, or [`pair`] finds latencies, [`carries`] brings
//! each record within another format's limits, and [`writer`] writes it.

pub mod blkparse;
pub mod blktrace;
pub mod bounded;
pub mod carries;
mod contain;
pub mod convert;
pub mod device;
mod doubt;
pub mod format;
pub mod histogram;
pub mod info;
pub mod journals;
mod kept;
pub mod layout;
pub mod lines;
pub mod number;
pub mod pair;
pub mod parquet;
pub mod progress;
pub mod reader;
pub mod record;
pub mod recording;
pub mod scan;
pub mod source;
pub mod store;
pub mod table;
pub mod tables;
pub mod truth;
pub mod writer;

pub use convert::{Conversion, ConvertError, convert};
pub use device::{DeviceId, Devices};
pub use format::Format;
pub use layout::{Fitted, Layout, LayoutError, Piece};
pub use reader::{Reader, Reading};
pub use record::{
    Action, DISCARD_BYTES_MAX, Expected, REQUEST_BYTES_MAX, TraceError, TraceOp, TraceRecord,
};
pub use recording::{RecordError, Recorded, Recording, Take, Ticket};
pub use scan::{Scan, scan};
pub use source::TraceSource;
