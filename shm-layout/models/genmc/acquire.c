/* A reader R leases the value of a name while its owner O overwrites, reclaims and fills slots again, and while the
 * daemon D deletes the name, lends R memory, or ends R's session.
 *
 * R: take.rs `Seen::read`, shards.rs `with_free`, leases.rs `acquire`, lease.rs `validate`.
 * O: publish.rs `overwrite`, reclaim.rs `scan` (`scan_fence`, `audience`, `with_leases`), heap.rs `hand_out`.
 * D: the owner word of a delete; `audience` and `present` before the reply; `member` when it ends a session.
 *
 * Bounds: one name, two slots, one lease table with one shard for each reader. READERS readers with GETS gets each, one
 * overwrite (with REPUBLISH two), one delete, one join, one end of a session. A get that finds a change is not repeated.
 * HANDED: one thread takes a lease, another one releases it. Not here: `geometry`, lifetimes, several retired slots.
 *
 * RUN: -DREADERS=2 -DREPUBLISH
 * RUN: -DREADERS=2 -DGETS=2 -DREPUBLISH
 * RUN: -DGETS=2 -DENTRIES=2 -DKEEPS -DREPUBLISH
 * RUN: -DDELETE
 * RUN: -DDELETE -DNOT_EMPTIED
 * RUN: -DJOINS
 * RUN: -DENDS
 * RUN: -DENDS -DLEAVES_AUDIENCE
 * RUN: -DHANDED
 * CONTROL: -DWITHOUT_LEASE_FENCE
 * CONTROL: -DWITHOUT_SCAN_FENCE -DWITHOUT_SWAP_FENCE
 * CONTROL: -DCELL_NOT_AGAIN
 * CONTROL: -DDELETE -DNOT_EMPTIED -DOWNER_WORD_NOT_AGAIN
 * CONTROL: -DSCAN_BEFORE_SWAP
 * CONTROL: -DMARKS_LATE
 * CONTROL: -DRELAXED_SWAP
 * CONTROL: -DWITHOUT_SCAN_ACQUIRE
 * CONTROL: -DRELAXED_RELEASE
 * CONTROL: -DHANDED -DRELAXED_FREE_ENTRY
 * CONTROL: -DHANDED -DRELAXED_LEASE
 * CONTROL: -DJOINS -DAUDIENCE_LATE
 * CONTROL: -DJOINS -DAUDIENCE_EARLY -DWITHOUT_SWAP_FENCE
 * CONTROL: -DENDS -DWITHOUT_REUSE_FENCE
 * CONTROL: -DENDS -DNOT_VALIDATED
 * CONTROL: -DENDS -DWITHOUT_VALIDATE_FENCE
 * CONTROL: -DENDS -DLEAVES_AUDIENCE -DLEAVES_BEFORE_END
 * NEEDLESS: -DREPUBLISH -DWITHOUT_SWAP_FENCE
 * NEEDLESS: -DREPUBLISH -DRELAXED_CELL_READ -DWITHOUT_CONFIRM_ACQUIRE
 * (The fence after the swap is for sleepers. The lease fence is an Acquire fence, too, and orders the bytes after the
 * cell; the other two keep the order if a compiler or a later step moves.)
 */
#if defined(ENDS) && !defined(RELAXED_BYTES)
#define RELAXED_BYTES /* the reader may read bytes of another tensor, and detects it afterwards */
#endif
#include "words.h"

#ifndef READERS
#define READERS 1
#endif
#ifndef GETS
#define GETS 1
#endif

static Word owner_word, cell, reply, handed;
/* For each reader: its bit in O's audience and in `present`, its member word (1: open, 2: closed), its lease table. */
static Word audience[2], present[2], member[2];
static struct LeaseTable tables[2];
static Bytes bytes[2];

static void fill_slot(int value) { fill(&bytes[SLOT(value)], GENERATION(value)); }

/* One get, without a second try. Returns the entry of the lease, or 0. */
static Word *get(int me)
{
	struct LeaseTable *table = &tables[me];
	int granted = word_read(&owner_word);
#ifdef RELAXED_CELL_READ
	int value = word_peek(&cell);
#else
	int value = word_read(&cell);
#endif
	if (!IS_LIVE(granted) || !IS_VALUE(value))
		return 0;
	int at = free_entry(table);
	Word *entry = &table->entries[at];
	store_lease(entry, value);
	lease_fence();
#ifdef MARKS_LATE
	word_set(&table->high_water, at + 1);
	word_set_bits(&table->shards_used, 1);
#endif
	/* leases::confirm */
	int same = 1;
#ifndef OWNER_WORD_NOT_AGAIN
	same = same && word_peek(&owner_word) == granted;
#endif
#ifndef CELL_NOT_AGAIN
	same = same && word_peek(&cell) == value;
#endif
	if (!same) {
		word_set(entry, 0);
		return 0;
	}
#ifndef WITHOUT_CONFIRM_ACQUIRE
	fence_acquire();
#endif
	/* take::confirm: Link::is_member */
	if (word_peek(&member[me]) != 1) {
		release_lease(entry);
		return 0;
	}
	int found = take(&bytes[SLOT(value)]);
#ifdef ENDS
	/* Held::validate */
#ifndef WITHOUT_VALIDATE_FENCE
	fence_acquire();
#endif
#ifndef NOT_VALIDATED
	if (word_peek(&member[me]) != 1)
		return entry;
#endif
#endif
	reached();
	assert(found == GENERATION(value));
	return entry;
}

