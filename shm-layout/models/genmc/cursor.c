/* A producer P of a stream whose policy is block replaces a message only when every listed cursor has passed it. A
 * subscriber S reads messages by its cursor alone, after a lease on the first one, and with a lease on the segment.
 *
 * P: writer.rs `room`, `refresh`, `send`, `wake`; session/streams.rs `ClosedRing::is_gone`; reclaim.rs.
 * S: subscriber.rs `join`, `begin`, `poll`, `advance`; borrowed.rs `come_near`, `borrow_near`, `Plain::drop`.
 * D: stream/subscribers.rs `add_subscriber`; the owner word of a deleted or reopened stream; and with SEGMENT, for a P
 *    that has ended, collection.rs: fence, scan of the lease tables, segment freed.
 *
 * Modes: JOINS (S subscribes while P sends), DELETED (P takes the messages back), REOPENED (D opens the stream again),
 * SEGMENT (D frees the segment). Bounds: a ring of CAPACITY entries, MESSAGES messages; one subscriber that leases one
 * message and borrows up to BORROWS; P gives up if the ring is full.
 *
 * RUN: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=2
 * RUN: -DJOINS -DCAPACITY=1 -DMESSAGES=4 -DBORROWS=1
 * RUN: -DJOINS -DCAPACITY=2 -DMESSAGES=4 -DBORROWS=2
 * RUN: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DNEXT
 * RUN: -DJOINS -DCAPACITY=2 -DMESSAGES=4 -DBORROWS=2 -DOLDEST
 * RUN: -DJOINS -DCAPACITY=2 -DMESSAGES=5 -DBORROWS=3
 * RUN: -DDELETED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1
 * RUN: -DREOPENED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1
 * RUN: -DSEGMENT -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DNEXT -DBEGINS_WITHOUT_FENCE
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DNEXT -DWITHOUT_NEWS_FENCE
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DCURSOR_NOT_CLEARED
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DFIRST_BORROWED
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DCELL_NOT_AGAIN
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DSTILL_HAS_WITHOUT_ACQUIRE
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DPASSED_EARLY
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DNEXT -DPASSED_BEFORE_LEASE
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DRELAXED_CURSOR
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DVERSION_FIRST
 * CONTROL: -DJOINS -DCAPACITY=1 -DMESSAGES=3 -DBORROWS=1 -DNONE_IS_LOST
 * CONTROL: -DJOINS -DCAPACITY=2 -DMESSAGES=4 -DBORROWS=1 -DOLDEST -DNONE_IS_LOST
 * CONTROL: -DDELETED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DNAMED_LATE
 * CONTROL: -DDELETED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DFIRST_BORROWED
 * CONTROL: -DDELETED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DPASSED_EARLY
 * CONTROL: -DDELETED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DWITHOUT_SCAN_FENCE
 * CONTROL: -DREOPENED -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DEND_SEEN_IN_ID
 * CONTROL: -DSEGMENT -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DSEGMENT_NOT_LEASED
 * CONTROL: -DSEGMENT -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DSEGMENT_WITHOUT_OWNER_WORD
 * CONTROL: -DSEGMENT -DCAPACITY=2 -DMESSAGES=2 -DBORROWS=1 -DWITHOUT_SCAN_FENCE
 */
#define ENTRIES 2
#include "ring.h"

#define STREAM 9
#define NONE 1000
#define SEGMENT_LEASE 777

static struct LeaseTable table;
static Word next_word, stream_word; /* Cursor.next, Cursor.stream */
static Word id, version, subscribers, request, reply;

static void news_fence(void)
{
#ifndef WITHOUT_NEWS_FENCE
	fence_seq_cst();
#endif
}

/* Subscription::advance */
static void advance(int next)
{
#ifdef RELAXED_CURSOR
	word_put(&next_word, next);
#else
	word_set(&next_word, next);
#endif
	fence_seq_cst(); /* Subscription::unblock */
}

/* borrow_near, then the use of the message, then Plain::drop. Returns false if the message is not there. */
static int borrow(int number)
{
	struct Found found;
	find(number, &found);
	if (found.kind != MESSAGE_FOUND) {
#ifdef JOINS
		assert(found.kind != LOST); /* nothing is lost after the first message */
#endif
		return 0;
	}
	/* Ring::still_has */
#ifndef STILL_HAS_WITHOUT_ACQUIRE
	fence_acquire();
#endif
#ifndef CELL_NOT_AGAIN
	if (word_peek(&ENTRY(number)->cell) != found.cell)
		return 0;
#endif
	reached();
	assert(found.cell == MESSAGE(number) && found.summary == number + 1);
#ifdef PASSED_EARLY
	advance(number + 1);
#endif
	assert(take(&bytes[SLOT(found.cell)]) == 1);
	advance(number + 1);
	return 1;
}

/* `poll` and `come_near` for the first message. Returns the number of the next message, or -1. */
static int take_first(int number, int granted)
{
	struct Found found;
	int at = 0, is_leased = 0;
	for (int turn = 0; turn < 4 && !is_leased; turn++) {
		int kind = find(number, &found);
		if (kind == NOT_YET)
			return -1;
		if (kind == LOST) {
#if defined(NEXT) || defined(NONE_IS_LOST)
			assert(!"a message is lost");
#endif
			number = found.oldest;
			continue;
		}
#ifdef FIRST_BORROWED
		return borrow(number) ? number + 1 : -1;
#endif
#ifdef PASSED_BEFORE_LEASE
		advance(number + 1);
#endif
		at = free_entry(&table);
		is_leased = lease(&table, at, found.cell, granted, &ENTRY(number)->cell, found.cell);
		if (!is_leased && word_read(&owner_word) != granted)
			return -1;
	}
	__VERIFIER_assume(is_leased); /* the producer sends fewer messages */
	assert(found.cell == MESSAGE(number) && found.summary == number + 1);
	advance(number + 1);
#if defined(SEGMENT) && !defined(SEGMENT_NOT_LEASED)
	int of_segment = free_entry(&table);
#ifdef SEGMENT_WITHOUT_OWNER_WORD
	store_lease(&table.entries[of_segment], SEGMENT_LEASE);
	lease_fence();
#else
	if (!lease(&table, of_segment, SEGMENT_LEASE, granted, 0, 0)) {
		release_lease(&table.entries[at]);
		return -1;
	}
#endif
#endif
	assert(take(&bytes[SLOT(found.cell)]) == 1);
	release_lease(&table.entries[at]);
	return number + 1;
}

