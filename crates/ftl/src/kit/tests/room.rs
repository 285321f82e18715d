//! Devices without capacitors where collecting wins nothing more: what is refused, and what still
//! is served.
//!
//! Chunks have failed, and the pairs that each barrier pads are as much as its victims bring.

use super::*;

/// Sectors of a line, and of the buffer.
const LINE: u64 = 32;
const BUFFER: u64 = 16;

/// Longer than GC needs to find out that it is over.
const LONG: Ns = Ns::from_ms(2000);

/// Runs `main` on such a device when GC is over. It is told what each sector holds; of the last one
/// nothing was ever written.
fn when_over<F: Future<Output = ()> + 'static>(
    main: impl FnOnce(Arc<DriveFtl>, Cx, Vec<u64>) -> F + 'static,
) {
    with_low_water(2, main);
}

/// The same, with this setting.
fn with_low_water<F: Future<Output = ()> + 'static>(
    gc_low_water_lines: u32,
    main: impl FnOnce(Arc<DriveFtl>, Cx, Vec<u64>) -> F + 'static,
) {
    let device = Double::new(geometry(1, 1, 40, 8), TIMES, Script::default()).with_pairs(16);
    let config = PftlConfig {
        buffer_sectors: Some(BUFFER as u32),
        capacitors: false,
        gc_low_water_lines,
        ..config(70)
    };
    with_ftl(device, config, |ftl, device, cx| async move {
        let held = exhaust(&ftl, &device, &cx).await;
        main(ftl, cx, held).await
    });
}

/// Writes on while chunks fail, until GC is over.
async fn exhaust(ftl: &DriveFtl, device: &Double, cx: &Cx) -> Vec<u64> {
    let (written, clock) = (ftl.info().capacity - 1, cx.clone());
    cx.spawn(async move {
        clock.sleep(Ns::from_ns(700 * LONG.as_ns())).await;
        panic!("GC goes on for ever");
    });
    let mut held = vec![0; written as usize + 1];
    for version in 1.. {
        let lba = version % written;
        write(ftl, cx, lba, version).await;
        held[lba as usize] = version;
        cx.sleep(LONG).await;
        let c = ftl.controller.lock();
        assert!(c.read_only.is_none() && version < 1000, "at {version}: {:?}", c.read_only);
        if c.is_gc_over() {
            break;
        }
        // As many chunks fail as may.
        let least = c.map.capacity() as u64 + 2 * LINE + 4 + BUFFER + 3 * LINE;
        if version % 8 == 0 && c.place.usable() >= least + LINE {
            device.fail_next_program();
        }
    }
    held
}

/// GC wins nothing more, and the host is denied a line.
fn is_over(c: &Controller) -> bool {
    let moving = c.buffer.waiting(Kind::Gc);
    c.place.is_host_denied(MAIN) && !c.place.host_may_go_on(MAIN, moving) && c.is_gc_over()
}

/// Writes sectors that find room in the buffer while GC stays over, and waits for what becomes of
/// them.
async fn accept(ftl: &DriveFtl, cx: &Cx, held: &mut [u64], n: u64) {
    for lba in 0..n {
        write(ftl, cx, lba, 1 << 32 | lba).await;
        held[lba as usize] = 1 << 32 | lba;
        ftl.controller.lock().nothing_to_collect();
    }
    cx.sleep(LONG).await;
    // Somebody looks at what waits.
    ftl.go_on(cx, ftl.controller.lock(), None, Room::default());
    cx.sleep(LONG).await;
    let c = ftl.controller.lock();
    assert!(is_over(&c) && c.buffer.waiting(Kind::User) as u64 == n, "they wait for room");
    assert_eq!(c.read_only, None, "but nobody waits for them");
}

async fn flush(ftl: &DriveFtl, cx: &Cx) -> BlockResultOf {
    start(ftl, cx, BlockOp::Flush, 0, &mut []).await
}

async fn compare(ftl: &DriveFtl, cx: &Cx, held: &[u64]) {
    for (lba, value) in (0..).zip(held) {
        assert_eq!(read(ftl, cx, lba).await, Ok(*value), "{lba}");
    }
}

/// Nobody else needs GC's reserve any more: what was accepted is flushed into it.
#[test]
fn the_reserve_serves_flushes_when_gc_is_over() {
    when_over(|ftl, cx, mut held| async move {
        accept(&ftl, &cx, &mut held, 12).await;
        assert_eq!(flush(&ftl, &cx).await, Ok(()));
        assert_eq!(ftl.controller.lock().buffer.waiting(Kind::User), 0);
        compare(&ftl, &cx, &held).await;
    });
}