static void reader(int me)
{
#ifdef JOINS
	/* The reply lends the segment. */
	if (word_read(&reply) == 0)
		return;
#endif
	for (int i = 0; i < GETS; i++) {
		Word *entry = get(me);
#ifdef KEEPS
		if (i == 0)
			continue;
#endif
		if (entry)
			release_lease(entry);
	}
}

static void *reader0(void *unused)
{
	reader(0);
	return 0;
}

static void *reader1(void *unused)
{
	reader(1);
	return 0;
}

#ifdef HANDED
/* A thread of R takes a lease and hands the value to another thread, which reads and releases it. The first thread then
 * takes a lease on the newer value, perhaps in the same entry. */
static void *taker(void *unused)
{
	Word *entry = get(0);
	if (!entry || word_peek(entry) != CELL(1, 0))
		return 0;
	word_set(&handed, 1);
	if (word_read(&cell) == CELL(1, 1))
		get(0);
	return 0;
}

static void *releaser(void *unused)
{
	if (word_read(&handed) == 0)
		return 0;
	assert(take(&bytes[0]) == 1);
	release_lease(&tables[0].entries[0]);
	return 0;
}
#endif

/* publish::overwrite. Returns the former value, or 0 if the name has moved. */
static int overwrite(int value)
{
	if (word_read(&owner_word) != LIVE(1, 0))
		return 0;
#ifdef RELAXED_SWAP
	int before = atomic_exchange_explicit(&cell, value, memory_order_relaxed);
#else
	int before = word_swap(&cell, value);
#endif
#ifndef WITHOUT_SWAP_FENCE
	fence_seq_cst(); /* sync::fence_after_swap */
#endif
	return before;
}

/* reclaim.rs `scan`: returns whether a reader has a lease on the retired value. */
static int is_leased(int value)
{
#ifdef AUDIENCE_EARLY
	int early = word_read(&audience[0]) & word_read(&present[0]);
#endif
	scan_fence();
	for (int r = 0; r < READERS; r++) {
#ifdef AUDIENCE_EARLY
		if (!early)
			continue;
#else
		if (!(word_read(&audience[r]) & word_read(&present[r])))
			continue;
#endif
		/* with_leases: a member that has ended has no leases. LEAVES_AUDIENCE: only the bit shows the end. */
#ifndef LEAVES_AUDIENCE
		if (word_read(&member[r]) != 1)
			continue;
#endif
		if (has_lease(&tables[r], value))
			return 1;
	}
	return 0;
}

/* Frees the value's slot, unless it is leased, and fills it for the next generation. */
static int reclaim(int value)
{
	if (!IS_VALUE(value) || is_leased(value))
		return 0;
#ifndef WITHOUT_REUSE_FENCE
	fence_release(); /* leases::reuse_fence */
#endif
	fill_slot(CELL(GENERATION(value) + 1, SLOT(value)));
	return 1;
}

static void *owner(void *unused)
{
	fill_slot(CELL(1, 1));
#ifdef SCAN_BEFORE_SWAP
	int leased = is_leased(CELL(1, 0));
	if (overwrite(CELL(1, 1)) && !leased)
		fill_slot(CELL(2, 0));
#else
	int before = overwrite(CELL(1, 1));
	if (before && reclaim(before)) {
#ifdef REPUBLISH
		before = overwrite(CELL(2, 0));
		if (before)
			reclaim(before);
#endif
	}
#endif
#ifdef DELETE
	if (word_read(&owner_word) != LIVE(1, 0)) {
		/* Housekeeping: empties the cell of the name that it has lost, and retires the value. */
#ifdef NOT_EMPTIED
		reclaim(word_peek(&cell));
#else
		reclaim(word_swap(&cell, CELL_DELETED));
#endif
	}
#endif
	return 0;
}

static void *daemon(void *unused)
{
#ifdef DELETE
	word_set(&owner_word, TOMB(2));
#endif
#ifdef JOINS
#ifdef AUDIENCE_LATE
	word_set(&reply, 1);
#endif
	word_set_bits(&present[0], 1);
	word_set_bits(&audience[0], 1);
	word_set(&reply, 1);
#endif
#ifdef ENDS
#ifndef LEAVES_BEFORE_END
	word_set(&member[0], 2);
#endif
#ifdef LEAVES_AUDIENCE
	word_clear_bits(&audience[0], 1);
#endif
	word_set(&member[0], 2);
#endif
	return 0;
}

int main(void)
{
	pthread_t threads[4];
	int count = 0;
	word_set(&owner_word, LIVE(1, 0));
	word_set(&cell, CELL(1, 0));
	fill_slot(CELL(1, 0));
	for (int r = 0; r < READERS; r++) {
		word_set(&member[r], 1);
#ifndef JOINS
		word_set(&audience[r], 1);
		word_set(&present[r], 1);
#endif
	}
	start(&threads[count++], owner);
#ifdef HANDED
	start(&threads[count++], taker);
	start(&threads[count++], releaser);
#else
	start(&threads[count++], reader0);
	if (READERS == 2)
		start(&threads[count++], reader1);
#endif
#if defined(DELETE) || defined(JOINS) || defined(ENDS)
	start(&threads[count++], daemon);
#endif
	for (int i = 0; i < count; i++)
		join(threads[i]);
	return 0;
}
