//! Sluice shares the GPUs of one node: this is its program, one file for each subcommand.
//!
//! It parses, finds the libraries and the daemon, and prints; what it asks of others lies in the
//! crates `daemon` and `sim`. Exit codes are [`exit::Exit`].

mod bench;
mod cdi;
mod children;
mod choice;
mod client;
mod compute;
mod coverage;
mod daemon_command;
mod demo;
mod environment;
mod exit;
mod gpu;
mod hook;
mod inherited;
mod install;
mod interrupt;
mod lending;
mod libraries;
mod pause;
mod place;
mod run;
mod runtime;
mod set;
mod sim_command;
mod status;
mod text;
mod version;

use clap::{Parser, Subcommand};
use exit::Exit;
use std::process::ExitCode;

/// Shares the GPUs of one node between programs: hard memory caps, unchanged applications.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sluice demo                                   see it work, with or without a GPU
  sluice daemon                                 share this machine's GPUs
  sluice daemon --device stand-in               the same where there is no GPU
  sluice run --memory 2GiB -- python train.py   run a program under a memory cap
  sluice status                                 who holds what
  sluice set web --memory 3GiB                  change a running tenant
  sluice set web --compute 40%                  guarantee it a share of GPU time
  sluice cdi generate --output /etc/cdi/sluice.json
                                                let containers have it: --device sluice.dev/gpu=half

Exit codes:
  0    it worked
  1    `demo`: a promise did not hold
  2    the command line makes no sense
  125  Sluice itself failed
  126  `run`: the program cannot be executed
  127  `run`: the program was not found
  else `run`: the program's own";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Run(run::Arguments),
    Daemon(daemon_command::Arguments),
    Status(status::Arguments),
    Set(set::Arguments),
    Pause(pause::PauseArguments),
    Resume(pause::ResumeArguments),
    Cdi(cdi::Arguments),
    Env(environment::Arguments),
    Runtime(runtime::Arguments),
    Install(install::Arguments),
    Uninstall(install::UninstallArguments),
    Sim(sim_command::Arguments),
    Bench(bench::Arguments),
    /// Prints version, revision and the folder of the libraries
    Version,
    #[command(hide = true)]
    Hook(hook::Arguments),
    #[command(hide = true)]
    DemoTenant(demo::TenantArguments),
    #[command(hide = true)]
    BenchMemory(bench::InsideArguments),
    #[command(hide = true)]
    BenchLaunch(bench::LaunchInside),
    #[command(hide = true)]
    BenchLoad(bench::LoadArguments),
}

fn main() -> ExitCode {
    // An engine knows a runtime by its path alone, so the name is the subcommand.
    if let Some(arguments) = runtime::Arguments::by_name(std::env::args_os()) {
        return end(runtime::run(&arguments));
    }
    end(match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Daemon(arguments) => daemon_command::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Set(arguments) => set::run(&arguments),
        Command::Pause(arguments) => pause::pause(&arguments),
        Command::Resume(arguments) => pause::resume(&arguments),
        Command::Cdi(arguments) => cdi::run(&arguments),
        Command::Env(arguments) => environment::run(&arguments),
        Command::Runtime(arguments) => runtime::run(&arguments),
        Command::Hook(arguments) => hook::run(&arguments),
        Command::Install(arguments) => install::run(&arguments),
        Command::Uninstall(arguments) => install::uninstall(&arguments),
        Command::Sim(arguments) => sim_command::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Version => version::run(),
        Command::DemoTenant(arguments) => demo::tenant(&arguments),
        Command::BenchMemory(arguments) => bench::memory_inside(&arguments),
        Command::BenchLaunch(arguments) => bench::launch_inside(&arguments),
        Command::BenchLoad(arguments) => bench::load_inside(&arguments),
    })
}

fn end(outcome: anyhow::Result<Exit>) -> ExitCode {
    outcome
        .unwrap_or_else(|error| {
            eprintln!("sluice: {error:#}");
            Exit::Sluice
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