#[test]
fn the_reserve_serves_a_stop_when_gc_is_over() {
    when_over(|ftl, cx, mut held| async move {
        accept(&ftl, &cx, &mut held, 7).await;
        ftl.stop(&cx).await;
        assert_eq!(ftl.controller.lock().buffer.waiting(Kind::User), 0);
        assert_eq!(ftl.read_only(), None);
        compare(&ftl, &cx, &held).await;
    });
}

/// Who finds no room in the buffer then is refused: nobody will ever make any.
#[test]
fn who_waits_for_room_when_gc_is_over_is_refused() {
    when_over(|ftl, cx, mut held| async move {
        let room = ftl.room.free();
        accept(&ftl, &cx, &mut held, room).await;
        let refused = start(&ftl, &cx, BlockOp::Write, 20, &mut [1]).await;
        assert!(matches!(refused, Err(BlockError::ReadOnly(_))), "{refused:?}");
        compare(&ftl, &cx, &held).await;
    });
}

/// A stop refuses who waits for room, too, where room in the buffer is nobody's.
#[test]
fn a_stop_lets_nobody_wait_for_room() {
    when_over(|ftl, cx, _| async move {
        let writers: Vec<_> = (0..2 * BUFFER)
            .map(|lba| {
                let (ftl, task) = (ftl.clone(), cx.clone());
                cx.spawn_join(async move {
                    start(&ftl, &task, BlockOp::Write, lba, &mut [1]).await.is_err()
                })
            })
            .collect();
        cx.sleep(Ns::from_ns(1)).await;
        assert!(!ftl.controller.lock().hosts_wait.is_empty());
        ftl.stop(&cx).await;
        assert_eq!(ftl.read_only(), None);
        let mut refused = 0;
        for writer in writers {
            refused += u64::from(writer.await);
        }
        assert!(refused >= BUFFER, "{refused} of twice the buffer");
    });
}

/// A line that is on its way is room to come: the reserve stays GC's.
#[test]
fn gc_is_not_over_while_it_reclaims() {
    // GC is wanted by the number of free lines here, so that it is wanted while it reclaims.
    with_low_water(6, |ftl, _, _| async move {
        let mut c = ftl.controller.lock();
        c.place.will_come(0);
        assert!(!c.is_gc_over());
        c.place.will_not_come(0);
        assert!(c.is_gc_over());
    });
}

/// What the host discards is a reason to collect again, if there was anything.
#[test]
fn discards_are_a_reason_to_collect_if_something_was_there() {
    when_over(|ftl, cx, held| async move {
        let victims = |ftl: &DriveFtl| ftl.stats().gc_victims;
        let before = victims(&ftl);
        let unwritten = held.len() as u64 - 1;
        start(&ftl, &cx, BlockOp::Discard, unwritten, &mut [0]).await.unwrap();
        cx.sleep(LONG).await;
        assert_eq!(victims(&ftl), before);
        // Something stays valid in each line: one that costs nothing is collected anyway.
        for lba in (0..unwritten).filter(|lba| !lba.is_multiple_of(24)) {
            start(&ftl, &cx, BlockOp::Discard, lba, &mut [0]).await.unwrap();
        }
        cx.sleep(LONG).await;
        assert!(victims(&ftl) > before && !is_over(&ftl.controller.lock()));
        for lba in (0..unwritten).step_by(16) {
            write(&ftl, &cx, lba, lba).await;
        }
    });
}

/// Lines that cost nothing, and those with a failed chunk, are collected though nothing else is.
#[test]
fn some_lines_are_always_worth_collecting() {
    when_over(|ftl, _, _| async move {
        let mut c = ftl.controller.lock();
        let line = c.place.greediest(MAIN).expect("there is garbage");
        assert_eq!(c.worth_collecting(), None);
        let before = *c.place.line(line);
        c.place.line_mut(line).valid = 0;
        assert_eq!(c.worth_collecting(), Some(line), "nothing in it is valid");
        *c.place.line_mut(line) = before;
        let l = c.place.line_mut(line);
        (l.chunks, l.suspects) = (2, 1);
        assert_eq!(c.worth_collecting(), Some(line), "a chunk of it has failed");
        *c.place.line_mut(line) = before;
    });
}

/// Fills all lines that GC could write to with nothing.
fn waste(c: &mut Controller) {
    while let Some((stream, position)) = c.place.next_of_gc(MAIN) {
        let (line, ..) = c.place.claim(stream, position, 1);
        c.place.landed(line, position);
    }
}

