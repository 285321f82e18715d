//! Who a drive is: sysfs's attributes, the identify page of 1.2, the geometry page of 2.0.
//!
//! Owns: their lines and bytes (OCSSD 1.2 and 2.0, "Identify" and "Geometry"; nvme-cli's lines). Promises:
//! all of it follows from the device. Never: changes a drive.

use super::{Drive, LnvmError, one_namespace, text_of};
use crate::control::{Answer, Ask, reach};
use flashlane_base::{Ns, PpaStyle};
use flashlane_ocssd::ssd::Identify;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Attributes of the device, by sysfs's names for its interface.
pub(super) fn device_attributes(id: &Identify) -> Vec<(&'static str, Value)> {
    let g = &id.geometry;
    let ns = |t: Ns| json!(t.as_ns());
    let both = |v: &'static str, caps: u64| {
        vec![
            ("version", json!(v)),
            ("capabilities", json!(caps)),
            ("read_typ", ns(id.read.0)),
            ("read_max", ns(id.read.1)),
        ]
    };
    match id.style {
        PpaStyle::V12 => {
            let format: Vec<String> =
                id.format.iter().map(|(name, bits)| format!("{name}:{bits}")).collect();
            let mut all = both("1", 1);
            all.extend([
                ("device_mode", json!(0)),
                ("media_manager", json!("gennvm")),
                ("ppa_format", json!(format.join(","))),
                ("media_type", json!(0)),
                ("flash_media_type", json!(id.flash_media_type)),
                ("num_channels", json!(g.channels)),
                ("num_luns", json!(g.pus_per_channel)),
                ("num_planes", json!(g.planes)),
                ("num_blocks", json!(g.chunks_per_pu)),
                ("num_pages", json!(g.pages_per_block)),
                ("page_size", json!(id.page_bytes)),
                ("hw_sector_size", json!(id.sector_bytes)),
                ("oob_sector_size", json!(id.oob_bytes)),
                ("prog_typ", ns(id.program.0)),
                ("prog_max", ns(id.program.1)),
                ("erase_typ", ns(id.erase.0)),
                ("erase_max", ns(id.erase.1)),
                ("multiplane_modes", json!(plane_modes(id))),
                ("media_capabilities", json!(media_capabilities(id))),
                ("max_phys_secs", json!(id.vector_max)),
            ]);
            all
        }
        PpaStyle::V20 => {
            let mut all = both("2.0", capabilities(id));
            all.extend([
                ("groups", json!(g.channels)),
                ("punits", json!(g.pus_per_channel)),
                ("chunks", json!(g.chunks_per_pu)),
                ("clba", json!(g.sectors_per_chunk())),
                ("ws_min", json!(g.ws_min)),
                ("ws_opt", json!(g.ws_opt)),
                ("maxoc", json!(id.max_open.0)),
                ("maxocpu", json!(id.max_open.1)),
                ("mw_cunits", json!(g.mw_cunits)),
                ("write_typ", ns(id.program.0)),
                ("write_max", ns(id.program.1)),
                ("reset_typ", ns(id.erase.0)),
                ("reset_max", ns(id.erase.1)),
            ]);
            all
        }
    }
}

/// 2.0 media and controller capabilities: vector copy, resets of free chunks.
fn capabilities(id: &Identify) -> u64 {
    u64::from(id.vector_copy) | u64::from(id.reset_free) << 1
}

/// 1.2 `mpos`: planes at once for reads, programs and erases.
fn plane_modes(id: &Identify) -> u32 {
    let modes = id.plane_modes.iter().fold(0, |bits, n| bits | 1 << n.trailing_zeros());
    modes | modes << 8 | modes << 16
}

/// 1.2 `mccap`: single-bit mode, suspend.
fn media_capabilities(id: &Identify) -> u32 {
    u32::from(id.slc_mode) | u32::from(id.suspend) << 1
}

/// `lnvm id-ns`: the identify page of 1.2 or the geometry page of 2.0.
///
/// # Errors
/// No such drive or namespace.
pub fn id_ns(path: &Path, namespace: u32, human: bool) -> Result<Answer, LnvmError> {
    let ask = || Ok(Ask::IdNs { namespace, human });
    reach(path, ask, || id_ns_of(&Drive::look(path)?, namespace, human))
}

