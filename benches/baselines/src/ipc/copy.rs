//! The contender that copies. The producer copies into a segment of the shared_memory crate and
//! stores a word as a signal. The consumer copies out of the segment.
//!
//! Two choices favor this contender. It reuses the segment and the consumer's buffer, and both
//! sides spin before they yield. A program that makes a new segment for each tensor also pays for
//! page faults. They take ten times as long as the copy of a large tensor.

use std::sync::atomic::Ordering;

use super::contender::{Prepared, Producer};
use super::lookout::Lookout;
use super::segment::{Segment, Word};
use crate::{BaselineError, Lap, now_ns, payload};

/// An order to the consumer, in the low bits of the order word. The high bits contain the number of
/// the exchange.
#[derive(Clone, Copy)]
enum Order {
    Wake,
    Take,
    TakeAndCheck,
    Rest,
    Leave,
}

const ORDERS: [Order; 5] = [Order::Wake, Order::Take, Order::TakeAndCheck, Order::Rest, Order::Leave];
const ORDER_BITS: u32 = 3;

/// The value of `Done` by which the consumer reports that it has mapped the segment. Exchanges have larger numbers.
const HELLO: u64 = 1;

pub fn prepare(bytes: usize) -> Result<Prepared, BaselineError> {
    let segment = Segment::create(bytes)?;
    let args = vec![segment.name().to_owned(), bytes.to_string(), std::process::id().to_string()];
    let meet = move |lookout: Lookout| {
        let mut link = Link { segment, payload: payload::make(bytes), sequence: HELLO, lookout };
        link.wait_done()?;
        link.segment.unlink()?;
        Ok(Box::new(link) as Box<dyn Producer>)
    };
    Ok(Prepared { args, meet: Box::new(meet), unblock: Box::new(|| ()) })
}

struct Link {
    segment: Segment,
    payload: Vec<u8>,
    sequence: u64,
    lookout: Lookout,
}

impl Link {
    fn order(&mut self, order: Order) {
        self.sequence += 1;
        self.segment.word(Word::Order).store(self.sequence << ORDER_BITS | order as u64, Ordering::Release);
    }

    fn wait_done(&self) -> Result<(), BaselineError> {
        let done = self.segment.word(Word::Done);
        self.lookout.until(|| done.load(Ordering::Acquire) == self.sequence)
    }

    fn found(&self) -> u64 {
        self.segment.word(Word::Found).load(Ordering::Relaxed)
    }
}

impl Producer for Link {
    fn verify(&mut self) -> Result<bool, BaselineError> {
        self.segment.fill(&self.payload);
        self.order(Order::TakeAndCheck);
        self.wait_done()?;
        Ok(self.found() == payload::checksum(&self.payload))
    }

    fn wake(&mut self) -> Result<(), BaselineError> {
        self.order(Order::Wake);
        self.wait_done()
    }

    fn round(&mut self) -> Result<Lap, BaselineError> {
        let t0_ns = now_ns();
        // `order` counts this number.
        payload::write_all(&mut self.payload, self.sequence + 1);
        self.segment.fill(&self.payload);
        self.order(Order::Take);
        let t1_ns = now_ns();
        self.wait_done()?;
        let t3_ns = now_ns();

        let t2_ns = self.segment.word(Word::Read).load(Ordering::Relaxed);
        Ok(Lap { t0_ns, t1_ns, t2_ns, t3_ns, bytes_ok: self.found() == self.sequence })
    }

    fn rest(&mut self) -> Result<(), BaselineError> {
        self.order(Order::Rest);
        self.wait_done()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.order(Order::Leave);
    }
}

pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    let refused = || BaselineError::Arguments(args.to_vec());
    let [name, bytes, parent] = args else { return Err(refused()) };
    let bytes: usize = bytes.parse().map_err(|_| refused())?;
    let lookout = Lookout::consumer(parent.parse().map_err(|_| refused())?);

    let segment = Segment::open(name, bytes)?;
    let mut copy = vec![0; bytes];
    let (order, done) = (segment.word(Word::Order), segment.word(Word::Done));
    let mut last = order.load(Ordering::Acquire);
    let mut resting = true;
    done.store(HELLO, Ordering::Release);

    loop {
        let next = || order.load(Ordering::Acquire) != last;
        if resting { lookout.until_at_rest(next) } else { lookout.until(next) }?;
        last = order.load(Ordering::Acquire);

        let Some(order) = ORDERS.get((last & ((1 << ORDER_BITS) - 1)) as usize) else { return Err(refused()) };
        resting = matches!(order, Order::Rest);
        match order {
            Order::Wake | Order::Rest => {}
            Order::Take => {
                segment.drain(&mut copy);
                payload::read_all(&copy, last >> ORDER_BITS)?;
                segment.word(Word::Read).store(now_ns(), Ordering::Relaxed);
                segment.word(Word::Found).store(last >> ORDER_BITS, Ordering::Relaxed);
            }
            Order::TakeAndCheck => {
                segment.drain(&mut copy);
                segment.word(Word::Found).store(payload::checksum(&copy), Ordering::Relaxed);
            }
            Order::Leave => return Ok(()),
        }
        done.store(last >> ORDER_BITS, Ordering::Release);
    }
}
