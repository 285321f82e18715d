//! `flashlane bench`.

use crate::Ending;
use crate::args::{Args, Bench};
use crate::machine;
use crate::output::{self, Results, Sink};
use anyhow::Result;
use clap::CommandFactory;
use flashlane_lab::calibrate::{self, Effort};

pub(crate) fn bench(args: &Bench) -> Result<Ending> {
    if !args.calibrate {
        let mut all = Args::command();
        let bench = all.find_subcommand_mut("bench").expect("this command");
        return output::done(bench.render_long_help().to_string());
    }
    let sink = Sink::open(args.output.as_deref())?;
    let machine = machine::this();
    let effort = Effort { rounds: args.rounds as usize, threads: machine.cores };
    let found = calibrate::measure(effort);
    let mut results = Results::default();
    match sink.is_wanted() && !sink.is_stdout() {
        true => {
            results.tried(sink.put(&found.to_toml(&machine)));
            results.tried(output::print(&found.to_text(&machine)));
        }
        false => results.tried(output::print(&found.to_toml(&machine))),
    }
    if cfg!(debug_assertions) {
        output::remark(
            "flashlane: this is a build for development: what it measures is not what a release \
             build takes\n",
        );
    }
    results.end(Ending::Good)
}
