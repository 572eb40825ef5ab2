/* A process P forks a child C, which reads under P's lease. The owner O of the slot reclaims it.
 *
 * P: child_holds.rs `add`, `release` (a thread that releases the lease), `end` (the thread that learns of the child's
 *    end); shards.rs `hold_for_children`, `release`, `end_hold`; forks.rs `ask`.
 * C: reads the bytes. The kernel orders its start after the fork, and P's knowledge of its end (`Token::is_free`) after
 *    its last access: a thread that is started and joined has this order.
 * O: publish.rs `overwrite`, reclaim.rs `scan`, heap.rs `hand_out`.
 *
 * Bounds: one lease in one entry, FORKS forks with one child each, one release, one round of reclaiming, and with AGAIN
 * a second lease in the same entry. Each failed compare-and-exchange means that another thread has succeeded.
 *
 * RUN: -DFORKS=1
 * RUN: -DFORKS=2
 * RUN: -DFORKS=3
 * RUN: -DFORKS=1 -DAGAIN
 * RUN: -DFORKS=1 -DRELEASES_EARLY
 * CONTROL: -DFORKS=1 -DRELEASE_IGNORES_HOLDS
 * CONTROL: -DFORKS=1 -DHOLD_AFTER_FORK
 * CONTROL: -DFORKS=2 -DENDS_IN_TWO_STEPS
 * CONTROL: -DFORKS=1 -DRELAXED_MARK
 * CONTROL: -DFORKS=1 -DRELAXED_STATE
 * CONTROL: -DFORKS=1 -DRELAXED_FAILURE
 * CONTROL: -DFORKS=1 -DRELAXED_END
 * CONTROL: -DFORKS=1 -DEND_WITHOUT_ACQUIRE
 * CONTROL: -DFORKS=2 -DEND_WITHOUT_RELEASE
 * CONTROL: -DFORKS=1 -DEND_BEFORE_CHILD
 * CONTROL: -DFORKS=1 -DRELAXED_RELEASE
 */
#include "words.h"

#define RELEASED 1
#define HOLD 2

static Word cell, holds;
static struct LeaseTable table;
static Bytes bytes[2];

#ifdef RELAXED_MARK
#define MARK_ORDER memory_order_relaxed
#else
#define MARK_ORDER memory_order_release
#endif
/* ChildHolds::release */
static void release(void)
{
#ifndef RELEASE_IGNORES_HOLDS
#ifdef RELAXED_STATE
	int state = word_peek(&holds);
#else
	int state = atomic_load_explicit(&holds, memory_order_acquire);
#endif
	while (state != 0) {
		assert(!(state & RELEASED)); /* a lease is released once */
		if (atomic_compare_exchange_strong_explicit(&holds, &state, state | RELEASED, MARK_ORDER,
							    memory_order_relaxed))
			return;
		/* The failure ordering is Acquire. GenMC ignores failure orderings, so a fence stands for it. */
#ifndef RELAXED_FAILURE
		fence_acquire();
#endif
	}
#endif
	release_lease(&table.entries[0]);
}

#if defined(RELAXED_END)
#define END_ORDER memory_order_relaxed
#elif defined(END_WITHOUT_ACQUIRE)
#define END_ORDER memory_order_release
#elif defined(END_WITHOUT_RELEASE)
#define END_ORDER memory_order_acquire
#else
#define END_ORDER memory_order_acq_rel
#endif

/* ChildHolds::end */
static void end(void)
{
	int state = word_peek(&holds);
#ifdef ENDS_IN_TWO_STEPS
	word_set(&holds, state == (HOLD | RELEASED) ? 0 : state - HOLD);
	if (state == (HOLD | RELEASED))
		release_lease(&table.entries[0]);
#else
	for (;;) {
		assert(state >= HOLD); /* each hold ends once */
		int before = state;
		int left = before == (HOLD | RELEASED) ? 0 : before - HOLD;
		if (atomic_compare_exchange_strong_explicit(&holds, &state, left, END_ORDER, memory_order_relaxed)) {
			if (before == (HOLD | RELEASED))
				release_lease(&table.entries[0]);
			return;
		}
	}
#endif
}

static void *child(void *unused)
{
	reached();
	assert(take(&bytes[0]) == 1);
	return 0;
}

/* The thread of P that waits for the end of a child. */
static void *asks(void *unused)
{
	pthread_t its_child;
	start(&its_child, child);
#ifdef END_BEFORE_CHILD
	end();
	join(its_child);
#else
	join(its_child);
	end();
#endif
	return 0;
}

static void *releases(void *unused)
{
	assert(take(&bytes[0]) == 1);
	release();
	return 0;
}

static void *owner(void *unused)
{
	fill(&bytes[1], 1);
	int before = word_swap(&cell, CELL(1, 1));
	fence_seq_cst(); /* sync::fence_after_swap */
	scan_fence();
	if (!has_lease(&table, before)) {
		fence_release(); /* leases::reuse_fence */
		fill(&bytes[0], 2);
	}
	return 0;
}

/* leases::acquire. Returns whether the lease is valid. */
static int lease(int value)
{
	__VERIFIER_assume(free_entry(&table) == 0);
	store_lease(&table.entries[0], value);
	lease_fence();
	if (word_peek(&cell) != value) {
		word_set(&table.entries[0], 0);
		return 0;
	}
	fence_acquire();
	return 1;
}

int main(void)
{
	pthread_t its_owner, its_releaser, its_forks[FORKS];
	fill(&bytes[0], 1);
	word_set(&cell, CELL(1, 0));
	assert(lease(CELL(1, 0)));
	start(&its_owner, owner);
#ifdef RELEASES_EARLY
	/* Another thread releases while P forks: the child has no value then, unless it has one before the release. */
	start(&its_releaser, releases);
	atomic_fetch_add_explicit(&holds, HOLD, memory_order_relaxed);
	end(); /* no child reads */
	reached();
	join(its_releaser);
#else
	for (int f = 0; f < FORKS; f++) {
#ifndef HOLD_AFTER_FORK
		atomic_fetch_add_explicit(&holds, HOLD, memory_order_relaxed); /* ChildHolds::add, then fork */
#endif
		start(&its_forks[f], asks);
	}
	start(&its_releaser, releases);
#ifdef HOLD_AFTER_FORK
	atomic_fetch_add_explicit(&holds, HOLD, memory_order_relaxed);
#endif
	join(its_releaser);
#ifdef AGAIN
	/* A later lease of the same entry. It begins only when the entry is free, and its value must be whole. */
	int value = word_read(&cell);
	if (word_read(&table.entries[0]) == 0 && lease(value)) {
		assert(take(&bytes[SLOT(value)]) == 1);
		release();
	}
#endif
	for (int f = 0; f < FORKS; f++)
		join(its_forks[f]);
#endif
	assert(word_peek(&table.entries[0]) == 0); /* the entry is cleared when no process reads any more */
	join(its_owner);
	return 0;
}
