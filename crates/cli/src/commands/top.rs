//! `flashlane top`.

use crate::Ending;
use crate::args::Top;
use crate::draw::{self, Screen, View};
use crate::output;
use crate::watch::Interrupt;
use anyhow::{Context, Result, bail};
use flashlane_lab::control::{Answer, Ask};
use flashlane_lab::lnvm::Ns;
use flashlane_lab::metrics::Snapshot;
use flashlane_lab::verbs::ask;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::path::Path;
use std::slice::from_ref;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

/// As often as keys and signals are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const EVERY_LEAST: Duration = Duration::from_millis(100);
const EVERY_MOST: Duration = Duration::from_secs(60);

pub(crate) fn top(args: &Top) -> Result<Ending> {
    if args.prometheus {
        return output::done(ask(&args.drive, &Ask::Metrics)?.text);
    }
    if args.once {
        return args.out.give(from_ref(&args.drive), || {
            let answer = ask(&args.drive, &Ask::Metrics)?;
            let mut now = snapshot(&answer)?;
            if let Some(name) = &args.target {
                known(&now, name)?;
                now.targets.retain(|target| target.name == *name);
            }
            Ok(Answer { text: draw::text(&now), ..answer })
        });
    }
    if args.out.json.is_some() {
        bail!("--json is for one look: say --once, too");
    }
    if !std::io::stdout().is_terminal() {
        bail!("standard output is no terminal: say --once for a text, or --once --json - for JSON");
    }
    let every = Duration::from_nanos(args.every.as_ns()).clamp(EVERY_LEAST, EVERY_MOST);
    let now = snapshot(&ask(&args.drive, &Ask::Metrics)?)?;
    let target = args.target.clone().unwrap_or_default();
    if args.target.is_some() {
        known(&now, &target)?;
    }
    let screen = Screen { now, target, every: words(every), ..Screen::default() };
    let interrupt = Interrupt::listen()?;
    // From here on a panic gives the terminal back, too.
    let mut terminal = ratatui::try_init().context("the terminal can't be drawn on")?;
    let ended = watch(&mut terminal, &args.drive, screen, every, &interrupt);
    ratatui::restore();
    if let Some(why) = ended? {
        output::remark(&format!("flashlane: {why}\n"));
    }
    Ok(if interrupt.happened() { Ending::Interrupted } else { Ending::Good })
}

/// Whether a target of that name is in use.
fn known(now: &Snapshot, name: &str) -> Result<()> {
    if now.target(name).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = now.targets.iter().map(|target| &*target.name).collect();
    bail!("{}: target `{name}` is not in use; in use: {}", now.device, names.join(", "))
}

fn snapshot(answer: &Answer) -> Result<Snapshot> {
    Snapshot::from_json(&answer.json).map_err(anyhow::Error::msg)
}

/// Draws until somebody wants it to end, or the drive's process has ended: then that in words.
fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    drive: &Path,
    mut screen: Screen,
    mut every: Duration,
    interrupt: &Interrupt,
) -> Result<Option<String>> {
    let process = screen.now.process;
    let mut asking: Option<Receiver<Result<Snapshot>>> = None;
    let mut looked = at();
    let mut changed = true;
    while !interrupt.happened() {
        if changed {
            terminal.draw(|frame| draw::draw(frame, &screen))?;
            changed = false;
        }
        // A holder that is stopped keeps its asker waiting, but not the keys.
        if asking.is_none() && !screen.paused && at() - looked >= every {
            asking = Some(ask_aside(drive));
            looked = at();
        }
        match asking.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(Ok(Ok(now))) => {
                screen.earlier = Some(std::mem::replace(&mut screen.now, now));
                (asking, changed) = (None, true);
            }
            Some(Ok(Err(why))) => {
                return Ok(Some(format!("process {process} no longer answers: {why}")));
            }
            Some(Err(TryRecvError::Disconnected)) => bail!("nobody could be asked"),
        }
        if !event::poll(LOOK_EVERY.min(every))? {
            continue;
        }
        changed = true;
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && pressed(&mut screen, &mut every, key)
        {
            return Ok(None);
        }
    }
    Ok(None)
}

fn at() -> Instant {
    #[allow(clippy::disallowed_methods)] // how often a person sees something new
    Instant::now()
}

fn words(every: Duration) -> String {
    format!("{} s", every.as_secs_f64())
}

/// Asks on a thread of its own, which ends when it is answered.
fn ask_aside(drive: &Path) -> Receiver<Result<Snapshot>> {
    let (to, from) = sync_channel(1);
    let drive = drive.to_path_buf();
    std::thread::spawn(move || {
        // Who has ended meanwhile needs no answer.
        let answer = ask(&drive, &Ask::Metrics).map_err(anyhow::Error::from);
        let _ = to.send(answer.and_then(|answer| snapshot(&answer)));
    });
    from
}

/// What a key does; whether it ends it.
fn pressed(screen: &mut Screen, every: &mut Duration, key: KeyEvent) -> bool {
    let places = View::ALL.len();
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('t') => screen.next_target(),
        KeyCode::Char('p') => screen.paused = !screen.paused,
        KeyCode::Char('h' | '?') => screen.help = !screen.help,
        KeyCode::Char('+') => *every = (*every / 2).max(EVERY_LEAST),
        KeyCode::Char('-') => *every = (*every * 2).min(EVERY_MOST),
        KeyCode::Tab | KeyCode::Right => screen.view = screen.view.next(1),
        KeyCode::BackTab | KeyCode::Left => screen.view = screen.view.next(places - 1),
        KeyCode::Char(digit @ '1'..='4') => {
            (screen.view, screen.help) = (View::ALL[digit as usize - '1' as usize].0, false);
        }
        _ => {}
    }
    screen.every = words(*every);
    false
}

/// A time between looks.
pub(crate) fn every_of(text: &str) -> Result<Ns, String> {
    let every = text.parse::<Ns>().map_err(|e| e.to_string())?;
    let fits = (EVERY_LEAST.as_nanos()..=EVERY_MOST.as_nanos()).contains(&every.as_ns().into());
    if fits { Ok(every) } else { Err("from 100ms to 60s".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_help_says() {
        let (mut screen, mut every) = (Screen::default(), Duration::from_secs(1));
        let mut press = |code, screen: &mut Screen| {
            pressed(screen, &mut every, KeyEvent::new(code, KeyModifiers::NONE))
        };
        assert!(!press(KeyCode::Char('p'), &mut screen) && screen.paused);
        assert!(!press(KeyCode::Char('h'), &mut screen) && screen.help);
        assert!(!press(KeyCode::Char('3'), &mut screen) && !screen.help);
        assert_eq!(screen.view, View::Room);
        press(KeyCode::Tab, &mut screen);
        press(KeyCode::Tab, &mut screen);
        assert_eq!(screen.view, View::Overview);
        press(KeyCode::BackTab, &mut screen);
        assert_eq!(screen.view, View::Latency);
        press(KeyCode::Char('+'), &mut screen);
        assert_eq!(screen.every, "0.5 s");
        (0..9).for_each(|_| assert!(!press(KeyCode::Char('-'), &mut screen)));
        assert_eq!(screen.every, "60 s");
        assert!(press(KeyCode::Char('q'), &mut screen) && press(KeyCode::Esc, &mut screen));
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(pressed(&mut screen, &mut Duration::from_secs(1), ctrl_c));
    }

    #[test]
    fn a_time_between_looks_is_bounded() {
        assert!(every_of("500ms").is_ok() && every_of("60s").is_ok());
        assert!(every_of("1ms").is_err() && every_of("2h").is_err() && every_of("x").is_err());
    }
}
