//! A link between two network devices that loses frames, delays them and limits their rate: for kernels without such
//! queues.
//!
//! It replaces a cable at the switch: a frame from one device goes into the other. Frames are received and sent with
//! the kernel's own header (`PACKET_VNET_HDR`), since the checksums of frames between namespaces are never computed.
#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlend_layout::random::splitmix64;

/// The properties of a link, in each direction.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Fraction of frames that are lost.
    pub loss: f64,
    /// Delay of a frame besides its transmission time.
    pub delay: Duration,
    pub bytes_per_s: u32,
}

/// Maximum bytes that wait in one direction; further frames are lost, as in every switch.
const ROOM_BYTES: usize = 1 << 20;
/// Maximum length of a frame with its header.
const FRAME_BYTES_MAX: usize = 70_000;
/// Number of frames taken from one side before it is the other's turn.
const TURN: usize = 64;
/// Interval of the check whether to end.
const NAP: Duration = Duration::from_millis(100);
/// The same frames are lost in every run, if they arrive in the same order.
const SEED: u64 = 7;

/// A running link. Dropping it ends it.
pub struct Relay {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Connects two devices of a network namespace.
    pub fn start(space: &str, devices: [&str; 2], way: Way) -> Self {
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ready, is_ready) = sync_channel(1);
        let namespace = File::open(format!("/run/netns/{space}")).expect("a namespace that ip has made");
        let devices = devices.map(str::to_owned);
        let (stopped, losses) = (stop.clone(), lost.clone());
        let thread = std::thread::spawn(move || {
            // Only this thread enters the namespace, and it ends there.
            let open = || -> io::Result<[OwnedFd; 2]> {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok([listen(&devices[0])?, listen(&devices[1])?])
            };
            match open() {
                Ok(sides) => {
                    ready.send(Ok(())).expect("somebody waits");
                    carry(&sides, way, &stopped, &losses);
                }
                Err(error) => ready.send(Err(error)).expect("somebody waits"),
            }
        });
        is_ready.recv().expect("a thread that says how it went").expect("frames can be taken");
        Self { stop, lost, thread: Some(thread) }
    }

    /// Returns the number of lost frames so far, in both directions.
    pub fn lost(&self) -> u64 {
        // Relaxed: a counter, which orders nothing.
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Relaxed: a flag that publishes no other data.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a socket that receives all frames from a device, and sends frames to it.
fn listen(device: &str) -> io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    let protocol = Protocol::from_raw(NonZero::new(u32::from(all)).expect("not zero"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(protocol))?;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads the given length, which is that of `on`, and `on` lives longer than the call.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: all,
        sll_ifindex: rustix::net::netdevice::name_to_index(&socket, device)?.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the kernel reads the given length, which is that of `address`, and `address` lives longer than the call.
    let done = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if done == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

struct Lane {
    frames: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Time at which the last frame will have been transmitted.
    free: Instant,
}

impl Lane {
    /// Queues a frame; false if there is no room.
    fn take(&mut self, frame: &[u8], way: Way, now: Instant) -> bool {
        if self.bytes + frame.len() > ROOM_BYTES {
            return false;
        }
        let takes = Duration::from_secs_f64(frame.len() as f64 / f64::from(way.bytes_per_s));
        self.free = self.free.max(now) + takes;
        self.bytes += frame.len();
        self.frames.push_back((self.free + way.delay, frame.to_vec()));
        true
    }

    /// Returns a frame that has arrived by now.
    fn give(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (_, frame) = self.frames.pop_front_if(|(due, _)| *due <= now)?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

fn carry(sides: &[OwnedFd; 2], way: Way, stop: &AtomicBool, lost: &AtomicU64) {
    let now = Instant::now();
    let mut lanes = [(); 2].map(|()| Lane { frames: VecDeque::new(), bytes: 0, free: now });
    let mut random = SEED;
    let mut frame = vec![0; FRAME_BYTES_MAX];
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let due = lanes.iter().filter_map(|lane| lane.frames.front()).map(|(due, _)| *due).min();
        let nap = due.map_or(NAP, |due| due.saturating_duration_since(now).min(NAP));
        let mut waits = [PollFd::new(&sides[0], PollFlags::IN), PollFd::new(&sides[1], PollFlags::IN)];
        let _ = poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) }));
        let now = Instant::now();
        for (from, lane) in lanes.iter_mut().enumerate() {
            for _ in 0..TURN {
                let Ok((bytes, _)) = rustix::net::recv(&sides[from], &mut frame[..], RecvFlags::empty()) else { break };
                if share(&mut random) < way.loss || !lane.take(&frame[..bytes], way, now) {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            while let Some(frame) = lane.give(now) {
                // A frame that the device does not accept is lost.
                if rustix::net::send(&sides[1 - from], &frame, SendFlags::DONTWAIT).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The next number from 0 to 1.
fn share(state: &mut u64) -> f64 {
    (splitmix64(state) >> 11) as f64 / (1_u64 << 53) as f64
}
