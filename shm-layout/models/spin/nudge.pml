/* The daemon D sleeps while no client announces a name. An honest client A announces names. H is a hostile announcer.
 *
 * D: absorb.rs `absorb_turn`, with its timer, and the eventfds, which epoll reports once for each write.
 * A: announce.rs `announce`: `ring_head`, `wants_nudge`, the write to the eventfd.
 * H stores any value in its `ring_head`, and writes to its eventfd or not, at any time. D ends a client whose ring is out of
 * order. Spin is sequentially consistent: ../genmc/doorbell.c (NUDGE) checks the fences.
 *
 * Property: D does not sleep for ever while a name of A waits. By design, a name of H for which H did not write to its
 * eventfd waits until D's next turn (control OWED_TO_H); look-ups find it in the ring.
 * Bounds: NAMES announcements of A; H acts H_STEPS times.
 *
 * RUN: -DNAMES=2 -DH_STEPS=3
 * RUN: -DNAMES=3 -DH_STEPS=2
 * CONTROL: -DNAMES=1 -DH_STEPS=1 -DPOLLS_EARLY
 * CONTROL: -DNAMES=1 -DH_STEPS=1 -DWRITES_FIRST
 * CONTROL: -DNAMES=1 -DH_STEPS=1 -DNOT_POLLED_AGAIN
 * CONTROL: -DNAMES=2 -DH_STEPS=0 -DSLEEPS_AWAKE
 * CONTROL: -DNAMES=1 -DH_STEPS=1 -DOWED_TO_H
 */
#define RING 2

byte head_a, absorbed_a, head_h, absorbed_h;
bool wants_nudge = true, eventfd_a, eventfd_h, asleep, h_ended;

#define A_WAITS (head_a != absorbed_a)
#define H_WAITS (!h_ended && head_h != absorbed_h)

/* Bindings::absorb for both clients */
inline absorb_all()
{
	absorbed_a = head_a;
	if
	:: h_ended
	:: else ->
		byte head = head_h;
		if
		:: head - absorbed_h > RING || head < absorbed_h -> h_ended = true
		:: else -> absorbed_h = head
		fi;
		head = 0
	fi
}

active proctype D()
{
	bool some, more;
	do
	:: true ->
		/* epoll_wait */
		atomic {
			if
			:: eventfd_a || eventfd_h -> skip
			:: else -> asleep = true
			fi
		}
		atomic { eventfd_a || eventfd_h -> asleep = false; eventfd_a = false; eventfd_h = false };
		/* turns, until none of them finds an announcement */
		do
		:: true ->
			wants_nudge = false;
			some = A_WAITS || H_WAITS;
			absorb_all();
			if
			:: some -> skip /* the timer starts the next turn */
			:: else ->
#ifdef POLLS_EARLY
				more = A_WAITS || H_WAITS;
				wants_nudge = true;
#else
#ifndef SLEEPS_AWAKE
				wants_nudge = true;
#else
				wants_nudge = false;
#endif
#ifndef NOT_POLLED_AGAIN
				more = A_WAITS || H_WAITS;
#endif
#endif
				if
				:: more -> more = false
				:: else -> break
				fi
			fi;
			some = false
		od
	od
}

active proctype A()
{
	do
	:: head_a < NAMES ->
#ifdef WRITES_FIRST
		if
		:: wants_nudge -> eventfd_a = true
		:: else
		fi;
		head_a++
#else
		head_a++;
		if
		:: wants_nudge -> eventfd_a = true
		:: else
		fi
#endif
	:: else -> break
	od
}

active proctype H()
{
	byte n = 0;
	do
	:: n < H_STEPS ->
		n++;
		if
		:: head_h++
		:: head_h = 0
		:: head_h = 200
		:: eventfd_h = true
		fi
	:: else -> break
	od
}

init
{
	timeout -> assert(!(asleep && A_WAITS));
#ifdef OWED_TO_H
	assert(!(asleep && H_WAITS))
#endif
}
