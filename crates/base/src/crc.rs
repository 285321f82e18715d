//! CRC-32C (Castagnoli; RFC 3720, appendix B.4): the checksum of everything that is kept.
//!
//! Owns: which library computes it. Promises: the same sum on every machine, by the widest
//! instructions that this one has. Never: decides what is summed.

use crc_fast::{CrcAlgorithm, Digest};

/// The sum of some bytes.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The sum of what `crc` is the sum of, with these bytes behind it.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the polynomial says.
    fn by_definition(bytes: &[u8]) -> u32 {
        let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
    }

    #[test]
    fn it_is_the_sum_that_others_compute() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 1023, 1024, 4095, 4096, 4097, 5000]) {
            let want = by_definition(&bytes[..len]);
            assert_eq!(crc32c(&bytes[..len]), want, "{len}");
            for cut in [0, 1, len / 3, len] {
                let (head, tail) = bytes[..len].split_at(cut.min(len));
                assert_eq!(crc32c_append(crc32c(head), tail), want, "{cut} of {len}");
            }
        }
    }
}
