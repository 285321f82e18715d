//! The swarm over every stack, with a fixed number of seeds; `examples/swarm.rs` goes on.
//!
//! Owns: one test per row of [`STACKS`]. Promises: a failure prints the command that replays it.
//! Never: draws a seed from anywhere but a counter.

use flashlane_base::Ns;
use flashlane_testkit::stacks::{self, STACKS};
use flashlane_testkit::{Done, Plan, run_seed};

/// Runs a stack's seeds; every eighth twice, to see that it does the same again.
fn swarm(name: &str) {
    let stack = stacks::find(name).expect("a row of the table");
    for seed in 0..stack.seeds {
        let run = || run_seed(stack, seed, &Plan::default()).unwrap_or_else(|f| panic!("{f}"));
        let done = run();
        if seed % 8 == 0 {
            assert_eq!(done, run(), "{name}, seed {seed}: a second run did something else");
        }
    }
}

/// A test per stack, so that they run side by side and by name.
macro_rules! swarms {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                swarm($name);
            }
        )*

        /// A stack that is in the table but not here would never be tested.
        #[test]
        fn every_stack_of_the_table_is_tested() {
            let here = [$($name),*];
            let missing: Vec<_> = STACKS.iter().filter(|s| !here.contains(&s.name)).collect();
            assert!(missing.is_empty(), "{:?}", missing.iter().map(|s| s.name).collect::<Vec<_>>());
        }
    };
}

