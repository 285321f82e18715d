//! `flashlane serve`.

use crate::Ending;
use crate::args::Serve;
use crate::output;
use crate::watch::{Interrupt, Terminal};
use anyhow::Result;
use flashlane_lab::lnvm;
use flashlane_lab::serve::{Served, Serving, serve as serve_target};
use std::rc::Rc;

pub(crate) fn serve(args: Serve) -> Result<Ending> {
    let record = args.recording.take()?;
    let names: Vec<String> = args.target.into_iter().collect();
    let (on, _) = lnvm::choose(&args.drive, &names, args.how.get().1)?;
    let Serve { nbd, fuse_file: fuse, vhost_user, metrics, sector_size: sector_bytes, .. } = args;
    let timing = !args.null_latency;
    let serving = Serving { on, nbd, fuse, vhost_user, metrics, sector_bytes, timing, record };
    let interrupt = Interrupt::listen()?;
    let monitor = Rc::new(Terminal::new(&interrupt, &serving.on.name));
    let served = serve_target(&serving, monitor, output::ready)?;
    output::remark(&format!("flashlane: {served}\n"));
    let Served { left, read_only, laws, recorded, .. } = served;
    let recorded = recorded.map(|recorded| recorded.map(|r| r.to_string()));
    if let Some(Ok(recorded)) = &recorded {
        output::remark(&format!("flashlane: {recorded}\n"));
    }
    if let Some(left) = left {
        output::remark(&format!("flashlane: {left}\n"));
    }
    let mut ending = Ending::Good;
    let unrecorded = recorded.and_then(Result::err);
    for (bad, what) in [
        (read_only, "became read-only"),
        (laws.err(), "counters disagree"),
        (unrecorded, "not recorded"),
    ] {
        if let Some(why) = bad {
            output::remark(&format!("flashlane: {}: {what}: {why}\n", serving.on.name));
            ending = Ending::Bad;
        }
    }
    Ok(ending)
}