/// A mount sets PUs aside. If GC's open line has room on these only, a barrier uses them: the
/// device has room, and is not read-only.
#[test]
fn what_a_mount_has_set_aside_is_room_before_a_verdict() {
    let device = Double::new(geometry(1, 4, 40, 8), TIMES, Script::default());
    let config = PftlConfig { capacitors: false, ..config(70) };
    with_ftl(device, config, |ftl, _, cx| async move {
        write(&ftl, &cx, 3, 1).await;
        assert_eq!(flush(&ftl, &cx).await, Ok(()));
        {
            let mut c = ftl.controller.lock();
            c.place.set_aside(vec![3]);
            waste(&mut c);
        }
        // Changes a page, which goes where GC writes.
        start(&ftl, &cx, BlockOp::Discard, 3, &mut [0]).await.unwrap();
        assert_eq!(flush(&ftl, &cx).await, Ok(()));
        assert_eq!(ftl.read_only(), None);
        assert_eq!(read(&ftl, &cx, 3).await, Ok(0));
    });
}

/// A mover empties the lines that a barrier without room could bring back. Its verdict is told: the
/// flush is refused, whatever it waits for.
#[test]
fn a_verdict_that_a_mover_comes_to_is_told() {
    for trim in [false, true] {
        when_over(move |ftl, cx, mut held| async move {
            match trim {
                true => {
                    start(&ftl, &cx, BlockOp::Discard, 3, &mut [0]).await.unwrap();
                    ftl.controller.lock().nothing_to_collect();
                    cx.sleep(LONG).await;
                }
                false => accept(&ftl, &cx, &mut held, 7).await,
            }
            waste(&mut ftl.controller.lock());
            let refused = flush(&ftl, &cx).await;
            assert!(matches!(refused, Err(BlockError::ReadOnly(_))), "{refused:?}");
            collect_without_slots(&mut ftl.controller.lock());
            hope_for_the_next_barrier(&mut ftl.controller.lock());
        });
    }
}

/// A line full of garbage is no hope for a barrier if GC has no slots to read into.
fn collect_without_slots(c: &mut Controller) {
    assert!(c.barrier_is_active() && c.read_only.take().is_some());
    let closed = c.place.lines().find(|(_, l)| l.state == LineState::Closed);
    let line = closed.expect("one is closed").0;
    let valid = std::mem::take(&mut c.place.line_mut(line).valid);
    // Nothing is on its way, so that what GC collects needs to leave no room for a barrier.
    let coming = c.place.coming(MAIN);
    (0..coming).for_each(|_| c.place.will_not_come(line));
    assert!(c.gc_is_wanted() && c.worth_collecting().is_some());
    let slots = c.buffer.gc_room();
    assert!(c.buffer.take_gc_room(slots));
    c.check_standstill();
    assert!(c.read_only.is_some());
    c.buffer.give_gc_room(slots);
    (0..coming).for_each(|_| c.place.will_come(line));
    c.place.line_mut(line).valid = valid;
}

/// A line that wants the next barrier is no hope for the one under way, which waits for room too.
fn hope_for_the_next_barrier(c: &mut Controller) {
    assert!(c.barrier_is_active() && c.read_only.take().is_some());
    let line =
        c.place.lines().find(|(_, l)| l.state == LineState::Closed).expect("one is closed").0;
    let valid = std::mem::take(&mut c.place.line_mut(line).valid);
    c.place.take_victim(line);
    c.place.will_come(line);
    c.place.leave(line, c.barrier_after_now());
    assert!(c.wants_barrier());
    c.check_standstill();
    assert!(c.read_only.is_some());
    c.place.line_mut(line).valid = valid;
}

/// A barrier that is asked for while another one is under way begins behind that: victims leave
/// room for what the first one still programs, sectors and pads, and for all that the next one may
/// program.
#[test]
fn victims_leave_room_for_the_rest_of_a_barrier_and_for_the_next() {
    const PAIRS: u32 = 16;
    let device = Double::new(geometry(1, 1, 40, 8), TIMES, Script::default()).with_pairs(PAIRS);
    let config =
        PftlConfig { buffer_sectors: Some(BUFFER as u32), capacitors: false, ..config(70) };
    with_ftl(device, config, |ftl, _, cx| async move {
        // The only die programs the first unit, and two units wait.
        for lba in 0..12 {
            write(&ftl, &cx, lba, 1).await;
        }
        let next = {
            let c = ftl.controller.lock();
            assert!(!c.barrier_is_active());
            c.room_for_barriers()
        };
        let (flusher, clock) = (ftl.clone(), cx.clone());
        let flushed = cx.spawn_join(async move { flush(&flusher, &clock).await });
        cx.sleep(Ns::from_ns(1)).await;
        {
            let c = ftl.controller.lock();
            assert!(c.barrier_is_active());
            let (room, rest) = (c.room_for_barriers(), c.buffer.covered_waiting(Kind::User));
            assert_eq!(rest, 8, "two units wait for the die");
            let both = next + rest + PAIRS;
            assert!(room >= both, "{room} sectors for {next} and {rest}");
        }
        assert_eq!(flushed.await, Ok(()));
    });
}