/// Seeds that once failed, each for the reason its name gives, in the run that failed then.
macro_rules! found {
    ($($(#[doc = $why:literal])* $test:ident: $name:literal, $([$seed:literal, $plan:expr]),+;)*) => {
        $(
            $(#[doc = $why])*
            #[test]
            fn $test() {
                $(holds($name, $seed, $plan);)+
            }
        )*
    };
}

/// Runs a seed.
fn holds(name: &str, seed: u64, plan: Plan) -> Done {
    let stack = stacks::find(name).expect("a row of the table");
    run_seed(stack, seed, &plan).unwrap_or_else(|f| panic!("{f}"))
}

fn usual() -> Plan {
    Plan::default()
}

fn once(effort: u64) -> Plan {
    Plan { effort, lives: Some(1), ..Plan::default() }
}

fn lives(lives: u64) -> Plan {
    Plan { lives: Some(lives), ..Plan::default() }
}

fn aimed(lives: u64) -> Plan {
    Plan { lives: Some(lives), aimed: true, ..Plan::default() }
}

/// With power cuts at these times of its lives, in ns.
fn cut_at(effort: u64, cuts: &[u64]) -> Plan {
    let cuts = cuts.iter().copied().map(Ns::from_ns).collect();
    Plan { cuts, effort, ..Plan::default() }
}

found! {
    /// While TLC has no room for the host it goes on as far as the SLC buffer has, and no further.
    found_a_host_that_goes_on_beside_a_full_buffer: "slc-tlc", [161, usual()];
    /// A line of the buffer that rests while the host is busy keeps no other line from its erase.
    found_a_migration_that_rests_and_keeps_erases_waiting: "slc-tlc", [121, usual()], [1, aimed(6)];
    found_lines_abandoned_for_another_width_until_nothing_is_left: "pblk", [83, usual()];
    found_flushes_that_take_the_last_room_of_a_line: "pblk", [300128, once(20)];
    found_a_user_share_smaller_than_a_unit_waits_for_ever: "pblk-faults", [10205, once(100)];
    found_spare_gone_while_gc_is_off_is_noticed_when_it_is_on: "pblk-faults", [10367, once(100)];
    found_a_line_freed_before_its_last_unit_was_published: "pblk", [20155, once(20)];
    found_padding_for_barriers_that_eats_what_collections_win: "pblk-faults", [30278, once(100)];
    found_a_stop_whose_padding_keeps_gc_going: "pftl-faults", [41082, once(100)];
    found_a_checkpoint_whose_records_make_the_next_one_due: "pblk", [50009, once(100)];
    found_a_victim_wider_than_the_reserve_of_narrow_lines: "pblk", [70338, once(100)];
    found_a_checkpoint_due_that_nobody_began: "pblk-faults", [80068, once(100)];
    found_lines_closed_for_the_log_that_eat_the_reserve: "pblk", [50024, once(100)];
    found_a_log_longer_than_its_reserve_where_lines_are_many: "pblk", [721433, once(100)];
    found_a_line_carried_on_behind_its_freed_record: "pblk", [419, usual()];
    found_a_torn_unit_in_a_line_that_recovery_closed: "pblk", [218, usual()];
    found_a_chunk_of_a_former_pair_padded_as_log: "pblk", [53, usual()];
    found_a_window_that_was_sent_again_taken_for_lost: "pblk-faults", [151, usual()];
    found_a_last_unit_that_failed_taken_for_lost: "pblk-faults", [427, usual()];
    found_a_log_whose_first_pair_failed_at_once: "pblk-faults", [52, usual()];
    found_a_stop_with_nowhere_to_send_a_failed_sector_again: "pblk-faults", [474, usual()];
    found_a_torn_program_that_took_its_word_line_along_in_a_full_chunk: "pftl", [414, usual()];
    found_padding_for_barriers_that_eats_what_victims_win: "pftl", [789, usual()];
    found_lines_gathered_for_a_barrier_that_take_its_room: "pftl", [103040, usual()];
    found_a_mount_whose_only_room_are_lines_without_anything_in_them: "pftl", [303552, usual()];
    found_slots_in_the_window_of_a_chunk_that_was_left: "pftl-faults", [13, usual()];
    found_a_unit_that_failed_in_parts: "pftl-faults", [218, usual()];
    found_padding_of_a_mount_that_failed: "pftl-faults", [657, usual()];
    found_discards_lost_with_a_device_that_gave_up: "pftl-faults", [905, usual()];
    found_a_move_dropped_behind_the_barrier_for_its_source: "pftl-faults", [300573, usual()], [300007, aimed(6)];
    found_an_empty_victim_that_waits_for_room_to_read: "pftl", [301808, usual()];
    /// The host took what was free, for the blocks that would come behind a barrier, which had no room then.
    found_a_host_that_takes_what_the_barrier_of_coming_blocks_needs: "pftl", [900809, lives(3)], [900833, lives(2)];
    found_a_stop_that_waits_for_a_victim_of_a_device_that_gave_up: "pftl-faults", [400100, usual()];
    found_a_scan_behind_a_mark_that_failed: "pftl-faults", [2362, usual()],
        [4_294_970_298, Plan { effort: 25, ..aimed(5) }];
    /// A mover that found nothing to do woke another one, which found nothing to do either and woke the first: time
    /// stood still.
    found_movers_that_call_each_other: "pftl", [316, aimed(8)];
    /// Power cuts in a row had taken the room of a tight device without capacitors: a barrier waited for room, the
    /// lines that GC had emptied for the barrier, and writers for ever. Now they are refused.
    found_a_barrier_that_waits_for_the_room_it_is_to_make: "pftl-faults", [346, aimed(8)];
    /// A stop ended the checkpoints, and an opener went on waiting for the room in the log that the next
    /// one would have made.
    found_a_stop_that_waited_for_the_log: "qblk-faults", [15, cut_at(1, &[0, 0])];
    /// A unit that ended before one in front of it let the next into its chunk: more could be programmed
    /// behind one that failed than recovery looks back for.
    found_more_units_in_flight_than_the_budget: "qblk-buffer-faults",
        [61, cut_at(1, &[3_983_040, 96_203_934])], [41, cut_at(1, &[31_249, 9_987_288])];
    /// The spare lay just below the limiter's start: lines were collected for ever while nobody wrote, for
    /// padding took what each of them brought, and users had a share for a moment after each.
    found_collections_that_win_nothing: "pblk-buffer-faults", [179_560_646_701_921, aimed(7)];
    /// The same of the block SSD, where the host waited for the room.
    found_victims_that_win_nothing: "pftl-buffer-faults", [179_570_135_636_480, aimed(7)];
    /// Of a log that had been cut off a chunk was a line's by now, its first sector could not be read, and a mount
    /// looked for log blocks among the users' sectors.
    found_a_log_looked_for_among_users_sectors: "qblk-faults",
        [267, cut_at(20, &[264_292_700, 110_846_467])];
    /// The cut tore the unit of a snapshot's root behind the root itself; the next life went on behind it,
    /// and the mount after that took it for a loss.
    found_a_torn_root_behind_a_whole_one: "pftl-faults", [0, cut_at(1, &[10_319_200, 5_410_800])];
    /// Refused mounts padded a copy of the log that could not be read until its chunk was full;
    /// then it was no longer counted among the chunks that may hide a newer log.
    found_a_log_copy_padded_until_nobody_missed_it: "qblk-vanish",
        [364, Plan { effort: 1, ..aimed(10) }];
    /// Programs that were on their way behind one that the host of the image refused broke the
    /// order.
    found_programs_behind_one_that_the_host_refused: "pblk-image-trouble",
        [12, Plan { effort: 1, ..aimed(6) }];
    /// A discard that was flushed came back behind a host that refused programs.
    found_a_discard_that_came_back_behind_a_failing_host: "pftl-image-trouble",
        [12_884_901_890, Plan { effort: 1, ..aimed(10) }];
    /// A stop left one root, and its PU died.
    found_a_stop_with_one_root: "slc-tlc-vanish", [21_474_836_497, aimed(3)],
        [6, Plan { effort: 50, ..aimed(4) }], [4_294_967_307, Plan { effort: 25, ..aimed(4) }];
    /// Behind an accepted loss the sector with the highest stamp that was left was served; a lost
    /// unit had a newer copy of it.
    found_the_youngest_that_is_left_taken_for_the_newest: "slc-tlc-vanish",
        [8_589_934_605, aimed(4)];
    /// A die died, a barrier waited for room, and a victim of the SLC buffer rested as long as it
    /// did.
    found_a_barrier_that_waits_while_a_victim_rests: "slc-tlc-vanish",
        [12_884_901_911, aimed(2)];
    /// All reads of a mount failed, and each chunk had one unit: they were taken for torn ones.
    found_a_blind_mount_that_tore_units: "pftl-vanish",
        [12_884_901_931, Plan { effort: 20, ..aimed(2) }];
    /// The same in SLC mode.
    found_a_blind_mount_that_tore_units_in_slc_mode: "slc-tlc-vanish",
        [60, cut_at(1, &[13_912_689])];
    /// A device with little spare wrote no pages of counts.
    found_a_device_that_told_no_counts: "pftl-vanish", [12, aimed(3)],
        [17_179_869_237, Plan { effort: 50, ..aimed(3) }];
    /// The only line that was written could not be read, and was taken for one that a creation was
    /// turning into SLC mode.
    found_the_only_line_taken_for_a_new_one: "slc-tlc-vanish", [55, cut_at(1, &[3_898_592])];
    /// A page of trims was on the die that had died, and the die was noted without writing it anew.
    found_a_page_that_died_with_its_die: "slc-tlc-vanish",
        [4_294_970_318, Plan { effort: 1, ..aimed(3) }],
        [12_884_902_429, Plan { effort: 5, ..aimed(3) }];
    /// A chunk failed its erase while those of its line were erased, too, and nothing told them
    /// from lost ones.
    found_a_failed_erase_beside_torn_ones: "slc-tlc-faults",
        [4_294_968_018, Plan { effort: 20, ..aimed(6) }], [8_589_935_325, aimed(7)];
    /// Both copies of the newest counts were on one channel.
    found_notes_on_one_channel: "pftl-vanish", [6051, Plan { effort: 25, ..aimed(2) }];
    /// An erase was torn in the first life, of which there were no notes.
    found_a_first_life_without_notes: "slc-tlc", [9046, Plan { effort: 50, ..aimed(2) }];
    /// The second copy of a page of stamps found no other PU at the end of a line.
    found_records_on_one_pu: "slc-tlc-records", [264, Plan { effort: 5, ..aimed(2) }];
    /// A burst of reads that failed ended while a mount looked for chunks that give nothing back.
    found_full_chunks_read_too_early: "slc-tlc-records",
        [441, cut_at(1, &[12_290_240])], [4_296_967_711, Plan { effort: 25, ..aimed(3) }];
    /// A root's unit has two marks of void sectors, and only the first one was set.
    found_half_a_root_marked: "slc-tlc-vanish", [960_307, cut_at(1, &[9_280_182, 19_920_320])];
    /// Two of three PUs were dead, and the third one blank.
    found_two_dead_dies: "slc-tlc-vanish", [960_295, cut_at(1, &[8_701_921, 1])];
    /// The page of trims was on a dead die, and a discarded sector came back.
    found_zeros_with_an_old_copy: "pftl-records",
        [3_000_071, Plan { effort: 25, lives: Some(4), ..Plan::default() }];
    /// Records of a life whose notes were lost, too, were believed.
    found_records_without_notes: "pftl-records", [1_700, aimed(4)];
    /// The padding behind a torn unit failed, too, and the next mount took both for lost.
    found_padding_that_failed_in_an_empty_chunk: "pftl-faults",
        [3101, Plan { effort: 50, ..aimed(2) }];
    /// A cut in the first life tore the only unit of a chunk of the SLC buffer. A mount programmed
    /// padding after it. The padding failed, and the chunk had no room for more.
    found_padding_that_failed_in_the_first_life: "slc-tlc-faults",
        [1, cut_at(5, &[3_857_279, 23_548_258])], [730_419, cut_at(1, &[8_803_106])];
    /// A chunk was filled before its erase, and two units of the padding failed in a row.
    found_fillings_that_failed: "pftl-faults",
        [12_885_631_932, Plan { effort: 2, ..aimed(4) }];
    /// GC filled a chunk before its erase. Two units of the padding failed, and a power cut tore
    /// the next one.
    found_fillings_that_failed_before_a_torn_one: "slc-tlc-faults",
        [21_475_566_944, Plan { effort: 20, ..aimed(6) }];
    /// A chunk that the log's anchor names held a younger pair, which only padding showed.
    found_a_pair_that_padding_shows: "pblk-vanish", [5_000_345, Plan { effort: 1, ..aimed(3) }];
    /// The same in QBLK; and a chunk of the newest pair that still held one that was given up.
    found_a_pair_in_a_younger_ones_place: "qblk-vanish",
        [5_000_345, Plan { effort: 1, ..aimed(3) }], [5_000_512, cut_at(2, &[3_306_755, 5_684_250])],
        [900_000_191, cut_at(1, &[27_693_400, 12_025_680])];
    /// Reads began to fail in the middle of a mount: it took an older log for the newest.
    found_a_log_that_fails_while_it_is_read: "qblk-vanish",
        [900_000_227, cut_at(2, &[103_346_813, 117_232_430])],
        [900_002_015, cut_at(2, &[61_527_333])];
    /// The same in pblk.
    found_a_pair_that_fails_while_it_is_read: "pblk-vanish",
        [9_489_935_075, Plan { effort: 25, ..aimed(6) }];
    /// A device stopped while programs were under way. They failed after that, and its counters
    /// still had them.
    found_a_stop_beside_programs: "slc-tlc-vanish",
        [2_000_707, cut_at(1, &[8_695_520])], [6_000_247, cut_at(1, &[0])],
        [12_890_902_247, Plan { effort: 50, ..aimed(1) }];
    /// The same where flushes leave records.
    found_a_stop_beside_programs_and_records: "slc-tlc-records",
        [4_000_437, cut_at(1, &[0])], [4_000_094, cut_at(1, &[7_510_241])];
    /// The host's disk failed below pblk, and a program was under way when the target stopped.
    found_a_stop_of_a_failing_disk: "pblk-image-trouble", [6_000_155, once(10)];
    /// The host's disk failed. A drainer had taken sectors from a ring and waited to program them,
    /// and no counter included them.
    found_sectors_in_a_drainers_hands: "pblk-image-trouble",
        [950_000_010, once(1)], [920_000_054, aimed(2)];
    /// A refused mount filled a chunk of two units to see whether it can be read. The next mount
    /// took both units for torn.
    found_a_proof_taken_for_a_torn_unit: "slc-tlc-vanish",
        [6_000_144, cut_at(1, &[2_140_481, 1])], [6_000_427, cut_at(1, &[2_944_800])];
    /// A mount programmed padding after a torn unit as a proof. That program failed, so the device
    /// closed the chunk early, and the next mount gave another answer.
    found_a_proof_that_closed_a_chunk: "slc-tlc-faults",
        [730_280, cut_at(1, &[9_262_352])], [850_079, aimed(6)];
    /// Two cuts tore a unit each in most chunks of the first line. Only the last unit of a chunk
    /// could show that the padding in front of it can be read.
    found_a_chunk_with_room_for_one_proof: "pftl-records",
        [4_000_077, cut_at(2, &[1_134_797, 40_960])];
    /// GC moved sectors to a PU whose reads failed, and away again.
    found_a_sector_lost_on_its_way: "pftl-vanish",
        [8_590_784_814, aimed(2)], [8_591_934_912, Plan { effort: 50, ..aimed(3) }];
    /// The notes on the PU that can't be read were the only ones.
    found_notes_on_one_pu: "pftl-vanish", [18_109_869_237, Plan { effort: 5, ..aimed(2) }];
    /// A flush that the host did not sync left others waiting.
    found_flushes_that_wait_for_a_failing_host: "pftl-image-trouble",
        [30_070_771_203, Plan { effort: 25, ..aimed(9) }];
    /// A die died, and GC was over. The SLC buffer had less room than a write that waited.
    found_a_write_larger_than_the_rest_of_the_buffer: "slc-tlc-vanish",
        [4_397_967_338, aimed(5)];
    /// The same where flushes leave records.
    found_a_write_larger_than_the_rest_and_records: "slc-tlc-records",
        [4_303_067_412, aimed(5)];
    /// The second copy of a page of notes waits for its PU when the first one is programmed.
    found_a_barrier_that_holds_a_second_copy: "slc-tlc-faults", [93_000_064, aimed(1)];
    /// An erase made room for the host. The FTL noticed only after it had assigned all programs. It
    /// assigned no more then, so sectors of a flush stayed in the buffer, and the flush hung.
    found_a_flush_that_hangs_although_the_host_has_room: "pftl-records", [18_109_869_245, aimed(1)];
    /// A cut tore a unit. The next cut tore the padding after it, which filled the chunk. The mount
    /// could read the units before both, and still counted the torn unit as lost.
    found_torn_padding_behind_a_torn_unit: "pblk-vanish",
        [5_200_000_720, cut_at(1, &[15_805_603, 12_069_600])];
    /// The line of the second copy of a page of counts was erased, and the PU of the first one could
    /// not be read: nothing said that what it held was flushed.
    found_counts_whose_second_copy_was_erased: "pftl-vanish", [4_303_067_320, aimed(2)];
    /// The host's disk was full, and an erased chunk took no anchor. The target gave up, but wrote
    /// another anchor at a place that the chunk's write pointer had not reached.
    found_an_anchor_behind_a_failed_one: "pblk-image-trouble",
        [8_100_083, cut_at(1, &[6_245_761, 0])];
    /// Padding that a power cut tore took the first block of a pair along. Other padding of that
    /// block could be read, and was taken for the sign of a whole block: refused for nothing.
    found_a_first_block_torn_by_its_padding: "pblk-vanish", [11_994_967_557, aimed(3)];
    /// For a flush, records told what units held. A program of their chunk failed, and the log told
    /// the line again without them, before they were written elsewhere. Then came a power cut, and
    /// the die died: a mount gave older data.
    found_told_sectors_that_a_failure_took_back: "pblk-vanish",
        [12_000_000_520, cut_at(2, &[4_854_549])];
    /// The erase of one copy of the anchor was cut, and the other copy failed for a while. When it
    /// came back it was taken for the newest anchor.
    found_an_older_anchor_that_came_back: "pblk-vanish", [16_294_967_635, aimed(3)];
    /// Two cuts in a row tore the first unit of a chunk and the first unit of the padding after it.
    /// The next mount added no padding, so it found no whole unit, took the torn unit for lost,
    /// and was refused although nothing was lost.
    found_padding_of_which_nothing_is_whole: "qblk-vanish",
        [22_294_967_687, Plan { effort: 1, ..aimed(3) }];
    /// All anchors were on a channel that gave nothing back. The mount took their chunks for ones
    /// that the device does not give yet, and an older log for the newest.
    found_anchors_that_are_not_early: "qblk-vanish",
        [13_000_000_391, cut_at(1, &[20_612_960])];
    /// Sectors of a torn log block that the device did not give yet passed for readable ones.
    found_a_torn_block_in_a_window: "pblk-vanish",
        [12_000_000_363, Plan { effort: 50, ..aimed(5) }];
    /// A refused mount filled the only chunk of its PU with padding. The next mount took the chunk
    /// for one whose erase was cut, and accepted.
    found_a_chunk_that_a_refused_mount_filled: "slc-tlc-records",
        [7_740_000_146, cut_at(1, &[6_520_480])];
}

/// Two checkpoints carried no line that was being opened, and cut the log behind its record while its opener
/// waited: what it took later was lost with the power (FORMAT.md, hole 40).
#[test]
fn found_a_line_that_no_checkpoint_carried() {
    holds("qblk-faults", 172, cut_at(10, &[347_168_885]));
}

/// A cut in the last row of GC's line: its full chunks can be read, and what the capacitors had of their
/// windows was programmed again all the same, into the room that GC counted on.
#[test]
fn found_windows_of_full_chunks_programmed_again() {
    assert!(!holds("pftl", 301_808, cut_at(100, &[1_573_104_529])).gave_up);
}

/// A cut tore the only unit of a chunk, and the padding that a mount wrote behind it failed:
/// nothing of the chunk could be read, so the torn unit counted as lost.
#[test]
fn found_padding_that_failed_behind_a_torn_unit() {
    holds("pblk-buffer-faults", 201, cut_at(10, &[4_670_208]));
}

swarms! {
    ram: "ram",
    pftl: "pftl",
    pftl_faults: "pftl-faults",
    pblk: "pblk",
    pblk_faults: "pblk-faults",
    pblk_care_faults: "pblk-care-faults",
    pblk_buffer: "pblk-buffer",
    pblk_buffer_faults: "pblk-buffer-faults",
    qblk: "qblk",
    qblk_faults: "qblk-faults",
    qblk_buffer_faults: "qblk-buffer-faults",
    pftl_buffer_faults: "pftl-buffer-faults",
    pblk_image: "pblk-image",
    pftl_image: "pftl-image",
    slc_tlc: "slc-tlc",
    slc_tlc_faults: "slc-tlc-faults",
    slc_tlc_image: "slc-tlc-image",
    pftl_vanish: "pftl-vanish",
    pblk_vanish: "pblk-vanish",
    qblk_vanish: "qblk-vanish",
    slc_tlc_vanish: "slc-tlc-vanish",
    pftl_records: "pftl-records",
    slc_tlc_records: "slc-tlc-records",
    pblk_image_trouble: "pblk-image-trouble",
    pftl_image_trouble: "pftl-image-trouble",
    slc_tlc_image_trouble: "slc-tlc-image-trouble",
}
