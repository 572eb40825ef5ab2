/* Threads of an owner P store values in a cell and describe them beside it. A reader R copies a description.
 *
 * P: catalogue.rs `describe`; names/publish.rs `overwrite`; names/housekeeping.rs `fill_cell`; link/shards.rs
 *    `begin_sharing` and `is_alone`; link/epoch.rs `raise`, `lower`, `wait_for_guards`.
 * R: catalogue.rs `describes`, `description`. The lease between them is left out: it orders more than this model does.
 *
 * Modes: ALONE (one thread of P), SHARING (two, with a compare-exchange), COMES (a second thread begins while the first
 * one is alone), NAMED (P empties the cell and gives it to another short name), LONGER (to a longer name, whose fifth word
 * equals the former value), SHORTER (from such a name to a short one). Bounds: one cell, a description of two words, one value of each thread, one copy.
 *
 * RUN: -DALONE
 * RUN: -DSHARING
 * RUN: -DCOMES
 * RUN: -DNAMED
 * RUN: -DLONGER
 * RUN: -DSHORTER
 * CONTROL: -DALONE -DNOT_MARKED
 * CONTROL: -DALONE -DWITHOUT_WRITER_FENCE
 * CONTROL: -DALONE -DNOT_CHECKED
 * CONTROL: -DALONE -DWITHOUT_READER_FENCE
 * CONTROL: -DSHARING -DALWAYS_ALONE
 * CONTROL: -DSHARING -DRELAXED_EXCHANGE
 * CONTROL: -DCOMES -DWITHOUT_WAIT
 * CONTROL: -DCOMES -DWITHOUT_GUARD_FENCE
 * CONTROL: -DCOMES -DWITHOUT_BARRIER
 * CONTROL: -DNAMED -DCELL_NOT_AGAIN
 * CONTROL: -DNAMED -DWITHOUT_NAME_FENCE
 * CONTROL: -DLONGER -DCELL_NOT_AGAIN
 * CONTROL: -DLONGER -DWITHOUT_NAME_FENCE
 * CONTROL: -DSHORTER -DCELL_NOT_AGAIN
 * CONTROL: -DSHORTER -DLENGTH_NOT_READ
 * NEEDLESS: -DALONE -DRELAXED_DESCRIBED
 * NEEDLESS: -DALONE -DDESCRIBES_WITHOUT_ACQUIRE
 * NEEDLESS: -DCOMES -DWAITS_WITHOUT_ACQUIRE
 * NEEDLESS: -DCOMES -DLOWERS_WITHOUT_RELEASE
 *
 * The four steps are not needed, since the reader copies a description only of the value that it found in the cell, and
 * the swap of the cell publishes it; and since the compare-exchange of a second thread reads what the first one stored.
 */
#include "words.h"

#define DESCRIBING 1
#define LONG 64
#define FORMER CELL(1, 0)

static Word cell, described, words[2], name_bytes;
/* Shards.shared_by_threads, and the flags of two threads. */
static Word shared, flags[2];

/* CellRecord::describe */
static void describe(int value, int alone)
{
	if (word_peek(&name_bytes) == LONG)
		return;
#ifndef NOT_MARKED
	if (alone) {
		word_put(&described, DESCRIBING);
	} else {
		int before = word_peek(&described);
#ifdef RELAXED_EXCHANGE
		if (before == DESCRIBING || !atomic_compare_exchange_strong_explicit(&described, &before, DESCRIBING,
						memory_order_relaxed, memory_order_relaxed))
#else
		if (before == DESCRIBING || !atomic_compare_exchange_strong_explicit(&described, &before, DESCRIBING,
						memory_order_acq_rel, memory_order_relaxed))
#endif
			return;
	}
#endif
#ifndef WITHOUT_WRITER_FENCE
	fence_release();
#endif
	word_put(&words[0], value);
	word_put(&words[1], value + 1);
#ifdef RELAXED_DESCRIBED
	word_put(&described, value);
#else
	word_set(&described, value);
#endif
}

