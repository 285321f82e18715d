//! One line of the ASCII format of MQSim and DiskSim.
//!
//! Owns: `arrival device lba size type`, five numbers. Promises: arrival is nanoseconds (MQSim's
//! own default), lba and size are sectors of 512 bytes, type 0 is a *write* and 1 a *read* — the
//! opposite of Tencent's format. Never: has flushes or discards, the format knows none.

use super::lines::{Fields, decimal};
use super::{DeviceId, Expected, REQUEST_BYTES_MAX, TraceOp, TraceRecord};

/// Whether the line can be of this format.
pub fn looks_like(line: &[u8]) -> bool {
    let fields: Vec<_> = Fields::new(line).take(6).collect();
    fields.len() == 5 && fields.iter().all(|(_, f)| decimal(f).is_some())
}

/// Parses a line; `None` for an empty one.
pub fn parse(line: &[u8]) -> Result<Option<TraceRecord>, (usize, Expected)> {
    let mut fields = Fields::new(line);
    let Some(first) = fields.next() else {
        return Ok(None);
    };
    let what = "five numbers: arrival (ns), device, lba, size (512 B sectors), type";
    let missing = |fields: &Fields<'_>| (fields.column(), Expected::Fields(what));
    let number = |(column, field): (usize, &[u8]), what| {
        decimal(field).ok_or((column, Expected::Number(what)))
    };
    let ts_ns = number(first, "the arrival time in ns")?;
    let mut next = || fields.next().ok_or(missing(&fields));
    let (device, lba, size, kind) = (next()?, next()?, next()?, next()?);
    let device_number = u32::try_from(number(device, "the device")?)
        .map_err(|_| (device.0, Expected::Number("the device, below 2^32")))?;
    let range = "the size in sectors of 512 B, 1 to 2097152 (1 GiB)";
    let first_sector = number(lba, "the first sector (of 512 B)")?;
    let offset_bytes = first_sector
        .checked_mul(512)
        .ok_or((lba.0, Expected::Number("a first sector below 2^55")))?;
    let len_bytes = number(size, range)?
        .checked_mul(512)
        .filter(|len| (1..=REQUEST_BYTES_MAX).contains(len))
        .filter(|len| offset_bytes.checked_add(*len).is_some())
        .ok_or((size.0, Expected::Number(range)))?;
    let op = match number(kind, "the type, 0 write or 1 read")? {
        0 => TraceOp::Write,
        1 => TraceOp::Read,
        _ => return Err((kind.0, Expected::Number("the type, 0 write or 1 read"))),
    };
    if let Some((column, _)) = fields.next() {
        return Err((column, Expected::Fields("nothing behind the fifth field")));
    }
    Ok(Some(TraceRecord {
        ts_ns,
        op,
        device: DeviceId::Number(device_number),
        offset_bytes,
        len_bytes,
        fua: false,
        preflush: false,
        latency_ns: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_of_the_public_trace_is_a_write_of_8_kib() {
        let r = parse(b"938513000 4 264719034 16 0").unwrap().unwrap();
        assert_eq!(r.op, TraceOp::Write);
        assert_eq!(r.device, DeviceId::Number(4));
        assert_eq!((r.ts_ns, r.len_bytes), (938_513_000, 8192));
        assert_eq!(r.offset_bytes, 264719034 * 512);
    }

    #[test]
    fn the_first_wrong_field_is_named_with_its_column() {
        let wrong = |line: &str| parse(line.as_bytes()).unwrap_err().0;
        assert_eq!(wrong("1 2 3 4"), 8);
        assert_eq!(wrong("1 2 3 4 2"), 9);
        assert_eq!(wrong("1 2 3 0 1"), 7);
        assert_eq!(wrong("1 2 3 4 1 9"), 11);
        assert_eq!(wrong("1 2 -3 4 1"), 5);
        assert_eq!(wrong("1 99999999999 3 4 1"), 3);
    }

    proptest! {
        /// What is written out in this format is read back, unit for unit.
        #[test]
        fn written_lines_read_back(
            ts in any::<u64>(), dev in any::<u32>(), lba in 0u64..1 << 54,
            size in 1u64..=1 << 21, read in any::<bool>(),
        ) {
            let line = format!("{ts}\t{dev} {lba}  {size} {}", read as u8);
            let r = parse(line.as_bytes()).unwrap().unwrap();
            prop_assert_eq!(r.ts_ns, ts);
            prop_assert_eq!(r.device, DeviceId::Number(dev));
            prop_assert_eq!((r.offset_bytes, r.len_bytes), (lba * 512, size * 512));
            prop_assert_eq!(r.op == TraceOp::Read, read);
        }
    }
}
