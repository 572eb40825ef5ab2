/* Consumers of a queue wait in the daemon D, or for the directory's bell. A producer puts items, and waits for the bell
 * while the queue is full. A hostile client takes items, gives them back, and ends.
 *
 * T1: feed.rs `fill` and `claim`, waiting.rs `exchange_waiting`, queue.rs `ask_until`. T2: a thread of the same client,
 * which needs the connection: waiting.rs `ready`. C2: a consumer of another client. P: queue.rs `put` with a maximum.
 * D: bindings/queue.rs `queue_put`, `queue_claim`, `Done`, `GiveBack`, `end_claims`; the parked requests of changed
 * queues at the end of each step; members.rs `wake`. Each request is one step of D.
 *
 * H sends any of these requests at any time, keeps an item as long as it wants, ends its session, and writes any value
 * to its parked word. Property: no honest consumer waits for ever while an item waits, and P does not sleep for ever
 * while there is room. By design, items that H has claimed do not wait, and H may take each item that is put. The timers of
 * the code are left out: T1's `Stop` after a second (ASK_AGAIN), which finds a daemon that hangs, and the sleeps' limits.
 * Bounds: P puts ITEMS items one by one, at most MAXIMUM wait; T1 and C2 take what they get until the end; T2 sends one
 * request; H sends H_STEPS requests.
 *
 * RUN: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=2
 * RUN: -DITEMS=3 -DMAXIMUM=2 -DH_STEPS=1
 * RUN: -DITEMS=3 -DMAXIMUM=9 -DH_STEPS=2 -DPUTS_WITHOUT_MAXIMUM
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DSAMPLED_LATE
 * CONTROL: -DITEMS=2 -DMAXIMUM=9 -DH_STEPS=1 -DPUTS_WITHOUT_MAXIMUM -DPARKED_LATE
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DSTOP_IGNORED
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DNOT_NOTED_AS_FULL
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DPUT_TRIES_NONE
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DPUT_RINGS_NOT
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=2 -DGIVEN_BACK_TRIES_NONE
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=2 -DGIVEN_BACK_RINGS_NOT
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=2 -DEND_TRIES_NONE
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=2 -DEND_RINGS_NOT
 * CONTROL: -DITEMS=2 -DMAXIMUM=1 -DH_STEPS=1 -DROOM_RINGS_NOT
 */
/* Clients of D: 0 (T1 and T2), 1 (C2), 2 (P), 3 (H). Replies: */
#define NONE 0
#define CLAIMED 1
#define EMPTY 2

byte waiting, claimed_by_h; /* items */
byte bell;
byte marks0;                /* T1's and T2's marks of client 0's parked word */
bool parked2, parked_h;     /* P's, and H's */
bool refused;               /* a Put was refused, and would fit if fewer items waited */
bool is_parked[2];          /* client 0 and client 1 have a parked request */
byte reply[2];
bool stopped;               /* a thread of client 0 has sent `Stop`: Waiting::stopped */
bool t1_asleep, p_asleep, t1_waits, t2_waits;
byte put, taken;

/* The kernel wakes the sleepers of the bell. */
inline ring()
{
	if
	:: marks0 || parked2 || parked_h -> bell++; t1_asleep = false; p_asleep = false
	:: else
	fi
}

/* The end of a step of D: answers the parked requests of a changed queue, the oldest first. (Here: any first.) */
inline try_parked()
{
	do
	:: waiting > 0 && is_parked[0] -> waiting--; is_parked[0] = false; reply[0] = CLAIMED; claims_make_room()
	:: waiting > 0 && is_parked[1] -> waiting--; is_parked[1] = false; reply[1] = CLAIMED; claims_make_room()
	:: else -> break
	od
}

/* Claims::take_refused */
inline claims_make_room()
{
	if
#ifndef ROOM_RINGS_NOT
	:: refused && waiting < MAXIMUM -> refused = false; must_ring = true
#endif
	:: else
	fi
}

/* D's rings follow the stores of a step: `announce`, then members.rs `wake`. */
inline end_step()
{
	if
	:: must_ring -> must_ring = false; ring()
	:: else
	fi
}

bool must_ring;

/* A Claim without `wait`, of client 0. */
inline claim_now(result)
{
	atomic {
		if
		:: waiting > 0 -> waiting--; result = CLAIMED; claims_make_room(); end_step()
		:: else -> result = EMPTY
		fi
	}
}

