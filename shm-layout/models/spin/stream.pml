/* A producer P of a stream with the policy block, an honest subscriber S, and a hostile subscriber H. P sends MESSAGES
 * messages and closes the stream. S takes all of them and then sees the end.
 *
 * P: writer.rs `room`, `park`, `Asleep::sleep`, `unpark`, `send`, `wake`; producer.rs `with_room`, `drop`.
 * S: subscriber.rs `sleep`, `park`, `poll`, `advance`, `unblock`; follow.rs `follow_on`; with POLLABLE `try_recv` and
 * `arm`, and a sleep in epoll on the wake pair.
 * H writes any value to its cursor and to its parked word, rings its bell or not, and calls FUTEX_WAKE on any bell.
 *
 * Spin is sequentially consistent: the fences between the steps are checked in ../genmc/doorbell.c.
 * Property: S never sleeps for ever while a message or the end is there, and S misses no message. P never sleeps for
 * ever while there is room, except by design: H may never move its cursor (then there is no room), or may move it
 * without ringing (control OWED_TO_H): P's sleep of at most 25 ms then ends by its timeout.
 * Bounds: a ring of CAPACITY entries; H acts H_STEPS times.
 *
 * RUN: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=2 -DH_STARTS=0
 * RUN: -DMESSAGES=3 -DCAPACITY=2 -DH_STEPS=1 -DH_STARTS=GONE
 * RUN: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=2 -DH_STARTS=0 -DPOLLABLE
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DS_POLLS_EARLY
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DS_SAMPLES_LATE
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DP_POLLS_EARLY
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DP_SAMPLES_LATE
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DWAKES_FIRST
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DUNBLOCKS_FIRST
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DCLOSES_LATE
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DEND_BELIEVED
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DPOLLABLE -DDRAINS_AFTER_POLL
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DPOLLABLE -DS_POLLS_EARLY
 * CONTROL: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=0 -DOWED_TO_H
 * NEEDLESS: -DMESSAGES=2 -DCAPACITY=1 -DH_STEPS=1 -DH_STARTS=GONE -DPOLLABLE -DDRAINS_LATE
 */
#define GONE 99
#ifdef POLLABLE
#define MARK 2
#else
#define MARK 1
#endif

byte head, closed, bell, producer_parked;
byte cursor_h = H_STARTS; /* GONE: H has passed all messages */
byte cursor_s, bell_s, bell_h, parked_s, parked_h;
byte byte_s; /* the wake pair of S */
byte next = 0; /* the number of P's next message */
bool s_asleep, s_woken, s_over, p_asleep, p_woken;
/* H was the last to make room, after P had read the cursors. */
bool h_made_room;

#define ROOM (next < CAPACITY || (cursor_s > next - CAPACITY && cursor_h > next - CAPACITY))
#define NEWS_FOR_S (head > cursor_s || closed)

/* Writer::wake */
inline wake()
{
	bool sleepers = false;
	if
	:: parked_s == 1 -> sleepers = true
	:: parked_s == 2 -> byte_s = 1
	:: parked_s == 0
	fi;
	if
	:: parked_h == 1 -> sleepers = true
	:: else
	fi;
	if
	:: sleepers -> bell++; s_woken = true; sleepers = false
	:: else
	fi
}

active proctype P()
{
	byte s, h;
	bool is_full;
	do
	:: next < MESSAGES ->
		do
		:: ROOM -> break
		:: else ->
			atomic { h_made_room = false; s = bell_s };
			h = bell_h;
#ifdef P_SAMPLES_LATE
			producer_parked = 1;
			is_full = !ROOM;
			s = bell_s;
			h = bell_h;
#elif defined(P_POLLS_EARLY)
			is_full = !ROOM;
			producer_parked = 1;
#else
			producer_parked = 1;
			is_full = !ROOM;
#endif
			atomic {
				if
				:: is_full && s == bell_s && h == bell_h -> p_asleep = true; p_woken = false
				:: else
				fi
			}
			atomic { !p_asleep || p_woken -> p_asleep = false; s = 0; h = 0; is_full = false };
			producer_parked = 0
		od;
#ifdef WAKES_FIRST
		wake();
		atomic { head = next + 1; next++ }
#else
		atomic { head = next + 1; next++ };
		wake()
#endif
	:: else -> break
	od;
	/* Stream::drop */
#ifdef CLOSES_LATE
	wake();
	closed = 1
#else
	closed = 1;
	wake()
#endif
}

