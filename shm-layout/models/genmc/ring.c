/* A producer P of a stream replaces the oldest messages, while subscribers look for messages and lease them.
 *
 * P: writer.rs `send` and reclaim.rs (`scan`, then `hand_out`), which fills the slots of replaced messages again.
 * S: subscriber.rs `poll` (`find`, `take::hold`, `advance`; after `Lost` it continues with the oldest message).
 *
 * Bounds: a ring of CAPACITY entries, MESSAGES messages, of which the first is sent before the threads start; READERS
 * subscribers, each with TURNS turns of `poll` from message FIRST on. The stream's name does not move here.
 *
 * RUN: -DCAPACITY=1 -DMESSAGES=3 -DREADERS=1 -DTURNS=3
 * RUN: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=2 -DTURNS=2
 * RUN: -DCAPACITY=1 -DMESSAGES=3 -DREADERS=2 -DTURNS=1
 * RUN: -DCAPACITY=2 -DMESSAGES=4 -DREADERS=1 -DTURNS=3
 * RUN: -DCAPACITY=2 -DMESSAGES=4 -DREADERS=2 -DTURNS=2
 * RUN: -DCAPACITY=2 -DMESSAGES=4 -DREADERS=1 -DTURNS=2 -DFIRST=1
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DTAIL_LATE
 * CONTROL: -DCAPACITY=1 -DMESSAGES=3 -DREADERS=1 -DTURNS=2 -DNOT_EMPTIED
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DWITHOUT_EMPTIED_FENCE
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=2 -DCELL_FIRST
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=2 -DCELL_RELAXED
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DEMPTIED_RELAXED
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=2 -DFIND_RELAXED
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DAHEAD_WITHOUT_ACQUIRE
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DNOT_AGAIN
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DWITHOUT_LEASE_FENCE
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DWITHOUT_SCAN_FENCE
 * CONTROL: -DCAPACITY=1 -DMESSAGES=2 -DREADERS=1 -DTURNS=1 -DRELAXED_RELEASE
 */
#include "ring.h"

#ifndef FIRST
#define FIRST 0
#endif

static struct LeaseTable tables[READERS];
static Word cursors[READERS];
/* The message at which each subscriber stopped, because it was not sent yet; -1: none. */
static int waits_for[READERS];

static void subscriber(int me)
{
	int next = FIRST;
	waits_for[me] = -1;
	for (int turn = 0; turn < TURNS; turn++) {
		struct Found found;
		find(next, &found);
		if (found.kind == NOT_YET) {
			/* The first message was sent before this subscriber started. */
			assert(next != 0);
			waits_for[me] = next;
			return;
		}
		if (found.kind == LOST) {
			assert(found.oldest > next && found.oldest < MESSAGES);
			next = found.oldest;
			continue;
		}
		int at = free_entry(&tables[me]);
		if (!lease(&tables[me], at, found.cell, LIVE(1, 0), &ENTRY(next)->cell, found.cell))
			continue;
		if (next > 0 || TURNS == 1)
			reached();
		assert(found.cell == MESSAGE(next) && found.summary == next + 1);
		next++;
		word_set(&cursors[me], next);
		fence_seq_cst(); /* Subscription::unblock */
		/* The program uses the message, and drops it. */
		assert(take(&bytes[SLOT(found.cell)]) == 1);
		release_lease(&tables[me].entries[at]);
	}
}

static void *subscriber0(void *unused)
{
	subscriber(0);
	return 0;
}

static void *subscriber1(void *unused)
{
	subscriber(1);
	return 0;
}

static void *producer(void *unused)
{
	for (int number = 1; number < MESSAGES; number++) {
		int replaced = send(number);
		if (!replaced)
			continue;
		scan_fence();
		int leased = 0;
		for (int r = 0; r < READERS; r++)
			leased = leased || has_lease(&tables[r], replaced);
		if (!leased) {
			fence_release(); /* leases::reuse_fence */
			fill(&bytes[SLOT(replaced)], 2);
		}
	}
	return 0;
}

int main(void)
{
	pthread_t threads[3];
	struct Found found;
	word_set(&owner_word, LIVE(1, 0));
	send(0);
	start(&threads[0], producer);
	start(&threads[1], subscriber0);
	if (READERS == 2)
		start(&threads[2], subscriber1);
	for (int i = 0; i < 1 + READERS; i++)
		join(threads[i]);
	/* A message that was sent is found or lost, and never waited for. */
	for (int r = 0; r < READERS; r++)
		if (waits_for[r] >= 0 && waits_for[r] < MESSAGES)
			assert(find(waits_for[r], &found) != NOT_YET);
	return 0;
}
