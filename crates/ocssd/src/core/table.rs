//! The table of targets as an image keeps it.
//!
//! Owns: its bytes ([`encode`], [`decode`]), [`Entry`], [`TableError`]. Promises: what is damaged,
//! newer, outside the device or overlapping is an error that says so, never a target; a newer minor
//! version can be read. Never: writes an image.
//!
//! Bytes are in `docs/IMAGE.md`, "Table of targets".

use super::TargetState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// First bytes of a table.
const MAGIC: [u8; 8] = *b"FLtarget";
/// Major, minor.
pub type Version = (u16, u16);
/// Version of tables in which targets have ranges of chunks: who does not know them must not use such
/// a target, whose neighbours lie on the same PUs.
const VERSION: Version = (2, 0);
/// That of others, for older programs, too.
const WITHOUT_CHUNKS: Version = (1, 0);
/// Magic, checksum, version.
const HEAD: usize = 16;

/// Why a table of targets can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    #[error("the drive's table of targets is damaged: go back to a snapshot")]
    Damaged,
    #[error(
        "the drive's table of targets has format {}.{}, this program knows up to {}.x; use a newer one",
        version.0, version.1, VERSION.0
    )]
    Newer { version: Version },
    #[error(
        "a newer flashlane has written the drive's table of targets (format {}.{}): it can be shown \
         but not changed; use a newer one", version.0, version.1
    )]
    NewerMinor { version: Version },
    #[error("the drive's table of targets makes no sense: {problem}")]
    Value { problem: String },
}

/// A target as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) begin: u32,
    pub(super) end: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chunks: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) over_provisioning: Option<u32>,
    pub(super) state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) settings: Value,
}

const CREATING: &str = "being created";
const READY: &str = "ready";

impl Entry {
    pub(super) fn state(state: TargetState) -> String {
        match state {
            TargetState::BeingCreated => CREATING.into(),
            TargetState::Ready => READY.into(),
        }
    }

    /// What its words mean, on a device of `pus` PUs of so many chunks.
    pub(super) fn parse(
        &self,
        pus: u32,
        chunks_per_pu: u32,
    ) -> Result<(TargetState, Option<[u8; 16]>), TableError> {
        let wrong = |what: String| TableError::Value { problem: what };
        let name = &self.name;
        super::check_name(name).map_err(|e| wrong(e.to_string()))?;
        if self.begin > self.end || self.end >= pus {
            let (begin, end, last) = (self.begin, self.end, pus - 1);
            let says = format!("`{name}` has PUs {begin} to {end}, the device has 0 to {last}");
            return Err(wrong(says));
        }
        if let Some((begin, end)) = self.chunks.filter(|(b, e)| b > e || *e >= chunks_per_pu) {
            let last = chunks_per_pu - 1;
            let says = format!("`{name}` has chunks {begin} to {end}, a PU has 0 to {last}");
            return Err(wrong(says));
        }
        if super::check_name(&self.kind).is_err() {
            return Err(wrong(format!(
                "`{name}` is of the type `{}`, which is no name",
                self.kind
            )));
        }
        let state = match &*self.state {
            CREATING => TargetState::BeingCreated,
            READY => TargetState::Ready,
            other => return Err(wrong(format!("`{name}` is in the state `{other}`"))),
        };
        let uuid = match &self.uuid {
            None => None,
            Some(text) => {
                let uuid = parse_uuid(text);
                Some(uuid.ok_or_else(|| wrong(format!("`{name}` has the uuid `{text}`")))?)
            }
        };
        if let Some(op) = self.over_provisioning.filter(|op| !(3..=80).contains(op)) {
            return Err(wrong(format!("`{name}` has over-provisioning of {op} %")));
        }
        Ok((state, uuid))
    }
}

/// Whether both have something of the device.
fn share(one: &Entry, other: &Entry) -> bool {
    let meet = |a: (u32, u32), b: (u32, u32)| a.0 <= b.1 && b.0 <= a.1;
    let chunks = |e: &Entry| e.chunks.unwrap_or((0, u32::MAX));
    meet((one.begin, one.end), (other.begin, other.end)) && meet(chunks(one), chunks(other))
}

/// A uuid as people write it.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (i, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(uuid)
}

