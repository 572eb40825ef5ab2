//! The parts of a daemon that one step on a namespace changes together.

use super::context::Context;
use super::env::Env;
use super::members::Members;

/// The environment of the daemon, with the context and the members of one namespace. The owners of names, streams and
/// segments take it as a parameter, because none of them owns another.
pub struct Parts<'a> {
    /// The clock, the accounts and the effects, which all namespaces share.
    pub env: &'a mut Env,
    /// The namespace's ledger and directory.
    pub context: &'a mut Context,
    /// The namespace's clients.
    pub members: &'a mut Members,
}
