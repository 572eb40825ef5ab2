/* A reader R leases the values of several names together: it stores all leases, executes one fence, and then checks
 * all words again. An owner O replaces the values, and reclaims all of them after one fence.
 *
 * R: batch.rs `lease_found` (`Steps::read`, `Steps::store`, `lease_fence`, `leases::confirm`).
 * O: publish.rs `overwrite`, reclaim.rs `scan` and `free` over a batch of retired slots.
 *
 * Bounds: NAMES names, each with a slot and a spare slot; one reader with one batch; OWNERS owners, which share the
 * names evenly and overwrite each name once. A value that has changed is left out of the batch, and not tried again.
 *
 * RUN: -DNAMES=2 -DOWNERS=1
 * RUN: -DNAMES=2 -DOWNERS=2
 * RUN: -DNAMES=3 -DOWNERS=1
 * RUN: -DNAMES=3 -DOWNERS=2
 * RUN: -DNAMES=2 -DOWNERS=1 -DREFILLS
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DWITHOUT_LEASE_FENCE
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DFENCE_AFTER_THE_FIRST
 * CONTROL: -DNAMES=2 -DOWNERS=2 -DFENCE_AFTER_THE_FIRST
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DWITHOUT_SCAN_FENCE
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DSCAN_FENCE_AFTER_THE_FIRST
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DONE_CONFIRMED
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DONE_LEASE
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DREFILLS -DRELAXED_RELEASE
 * CONTROL: -DNAMES=2 -DOWNERS=1 -DREFILLS -DWITHOUT_SCAN_ACQUIRE
 */
#define ENTRIES NAMES
#include "words.h"

/* Name n has the slots n and NAMES + n. The owner words do not change here: acquire.c has their second check. */
static Word cells[NAMES];
static struct LeaseTable table;
static Bytes bytes[2 * NAMES];

static void fill_slot(int value) { fill(&bytes[SLOT(value)], GENERATION(value)); }

static void *reader(void *unused)
{
	int values[NAMES], entries[NAMES];
	for (int n = 0; n < NAMES; n++)
		values[n] = word_read(&cells[n]);
	for (int n = 0; n < NAMES; n++) {
#ifdef ONE_LEASE
		if (n == 1) {
			entries[n] = 0;
			continue;
		}
#endif
		entries[n] = free_entry(&table);
		store_lease(&table.entries[entries[n]], values[n]);
#ifdef FENCE_AFTER_THE_FIRST
		if (n == 0)
			lease_fence();
#endif
	}
#ifndef FENCE_AFTER_THE_FIRST
	lease_fence();
#endif
	int held[NAMES];
	for (int n = 0; n < NAMES; n++) {
		/* leases::confirm */
		held[n] = word_peek(&cells[n]) == values[n];
#ifdef ONE_CONFIRMED
		held[n] = n == 0 ? held[n] : held[0];
#endif
		if (held[n])
			fence_acquire();
		else
			word_set(&table.entries[entries[n]], 0);
	}
	for (int n = 0; n < NAMES; n++) {
		if (!held[n])
			continue;
		if (n == NAMES - 1)
			reached();
		assert(take(&bytes[SLOT(values[n])]) == GENERATION(values[n]));
	}
	for (int n = 0; n < NAMES; n++)
		if (held[n])
			release_lease(&table.entries[entries[n]]);
	return 0;
}

/* Overwrites the names from `first` to `end`, and then reclaims their former values in one round. */
static void replace(int first, int end)
{
	int retired[NAMES];
	for (int n = first; n < end; n++) {
		fill_slot(CELL(1, NAMES + n));
		retired[n] = word_swap(&cells[n], CELL(1, NAMES + n));
		/* The fence after the swap (`fence_after_swap`) is left out: the round must not need it. */
#ifdef SCAN_FENCE_AFTER_THE_FIRST
		if (n == first)
			scan_fence();
#endif
	}
#ifndef SCAN_FENCE_AFTER_THE_FIRST
	scan_fence();
#endif
	int leased[NAMES];
	/* LeaseTable::scan, once for all retired values. */
	int used = word_read(&table.shards_used), found[ENTRIES];
	for (int at = 0; at < ENTRIES; at++)
		found[at] = 0;
	if (used & 1) {
		int high = word_read(&table.high_water);
		for (int at = 0; at < ENTRIES; at++)
			if (at < high)
				found[at] = word_peek(&table.entries[at]);
	}
#ifndef WITHOUT_SCAN_ACQUIRE
	fence_acquire();
#endif
	for (int n = first; n < end; n++) {
		leased[n] = 0;
		for (int at = 0; at < ENTRIES; at++)
			if (found[at] == retired[n])
				leased[n] = 1;
	}
	for (int n = first; n < end; n++) {
		if (leased[n])
			continue;
		fence_release(); /* leases::reuse_fence */
		fill_slot(CELL(2, SLOT(retired[n])));
	}
#ifdef REFILLS
	/* A later round, for the values that were leased. */
	for (int n = first; n < end; n++) {
		if (!leased[n])
			continue;
		scan_fence();
		if (has_lease(&table, retired[n]))
			continue;
		fence_release();
		fill_slot(CELL(2, SLOT(retired[n])));
	}
#endif
}

static void *owner0(void *unused)
{
	replace(0, OWNERS == 2 ? NAMES / 2 : NAMES);
	return 0;
}

static void *owner1(void *unused)
{
	replace(NAMES / 2, NAMES);
	return 0;
}

int main(void)
{
	pthread_t threads[3];
	for (int n = 0; n < NAMES; n++) {
		fill_slot(CELL(1, n));
		word_set(&cells[n], CELL(1, n));
	}
	start(&threads[0], reader);
	start(&threads[1], owner0);
	if (OWNERS == 2)
		start(&threads[2], owner1);
	for (int i = 0; i < 1 + OWNERS; i++)
		join(threads[i]);
	return 0;
}
