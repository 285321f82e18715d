//! What reaches a run from outside: ports, work from other threads, files.
//!
//! Owns: the claims of `rt::outside` and `rt::reactor` that hold on both clocks. Never: is gated by real time.

use super::*;
use flashlane_base::Ns;
use flashlane_rt::{Bell, Gone, Idle, Port};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Answers each question with the number of its core, and keeps its run waiting for the next.
struct Echo {
    questions: Receiver<u64>,
    answers: Sender<(u64, CoreId)>,
    /// One more than the last answer, for who waits in the run.
    answered: Rc<(Cell<u64>, Notify)>,
}

impl Port for Echo {
    fn serve(&mut self, cx: &Cx) {
        while let Ok(question) = self.questions.try_recv() {
            // Who asked may have gone: its test fails elsewhere.
            let _ = self.answers.send((question, cx.core()));
            self.answered.0.set(question + 1);
            self.answered.1.wake(cx);
        }
    }
    fn bound(&self) -> Ns {
        Ns::MAX
    }
    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Waits
    }
}

/// Keeps a virtual run waiting for what other threads send.
struct Waits;

impl Port for Waits {
    fn serve(&mut self, _: &Cx) {}
    fn bound(&self) -> Ns {
        Ns::MAX
    }
    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Waits
    }
}

/// A thread, and what it has to be told first.
fn told<T: Send + 'static, R: Send + 'static>(
    work: impl FnOnce(T) -> R + Send + 'static,
) -> (Sender<T>, thread::JoinHandle<R>) {
    let (tell, hear) = channel();
    (tell, thread::spawn(move || work(hear.recv().expect("somebody tells"))))
}

/// Has itself served again and again, as long as others run.
struct Looker(Bell, Rc<Cell<u64>>);

impl Port for Looker {
    fn serve(&mut self, _: &Cx) {
        self.0.ring();
        self.1.set(self.1.get() + 1);
    }
    fn bound(&self) -> Ns {
        Ns::MAX
    }
    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Stalled
    }
    fn looks_on(&self) -> bool {
        true
    }
}

