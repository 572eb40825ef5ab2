//! The commands. Each file has the options and the implementation of one command.

mod append;
mod complete;
pub mod completions;
mod copy;
mod get;
mod held;
mod info;
mod list_get;
mod load;
mod ls;
mod model;
mod nodes;
mod observed;
mod ping;
mod put;
mod recv;
mod remove;
mod rename;
mod replay;
mod restore;
mod run;
mod save;
mod send;
mod stat;
mod stop;
mod watch;
#[cfg(feature = "web")]
mod web;

use clap::Subcommand;

use crate::args::Args;
use crate::failure::Failure;
use crate::options::Connection;
use crate::{bench, demo};

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Pass real tensors between processes, and measure lending compared with serializing and copying.
    ///
    /// Starts its own daemon by default.
    Demo(demo::DemoArgs),
    Bench(bench::BenchArgs),
    Put(put::PutArgs),
    Get(get::GetArgs),
    Save(save::SaveArgs),
    Load(load::LoadArgs),
    Restore(restore::RestoreArgs),
    Ls(ls::LsArgs),
    Info(info::InfoArgs),
    Nodes(nodes::NodesArgs),
    Rm(remove::RemoveArgs),
    #[command(visible_alias = "mv")]
    Rename(rename::RenameArgs),
    #[command(visible_alias = "cp")]
    Copy(copy::CopyArgs),
    Watch(watch::WatchArgs),
    Trace(crate::trace::TraceArgs),
    Send(send::SendArgs),
    Recv(recv::RecvArgs),
    Append(append::AppendArgs),
    ListGet(list_get::ListGetArgs),
    Model(model::ModelArgs),
    Stat(stat::StatArgs),
    Ping(ping::PingArgs),
    Stop(stop::StopArgs),
    Doctor(crate::doctor::DoctorArgs),
    Shm(crate::shm::ShmArgs),
    #[cfg(feature = "top")]
    Top(crate::top::TopArgs),
    #[cfg(feature = "web")]
    Web(web::WebArgs),
    Replay(replay::ReplayArgs),
    Run(run::RunArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Complete(complete::CompleteArgs),
}

impl Command {
    /// Returns true if the command usually runs until a signal stops it.
    pub fn runs_until_stopped(&self) -> bool {
        if self.uses_terminal() {
            return true;
        }
        #[cfg(feature = "web")]
        if matches!(self, Self::Web(_)) {
            return true;
        }
        matches!(self, Self::Recv(_) | Self::Watch(_) | Self::Trace(_))
            || matches!(self, Self::Shm(shm) if shm.is_watch())
    }

    /// Returns true for the command that changes the mode of the terminal.
    pub fn uses_terminal(&self) -> bool {
        #[cfg(feature = "top")]
        if matches!(self, Self::Top(_)) {
            return true;
        }
        false
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let at: &Connection = &args.connection;
    match &args.command {
        Command::Demo(demo) => demo::run(demo, at.socket()).map_err(Into::into),
        Command::Bench(bench) => bench::run(bench, at.socket()).map_err(Into::into),
        Command::Put(put) => put.run(at),
        Command::Get(get) => get.run(&at.open("get")?),
        Command::Save(save) => save.run(&at.open("save")?),
        Command::Load(load) => load.run(at),
        Command::Restore(restore) => restore.run(at),
        Command::Ls(ls) if ls.observe.on => ls.run_observed(at),
        Command::Ls(ls) => ls.run(&at.open("ls")?),
        Command::Info(info) => info.run(&at.open("info")?),
        Command::Nodes(nodes) => nodes.run(&at.open("nodes")?),
        Command::Rm(remove) => remove.run(&at.open("rm")?),
        Command::Rename(rename) => rename.run(&at.open("rename")?),
        Command::Copy(copy) => copy.run(&at.open("copy")?),
        Command::Watch(watch) => watch.run(&at.open("watch")?),
        Command::Trace(trace) => trace.run(&at.open("trace")?),
        Command::Send(send) => send.run(&at.open("send")?),
        Command::Recv(recv) => recv.run(&at.open("recv")?),
        Command::Append(append) => append.run(&at.open("append")?),
        Command::ListGet(list_get) => list_get.run(&at.open("list-get")?),
        Command::Model(model) => model.run(&at.open("model")?),
        Command::Stat(stat) if stat.observe.on => stat.run_observed(at),
        Command::Stat(stat) => stat.run(at),
        Command::Ping(ping) => ping.run(at),
        Command::Stop(_) => stop::run(at),
        Command::Doctor(doctor) => doctor.run(at),
        Command::Shm(shm) => shm.run(),
        #[cfg(feature = "top")]
        Command::Top(top) => top.run(at),
        #[cfg(feature = "web")]
        Command::Web(web) => web.run(at),
        Command::Replay(replay) => replay.run(at),
        Command::Run(run) => run.run(at),
        Command::Completions(completions) => completions.run(),
        Command::Complete(complete) => complete.run(at),
    }
}
