//! Sessions: the cost of passing a tensor to another process without tensorlend.

mod codec;
mod contender;
mod copy;
mod dispatch;
mod fresh;
mod lookout;
mod pipe;
mod segment;
mod serialize;
mod session;
mod tensor;
mod timings;

pub use contender::Kind;
pub use dispatch::serve;
pub use session::{Session, timeout};
pub use timings::{Lap, Timings};
