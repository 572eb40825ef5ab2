/* First publications without a request: clients claim a name, read the claims and rings of the others, and announce it.
 * The daemon D absorbs announcements, binds names on request, and ends clients. Readers look the name up.
 *
 * Clients: announce.rs (libclient) `announce`, `claim_free`, `availability`, `search`; announce.rs (shm-layout)
 * `claim_name`, `Waiting::read`, `announce`, `unclaim`; take.rs for a route over an announcement.
 * D: absorb.rs `absorb`, `settle`, `drain`; bindings.rs `check_room`; members/announcers.rs `open_announcer`,
 * `close_announcer`.
 *
 * Modes: CREATED (CLIENTS clients announce one name; with BINDS, D also binds it), ROOM (the last free name: clients
 * and, with BINDS, D), LOOKUP (D absorbs and a takeover follows, while a reader gets; the cell then has another name's
 * value), ENDED (D ends the announcing client while a reader gets), OPENED (D makes a client an announcer).
 * Bounds: at most three clients, one announcement each; one reader with one get; a get that finds a change ends.
 *
 * RUN: -DCREATED -DCLIENTS=2
 * RUN: -DCREATED -DCLIENTS=3
 * RUN: -DCREATED -DCLIENTS=1 -DBINDS
 * RUN: -DCREATED -DCLIENTS=2 -DBINDS
 * RUN: -DCREATED -DCLIENTS=3 -DBINDS
 * RUN: -DROOM -DCLIENTS=3
 * RUN: -DROOM -DCLIENTS=2
 * RUN: -DROOM -DCLIENTS=1 -DBINDS
 * RUN: -DLOOKUP -DCLIENTS=0
 * RUN: -DLOOKUP -DCLIENTS=0 -DANNOUNCES
 * RUN: -DENDED -DCLIENTS=1
 * RUN: -DOPENED -DCLIENTS=2
 * CONTROL: -DCREATED -DCLIENTS=2 -DWITHOUT_CLAIM
 * CONTROL: -DCREATED -DCLIENTS=2 -DWITHOUT_CLAIM_FENCE
 * CONTROL: -DCREATED -DCLIENTS=2 -DRING_FIRST
 * CONTROL: -DCREATED -DCLIENTS=2 -DUNCLAIMED_EARLY
 * CONTROL: -DCREATED -DCLIENTS=2 -DUNCLAIM_RELAXED
 * CONTROL: -DCREATED -DCLIENTS=1 -DBINDS -DWITHOUT_CLAIM_FENCE
 * CONTROL: -DCREATED -DCLIENTS=1 -DBINDS -DWITHOUT_RESERVE_FENCE
 * CONTROL: -DCREATED -DCLIENTS=1 -DBINDS -DCLAIMS_IGNORED
 * CONTROL: -DROOM -DCLIENTS=2 -DWITHOUT_CLAIM_FENCE
 * CONTROL: -DROOM -DCLIENTS=1 -DBINDS -DWITHOUT_RESERVE_FENCE
 * CONTROL: -DLOOKUP -DCLIENTS=0 -DDIRECTORY_ONCE
 * CONTROL: -DLOOKUP -DCLIENTS=0 -DABSORBED_FIRST
 * CONTROL: -DLOOKUP -DCLIENTS=0 -DABSORBED_NOT_AGAIN
 * CONTROL: -DLOOKUP -DCLIENTS=0 -DANNOUNCES -DABSORBED_READ_LATE
 * CONTROL: -DLOOKUP -DCLIENTS=0 -DANNOUNCES -DHEAD_RELAXED
 * CONTROL: -DENDED -DCLIENTS=1 -DWITHOUT_LAST_FENCE
 * CONTROL: -DENDED -DCLIENTS=1 -DWITHOUT_DRAIN_FENCE
 * CONTROL: -DENDED -DCLIENTS=1 -DENDED_AT_ONCE
 * CONTROL: -DENDED -DCLIENTS=1 -DUNLISTED_EARLY
 * CONTROL: -DOPENED -DCLIENTS=2 -DLISTED_LATE
 * CONTROL: -DOPENED -DCLIENTS=2 -DOPENED_LATE
 * CONTROL: -DOPENED -DCLIENTS=2 -DLISTED_READ_EARLY
 * NEEDLESS: -DCREATED -DCLIENTS=2 -DCLAIM_READ_RELAXED
 * (The Acquire fence after the next read, of `absorbed`, also follows the read of the claim.)
 */
