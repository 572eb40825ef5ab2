/* The ring of a stream: stream.rs `Ring::send`, `Ring::find`, `Ring::still_has`. Message n has the cell CELL(1, n), the
 * number n and the summary n + 1, and fills the bytes of slot n with 1. */
#include "words.h"

struct RingEntry {
	Word cell, number, summary;
};

static struct RingEntry ring[CAPACITY];
static Word head, tail, owner_word;
static Bytes bytes[MESSAGES];

#define MESSAGE(number) CELL(1, number)
#define ENTRY(number) (&ring[(number) % CAPACITY])

/* Ring::send. Returns the message that the ring no longer contains, or 0. */
static int send(int number)
{
	struct RingEntry *entry = ENTRY(number);
	fill(&bytes[number], 1);
	int before = word_peek(&entry->cell);
#ifndef TAIL_LATE
	if (number >= CAPACITY)
		word_set(&tail, number - CAPACITY + 1);
#endif
#ifdef CELL_FIRST
	word_set(&entry->cell, MESSAGE(number));
#elif defined(EMPTIED_RELAXED)
	word_put(&entry->cell, 0);
#elif !defined(NOT_EMPTIED)
	word_set(&entry->cell, 0);
#endif
#ifdef TAIL_LATE
	if (number >= CAPACITY)
		word_set(&tail, number - CAPACITY + 1);
#endif
#ifndef WITHOUT_EMPTIED_FENCE
	fence_release();
#endif
	word_put(&entry->number, number);
	word_put(&entry->summary, number + 1);
#ifdef CELL_RELAXED
	word_put(&entry->cell, MESSAGE(number));
#elif !defined(CELL_FIRST)
	word_set(&entry->cell, MESSAGE(number));
#endif
	word_set(&head, number + 1);
	return IS_VALUE(before) ? before : 0;
}

enum { MESSAGE_FOUND, NOT_YET, LOST };

struct Found {
	int kind, cell, summary, oldest;
};

/* Ring::find. Returns the kind, and sets the other fields. */
static int find(int number, struct Found *found)
{
	struct RingEntry *entry = ENTRY(number);
	found->kind = NOT_YET;
#ifdef FIND_RELAXED
	found->cell = word_peek(&entry->cell);
#else
	found->cell = word_read(&entry->cell);
#endif
	if (IS_VALUE(found->cell)) {
		int has = word_peek(&entry->number);
		if (has == number) {
			found->summary = word_peek(&entry->summary);
			found->kind = MESSAGE_FOUND;
			return MESSAGE_FOUND;
		}
		if (has < number)
			return NOT_YET;
#ifndef AHEAD_WITHOUT_ACQUIRE
		fence_acquire();
#endif
	}
	found->oldest = word_read(&tail);
	found->kind = found->oldest > number ? LOST : NOT_YET;
	return found->kind;
}

/* leases::acquire by the words that `take::hold` gets for a message: owner word and entry. */
static int lease(struct LeaseTable *table, int at, int lease_word, int granted, Word *cell, int value)
{
	Word *entry = &table->entries[at];
	store_lease(entry, lease_word);
	lease_fence();
#ifdef NOT_AGAIN
	int same = 1;
#else
	int same = word_peek(&owner_word) == granted && (!cell || word_peek(cell) == value);
#endif
	if (!same) {
		word_set(entry, 0);
		return 0;
	}
	fence_acquire();
	return 1;
}