static void put(int value, int alone)
{
	describe(value, alone);
	word_swap(&cell, value);
}

/* Flag::raise and Flag::lower. membarrier makes the fence of the compiler in `raise` a fence of the processor. */
static void raise_flag(int thread)
{
	word_put(&flags[thread], 1);
#ifndef WITHOUT_GUARD_FENCE
	fence_seq_cst();
#endif
}

static void lower_flag(int thread)
{
#ifdef LOWERS_WITHOUT_RELEASE
	word_put(&flags[thread], 2);
#else
	word_set(&flags[thread], 2);
#endif
}

static void overwrite(int thread, int value)
{
	raise_flag(thread);
#ifdef ALWAYS_ALONE
	put(value, 1);
#elif defined(SHARING)
	put(value, 0);
#else
	put(value, !word_peek(&shared));
#endif
	lower_flag(thread);
}

static void *first(void *unused)
{
	(void)unused;
	overwrite(0, CELL(2, 1));
	return 0;
}

static void *second(void *unused)
{
	(void)unused;
#ifdef COMES
	/* Shards::begin_sharing */
	word_set(&shared, 1);
#ifndef WITHOUT_BARRIER
	fence_seq_cst();
#endif
#ifndef WITHOUT_WAIT
#ifdef WAITS_WITHOUT_ACQUIRE
	__VERIFIER_assume(word_peek(&flags[0]) != 1);
#else
	__VERIFIER_assume(atomic_load_explicit(&flags[0], memory_order_acquire) != 1);
#endif
#endif
#endif
	overwrite(1, CELL(3, 2));
	return 0;
}

/* vacate, and then fill_cell for another name. */
static void *namer(void *unused)
{
	(void)unused;
	word_swap(&cell, CELL_DELETED);
#ifndef WITHOUT_NAME_FENCE
	fence_release();
#endif
#ifdef SHORTER
	word_put(&name_bytes, 8);
#endif
#ifdef LONGER
	word_put(&described, FORMER);
	word_put(&words[1], 99);
	word_put(&name_bytes, LONG);
#else
	word_put(&described, 0);
	word_put(&words[1], 0);
#endif
	describe(CELL(2, 1), 1);
	word_set(&cell, CELL(2, 1));
	return 0;
}

static void *reader(void *unused)
{
	(void)unused;
	int value = word_read(&cell);
	if (!IS_VALUE(value))
		return 0;
#ifndef LENGTH_NOT_READ
	if (word_peek(&name_bytes) == LONG)
		return 0;
#endif
#ifdef DESCRIBES_WITHOUT_ACQUIRE
	if (word_peek(&described) != value)
		return 0;
#else
	if (word_read(&described) != value)
		return 0;
#endif
	int copy[2] = { word_peek(&words[0]), word_peek(&words[1]) };
#ifndef WITHOUT_READER_FENCE
	fence_acquire();
#endif
#ifndef NOT_CHECKED
	if (word_peek(&described) != value)
		return 0;
#endif
#ifndef CELL_NOT_AGAIN
	if (word_peek(&cell) != value)
		return 0;
#endif
	reached();
	assert(copy[0] == value && copy[1] == value + 1);
	return 0;
}

int main(void)
{
	pthread_t threads[3];
	word_set(&words[0], FORMER);
#ifdef SHORTER
	word_set(&words[1], 99);
	word_set(&name_bytes, LONG);
#else
	word_set(&words[1], FORMER + 1);
#endif
	word_set(&described, FORMER);
	word_set(&cell, FORMER);
	start(&threads[0], reader);
#if defined(NAMED) || defined(LONGER) || defined(SHORTER)
	start(&threads[1], namer);
#else
	start(&threads[1], first);
#endif
#if defined(SHARING) || defined(COMES)
	start(&threads[2], second);
	join(threads[2]);
#endif
	join(threads[0]);
	join(threads[1]);
	return 0;
}