#include "words.h"

enum { VACANT, OPEN, ENDING, CLOSED };
#define ABSORBED(state, index) ((index) << 2 | (state))
#define STATE(absorbed) ((absorbed)&3)
#define INDEX(absorbed) ((absorbed) >> 2)
#define SLOTS (CLIENTS + 1)

/* For each client: claim, ring with one place (the cell plus 1), ring_head, absorbed. */
static Word claim[SLOTS], ring_place[SLOTS], ring_head[SLOTS], absorbed[SLOTS];
static Word announcers, owner_word, names_room, reply, lease, bound;
/* The name in the cell's record, and the cell: 1 is the value of the announcement, 9 another name's. */
static Word record, cell;
static int announced_by[SLOTS];

/* The claim: what a client claims. In ROOM the names differ. */
#ifdef ROOM
#define NAME(client) ((client) + 1)
#else
#define NAME(client) 1
#endif

/* Waiting::read, and the number of announcements in it; -1: ending. */
static int waiting(int client, int *word)
{
#ifdef ABSORBED_READ_LATE
	int head = word_read(&ring_head[client]);
	*word = word_read(&absorbed[client]);
#else
	*word = word_read(&absorbed[client]);
#ifdef HEAD_RELAXED
	int head = word_peek(&ring_head[client]);
#else
	int head = word_read(&ring_head[client]);
#endif
#endif
	if (STATE(*word) == ENDING)
		return -1;
	if (STATE(*word) != OPEN)
		return 0;
	/* Waiting::count: the difference wraps, and is limited by the ring's one place */
	return head < INDEX(*word) ? 1 : head - INDEX(*word);
}

#if CLIENTS > 0
/* NameTable::availability. `early`: the announcers as read before the claim, for a control. */
static int is_free(int me, int early)
{
	int others = 0, word;
#ifdef LISTED_READ_EARLY
	int list = early;
#else
	int list = word_read(&announcers);
#endif
	for (int other = 0; other < CLIENTS; other++) {
		if (other == me || !(list >> other & 1))
			continue;
		/* may_publish */
		int state = STATE(word_read(&absorbed[other]));
		if (state != OPEN && state != ENDING)
			continue;
#ifdef RING_FIRST
		int count = waiting(other, &word);
		int its_claim = word_read(&claim[other]);
#else
#ifdef CLAIM_READ_RELAXED
		int its_claim = word_peek(&claim[other]);
#else
		int its_claim = word_read(&claim[other]);
#endif
		int count = waiting(other, &word);
#endif
		if (count < 0)
			return 0;
#ifdef ROOM
		others += (its_claim != 0) + count;
#else
		if (its_claim == NAME(me) || count > 0)
			return 0;
#endif
	}
	if (others >= word_read(&names_room))
		return 0;
	int kind = KIND(word_read(&owner_word));
	return kind == 0;
}

/* NameTable::announce */
static void publish(int me)
{
	int early = word_read(&announcers);
#ifndef WITHOUT_CLAIM
	word_set(&claim[me], NAME(me)); /* Catalogue::claim_name */
#ifndef WITHOUT_CLAIM_FENCE
	fence_seq_cst();
#endif
#endif
	if (!is_free(me, early)) {
		word_set(&claim[me], 0);
		return;
	}
#ifdef UNCLAIMED_EARLY
	word_set(&claim[me], 0);
#endif
	/* Catalogue::announce */
	word_put(&ring_place[me], 1);
	word_set(&ring_head[me], 1);
#ifdef UNCLAIM_RELAXED
	word_put(&claim[me], 0);
#else
	word_set(&claim[me], 0);
#endif
#ifndef WITHOUT_LAST_FENCE
	fence_seq_cst(); /* news_fence */
#endif
	announced_by[me] = STATE(word_read(&absorbed[me])) == OPEN ? 1 : 2;
}

