//! Tables of properties, which notebooks show.

use crate::batches::Batches;
use crate::display::html;
use crate::embedded::Embedded;
use crate::listing::Info;
use crate::model::Model;
use crate::queue::{Queue, QueueItem};
use crate::service::{Call, Caller, Server};
use crate::stream::Stream;
use crate::subscription::{Message, Subscription};
use crate::target::Device;
use crate::version::Version;
use pyo3::prelude::*;

/// Adds the HTML table of an object's properties, which notebooks show, to classes.
macro_rules! property_tables {
    ($($class:ident),*) => {$(
        #[pymethods]
        impl $class {
            fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
                html(slf.as_any(), "properties")
            }
        }
    )*};
}
property_tables!(
    Batches,
    Call,
    Caller,
    Device,
    Embedded,
    Info,
    Message,
    Model,
    Queue,
    QueueItem,
    Server,
    Stream,
    Subscription,
    Version
);