under_both_clocks! {
    /// A port that looks on is served while others run, and does not keep a core awake that waits for the outside
    /// world: in the time that a thread takes to ring the core sleeps.
    who_looks_on_keeps_nobody_awake(clock) {
        #[allow(clippy::disallowed_methods)] // that a core sleeps is seen in real time only
        let now = std::time::Instant::now;
        clock.run(1, |cx| async move {
            let (looks, served) = (Bell::default(), Rc::new(Cell::new(0)));
            looks.ring();
            let looker = cx.open_port(&looks, Looker(looks.clone(), served.clone()));
            for _ in 0..100 {
                cx.yield_now().await;
                cx.sleep(Ns::from_ns(10)).await;
            }
            let ran = served.replace(0);
            assert!(ran >= 20, "{ran} times while others ran");
            let (ask, questions) = channel();
            let (answers, _heard) = channel();
            let answered = Rc::new((Cell::new(0), Notify::new()));
            let bell = Bell::default();
            let open = cx.open_port(&bell, Echo { questions, answers, answered: answered.clone() });
            let began = now();
            let asker = thread::spawn(move || {
                #[allow(clippy::disallowed_methods)] // so that the core has something to sleep through
                thread::sleep(std::time::Duration::from_millis(15));
                ask.send(1).expect("it listens");
                bell.ring();
            });
            answered.1.wait(&cx, || answered.0.get() == 2).await;
            let naps = began.elapsed().as_millis() as u64 / 10;
            assert!(served.get() <= 10 + naps, "{} times in {naps} naps", served.get());
            asker.join().expect("no panic");
            drop((open, looker));
        });
    }

    /// A thread asks a port of each core 200 times: each question is answered, once, in order, on that core.
    a_port_is_served_on_its_core(clock) {
        const ASKED: u64 = 200;
        clock.run(CORES, |cx| async move {
            let (ask, questions) = channel();
            let (answers, heard) = channel();
            let answered = Rc::new((Cell::new(0), Notify::new()));
            let bell = Bell::default();
            let echo = Echo { questions, answers, answered: answered.clone() };
            let open = cx.open_port(&bell, echo);
            let asker = thread::spawn(move || {
                let each = |question: u64| {
                    ask.send(question).expect("it listens");
                    bell.ring();
                    heard.recv().expect("it answers")
                };
                (0..ASKED).map(each).collect::<Vec<_>>()
            });
            answered.1.wait(&cx, || answered.0.get() == ASKED).await;
            let expected: Vec<_> = (0..ASKED).map(|n| (n, cx.core())).collect();
            assert_eq!(asker.join().expect("no panic"), expected);
            drop(open);
        });
    }

    /// A bell that rang before its port was open is heard, and one without a port harms nobody.
    a_bell_may_ring_before_its_port_is_open(clock) {
        clock.run(2, |cx| async move {
            let (ask, questions) = channel();
            let (answers, heard) = channel();
            let answered = Rc::new((Cell::new(0), Notify::new()));
            let bell = Bell::default();
            ask.send(7).expect("it will listen");
            bell.ring();
            bell.ring();
            let open = cx.open_port(&bell, Echo { questions, answers, answered });
            // A turn of the core at most.
            cx.sleep(Ns::from_us(1)).await;
            assert_eq!(heard.try_recv(), Ok((7, cx.core())));
            drop(open);
            bell.ring();
            cx.sleep(Ns::from_us(1)).await;
            assert!(heard.try_recv().is_err(), "a closed port is not served");
        });
    }

    /// Ports are served in the order in which they were opened; one may close itself.
    ports_are_served_in_order(clock) {
        struct Once(u32, Rc<RefCell<Vec<u32>>>, Rc<RefCell<Option<flashlane_rt::Opened>>>);
        impl Port for Once {
            fn serve(&mut self, _: &Cx) {
                self.1.borrow_mut().push(self.0);
                self.2.take();
            }
            fn bound(&self) -> Ns {
                Ns::MAX
            }
            fn idle(&mut self, _: &Cx) -> Idle {
                Idle::Stalled
            }
        }
        clock.run(1, |cx| async move {
            let served = Rc::new(RefCell::new(Vec::new()));
            let bells: Vec<Bell> = (0..3).map(|_| Bell::default()).collect();
            let mut open = Vec::new();
            for (n, bell) in (0..).zip(&bells) {
                let myself = Rc::new(RefCell::new(None));
                let port = cx.open_port(bell, Once(n, served.clone(), myself.clone()));
                match n {
                    1 => *myself.borrow_mut() = Some(port),
                    _ => open.push(port),
                }
            }
            for _ in 0..2 {
                bells.iter().rev().for_each(Bell::ring);
                cx.sleep(Ns::from_us(1)).await;
            }
            let mut in_order = served.borrow().clone();
            // On real threads one ring may be served before the next is rung: what one round served stays a round.
            assert!(!cx.is_virtual() || in_order == [0, 1, 2, 0, 2], "{in_order:?}");
            in_order.sort_unstable();
            assert_eq!(in_order, [0, 0, 1, 2, 2]);
        });
    }

    /// Other threads have a core start tasks, which sleep and see the core; each gets its value back.
    a_thread_may_have_a_core_do_something(clock) {
        clock.run(2, |cx| async move {
            let open = cx.open_port(&Bell::default(), Waits);
            let done = Arc::new((AtomicU64::new(0), Notify::new()));
            let submitters: Vec<_> = (0..3u64).map(|n| {
                let (remote, done) = (cx.remote(), done.clone());
                thread::spawn(move || {
                    let values: Vec<_> = (0..50).map(|i| {
                        remote.submit(move |cx| async move {
                            let before = cx.now();
                            cx.sleep(Ns::from_ns(1 + (i * 7 + n) % 5)).await;
                            (i, cx.core(), cx.now() > before)
                        })
                        .wait()
                    }).collect();
                    remote.call(move |cx| {
                        done.0.fetch_add(1, Ordering::SeqCst);
                        done.1.wake(cx);
                    }).expect("it runs");
                    values
                })
            }).collect();
            done.1.wait(&cx, || done.0.load(Ordering::SeqCst) == 3).await;
            for submitter in submitters {
                let values = submitter.join().expect("no panic");
                let expected: Vec<_> = (0..50).map(|i| Ok((i, cx.core(), true))).collect();
                assert_eq!(values, expected);
            }
            drop(open);
        });
    }

    /// A job that comes when the run has ended is refused; one that waits for something that never comes
    /// is told when the run ends.
    who_comes_too_late_is_told(clock) {
        let (tell, late) = told(|remote: flashlane_rt::Remote| {
            let never = remote.submit(|cx| async move { cx.sleep(Ns::MAX).await });
            (never.wait(), remote)
        });
        let (tell, kept) = (Mutex::new(tell), Mutex::new(None));
        let started = clock.run(1, |cx| {
            tell.lock().expect("no panic").send(cx.remote()).expect("it listens");
            *kept.lock().expect("no panic") = Some(cx.remote());
            async move {
                let open = cx.open_port(&Bell::default(), Waits);
                cx.yield_now().await;
                drop(open);
                true
            }
        });
        assert_eq!(started, [true]);
        let remote = kept.into_inner().expect("no panic").expect("it ran");
        assert_eq!(remote.call(|_| panic!("the run is over")), Err(Gone));
        let (value, remote) = late.join().expect("no panic");
        assert_eq!(value, Err(Gone));
        assert_eq!(remote.submit(|_| async {}).wait(), Err(Gone));
    }

    /// A core waits for a socket beside its timers: what another thread writes is read, byte for byte, and
    /// written back, with more on its way than the socket holds.
    a_core_waits_for_files(clock) {
        const BYTES: usize = 1 << 20;
        clock.run(2, |cx| async move {
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            ours.set_nonblocking(true).expect("a socket");
            let client = thread::spawn(move || {
                let writer = theirs.try_clone().expect("a descriptor");
                let sent: Vec<u8> = (0..BYTES).map(|i| (i * 31 % 251) as u8).collect();
                let expected = sent.clone();
                let writing = thread::spawn(move || (&writer).write_all(&sent));
                let mut back = vec![0; BYTES];
                (&theirs).read_exact(&mut back).expect("it comes back");
                writing.join().expect("no panic").expect("it is taken");
                back == expected
            });
            let socket = Rc::new(cx.watch(ours).expect("a socket can be watched"));
            let (pipe, more) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Notify::new()));
            let (from, to, cx2, more2) = (socket.clone(), pipe.clone(), cx.clone(), more.clone());
            let reader = cx.spawn_join(async move {
                let mut part = vec![0; 4096];
                let mut got = 0;
                while got < BYTES {
                    let n = from.io(|mut s| s.read(&mut part)).await.expect("it is open");
                    assert!(n > 0, "the other end went away");
                    got += n;
                    to.borrow_mut().extend_from_slice(&part[..n]);
                    more2.wake(&cx2);
                }
            });
            let mut written = 0;
            while written < BYTES {
                more.wait(&cx, || pipe.borrow().len() > written).await;
                let part = pipe.borrow()[written..].to_vec();
                written += socket.io(|mut s| s.write(&part)).await.expect("it is open");
            }
            reader.await;
            assert!(client.join().expect("no panic"), "other bytes came back");
            let end = socket.io(|mut s| s.read(&mut [0; 1])).await;
            assert!(matches!(end, Ok(0)), "the client has gone: {end:?}");
        });
    }

    /// A port may be replaced by another one with the same bell once it is closed; two at a time are refused.
    a_bell_calls_one_port(clock) {
        clock.run(1, |cx| async move {
            let bell = Bell::default();
            let open = cx.open_port(&bell, Waits);
            let again = std::panic::AssertUnwindSafe(|| drop(cx.open_port(&bell, Waits)));
            assert!(std::panic::catch_unwind(again).is_err());
            drop(open);
            let served = Rc::new(RefCell::new(Vec::new()));
            struct Notes(Rc<RefCell<Vec<CoreId>>>);
            impl Port for Notes {
                fn serve(&mut self, cx: &Cx) {
                    self.0.borrow_mut().push(cx.core());
                }
                fn bound(&self) -> Ns {
                    Ns::MAX
                }
                fn idle(&mut self, _: &Cx) -> Idle {
                    Idle::Stalled
                }
            }
            let open = cx.open_port(&bell, Notes(served.clone()));
            bell.ring();
            cx.sleep(Ns::from_us(1)).await;
            drop(open);
            assert_eq!(*served.borrow(), [cx.core()]);
        });
    }

    /// Files that can't be waited for are refused, not waited for in vain.
    what_cannot_be_watched_is_refused(clock) {
        clock.run(1, |cx| async move {
            let file = std::fs::File::open("/proc/self/exe").expect("this program");
            let refused = cx.watch(file).err().map(|e| e.kind());
            assert_eq!(refused, Some(ErrorKind::PermissionDenied));
        });
    }
}