static void *client0(void *unused)
{
#ifdef OPENED
	if (word_read(&reply) == 0)
		return 0;
#endif
	publish(0);
	return 0;
}

static void *client1(void *unused)
{
	publish(1);
	return 0;
}

static void *client2(void *unused)
{
	publish(2);
	return 0;
}
#endif

/* Bindings::absorb, for the one announcement of client 0. */
static void absorb(int state)
{
	int index = INDEX(word_peek(&absorbed[0]));
	if (word_read(&ring_head[0]) <= index)
		return;
	int place = word_read(&ring_place[0]);
#ifdef ABSORBED_FIRST
	word_set(&absorbed[0], ABSORBED(state, index + 1));
#endif
	if (!IS_LIVE(word_peek(&owner_word)))
		word_set(&owner_word, LIVE(2, place - 1));
	word_set(&absorbed[0], ABSORBED(state, index + 1));
}

static void *daemon(void *unused)
{
#if defined(CREATED) && defined(BINDS)
	/* Bindings::settle, then the bind. An announcement that D finds makes the request a takeover. */
	int busy = 0, word;
#ifndef CLAIMS_IGNORED
	word_set(&owner_word, RESERVED(1));
#ifndef WITHOUT_RESERVE_FENCE
	fence_seq_cst();
#endif
	for (int c = 0; c < CLIENTS; c++)
		busy = busy || word_read(&claim[c]) == NAME(c);
#endif
	for (int c = 0; c < CLIENTS; c++)
		busy = busy || waiting(c, &word) != 0;
	if (!busy) {
		word_set(&owner_word, LIVE(2, 0));
		announced_by[CLIENTS] = 1;
	}
#endif
#if defined(ROOM) && defined(BINDS)
	/* Bindings::check_room */
	int announced = 0, word;
	word_set(&names_room, 0);
#ifndef WITHOUT_RESERVE_FENCE
	fence_seq_cst();
#endif
	for (int c = 0; c < CLIENTS; c++) {
		announced += word_read(&claim[c]) != 0;
		announced += waiting(c, &word);
	}
	if (announced == 0)
		announced_by[CLIENTS] = 1;
	else
		word_set(&names_room, 1);
#endif
#ifdef LOOKUP
	absorb(OPEN);
	if (INDEX(word_peek(&absorbed[0])) == 0)
		return 0;
	word_set(&owner_word, LIVE(3, 2)); /* a takeover */
	/* The former owner gives the cell to another name: a Release fence precedes the new name in the record. */
	word_set(&cell, 9);
#endif
#ifdef ENDED
	/* Bindings::drain, close_announcer */
#ifdef UNLISTED_EARLY
	word_clear_bits(&announcers, 1);
#endif
#ifndef ENDED_AT_ONCE
	word_set(&absorbed[0], ABSORBED(ENDING, 0));
#endif
#ifndef WITHOUT_DRAIN_FENCE
	fence_seq_cst();
#endif
	absorb(ENDING);
	word_set(&absorbed[0], ABSORBED(CLOSED, INDEX(word_peek(&absorbed[0]))));
	word_clear_bits(&announcers, 1);
#endif
#ifdef OPENED
	/* open_announcer, then the reply */
#if defined(LISTED_LATE) || defined(OPENED_LATE)
#ifdef OPENED_LATE
	word_set_bits(&announcers, 1);
#else
	word_set(&absorbed[0], ABSORBED(OPEN, 0));
#endif
	word_set(&reply, 1);
#endif
	word_set_bits(&announcers, 1);
	word_set(&absorbed[0], ABSORBED(OPEN, 0));
	word_set(&reply, 1);
#endif
	return 0;
}

