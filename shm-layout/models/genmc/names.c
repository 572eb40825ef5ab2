/* A reader R looks a name up while the daemon D gives the name to another owner, the name's entry to another name, or
 * replaces the table of names.
 *
 * R: search.rs `find_in`, entry.rs `probe` and `owner_word_after_key`; then take.rs, with the owner word again.
 * D: entry.rs `set_key` and `clear_key`; search.rs `begin_table_in`; names/table.rs (places passed and freed).
 *
 * Modes: TAKEN (two takeovers), REUSED (the entry, and the cell of its value, go to name B), GROWN (a new table; D wipes
 * the old one and begins it again), PASSED (a place in front of the name loses its own name).
 * Bounds: two names with equal hashes, keys of one word, tables of one or two places in buckets of one place; one
 * reader with one look-up, which it repeats at most twice.
 *
 * RUN: -DTAKEN
 * RUN: -DREUSED -DWANTED=A
 * RUN: -DREUSED -DWANTED=B
 * RUN: -DGROWN
 * RUN: -DPASSED
 * CONTROL: -DTAKEN -DNEXT_PLACE
 * CONTROL: -DREUSED -DWANTED=A -DWITHOUT_VERSION
 * CONTROL: -DREUSED -DWANTED=B -DKEY_UNDER_LIVE_WORD
 * CONTROL: -DREUSED -DWANTED=B -DWITHOUT_TOMB_FENCE
 * CONTROL: -DREUSED -DWANTED=A -DKEY_FIRST
 * CONTROL: -DREUSED -DWANTED=B -DWITHOUT_KEY_ACQUIRE
 * CONTROL: -DREUSED -DWANTED=A -DOWNER_WORD_NOT_AGAIN
 * CONTROL: -DREUSED -DWANTED=A -DOWNER_WORD_RELAXED
 * CONTROL: -DGROWN -DMISS_BELIEVED
 * CONTROL: -DGROWN -DTABLE_EARLY
 * CONTROL: -DGROWN -DWIPED_EARLY
 * CONTROL: -DGROWN -DWITHOUT_BEGIN_FENCE
 * CONTROL: -DGROWN -DTABLE_RELAXED
 * CONTROL: -DPASSED -DFREED_EARLY
 */
#include "words.h"

#define A 1
#define B 2
#define NONE 0
#ifndef WANTED
#define WANTED A
#endif

struct NameEntry {
	Word owner_word, hash, key;
};

/* Entries 1 and 2. Places 0 and 1: the first table; 2 and 3: the second. A table word: the number of its first place,
 * plus 4 for each rebuild. */
static struct NameEntry names[3];
static Word table, seeds[2], places[4];
/* The cell of the value, and its lease. A's value is CELL(1, 0), B's is CELL(1, 1). */
static Word cell, lease;

/* NameEntry::set_key under a dead owner word. */
static void set_key(int entry, int key)
{
#ifndef WITHOUT_TOMB_FENCE
	fence_release();
#endif
	word_put(&names[entry].key, key);
	word_put(&names[entry].hash, 1);
}

/* NameEntry::probe: returns the owner word if the key is equal, else -1. */
static int probe(int entry, int key)
{
	for (int turn = 0; turn < 4; turn++) {
#ifdef KEY_FIRST
		int same = word_peek(&names[entry].hash) == 1 && word_peek(&names[entry].key) == key;
		fence_acquire();
		return same ? word_read(&names[entry].owner_word) : -1;
#endif
#ifdef OWNER_WORD_RELAXED
		int owner_word = word_peek(&names[entry].owner_word);
#else
		int owner_word = word_read(&names[entry].owner_word);
#endif
		if (word_peek(&names[entry].hash) != 1 || word_peek(&names[entry].key) != key)
			return -1;
		/* owner_word_after_key */
#ifndef WITHOUT_KEY_ACQUIRE
		fence_acquire();
#endif
		if (word_peek(&names[entry].owner_word) == owner_word)
			return owner_word;
#ifdef NEXT_PLACE
		return -1;
#endif
	}
	__VERIFIER_assume(0); /* the daemon makes fewer changes */
	return -1;
}