/// A table's bytes.
pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut out = vec![0; HEAD];
    out[..8].copy_from_slice(&MAGIC);
    let has_chunks = entries.iter().any(|e| e.chunks.is_some());
    let version = if has_chunks { VERSION } else { WITHOUT_CHUNKS };
    out[12..14].copy_from_slice(&version.0.to_le_bytes());
    out[14..16].copy_from_slice(&version.1.to_le_bytes());
    out.extend(serde_json::to_vec(entries).expect("names and numbers"));
    let crc = flashlane_base::crc32c(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Entries, and the version of a newer table.
type Decoded = (Vec<Entry>, Option<Version>);

/// The entries of a table for a device of `pus` PUs of so many chunks, and the version if it is a newer minor one.
/// No bytes are a table without entries.
pub(super) fn decode(bytes: &[u8], pus: u32, chunks_per_pu: u32) -> Result<Decoded, TableError> {
    if bytes.is_empty() {
        return Ok((Vec::new(), None));
    }
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    if bytes.len() < HEAD || bytes[..8] != MAGIC {
        return Err(TableError::Damaged);
    }
    let crc = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if crc != flashlane_base::crc32c(&bytes[12..]) {
        return Err(TableError::Damaged);
    }
    let version = (u16_at(12), u16_at(14));
    if version.0 > VERSION.0 {
        return Err(TableError::Newer { version });
    }
    let entries: Vec<Entry> = serde_json::from_slice(&bytes[HEAD..])
        .map_err(|e| TableError::Value { problem: e.to_string() })?;
    for (i, one) in entries.iter().enumerate() {
        one.parse(pus, chunks_per_pu)?;
        for other in &entries[..i] {
            let problem = if one.name == other.name {
                format!("two targets are called `{}`", one.name)
            } else if share(one, other) {
                format!("`{}` and `{}` share PUs", other.name, one.name)
            } else {
                continue;
            };
            return Err(TableError::Value { problem });
        }
    }
    let known = if version.0 < VERSION.0 { WITHOUT_CHUNKS } else { VERSION };
    Ok((entries, (version > known).then_some(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, begin: u32, end: u32) -> Entry {
        Entry {
            name: name.into(),
            kind: "pblk".into(),
            begin,
            end,
            chunks: None,
            over_provisioning: Some(20),
            state: READY.into(),
            uuid: Some("00112233-4455-6677-8899-aabbccddeeff".into()),
            settings: serde_json::json!({ "limiter": "pid" }),
        }
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let table = vec![entry("a", 0, 3), Entry { uuid: None, ..entry("b", 4, 7) }];
        assert_eq!(decode(&encode(&table), 8, 16), Ok((table.clone(), None)));
        assert_eq!(decode(&[], 8, 16), Ok((Vec::new(), None)));
        let uuid = table[0].parse(8, 16).unwrap().1.unwrap();
        assert_eq!(uuid_text(&uuid), *table[0].uuid.as_ref().unwrap());
    }

    /// Every flip of a bit is noticed.
    #[test]
    fn a_damaged_table_is_no_table() {
        let good = encode(&[entry("a", 0, 3)]);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad, 8, 16), Err(TableError::Damaged), "bit {bit}");
        }
        for len in 1..good.len() {
            assert_eq!(decode(&good[..len], 8, 16), Err(TableError::Damaged), "{len} bytes");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let said = |table: &[Entry]| decode(&encode(table), 8, 16).unwrap_err().to_string();
        assert!(said(&[entry("a", 0, 8)]).contains("PUs 0 to 8"));
        assert!(said(&[entry("a", 3, 2)]).contains("PUs 3 to 2"));
        assert!(said(&[entry("a", 0, 3), entry("b", 3, 4)]).contains("`a` and `b` share PUs"));
        assert!(said(&[entry("a", 0, 3), entry("a", 4, 4)]).contains("two targets"));
        let on = |e: Entry, chunks: (u32, u32)| Entry { chunks: Some(chunks), ..e };
        assert!(said(&[on(entry("a", 0, 3), (9, 16))]).contains("chunks 9 to 16"));
        assert!(said(&[on(entry("a", 0, 3), (2, 1))]).contains("chunks 2 to 1"));
        let (low, high) = (on(entry("a", 0, 3), (0, 7)), on(entry("b", 2, 4), (7, 15)));
        assert!(said(&[low.clone(), high.clone()]).contains("share"));
        assert!(said(&[entry("b", 3, 4), low.clone()]).contains("share"));
        let apart = [low, Entry { chunks: Some((8, 15)), ..high }];
        assert_eq!(decode(&encode(&apart), 8, 16), Ok((apart.to_vec(), None)));
        assert!(said(&[entry("a/b", 0, 3)]).contains("no name"));
        assert!(said(&[Entry { kind: "a b".into(), ..entry("a", 0, 3) }]).contains("type `a b`"));
        assert!(said(&[Entry { state: "x".into(), ..entry("a", 0, 3) }]).contains("state `x`"));
        assert!(said(&[Entry { uuid: Some("é".into()), ..entry("a", 0, 3) }]).contains("uuid"));
        assert!(said(&[Entry { over_provisioning: Some(2), ..entry("a", 0, 3) }]).contains("2 %"));
    }

    #[test]
    fn newer_tables_are_refused_or_only_read() {
        let with = |major: u16, minor: u16| {
            let mut bytes = encode(&[entry("a", 0, 3)]);
            bytes[12..14].copy_from_slice(&major.to_le_bytes());
            bytes[14..16].copy_from_slice(&minor.to_le_bytes());
            let crc = flashlane_base::crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            decode(&bytes, 8, 16)
        };
        assert_eq!(encode(&[entry("a", 0, 3)])[12..16], [1, 0, 0, 0], "no range of chunks");
        let ranged = Entry { chunks: Some((1, 2)), ..entry("a", 0, 3) };
        assert_eq!(encode(&[ranged])[12..16], [2, 0, 0, 0], "older programs must not use it");
        assert_eq!(with(3, 0), Err(TableError::Newer { version: (3, 0) }));
        assert_eq!(with(1, 7).unwrap().1, Some((1, 7)));
    }
}
