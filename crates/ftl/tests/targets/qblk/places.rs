//! Which channel and which ring (Q13, Q14, Q20; Figure 2): pointers, sizes, requests that are split.
//!
//! Owns: the tests. Device: `tiny` with other channels; a unit is 4 sectors, a ring at least 128.

use crate::prelude::*;
use crate::qblk::cores::qblk;

/// Q13, Figure 2: queue i begins at channel i mod N, and moves on with every request, so that each visits
/// all channels in order; more queues than channels, and fewer.
#[test]
fn q13_queue_i_begins_at_channel_i_mod_n_and_moves_on() {
    for (channels, cores) in [(1, 3), (3, 5), (5, 3), (4, 4), (32, 2), (2, 32)] {
        let turn = |s: &mut Setup| s.config.channel_choice = ChannelChoice::Turn;
        let b = qblk(channels, 1, cores).untimed().with(turn).build();
        let rounds = 2 * channels + 1;
        for round in 0..rounds {
            for core in 0..cores {
                b.write_on(core, u64::from(core * rounds + round) * 4, 4, 1);
            }
            b.sleep(flashlane_base::Ns::from_us(10));
        }
        for core in 0..cores {
            let sent: Vec<u32> =
                b.requests_of(core).iter().map(|units| b.channel_of(&units[0])).collect();
            let want: Vec<u32> = (0..rounds).map(|i| (core + i) % channels).collect();
            assert_eq!(sent, want, "queue {core} of {cores} on {channels} channels");
        }
        b.settled();
    }
}

/// The released source: one counter over the channels, which the requests of all queues move on.
#[test]
fn q13_a_shared_counter_goes_round_over_all_queues() {
    for (channels, cores) in [(3, 5), (4, 4), (5, 2)] {
        let shared = |s: &mut Setup| s.config.channel_choice = ChannelChoice::Shared;
        let b = qblk(channels, 1, cores).untimed().with(shared).build();
        let rounds = 2 * channels + 1;
        for round in 0..rounds {
            for core in 0..cores {
                b.write_on(core, u64::from(core * rounds + round) * 4, 4, 1);
                b.sleep(flashlane_base::Ns::from_us(10));
            }
        }
        for core in 0..cores {
            let sent: Vec<u32> =
                b.requests_of(core).iter().map(|units| b.channel_of(&units[0])).collect();
            let want: Vec<u32> = (0..rounds).map(|i| (i * cores + core) % channels).collect();
            assert_eq!(sent, want, "queue {core} of {cores} on {channels} channels");
        }
        b.settled();
    }
}

/// Q13: one writer alone reaches every channel, and all PUs.
#[test]
fn q13_one_writer_reaches_every_channel() {
    for (channels, per_channel) in [(3, 2), (5, 1), (16, 2)] {
        let b = qblk(channels, per_channel, 4).untimed().build();
        for i in 0..u64::from(channels * per_channel) {
            b.write_on(3, i * 4, 4, 1);
            b.sleep(flashlane_base::Ns::from_us(10));
        }
        let requests = b.requests_of(3);
        let pus: BTreeSet<u32> = requests.iter().flatten().map(|at| at.pu).collect();
        assert_eq!(pus.len() as u32, channels * per_channel);
        assert!((0..3).all(|core| b.requests_of(core).is_empty()), "others have nothing to drain");
        b.settled();
    }
}

/// Q14: channels, cores and queues in any proportion: a ring has its part of pblk's total, at least
/// max(128, 4 × ws_opt); pools are channels; data written on every core is there.
#[test]
fn q14_channels_cores_and_queues_need_not_be_equal() {
    for channels in [1, 3, 5, 32, 48] {
        for cores in [1, 5, 32, 48] {
            let b = qblk(channels, if channels == 1 { 4 } else { 1 }, cores).untimed().build();
            let l = b.dev.layout().clone();
            assert_eq!((l.pools, l.rings), (channels, cores));
            let pus = u64::from(channels.max(4 * u32::from(channels == 1)));
            // pblk's: eight units of 4 on every PU (more than the window of 8), at least 128.
            let total = (32 * pus).max(128);
            let each = (total / u64::from(cores)).max(128);
            assert_eq!(
                l.ring_sectors,
                each * u64::from(cores),
                "{channels} channels, {cores} cores"
            );
            for core in 0..cores {
                b.write_on(core, u64::from(core) * 5, 5, 1);
            }
            b.flush();
            assert_eq!(b.of_rings("mem"), vec![5; cores as usize]);
            b.settled();
        }
    }
}

/// Q14: a target keeps as many rings as it was made with; more cores share them, fewer leave some alone.
#[test]
fn q14_more_cores_than_rings_share_them() {
    let b = qblk(3, 1, 5).untimed().with(|s| s.config.cores = 2).build();
    (0..5).for_each(|core| b.write_on(core, u64::from(core) * 8, 1 + core, 1));
    assert_eq!(b.of_rings("mem"), [1 + 3 + 5, 2 + 4]);
    b.settled();
    let b = qblk(3, 1, 2).untimed().with(|s| s.config.cores = 5).build();
    (0..2).for_each(|core| b.write_on(core, u64::from(core) * 8, 1 + core, 1));
    assert_eq!(b.of_rings("mem"), [1, 2, 0, 0, 0]);
    b.settled();
}

/// Q14, Q15: a ring below the minimum, and more rings than a slot can name, are refused with what would do.
#[test]
fn q14_rings_that_make_no_sense_are_refused() {
    let refused =
        |config| qblk(2, 2, 1).with(|s| s.config = config).try_create().expect_err("refused");
    let small = LogConfig { ring_sectors: Some(127), ..LogConfig::qblk() };
    assert!(matches!(refused(small), CreateError::Ring { ring: 127, least: 128 }));
    let many = refused(LogConfig { cores: 1 << 16, ..LogConfig::qblk() }).to_string();
    assert!(many.contains("65535"), "{many}");
    let budget = refused(LogConfig { pu_budget: 65, ..LogConfig::qblk() }).to_string();
    assert!(budget.contains("1..=64"), "{budget}");
}

/// Q14, Q20: requests much longer than a ring, on all cores at once, go in pieces: each sector is written
/// once, none is lost.
#[test]
fn q14_q20_requests_longer_than_a_ring_are_split() {
    let b = qblk(3, 2, 3).build();
    let writes: Vec<_> =
        (0..3).map(|core| b.begin_write_on(core, u64::from(core) * 300, 300, 1)).collect();
    for write in writes {
        b.wait(write).expect("a write");
    }
    b.drained();
    assert!(b.stats().ring_full.as_ns() > 0, "they had to wait half-way");
    assert_eq!((b.stats().host_written, b.count(Cause::User)), (900, 900));
    b.settled();
}