/// [`id_ns`] of a drive that is open.
pub(crate) fn id_ns_of(drive: &Drive, namespace: u32, human: bool) -> Result<Answer, LnvmError> {
    one_namespace(namespace)?;
    let id = drive.ssd.identify();
    let attributes: Map<String, Value> =
        device_attributes(&id).into_iter().map(|(n, v)| (n.to_string(), v)).collect();
    let text = match id.style {
        PpaStyle::V12 => id12(&id, human),
        PpaStyle::V20 => id20(&id, human),
    };
    let bytes = match id.style {
        PpaStyle::V12 => page12(&id),
        PpaStyle::V20 => page20(&id),
    };
    Ok(Answer { text, json: text_of(&Value::Object(attributes)), bytes })
}

/// Bytes of a page.
struct Page(Vec<u8>);

impl Page {
    fn new() -> Page {
        Page(vec![0; 4096])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn byte(&mut self, at: usize, n: u32) {
        self.put(at, &[n as u8]);
    }

    /// What does not fit is as large as fits.
    fn short(&mut self, at: usize, n: u32) {
        self.put(at, &u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes());
    }

    fn word(&mut self, at: usize, n: u64) {
        self.put(at, &u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn times(&mut self, at: usize, id: &Identify) {
        let all = [id.read.0, id.read.1, id.program.0, id.program.1, id.erase.0, id.erase.1];
        for (i, time) in all.into_iter().enumerate() {
            self.word(at + 4 * i, time.as_ns());
        }
    }
}

/// The identify page of 1.2: one configuration group at byte 256.
fn page12(id: &Identify) -> Vec<u8> {
    let g = &id.geometry;
    let mut page = Page::new();
    page.put(0, &[1, 0, 1]);
    page.word(4, 1);
    page.word(8, 2);
    // Fields from the least significant bit; pairs of start and length in a fixed order.
    let order = ["channel", "lun", "plane", "block", "page", "sector"];
    let mut start = 0;
    for (name, bits) in &id.format {
        let name = if *name == "pu" { "lun" } else { name };
        if let Some(at) = order.iter().position(|field| *field == name) {
            page.byte(12 + 2 * at, start);
            page.byte(13 + 2 * at, *bits);
        }
        start += bits;
    }
    let group = 256;
    page.byte(group + 1, flash_type(id));
    page.byte(group + 4, g.channels);
    page.byte(group + 5, g.pus_per_channel);
    page.byte(group + 6, g.planes);
    page.short(group + 8, g.chunks_per_pu);
    page.short(group + 10, g.pages_per_block);
    page.short(group + 12, id.page_bytes as u32);
    page.short(group + 14, id.sector_bytes as u32);
    page.short(group + 16, id.oob_bytes as u32);
    page.times(group + 20, id);
    page.word(group + 44, plane_modes(id).into());
    page.word(group + 48, media_capabilities(id).into());
    page.0
}

/// The geometry page of 2.0.
fn page20(id: &Identify) -> Vec<u8> {
    let g = &id.geometry;
    let mut page = Page::new();
    page.put(0, &[2, 0]);
    for (at, field) in (8..).zip(["group", "pu", "chunk", "sector"]) {
        let bits = id.format.iter().find(|(name, _)| *name == field).map_or(0, |(_, bits)| *bits);
        page.byte(at, bits);
    }
    page.word(16, capabilities(id));
    page.short(64, g.channels);
    page.short(66, g.pus_per_channel);
    page.word(68, g.chunks_per_pu.into());
    page.word(72, g.sectors_per_chunk().into());
    let limits = [g.ws_min, g.ws_opt, g.mw_cunits, id.max_open.0, id.max_open.1];
    for (i, limit) in limits.into_iter().enumerate() {
        page.word(128 + 4 * i, limit.into());
    }
    page.times(192, id);
    page.0
}

/// Number of the flash type in 1.2.
fn flash_type(id: &Identify) -> u32 {
    let kinds = ["slc", "mlc", "tlc"];
    kinds.iter().position(|k| *k == id.flash_media_type).unwrap_or(kinds.len()) as u32
}

fn id12(id: &Identify, human: bool) -> String {
    let g = &id.geometry;
    let say = |text: &str| if human { format!("           {text}\n") } else { String::new() };
    let mut text = "verid    : 0x1\nvmnt     : 0\n".to_string();
    text += &say("Generic/Enable opcodes as found in this spec.");
    text += "cgrps    : 1\ncap      : 0x1\n";
    text += &say("[0]: Bad block table management");
    text += "dom      : 0x2\n";
    text += &say("[1]: Error Code Correction(ECC) mode");
    text += "ppaf     :\n";
    let mut at = 0;
    let mut fields: Vec<String> = Vec::new();
    for (name, bits) in &id.format {
        let short = match *name {
            "channel" => "ch",
            "pu" | "lun" => "lun",
            "plane" => "pl",
            "block" | "chunk" => "blk",
            "page" => "pg",
            _ => "sec",
        };
        fields.push(format!(
            " {:<8}: {at} {:<9}: {bits}\n",
            format!("{short} offs"),
            format!("{short} bits")
        ));
        at += bits;
    }
    fields.reverse();
    text += &fields.concat();
    text += "grp      : 0\n mtype   : 0\n";
    text += &say("NAND Flash Memory");
    text += &format!(" fmtype  : {}\n", flash_type(id));
    text += &say(match flash_type(id) {
        0 => "Single bit Level Cell flash (SLC)",
        1 => "Two bit Level Cell flash (MLC)",
        2 => "Three bit Level Cell flash (TLC)",
        _ => "Reserved",
    });
    let rows = [
        ("chnls", g.channels as u64),
        ("luns", g.pus_per_channel as u64),
        ("plns", g.planes as u64),
        ("blks", g.chunks_per_pu as u64),
        ("pgs", g.pages_per_block as u64),
        ("fpg_sz", id.page_bytes as u64),
        ("csecs", id.sector_bytes as u64),
        ("sos", id.oob_bytes as u64),
        ("trdt", id.read.0.as_ns()),
        ("trdm", id.read.1.as_ns()),
        ("tprt", id.program.0.as_ns()),
        ("tprm", id.program.1.as_ns()),
        ("tbet", id.erase.0.as_ns()),
        ("tbem", id.erase.1.as_ns()),
    ];
    for (name, value) in rows {
        text += &format!(" {name:<8}: {value}\n");
    }
    text +=
        &format!(" mpos    : {:#x}\n mccap   : {:#x}\n", plane_modes(id), media_capabilities(id));
    text + " cpar    : 0\n"
}

fn id20(id: &Identify, human: bool) -> String {
    let g = &id.geometry;
    let mut text = "ver_major     : 0x2\nver_minor     : 0\n".to_string();
    text += &format!("mccap         : {:#x}\n", capabilities(id));
    if human && id.vector_copy {
        text += "           [0]: Vector copy support\n";
    }
    if human && id.reset_free {
        text += "           [1]: Multiple resets support\n";
    }
    text += "wit           : 0\nlba format\n";
    let bits = |name: &str| id.format.iter().find(|(n, _)| *n == name).map_or(0, |(_, b)| *b);
    let rows =
        [("grp len", "group"), ("pu len", "pu"), ("chk len", "chunk"), ("clba len", "sector")];
    for (name, field) in rows {
        text += &format!(" {name:<13}: {}\n", bits(field));
    }
    let parts: [(&str, Vec<(&str, u64)>); 3] = [
        (
            "geometry",
            vec![
                ("num_grp", g.channels as u64),
                ("num_pu", g.pus_per_channel as u64),
                ("num_chk", g.chunks_per_pu as u64),
                ("clba", g.sectors_per_chunk() as u64),
            ],
        ),
        (
            "write req",
            vec![
                ("ws_min", g.ws_min as u64),
                ("ws_opt", g.ws_opt as u64),
                ("mw_cunits", g.mw_cunits as u64),
                ("maxoc", id.max_open.0 as u64),
                ("maxocpu", id.max_open.1 as u64),
            ],
        ),
        (
            "perf metrics",
            vec![
                ("trdt (ns)", id.read.0.as_ns()),
                ("trdm (ns)", id.read.1.as_ns()),
                ("twrt (ns)", id.program.0.as_ns()),
                ("twrm (ns)", id.program.1.as_ns()),
                ("tcrst (ns)", id.erase.0.as_ns()),
                ("tcrsm (ns)", id.erase.1.as_ns()),
            ],
        ),
    ];
    for (head, rows) in parts {
        text += &format!("{head}\n");
        for (name, value) in rows {
            text += &format!(" {name:<13}: {value}\n");
        }
    }
    text
}