/* search.rs find_in. Returns the entry, NONE, or -1 if the table was replaced. */
static int find(int key, int *owner_word)
{
	int word = word_read(&table), first = word & 2, found = NONE;
	word_read(&seeds[first / 2]);
	for (int n = 0; n < 2; n++) {
		int place = word_read(&places[first + n]);
		if (place == 0)
			break;
		int entry = place & 3;
		if (entry == NONE)
			continue;
		int its = probe(entry, key);
		if (its < 0)
			continue;
		*owner_word = its;
		found = entry;
		if (IS_LIVE(its))
			return found;
		break;
	}
#ifdef MISS_BELIEVED
	return found;
#endif
	return word_read(&table) == word ? found : -1;
}

#define PASSED_PLACE 4

static void *reader(void *unused)
{
	int owner_word = 0, entry = -1;
	for (int turn = 0; turn < 3 && entry < 0; turn++)
		entry = find(WANTED, &owner_word);
	__VERIFIER_assume(entry >= 0); /* the daemon replaces fewer tables */
#ifndef REUSED
	/* The name is live from the beginning to the end. */
	reached();
	assert(entry != NONE && IS_LIVE(owner_word));
	return 0;
#endif
	if (entry == NONE || !IS_LIVE(owner_word))
		return 0;
	/* The owner word is the key's, also without the second check below. */
	assert(owner_word == (WANTED == A ? LIVE(1, 0) : LIVE(3, 0)));
	int value = word_read(&cell);
	word_set(&lease, value);
	lease_fence();
#ifndef OWNER_WORD_NOT_AGAIN
	if (word_peek(&names[entry].owner_word) != owner_word)
		return 0;
#endif
	if (word_peek(&cell) != value)
		return 0;
	reached();
	assert(value == (WANTED == A ? CELL(1, 0) : CELL(1, 1)));
	return 0;
}

static void *daemon(void *unused)
{
#ifdef TAKEN
	word_set(&names[1].owner_word, LIVE(2, 5));
	word_set(&names[1].owner_word, LIVE(3, 0));
#endif
#ifdef REUSED
#ifndef KEY_UNDER_LIVE_WORD
	word_set(&names[1].owner_word, TOMB(2));
#endif
	set_key(1, B);
	/* The owner of the cell uses it for B's value. */
	word_set(&cell, CELL(1, 1));
#ifdef WITHOUT_VERSION
	word_set(&names[1].owner_word, LIVE(1, 0));
#else
	word_set(&names[1].owner_word, LIVE(3, 0));
#endif
#endif
#ifdef GROWN
	/* The new table is in the other half; its seed and places are stored before the table word. */
	fence_release();
	word_put(&seeds[1], 1);
#ifdef WIPED_EARLY
	word_put(&places[0], 0);
#endif
#ifdef TABLE_EARLY
	word_set(&table, 2);
#endif
#ifdef TABLE_RELAXED
	word_put(&places[2], 1);
	word_put(&table, 2);
#else
	word_put(&places[2], 1);
	word_set(&table, 2);
#endif
	/* begin_table_in, for the next table in the first half: its places were returned to the kernel, and read 0. */
#ifndef WITHOUT_BEGIN_FENCE
	fence_release();
#endif
	word_put(&seeds[0], 1);
	word_put(&places[0], 0);
#endif
#ifdef PASSED
	word_set(&names[2].owner_word, TOMB(2));
#ifdef FREED_EARLY
	word_set(&places[0], 0);
#else
	word_set(&places[0], PASSED_PLACE);
#endif
	word_set(&names[1].owner_word, LIVE(2, 5));
#endif
	return 0;
}

int main(void)
{
	pthread_t threads[2];
	set_key(1, A);
	word_set(&cell, CELL(1, 0));
#ifdef PASSED
	/* Name B precedes name A on the search. */
	set_key(2, B);
	word_set(&places[0], 2);
	word_set(&places[1], 1);
	word_set(&names[2].owner_word, LIVE(1, 1));
#else
	word_set(&places[0], 1);
#endif
	word_set(&names[1].owner_word, LIVE(1, 0));
	start(&threads[0], reader);
	start(&threads[1], daemon);
	join(threads[0]);
	join(threads[1]);
	return 0;
}