/// Where GC is wanted and finds nothing to collect the host is not paced. It need not come back to
/// learn that.
#[test]
fn a_host_that_waits_for_its_pace_learns_that_there_is_none() {
    for tasks in 1..=40 {
        for (times, capacitors) in [((0, 0, 0), true), (TIMES, true), ((0, 0, 0), false)] {
            let device = Double::new(geometry(1, 2, 12, 8), times, Script::default());
            let spare = if capacitors { 30 } else { 60 };
            let config = PftlConfig {
                buffer_sectors: Some(16),
                gc_low_water_lines: 8,
                capacitors,
                ..config(spare)
            };
            with_ftl(device, config, move |ftl, _, cx| async move {
                let capacity = ftl.info().capacity;
                let each = capacity / tasks;
                let writers: Vec<_> = (0..tasks)
                    .map(|task| {
                        let (ftl, cx2) = (ftl.clone(), cx.clone());
                        cx.spawn_join(async move {
                            for lba in task * each..(task + 1) * each {
                                write(&ftl, &cx2, lba, 1).await;
                            }
                        })
                    })
                    .collect();
                for writer in writers {
                    writer.await;
                }
            });
        }
    }
}

/// The host of the device's image does not take a program of a flush: its padding closes no pair,
/// so the flush fails, and what waits for its barrier to be erased stays.
#[test]
fn a_flush_fails_whose_program_the_host_did_not_take() {
    for number in 0..4 {
        let programs = [(number, Status::HostFault)].into();
        let script = Script { programs, ..Script::default() };
        let device = Double::new(geometry(1, 1, 40, 8), TIMES, script).with_pairs(16);
        let config =
            PftlConfig { buffer_sectors: Some(BUFFER as u32), capacitors: false, ..config(70) };
        with_ftl(device, config, move |ftl, _, cx| async move {
            write(&ftl, &cx, 3, 7).await;
            let flushed = flush(&ftl, &cx).await;
            let refused = matches!(flushed, Err(BlockError::ReadOnly(_)));
            assert!(refused, "program {number}: {flushed:?}");
            cx.sleep(LONG).await;
            assert_eq!(ftl.controller.lock().barriers_done(), 0, "program {number}");
            assert_eq!(read(&ftl, &cx, 3).await, Ok(7));
        });
    }
}

/// The host of the device's image can't sync its file: a flush fails. Flushes that have asked for
/// the next barrier at this moment fail, too, instead of waiting for it.
#[test]
fn flushes_fail_beside_one_that_the_host_did_not_sync() {
    let run = |at: Option<Ns>| {
        let device = Double::new(geometry(1, 1, 40, 8), TIMES, Script::default());
        let config = PftlConfig { capacitors: false, ..config(70) };
        let (end, ..) =
            with_ftl(device.with_failing_flushes(), config, move |ftl, _, cx| async move {
                let other = |at: Ns| {
                    let (ftl, clock) = (ftl.clone(), cx.clone());
                    cx.spawn_join(async move {
                        clock.sleep(at - clock.now()).await;
                        flush(&ftl, &clock).await
                    })
                };
                let mut others: Vec<_> = at.into_iter().flat_map(|at| [at; 4].map(other)).collect();
                let (first, clock) = (ftl.clone(), cx.clone());
                let first = cx.spawn_join(async move {
                    let flushed = flush(&first, &clock).await;
                    (flushed, clock.now())
                });
                cx.sleep(Ns::from_ns(1)).await;
                others.extend(at.into_iter().flat_map(|at| [at; 4].map(other)));
                let (flushed, end) = first.await;
                assert!(matches!(flushed, Err(BlockError::ReadOnly(_))), "{flushed:?}");
                for other in others {
                    let flushed = other.await;
                    assert!(matches!(flushed, Err(BlockError::ReadOnly(_))), "{flushed:?}");
                }
                end
            });
        end
    };
    let end = run(None);
    assert_eq!(run(Some(end)), end);
}