#if defined(LOOKUP) || defined(ENDED)
/* A get: the directory, the rings, the directory. The name has been announced before `bound` was read as 1. */
static void *reader(void *unused)
{
#if defined(ENDED) || defined(ANNOUNCES)
	int was_there = word_read(&bound);
#else
	int was_there = 1;
#endif
	int granted = word_read(&owner_word), value, word;
	if (IS_LIVE(granted)) {
#ifdef LOOKUP
		value = CELL_OF(granted) == 2 ? 2 : word_read(&cell);
		word_set(&lease, 1);
		lease_fence();
		if (word_peek(&owner_word) != granted)
			return 0;
		assert(value != 9);
#endif
		return 0;
	}
	/* NameTable::search */
	if (word_read(&announcers) & 1) {
		int state = STATE(word_read(&absorbed[0]));
		if (state == OPEN || state == ENDING) {
			int count = waiting(0, &word);
			if (count < 0)
				return 0; /* ending: the reader searches again */
			if (count > 0) {
				int place = word_read(&ring_place[0]);
				assert(place == 1); /* `ring_head` publishes the place, */
				assert(word_peek(&record) == 1); /* and the name in the cell's record */
				value = word_read(&cell);
				word_set(&lease, 1);
				lease_fence();
#ifndef ABSORBED_NOT_AGAIN
				if (word_peek(&absorbed[0]) != word)
					return 0;
#endif
				reached();
				assert(value == 1);
				return 0;
			}
		}
	}
#ifndef DIRECTORY_ONCE
	if (IS_LIVE(word_read(&owner_word)))
		return 0;
#endif
	assert(!was_there); /* the name is not missed */
	return 0;
}
#endif

#ifdef LOOKUP
/* The announcing client: fills the record and the cell, and announces. The reader knows of it through `bound`. */
static void prepare(void)
{
	word_put(&record, 1);
	word_put(&cell, 1);
	word_put(&ring_place[0], 1);
	word_set(&ring_head[0], 1);
}

static void *announcer(void *unused)
{
	prepare();
	return 0;
}
#endif

#ifdef ENDED
static void *announcer(void *unused)
{
	word_put(&record, 1);
	word_put(&cell, 1);
	publish(0);
	if (announced_by[0] == 1)
		word_set(&bound, 1);
	return 0;
}
#endif

int main(void)
{
	pthread_t threads[5];
	int count = 0, winners = 0;
	word_set(&names_room, 1);
	for (int c = 0; c < SLOTS; c++) {
#ifdef OPENED
		word_set(&absorbed[c], ABSORBED(c == 0 ? VACANT : OPEN, 0));
#else
		word_set(&absorbed[c], ABSORBED(OPEN, 0));
#endif
		word_set_bits(&announcers, 1 << c);
	}
#ifdef OPENED
	word_set(&announcers, 2);
#endif
#ifdef LOOKUP
#ifdef ANNOUNCES
	start(&threads[count++], announcer);
#else
	prepare();
#endif
	start(&threads[count++], reader);
	start(&threads[count++], daemon);
#elif defined(ENDED)
	start(&threads[count++], announcer);
	start(&threads[count++], reader);
	start(&threads[count++], daemon);
#else
	start(&threads[count++], client0);
#if CLIENTS > 1
	start(&threads[count++], client1);
#endif
#if CLIENTS > 2
	start(&threads[count++], client2);
#endif
#if defined(BINDS) || defined(OPENED)
	start(&threads[count++], daemon);
#endif
#endif
	for (int i = 0; i < count; i++)
		join(threads[i]);
	for (int c = 0; c < SLOTS; c++)
		winners += announced_by[c] != 0;
#ifdef ENDED
	/* A put that returned without an error is in the directory. */
	if (announced_by[0] == 1)
		assert(IS_LIVE(word_peek(&owner_word)));
#else
	if (winners)
		reached();
	assert(winners <= 1); /* one name has one owner; one place has one name */
#endif
	return 0;
}