active proctype S()
{
	byte sample;
	bool got, ended;
	do
	:: s_over -> break
	:: else ->
		/* park, then poll; or `arm`: drains the pair first */
#ifdef POLLABLE
#ifdef S_POLLS_EARLY
		got = head > cursor_s;
		ended = !got && closed;
#endif
#ifdef DRAINS_LATE
		parked_s = MARK;
		byte_s = 0;
#elif defined(DRAINS_AFTER_POLL)
		parked_s = MARK;
#else
		byte_s = 0;
		parked_s = MARK;
#endif
#else
#ifndef S_SAMPLES_LATE
		sample = bell;
#endif
#ifdef S_POLLS_EARLY
		got = head > cursor_s;
		ended = !got && closed;
#endif
		parked_s = MARK;
#endif
#ifndef S_POLLS_EARLY
		got = head > cursor_s;
		/* `closed` is read after the entry */
		ended = !got && closed;
#endif
#ifdef DRAINS_AFTER_POLL
		byte_s = 0;
#endif
#ifdef S_SAMPLES_LATE
		sample = bell;
#endif
		if
		:: ended ->
#ifndef END_BELIEVED
			/* follow_on: polls once more after it has seen the end */
			got = head > cursor_s;
#endif
			ended = !got
		:: else
		fi;
		if
		:: !got && !ended ->
#ifdef POLLABLE
			atomic { s_asleep = true; s_woken = false };
			atomic { byte_s -> s_asleep = false }
#else
			atomic {
				if
				:: sample == bell -> s_asleep = true; s_woken = false
				:: else
				fi
			}
			atomic { !s_asleep || s_woken -> s_asleep = false }
#endif
		:: else
		fi;
#ifndef POLLABLE
		parked_s = 0;
#endif
		if
		:: got ->
			/* advance, unblock */
#ifdef UNBLOCKS_FIRST
			if
			:: producer_parked -> bell_s++; p_woken = true
			:: else
			fi;
			cursor_s++
#else
			cursor_s++;
			if
			:: producer_parked -> bell_s++; p_woken = true
			:: else
			fi
#endif
		:: else
		fi;
		s_over = ended;
		atomic { got = false; ended = false; sample = 0 }
	od;
	assert(cursor_s == MESSAGES) /* no message is missed */
}

/* H's cursor: any value, without a ring. */
inline move(value)
{
	h_made_room = h_made_room || (!ROOM && (next < CAPACITY || (cursor_s > next - CAPACITY && value > next - CAPACITY)));
	cursor_h = value
}

active proctype H()
{
	byte n = 0;
	do
	:: n < H_STEPS ->
		n++;
		if
		:: atomic { true -> move(0) }
		:: atomic { true -> move(1) }
		:: atomic { true -> move(GONE) }
		:: parked_h = 0
		:: parked_h = 1
		:: parked_h = 2
		:: atomic { true -> bell_h++; p_woken = true }
		:: p_woken = true
		:: s_woken = true
		fi
	:: else -> break
	od
}

init
{
	timeout ->
	assert(!(s_asleep && !s_woken && NEWS_FOR_S && !byte_s));
#ifdef OWED_TO_H
	assert(!(p_asleep && !p_woken && ROOM))
#else
	assert(!(p_asleep && !p_woken && ROOM && !h_made_room))
#endif
}
