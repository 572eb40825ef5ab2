/* A thread S waits for a newer value of a name. The name's owner publishes, and the daemon D moves the name to another
 * owner, which then publishes. A second thread T of S's client waits for something else. H is hostile.
 *
 * S, T: wait.rs `wait_key`, parking.rs `Parking::change`. Owners: publish.rs `overwrite`, `ring`; peers/mod.rs
 * `anybody_parked`. D: the owner word, then members.rs `wake`. H writes any value to its parked word, and calls
 * FUTEX_WAKE on any bell, at any time.
 *
 * Spin is sequentially consistent: the fences between the steps are checked in ../genmc/doorbell.c.
 * Property: no honest thread sleeps for ever while the name has a value that it has not seen. Sleeps have no timeout.
 * By design, H can do one more thing: FUTEX_CMP_REQUEUE moves sleepers to another futex of H (control REQUEUES). Only
 * the timeout of each sleep ends such a sleep.
 * Bounds: owner 0 publishes at most PUTS times; the name moves once; owner 1 deletes the value and publishes another
 * one; H acts H_STEPS times.
 *
 * RUN: -DPUTS=1 -DH_STEPS=1 -DWITHOUT_T
 * RUN: -DPUTS=1 -DH_STEPS=0
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DPOLLED_EARLY
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DSAMPLED_LATE
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DWAKES_FIRST
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DONE_BELL
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DOWNER_NOT_AGAIN
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DMARK_REPLACED
 * CONTROL: -DPUTS=1 -DH_STEPS=0 -DWAKE_WITHOUT_RING
 * CONTROL: -DPUTS=1 -DH_STEPS=1 -DREQUEUES
 */
#define OWNER(version) (version / 16)
#define LATEST (OWNER(owner) * 16 + cells[OWNER(owner)])
/* The first operation of owner 1 is a delete. */
#define IS_NEWER(now) (now != seen && now != 17)

#ifdef ONE_BELL
#define DIRECTORY_SILENT true
#define WAKES(bell) (bell == sleeps_on)
#else
#define DIRECTORY_SILENT (bells[2] == directory_sample)
#define WAKES(bell) (bell == sleeps_on || bell == 2)
#endif

/* The owner word: 0 or 1, times 16. The cells of the two owners: the number of publications. */
byte owner = 0;
byte cells[2];
byte bells[3]; /* of owner 0, owner 1, and the directory (2) */
byte parked, parked_of_h; /* bit 0: owner 0, bit 1: owner 1, bit 2: any name */
byte waits[3];            /* threads of S's client that wait, for each bit */
byte seen = 0;
/* Whether S sleeps, on which owner's bell, and whether a wake-up reached it. */
bool asleep, woken, requeued;
byte sleeps_on;
bool published[2];

inline wake_all(bell)
{
	if
	:: asleep && !requeued && WAKES(bell) -> woken = true
	:: else
	fi
}

/* Bell::ring and futex wake: two steps */
inline ring(bell)
{
#ifndef WAKE_WITHOUT_RING
	bells[bell]++;
#endif
	atomic { wake_all(bell) }
}

/* anybody_parked reads the parked word of each waiter, in turn */
inline ring_if_parked(mask, bell)
{
	byte its = parked;
	if
	:: its & (mask) -> ring(bell)
	:: else ->
		its = parked_of_h;
		if
		:: its & (mask) -> ring(bell)
		:: else
		fi
	fi;
	its = 0
}

/* Parking::change, under its lock */
inline change(owners_bit, more)
{
	atomic {
		if
		:: more -> waits[owners_bit]++; waits[2]++
		:: else -> waits[owners_bit]--; waits[2]--
		fi;
#ifdef MARK_REPLACED
		parked = (more -> (1 << owners_bit | 4) : 0)
#else
		parked = (waits[0] > 0 -> 1 : 0) | (waits[1] > 0 -> 2 : 0) | (waits[2] > 0 -> 4 : 0)
#endif
	}
}

active proctype S()
{
	byte directory_sample, its, sample, now;
again:
#ifndef SAMPLED_LATE
	directory_sample = bells[2];
#endif
	its = OWNER(owner);
#ifndef SAMPLED_LATE
	sample = bells[its];
#endif
#ifdef POLLED_EARLY
	atomic { now = LATEST };
	change(its, true);
#else
	change(its, true);
	/* peek: the owner word, then the cell, and again if the owner word has changed */
	atomic { now = LATEST };
#endif
#ifdef SAMPLED_LATE
	directory_sample = bells[2];
	sample = bells[its];
#endif
	if
	:: IS_NEWER(now) -> change(its, false); goto over
	:: else
	fi;
#ifndef OWNER_NOT_AGAIN
	if
	:: OWNER(now) != its -> change(its, false); goto again
	:: else
	fi;
#endif
	/* futex_waitv compares and queues in one step */
	atomic {
		if
		:: bells[its] == sample && DIRECTORY_SILENT -> asleep = true; woken = false; sleeps_on = its
		:: else
		fi
	}
	atomic { !asleep || woken -> asleep = false; woken = false; sleeps_on = 0; sample = 0; directory_sample = 0 };
	change(its, false);
	goto again;
over:
	atomic { seen = now; now = 0; sample = 0; directory_sample = 0; its = 0 };
	if
	:: published[0] && published[1] && seen == LATEST -> skip
	:: else -> goto again
	fi
}

/* Another thread of the client, which waits for a name of owner 1 and gives up. */
active proctype T()
{
#ifndef WITHOUT_T
	change(1, true);
	change(1, false);
#endif
	skip
}

proctype Owner(byte me)
{
	byte n = 0;
	/* `overwrite` checks that the name is this owner's */
	do
	:: n < (me == 0 -> PUTS : 2) && OWNER(owner) == me ->
#ifdef WAKES_FIRST
		ring_if_parked(1 << me, me);
		cells[me]++;
#else
		cells[me]++;
		ring_if_parked(1 << me, me);
#endif
		n++
	:: n == (me == 0 -> PUTS : 2) || (me == 0 && OWNER(owner) != 0) -> break
	od;
	published[me] = true
}

active proctype D()
{
	owner = 16;
	ring_if_parked(7, 2)
}

active proctype H()
{
	byte n = 0;
	do
	:: n < H_STEPS ->
		n++;
		if
		:: parked_of_h = 0
		:: parked_of_h = 7
		:: atomic { true -> wake_all(0) }
		:: atomic { true -> wake_all(1) }
		:: atomic { true -> wake_all(2) }
#ifdef REQUEUES
		:: atomic { asleep -> requeued = true }
#endif
		fi
	:: n == H_STEPS -> break
	od
}

init
{
	atomic { run Owner(0); run Owner(1) }
	timeout -> assert(!(asleep && !woken && IS_NEWER(LATEST)))
}
