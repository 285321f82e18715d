//! Who a drive is: sysfs's attributes, the identify page of 1.2, the geometry page of 2.0.
//!
//! Owns: their lines and bytes (OCSSD 1.2 and 2.0, "Identify" and "Geometry"; nvme-cli's lines). Promises:
//! all of it follows from the device. Never: changes a drive.

use super::{Drive, LnvmError, one_namespace};
use crate::control::Answer;
use crate::words::text_of;
use flashlane_base::PpaStyle;
use flashlane_ocssd::ssd::Identify;
use serde_json::{Map, Value, json};

/// A number of the device: sysfs's name for it, nvme-cli's, its place in the page and its bytes there.
struct Field(&'static str, &'static str, usize, usize, u64);

/// Where the configuration group begins in the page of 1.2.
const GROUP: usize = 256;

/// The fields that sysfs, nvme-cli and the page share, in the order of sysfs.
fn fields(id: &Identify) -> Vec<Field> {
    let g = &id.geometry;
    match id.style {
        PpaStyle::V12 => vec![
            Field("read_typ", "trdt", GROUP + 20, 4, id.read.0.as_ns()),
            Field("read_max", "trdm", GROUP + 24, 4, id.read.1.as_ns()),
            Field("num_channels", "chnls", GROUP + 4, 1, g.channels.into()),
            Field("num_luns", "luns", GROUP + 5, 1, g.pus_per_channel.into()),
            Field("num_planes", "plns", GROUP + 6, 1, g.planes.into()),
            Field("num_blocks", "blks", GROUP + 8, 2, g.chunks_per_pu.into()),
            Field("num_pages", "pgs", GROUP + 10, 2, g.pages_per_block.into()),
            Field("page_size", "fpg_sz", GROUP + 12, 2, id.page_bytes as u64),
            Field("hw_sector_size", "csecs", GROUP + 14, 2, id.sector_bytes as u64),
            Field("oob_sector_size", "sos", GROUP + 16, 2, id.oob_bytes as u64),
            Field("prog_typ", "tprt", GROUP + 28, 4, id.program.0.as_ns()),
            Field("prog_max", "tprm", GROUP + 32, 4, id.program.1.as_ns()),
            Field("erase_typ", "tbet", GROUP + 36, 4, id.erase.0.as_ns()),
            Field("erase_max", "tbem", GROUP + 40, 4, id.erase.1.as_ns()),
        ],
        PpaStyle::V20 => vec![
            Field("read_typ", "trdt (ns)", 192, 4, id.read.0.as_ns()),
            Field("read_max", "trdm (ns)", 196, 4, id.read.1.as_ns()),
            Field("groups", "num_grp", 64, 2, g.channels.into()),
            Field("punits", "num_pu", 66, 2, g.pus_per_channel.into()),
            Field("chunks", "num_chk", 68, 4, g.chunks_per_pu.into()),
            Field("clba", "clba", 72, 4, g.sectors_per_chunk().into()),
            Field("ws_min", "ws_min", 128, 4, g.ws_min.into()),
            Field("ws_opt", "ws_opt", 132, 4, g.ws_opt.into()),
            Field("maxoc", "maxoc", 140, 4, id.max_open.0.into()),
            Field("maxocpu", "maxocpu", 144, 4, id.max_open.1.into()),
            Field("mw_cunits", "mw_cunits", 136, 4, g.mw_cunits.into()),
            Field("write_typ", "twrt (ns)", 200, 4, id.program.0.as_ns()),
            Field("write_max", "twrm (ns)", 204, 4, id.program.1.as_ns()),
            Field("reset_typ", "tcrst (ns)", 208, 4, id.erase.0.as_ns()),
            Field("reset_max", "tcrsm (ns)", 212, 4, id.erase.1.as_ns()),
        ],
    }
}

/// As nvme-cli has them: in the order of the page.
fn in_page_order(id: &Identify) -> Vec<Field> {
    let mut all = fields(id);
    all.sort_by_key(|Field(_, _, at, ..)| *at);
    all
}