static void *subscriber(void *unused)
{
	int granted = LIVE(1, 0), first = 0;
	/* join */
#ifndef CURSOR_NOT_CLEARED
	word_set(&next_word, 0);
#endif
	word_set(&stream_word, 0);
#ifdef JOINS
	word_set(&request, 1);
	if (word_read(&reply) == 0) {
		__VERIFIER_assume(0);
	}
#endif
#ifndef NAMED_LATE
	word_set(&stream_word, STREAM);
#endif
	/* begin: Start::Newest, with OLDEST or without JOINS Start::Oldest, with NEXT Start::Next */
#ifndef BEGINS_WITHOUT_FENCE
	fence_seq_cst();
#endif
#ifdef JOINS
	int sent = word_read(&head), oldest = word_read(&tail);
#ifdef NEXT
	first = sent;
#elif defined(OLDEST)
	first = oldest;
#else
	first = sent > 0 && sent - 1 > oldest ? sent - 1 : oldest;
#endif
#endif
	advance(first);
	int next = take_first(first, granted);
#ifdef NAMED_LATE
	word_set(&stream_word, STREAM);
#endif
	for (int i = 0; i < BORROWS && next >= 0 && next < MESSAGES; i++)
		next = borrow(next) ? next + 1 : -1;
	return 0;
}

static void *daemon(void *unused)
{
#ifdef JOINS
	if (word_read(&request) == 0)
		return 0;
#ifdef VERSION_FIRST
	word_set_bits(&version, 1);
	word_set(&reply, 1);
#endif
	word_set(&subscribers, 1);
	word_set_bits(&version, 1);
	word_set(&reply, 1);
#elif defined(REOPENED)
	word_set(&id, 0);
	word_set(&id, STREAM + 1);
	word_set(&owner_word, LIVE(2, 0));
#elif defined(SEGMENT)
	word_set(&owner_word, TOMB(2));
	scan_fence();
	/* LeaseTable::scan, for any lease of P's */
	int leased = 0;
	if (word_read(&table.shards_used) & 1) {
		int high = word_read(&table.high_water);
		for (int at = 0; at < ENTRIES; at++)
			if (at < high && word_peek(&table.entries[at]) != 0)
				leased = 1;
	}
	fence_acquire();
	if (!leased)
		for (int number = 0; number < MESSAGES; number++)
			fill(&bytes[number], 2);
#endif
	return 0;
}

#ifdef JOINS
static int listed, known, slowest;

static void read_cursors(void) { slowest = listed ? word_read(&next_word) : NONE; }

static void refresh(void)
{
	int now = word_read(&version);
	if (now == known)
		return;
	listed = word_read(&subscribers) != 0;
	known = now;
	slowest = 0;
}

static int room(int number)
{
	int now = word_read(&version), oldest = number - CAPACITY;
	if (oldest < 0 || (slowest > oldest && known == now))
		return 1;
	refresh();
	read_cursors();
	return slowest > oldest;
}

static void *producer(void *unused)
{
	known = -1;
	for (int number = 0; number < MESSAGES; number++) {
		if (!room(number))
			return 0;
		int replaced = send(number);
		news_fence(); /* Writer::wake */
		refresh();
		/* Writer::send, with the next message's `oldest` */
		if (number + 1 >= CAPACITY && slowest <= number + 1 - CAPACITY)
			read_cursors();
		if (!replaced)
			continue;
		scan_fence();
		if (!has_lease(&table, replaced)) {
			fence_release(); /* leases::reuse_fence */
			fill(&bytes[SLOT(replaced)], 2);
		}
	}
	return 0;
}
#else
/* Cursor::keeps */
static int keeps(void) { return word_read(&next_word) < MESSAGES && word_read(&stream_word) == STREAM; }

static void *producer(void *unused)
{
#ifdef SEGMENT
	return 0; /* P has ended */
#endif
#ifdef DELETED
	word_set(&owner_word, TOMB(2)); /* D does this for a request of P */
#elif defined(END_SEEN_IN_ID)
	if (word_read(&id) == STREAM)
		return 0;
#else
	if (word_read(&owner_word) == LIVE(1, 0))
		return 0;
#endif
	scan_fence();
	if (keeps())
		return 0;
	/* `retire_closed` retires the messages, and a round reclaims them. */
	scan_fence();
	for (int number = 0; number < MESSAGES; number++)
		if (!has_lease(&table, MESSAGE(number))) {
			fence_release();
			fill(&bytes[number], 2);
		}
	return 0;
}
#endif

int main(void)
{
	pthread_t threads[3];
	word_set(&owner_word, LIVE(1, 0));
	word_set(&id, STREAM);
	word_set(&next_word, NONE); /* as a former subscription leaves it */
#ifndef JOINS
	for (int number = 0; number < MESSAGES; number++)
		send(number);
#endif
	start(&threads[0], producer);
	start(&threads[1], subscriber);
	start(&threads[2], daemon);
	for (int i = 0; i < 3; i++)
		join(threads[i]);
	return 0;
}
