//! The connections of the daemon's loop. The loop accepts them, receives their packets, and closes
//! them.

use super::connection::{Connection, EXIT, Farewell};
use super::lanes::Lane;
use super::listen::BACKLOG;
use super::{LISTENER, PROCESS, Shell, WAKEUP, limits};
use crate::core::settings::Peer;
use crate::core::who::plain;
use crate::core::{ConnId, Event};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;
use tensorlend_layout::wire::Refusal;
use tensorlend_os::clock::{boottime_ns, duration_ms};
use tensorlend_os::packet;
use tensorlend_os::toll::Toll;

/// Time for which the daemon accepts no connections after its descriptors ran out.
const ACCEPT_PAUSE_NS: u64 = 1_000_000_000;

/// The reason that the daemon sends to a banned client.
const SLOW_SOCKET: &str = "messages on its socket take too long: too many watches (epoll) are on it";

/// Makes clients unable to send descriptors through this socket. If it is the listening socket, new connections inherit this.
pub(super) fn refuse_descriptors(socket: BorrowedFd<'_>) {
    if let Err(error) = packet::refuse_descriptors(socket) {
        tracing::warn!("refusing descriptors: {error}");
    }
}

impl Shell {
    /// Updates a connection's epoll interest, if it has changed.
    pub(super) fn watch(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            if let Err(error) = epoll::modify(&self.epoll, &connection.fd, EventData::new_u64(token), wanted) {
                tracing::error!("epoll_ctl: {error}");
            }
        }
    }

    pub(super) fn close(&mut self, token: u64) {
        self.close_with(token, None);
    }

    /// Closes a connection. `word` is a last message to the client, with the reason.
    fn close_with(&mut self, token: u64, word: Option<Refusal>) {
        let Some(connection) = self.connections.remove(&token) else { return };
        // A lane closes the socket later. Until then, the socket must not wake the loop.
        let _ = epoll::delete(&self.epoll, &connection.fd);
        for other in connection.process.iter().chain(&connection.wakeup) {
            let _ = epoll::delete(&self.epoll, other);
        }
        let (uid, cost_ms) = (connection.uid, duration_ms(connection.toll.cost()));
        if self.bans.note_end(uid, &connection.toll, boottime_ns()) {
            let who = self.core.who(ConnId(token));
            tracing::warn!(uid, cost_ms, "disconnected {who}: {SLOW_SOCKET}");
            self.core.count_refusal(&Refusal::Violation(SLOW_SOCKET.into()));
        }
        self.unread.add(self.lanes.of(uid), &connection, &self.lanes);
        self.lanes.close(self.lanes.of(uid), Farewell::to(connection, word));
        if self.accept_after_ns.is_some() {
            self.accept_again();
        }
    }

    pub(super) fn hung_up(&mut self, token: u64) {
        self.hung_up_with(token, None);
    }

    /// Disconnects a client if calls on its socket take so much time that other clients would wait.
    /// If the cause may be a pause of the machine, the client stays connected.
    pub(super) fn check_toll(&mut self, token: u64) {
        let Some(it) = self.connections.get_mut(&token).filter(|it| it.toll.is_excessive()) else { return };
        if self.bans.forgives(it.uid, &it.toll, boottime_ns()) {
            let (uid, cost_ms) = (it.uid, duration_ms(it.toll.cost()));
            let who = self.core.who(ConnId(token));
            tracing::info!(uid, cost_ms, "a message to {who} took long: the next one ends its session");
            it.toll = Toll::default();
            return;
        }
        self.hung_up_with(token, Some(Refusal::Violation(SLOW_SOCKET.into())));
    }

    fn hung_up_with(&mut self, token: u64, word: Option<Refusal>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            let process = connection.process.take();
            self.close_with(token, word);
            self.processes.ending.extend(process.map(|process| (token, process)));
            self.events.push_back(Event::HungUp { conn: ConnId(token) });
        }
    }

    /// Handles an event of a connection. If the connection's user has already used its share of
    /// this turn, the connection waits in the user's queue instead. During the wait, epoll does not
    /// report the connection's events.
    pub(super) fn handle_share(&mut self, token: u64, flags: EventFlags) {
        let conn = token & !(PROCESS | WAKEUP);
        if let Some(connection) = self.connections.get_mut(&conn) {
            let (is_socket, is_wakeup) = (token == conn, token & WAKEUP != 0);
            if let (true, Some(queued)) = (is_socket, &mut connection.queued) {
                *queued |= flags;
                return;
            }
            // Epoll reports each write to a wakeup eventfd. One token in the queue is enough for
            // all these writes.
            if (is_wakeup && connection.wakeup_queued) || !self.shares.admits(connection.uid, token) {
                connection.wakeup_queued |= is_wakeup;
                // Epoll reports the exit of a process only once, so the code below also queues its
                // token.
                if is_socket {
                    connection.queued = Some(flags);
                    self.watch(conn);
                }
                return;
            }
        }
        self.handle(token, flags);
    }

    /// Handles the queued events of connections whose users have some of their shares of this turn
    /// left.
    pub(super) fn handle_queued(&mut self) {
        while let Some(token) = self.shares.next() {
            let queued = self.connections.get_mut(&token).and_then(|connection| connection.queued.take());
            self.handle(token, queued.unwrap_or(EventFlags::empty()));
        }
    }

    fn handle(&mut self, token: u64, flags: EventFlags) {
        let conn = token & !(PROCESS | WAKEUP);
        let uid = self.connections.get(&conn).map(|it| it.uid);
        let started = Instant::now();
        if token & PROCESS != 0 {
            self.process_ended(conn);
            self.deliver_all();
        } else if token & WAKEUP != 0 {
            if let Some(connection) = self.connections.get_mut(&conn) {
                // The flag is cleared before the core reads the client's words. So a later write to
                // the eventfd is queued again.
                connection.wakeup_queued = false;
                self.deliver(Event::Woken { conn: ConnId(conn) });
            }
        } else {
            self.connection_ready(conn, flags);
        }
        if let Some(uid) = uid {
            self.shares.add(uid, started.elapsed());
        }
    }

    fn connection_ready(&mut self, token: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if flags.contains(EventFlags::OUT)
            && let Err(error) = connection.flush(&self.lanes)
        {
            if !self.refuses_unsent(token, &error.into()) {
                self.hung_up(token);
            }
        } else if flags.contains(EventFlags::IN) && !connection.busy {
            self.receive(token);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.hung_up(token);
        }
        self.check_toll(token);
        self.deliver_all();
        self.watch(token);
    }

    pub(super) fn deliver_all(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.deliver(event);
        }
    }

    fn receive(&mut self, token: u64) {
        let connection = self.connections.get_mut(&token).expect("the caller found it");
        let unread = connection.has_unread_descriptors();
        match connection.receive() {
            // No bytes: the client has closed the connection, or has sent an empty packet. An empty
            // packet may carry descriptors whose last close may block.
            Ok(packet) if packet.bytes.is_empty() => {
                self.lanes.close_descriptors(self.lanes.of(connection.uid), packet.descriptors);
                if self.awaits_reload(token) {
                    // With `busy` set, epoll still reports when the peer closes its socket.
                    self.connections.get_mut(&token).expect("found above").busy = true;
                } else {
                    self.hung_up(token);
                }
            }
            // A client must receive descriptors before it acknowledges them.
            Ok(packet) if unread => {
                let uid = connection.uid;
                self.lanes.close_descriptors(self.lanes.of(uid), packet.descriptors);
                let why = "a request before the client has received the last reply's descriptors";
                tracing::warn!(uid, "disconnected {}: {why}", self.core.who(ConnId(token)));
                let refusal = Refusal::Violation(why.into());
                self.core.count_refusal(&refusal);
                self.hung_up_with(token, Some(refusal));
            }
            Ok(packet) => {
                connection.busy = true;
                let uid = connection.uid;
                let descriptors = packet.descriptors.len() + usize::from(packet.lost_descriptors);
                self.lanes.close_descriptors(self.lanes.of(uid), packet.descriptors);
                let (bytes, truncated) = (packet.bytes, packet.truncated);
                self.core.note_fd_store(self.fd_store.state());
                self.events.push_back(Event::Packet { conn: ConnId(token), bytes, descriptors, truncated });
            }
            Err(Errno::AGAIN) => {}
            Err(_) => self.hung_up(token),
        }
    }

    pub(super) fn accept(&mut self) {
        match accept_with(&self.listener.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => self.welcome(fd),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // The connection stays in the backlog. Without a pause, the connection would wake
                // the loop again and again.
                tracing::warn!("no descriptor for another connection: accepting none for a second");
                self.accept_after_ns = Some(boottime_ns() + ACCEPT_PAUSE_NS);
                let _ = epoll::delete(&self.epoll, &self.listener.fd);
            }
            Err(_) => {}
        }
    }

    /// Accepts the waiting connections. More may arrive in the meantime, if the former socket has another name.
    pub(super) fn accept_waiting(&mut self) {
        for _ in 0..=BACKLOG {
            let Ok(fd) = accept_with(&self.listener.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
            self.welcome(fd);
        }
    }

    pub(super) fn accept_again(&mut self) {
        self.accept_after_ns = None;
        if let Err(error) = epoll::add(&self.epoll, &self.listener.fd, EventData::new_u64(LISTENER), EventFlags::IN) {
            tracing::error!("epoll_ctl: {error}");
        }
    }

    fn welcome(&mut self, fd: OwnedFd) {
        let Ok(credentials) = getsockopt(&fd, PeerCredentials) else {
            self.lanes.close(Lane::Daemon, fd);
            return;
        };
        let lane = self.lanes.of(credentials.uid());
        // A client that connected before the daemon took over this socket may still send descriptors.
        refuse_descriptors(fd.as_fd());
        let now_ns = boottime_ns();
        if let Some(until_ns) =
            self.bans.until_ns(credentials.uid(), now_ns).filter(|_| !self.is_own(credentials.uid()))
        {
            let seconds = (until_ns - now_ns).div_ceil(1_000_000_000);
            let why = format!("messages to processes of your user took too long: connect again in {seconds} s");
            self.turn_away(fd, lane, why);
            return;
        }
        if self.unread.is_full(lane) && !self.is_own(credentials.uid()) {
            let why = "ended sessions of your user have descriptors that their programs have not received: end these programs";
            self.turn_away(fd, lane, why.into());
            return;
        }
        self.find_unknown();
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let gids = limits::groups(&fd, gid, self.unknown_gid);
        let token = self.connections_ever;
        self.connections_ever += 1;
        if let Err(error) = epoll::add(&self.epoll, &fd, EventData::new_u64(token), EventFlags::IN) {
            tracing::error!("epoll_ctl: {error}");
            // A lane closes the socket, because its queue may already contain descriptors whose last close blocks.
            self.lanes.close(lane, fd);
            return;
        }
        // The client's pidfd. `None` if the process is outside this pid namespace. Then only the
        // hang-up of the socket reports the end of the process.
        let process = match getsockopt(&fd, PeerPidfd) {
            Ok(process) => Some(process),
            // Kernels before 6.5 lack this option. The pid may have been reused since the
            // connection, and this call does not detect that.
            Err(nix::errno::Errno::ENOPROTOOPT) => {
                Pid::from_raw(credentials.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            }
            Err(_) => None,
        };
        let watch = |process| epoll::add(&self.epoll, process, EventData::new_u64(token | PROCESS), EXIT);
        let watched = process.as_ref().is_some_and(|process| watch(process).is_ok());
        let known = self.unknown_uid != Some(uid);
        let command = process.as_ref().and_then(|process| command_of(process, credentials.pid())).unwrap_or_default();
        let peer = Peer { uid, known, pid: credentials.pid().cast_unsigned(), command, gids, watched };
        let former = self.connections.insert(token, Connection::new(fd, uid, process));
        debug_assert!(former.is_none() && token & (PROCESS | WAKEUP) == 0, "each token is of one connection");
        self.deliver(Event::Connected { conn: ConnId(token), peer });
    }

    /// Closes a socket that becomes no connection, and tells the client the reason.
    fn turn_away(&mut self, fd: OwnedFd, lane: Lane, why: String) {
        let refusal = Refusal::Violation(why);
        self.core.count_refusal(&refusal);
        self.lanes.close(lane, Farewell::to_stranger(fd, refusal));
    }

    /// Returns true if this user administers the daemon. The superuser does, and also the daemon's
    /// own user, unless the daemon refuses clients of this user.
    fn is_own(&self, uid: u32) -> bool {
        uid == 0 || (uid == rustix::process::geteuid().as_raw() && self.refused_uid != Some(uid))
    }

    /// Refuses all requests that have arrived, because the daemon is stopping.
    pub(super) fn say_goodbye(&mut self) {
        for connection in self.connections.values_mut() {
            connection.say_goodbye(&self.lanes);
        }
    }
}

/// Returns the name of a process's command, for the log. Returns `None` if the process is not
/// visible. The kernel may reuse a pid, but a process that still exists after the read had the pid
/// all the time.
///
/// The kernel reads the name from its own memory. The command line is in memory of the process,
/// which could delay a reader without limit.
fn command_of(process: &OwnedFd, pid: i32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    // A pidfd is readable when its process has ended.
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    (poll(&mut ended, Some(&Timespec::default())) == Ok(0))
        .then(|| plain(String::from_utf8_lossy(&name).trim_end_matches('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::settings::Mode;
    use crate::sys::{Backing, Devices, FIRST_CONNECTION, Inherited, Listener, Supply, lanes};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, socket_with, socketpair,
    };
    use std::path::Path;
    use tensorlend_layout::wire::{Reply, Request, decode, encode};

    fn listening(path: &Path) -> Shell {
        let settings = limits::settings(&crate::config::Config::default(), Mode::User).unwrap();
        let supply = Supply { backing: Backing::default(), devices: Devices::none("none") };
        Shell::new(Listener::bind(path, 0o600).unwrap(), settings, supply, Inherited::default()).unwrap()
    }

    /// Connects to the shell. Returns the client's socket and the connection's token.
    fn connected(shell: &mut Shell, path: &Path) -> (OwnedFd, u64) {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        shell.accept();
        let (&token, _) = shell.connections.last_key_value().expect("it was accepted");
        assert!(token >= FIRST_CONNECTION);
        (socket, token)
    }

    /// Lets a client of this shell send descriptors, as on kernels before Linux 6.16.
    fn let_send_descriptors(shell: &Shell, token: u64) {
        packet::accept_descriptors(shell.connections[&token].fd.as_fd()).unwrap();
    }

    #[test]
    fn descriptors_of_an_empty_packet_are_closed_in_the_users_lane() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut shell = listening(&path);
        let (socket, token) = connected(&mut shell, &path);
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        let_send_descriptors(&shell, token);
        packet::send(&socket, &[], &[theirs.as_fd()], SendFlags::empty()).unwrap();
        drop(theirs);
        // While all threads of the lane are blocked, only the loop could close the descriptor.
        let stuck = lanes::tests::block(&shell.lanes, shell.lanes.of(shell.connections[&token].uid), 64);
        shell.handle_share(token, EventFlags::IN);
        assert!(!shell.connections.contains_key(&token), "an empty packet ends the connection");
        assert_eq!(recv(&ours, &mut [0; 1], RecvFlags::DONTWAIT).err(), Some(Errno::AGAIN), "the loop closed it");
        drop(stuck);
        assert!(matches!(recv(&ours, &mut [0; 1], RecvFlags::empty()), Ok((0, _))));
    }

    #[test]
    fn a_client_cannot_send_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut shell = listening(&path);
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.unwrap();
        if !packet::refuse_descriptors(ours.as_fd()).unwrap() {
            tensorlend_os::skip::skip("the kernel is older than Linux 6.16 and has no SO_PASSRIGHTS");
            return;
        }
        let early = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&early, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let (late, _) = connected(&mut shell, &path);
        for socket in [early, late] {
            let sent = packet::send(&socket, &[1], &[theirs.as_fd()], SendFlags::empty());
            assert_eq!(sent, Err(Errno::PERM), "before and after the daemon has accepted the connection");
        }
    }

    /// A client repeats a request only if it knows that the daemon has not carried it out.
    #[test]
    fn a_stopping_daemon_leaves_no_request_without_a_reply() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut shell = listening(&path);
        let (asks, _) = connected(&mut shell, &path);
        let (idle, _) = connected(&mut shell, &path);
        let request = encode(&Request::ListDelete { list: "x".into() });
        packet::send(&asks, &request, &[], SendFlags::empty()).unwrap();
        shell.say_goodbye();
        let reply = packet::receive(&asks, RecvFlags::DONTWAIT).unwrap();
        assert_eq!(decode(&reply.bytes), Some(Reply::Refused(Refusal::Stopping)));
        for socket in [asks, idle] {
            assert_eq!(packet::send(&socket, &request, &[], SendFlags::empty()).err(), Some(Errno::PIPE));
            assert_eq!(packet::receive(&socket, RecvFlags::DONTWAIT).err(), Some(Errno::AGAIN), "no further reply");
        }
    }

    #[test]
    fn a_refused_user_is_no_administrator_although_it_is_the_daemons_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = listening(&folder.path().join("s"));
        let own = rustix::process::geteuid().as_raw();
        assert!(shell.is_own(0) && shell.is_own(own) && !shell.is_own(own + 1));
        shell.refused_uid = Some(own);
        assert_eq!(shell.is_own(own), own == 0, "root is never refused");
    }

    #[test]
    fn wakeups_wait_for_a_share_once_for_each_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut shell = listening(&path);
        let ((_one, first), (_other, second)) = (connected(&mut shell, &path), connected(&mut shell, &path));
        let uid = shell.connections[&first].uid;
        let queued = |shell: &Shell| [first, second].map(|token| shell.connections[&token].wakeup_queued);
        shell.shares.begin();
        shell.handle_share(first | WAKEUP, EventFlags::IN);
        assert_eq!(queued(&shell), [false; 2], "the user has its share");
        // Each user may take less than this in one turn.
        shell.shares.add(uid, std::time::Duration::from_secs(1));
        for _ in 0..1000 {
            shell.handle_share(first | WAKEUP, EventFlags::IN);
            shell.handle_share(second | WAKEUP, EventFlags::IN);
        }
        assert_eq!(queued(&shell), [true; 2]);
        shell.shares.begin();
        let tokens = std::iter::from_fn(|| shell.shares.next()).collect::<Vec<_>>();
        assert_eq!(tokens, [first | WAKEUP, second | WAKEUP]);
        for token in tokens {
            shell.handle(token, EventFlags::empty());
        }
        assert_eq!(queued(&shell), [false; 2], "the next write is queued again");
    }
}