/// Attributes of the device, by sysfs's names for its interface.
pub(super) fn device_attributes(id: &Identify) -> Vec<(&'static str, Value)> {
    let is_12 = id.style == PpaStyle::V12;
    let (version, can) = if is_12 { ("1", 1) } else { ("2.0", capabilities(id)) };
    let mut all = vec![("version", json!(version)), ("capabilities", json!(can))];
    all.extend(fields(id).into_iter().map(|Field(name, _, _, _, n)| (name, json!(n))));
    if is_12 {
        let format: Vec<String> =
            id.format.iter().map(|(name, bits)| format!("{name}:{bits}")).collect();
        let named = [
            ("device_mode", json!(0)),
            ("media_manager", json!("gennvm")),
            ("ppa_format", json!(format.join(","))),
            ("media_type", json!(0)),
            ("flash_media_type", json!(id.flash_media_type)),
        ];
        // Behind the times of reads.
        all.splice(4..4, named);
        all.extend([
            ("multiplane_modes", json!(plane_modes(id))),
            ("media_capabilities", json!(media_capabilities(id))),
            ("max_phys_secs", json!(id.vector_max)),
        ]);
    }
    all
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
/// No such namespace.
pub(crate) fn id_ns_of(drive: &Drive, namespace: u32, human: bool) -> Result<Answer, LnvmError> {
    one_namespace(namespace)?;
    let id = drive.ssd.identify();
    let attributes: Map<String, Value> =
        device_attributes(&id).into_iter().map(|(n, v)| (n.to_string(), v)).collect();
    let (text, bytes) = match id.style {
        PpaStyle::V12 => (id12(&id, human), page12(&id)),
        PpaStyle::V20 => (id20(&id, human), page20(&id)),
    };
    Ok(Answer { text, json: text_of(&Value::Object(attributes)), bytes })
}

/// Bytes of a page.
struct Page(Vec<u8>);

impl Page {
    /// With the fields that have a name elsewhere, too.
    fn new(id: &Identify) -> Page {
        let mut page = Page(vec![0; 4096]);
        for Field(_, _, at, bytes, n) in fields(id) {
            match bytes {
                1 => page.put(at, &[n as u8]),
                2 => page.put(at, &u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes()),
                _ => page.word(at, n),
            }
        }
        page
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What does not fit is as large as fits.
    fn word(&mut self, at: usize, n: u64) {
        self.put(at, &u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// The identify page of 1.2: one configuration group at byte 256.
fn page12(id: &Identify) -> Vec<u8> {
    let mut page = Page::new(id);
    page.put(0, &[1, 0, 1]);
    page.word(4, 1);
    page.word(8, 2);
    // Fields from the least significant bit; pairs of start and length in a fixed order.
    let order = ["channel", "lun", "plane", "block", "page", "sector"];
    let mut start = 0;
    for (name, bits) in &id.format {
        let name = if *name == "pu" { "lun" } else { name };
        if let Some(at) = order.iter().position(|field| *field == name) {
            page.put(12 + 2 * at, &[start as u8, *bits as u8]);
        }
        start += bits;
    }
    page.put(GROUP + 1, &[flash_type(id) as u8]);
    page.word(GROUP + 44, plane_modes(id).into());
    page.word(GROUP + 48, media_capabilities(id).into());
    page.0
}

/// Bits of a field of 2.0's addresses.
fn bits(id: &Identify, name: &str) -> u32 {
    id.format.iter().find(|(n, _)| *n == name).map_or(0, |(_, bits)| *bits)
}

/// The geometry page of 2.0.
fn page20(id: &Identify) -> Vec<u8> {
    let mut page = Page::new(id);
    page.put(0, &[2, 0]);
    page.put(8, &["group", "pu", "chunk", "sector"].map(|name| bits(id, name) as u8));
    page.word(16, capabilities(id));
    page.0
}

/// Number of the flash type in 1.2.
fn flash_type(id: &Identify) -> u32 {
    let kinds = ["slc", "mlc", "tlc"];
    kinds.iter().position(|k| *k == id.flash_media_type).unwrap_or(kinds.len()) as u32
}

fn id12(id: &Identify, human: bool) -> String {
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
    for Field(_, name, _, _, value) in in_page_order(id) {
        text += &format!(" {name:<8}: {value}\n");
    }
    text +=
        &format!(" mpos    : {:#x}\n mccap   : {:#x}\n", plane_modes(id), media_capabilities(id));
    text + " cpar    : 0\n"
}

fn id20(id: &Identify, human: bool) -> String {
    let mut text = "ver_major     : 0x2\nver_minor     : 0\n".to_string();
    text += &format!("mccap         : {:#x}\n", capabilities(id));
    if human && id.vector_copy {
        text += "           [0]: Vector copy support\n";
    }
    if human && id.reset_free {
        text += "           [1]: Multiple resets support\n";
    }
    text += "wit           : 0\nlba format\n";
    let rows =
        [("grp len", "group"), ("pu len", "pu"), ("chk len", "chunk"), ("clba len", "sector")];
    for (name, field) in rows {
        text += &format!(" {name:<13}: {}\n", bits(id, field));
    }
    for Field(_, name, at, _, value) in in_page_order(id) {
        text += match at {
            64 => "geometry\n",
            128 => "write req\n",
            192 => "perf metrics\n",
            _ => "",
        };
        text += &format!(" {name:<13}: {value}\n");
    }
    text
}