active proctype T1()
{
	byte sample, result;
	bool was_stopped;
	do
	:: true ->
		/* A Claim with `wait`. T2 may be using the connection. */
		atomic {
			!t2_waits ->
			if
			:: waiting > 0 -> waiting--; reply[0] = CLAIMED; claims_make_room(); end_step()
			:: else -> is_parked[0] = true
			fi;
			t1_waits = true;
			stopped = false
		};
		atomic {
			reply[0] != NONE ->
			result = reply[0];
			reply[0] = NONE;
			was_stopped = stopped;
			t1_waits = false
		};
		if
		:: result == CLAIMED -> taken++
		:: else ->
			/* Outcome::Shared: ask_until, until the next item. (The code claims with `wait` again after a second.) */
			do
			:: true ->
#ifdef SAMPLED_LATE
				marks0 = marks0 | 1;
				claim_now(result);
				sample = bell;
#elif defined(PARKED_LATE)
				sample = bell;
				claim_now(result);
				marks0 = marks0 | 1;
#else
				sample = bell;
				marks0 = marks0 | 1;
				claim_now(result);
#endif
				if
				:: result == CLAIMED -> marks0 = marks0 & 2; taken++; break
				:: else
				fi;
				atomic {
					if
					:: bell == sample -> t1_asleep = true
					:: else
					fi
				}
				!t1_asleep;
				marks0 = marks0 & 2;
				sample = 0
			od
		fi;
		result = NONE;
		sample = 0;
		was_stopped = false
	od
}

/* Another thread of client 0: ends T1's wait, and sends a request of its own. */
active proctype T2()
{
	atomic {
		if
		:: t1_waits ->
			t2_waits = true;
			stopped = true;
			/* `Stop`: D replies Empty, unless it has replied. */
#ifndef STOP_IGNORED
			if
			:: is_parked[0] -> is_parked[0] = false; reply[0] = EMPTY
			:: else
			fi
#endif
		:: else
		fi
	}
	atomic { !t1_waits -> t2_waits = false }
}

active proctype C2()
{
	do
	:: true ->
		atomic {
			if
			:: waiting > 0 -> waiting--; reply[1] = CLAIMED; claims_make_room(); end_step()
			:: else -> is_parked[1] = true
			fi
		};
		atomic { reply[1] != NONE -> reply[1] = NONE; taken++ };
		/* It works on the item, and confirms it with the next Claim; or it stops here. */
		if
		:: true
		:: true -> break
		fi
	od
}

active proctype P()
{
	byte sample;
	bool is_full;
	do
	:: put == ITEMS -> break
	:: else ->
		sample = bell;
#ifndef PUTS_WITHOUT_MAXIMUM
		parked2 = true;
#endif
		atomic {
			is_full = waiting >= MAXIMUM;
			if
			:: is_full ->
#ifndef NOT_NOTED_AS_FULL
				refused = true
#else
				skip
#endif
			:: else ->
				waiting++;
				put++;
#ifndef PUT_RINGS_NOT
				must_ring = true;
#endif
#ifndef PUT_TRIES_NONE
				try_parked();
#endif
				end_step()
			fi
		};
		atomic {
			if
			:: is_full && bell == sample -> p_asleep = true
			:: else
			fi
		}
		!p_asleep;
		parked2 = false;
		sample = 0;
		is_full = false
	od
}

/* Items of H wait again: it gives one back, or its session ends. */
active proctype H()
{
	byte n = 0;
	do
	:: n < H_STEPS ->
		n++;
		if
		:: atomic { waiting > 0 -> waiting--; claimed_by_h++; claims_make_room(); end_step() }
		:: atomic {
			claimed_by_h > 0 -> claimed_by_h--; waiting++;
#ifndef GIVEN_BACK_RINGS_NOT
			must_ring = true;
#endif
#ifndef GIVEN_BACK_TRIES_NONE
			try_parked();
#endif
			end_step() }
		:: atomic {
			claimed_by_h > 0 -> waiting = waiting + claimed_by_h; claimed_by_h = 0;
#ifndef END_RINGS_NOT
			must_ring = true;
#endif
#ifndef END_TRIES_NONE
			try_parked();
#endif
			end_step(); break }
		:: parked_h = true
		:: parked_h = false
		:: break
		fi
	:: else -> break
	od
}

init
{
	timeout ->
	assert(waiting == 0 || !(is_parked[0] || is_parked[1] || t1_asleep));
	assert(!(p_asleep && waiting < MAXIMUM));
	assert(!t2_waits) /* T2 gets the connection */
}
