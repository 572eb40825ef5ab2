//! The compiled part of the Python package `tensorlend`: Python objects over the client library.
//!
//! Each class has one file, except `Client`. `client.rs` contains the client's session. Its other
//! methods are in `names.rs`, `lists.rs`, `links.rs` (streams and services) and `models.rs`. Other
//! files convert between Python's objects and those of the client library. `array.rs` imports
//! arrays, and `given.rs` makes drafts from them. `view.rs` contains the viewed memory. `export.rs`
//! exports this memory by the buffer protocol and DLPack, and `torch.rs` exports it to torch.
//! `shown.rs` makes the texts of objects. `device` does the same for devices. `target.rs` parses
//! the argument `device=`, and `cuda_stream.rs` streams of other libraries. `fault.rs` names the
//! tensor if a fault in its memory ends the process. Code that need not be fast is written in
//! Python, in the directory `tensorlend`.
//!
//! The doc comments of classes and methods are the docstrings of Python, in numpy's style. The build
//! script (`build.rs`) copies them into the stub, so `_native.pyi` here has signatures and types only.
#![allow(clippy::doc_lazy_continuation, clippy::doc_link_with_quotes, reason = "docstrings of Python are no Markdown")]
#![allow(clippy::too_many_arguments, reason = "Python passes them as keywords, and PyO3 takes each separately")]

mod arguments;
mod array;
mod batches;
mod broker;
mod client;
mod connections;
mod context;
mod cuda_stream;
mod dataset;
mod device;
mod display;
mod draft;
mod dtype;
mod embedded;
mod end;
mod errors;
mod event_loop;
mod export;
mod fault;
mod getters;
mod interpreter;
mod lasting;
mod lease;
mod library;
mod links;
mod listing;
mod lists;
mod mailbox;
mod metadata;
mod model;
mod models;
mod names;
mod objects;
mod options;
mod programs;
mod queue;
mod received;
mod recipe;
mod service;
mod stream;
mod strided;
mod subscription;
mod tables;
mod target;
mod torch;
mod values;
mod version;
mod view;
mod wait;

use pyo3::prelude::*;

/// The compiled part of the Python package tensorlend.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::check(module.py())?;
    connections::log();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("__build__", tensorlend::build())?;
    module.add_class::<batches::Batches>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<target::Device>()?;
    module.add_class::<device::DeviceDraft>()?;
    module.add_class::<device::DeviceLease>()?;
    module.add_class::<device::LegacyExport>()?;
    module.add_class::<draft::Draft>()?;
    module.add_class::<embedded::Embedded>()?;
    module.add_class::<event_loop::Descriptor>()?;
    module.add_class::<event_loop::Ticket>()?;
    module.add_class::<event_loop::Wakeups>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<listing::Info>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<objects::Rows>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<queue::QueueItem>()?;
    module.add_class::<queue::QueueItems>()?;
    module.add_class::<recipe::Recipe>()?;
    module.add_class::<service::Call>()?;
    module.add_class::<service::Caller>()?;
    module.add_class::<service::Server>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<subscription::Message>()?;
    module.add_class::<subscription::Subscription>()?;
    module.add_class::<version::Version>()?;
    module.add_class::<wait::Cancel>()?;
    module.add_function(wrap_pyfunction!(client::connect, module)?)?;
    module.add_function(wrap_pyfunction!(embedded::embedded, module)?)?;
    module.add_function(wrap_pyfunction!(fault::_watch_faults, module)?)?;
    module.add_function(wrap_pyfunction!(mailbox::_send_receipt, module)?)?;
    module.add_function(wrap_pyfunction!(programs::tool, module)?)?;
    module.add_function(wrap_pyfunction!(programs::daemon, module)?)?;
    dlpark::python::install_exchange_api::<lease::Lease>(module.py())
}
