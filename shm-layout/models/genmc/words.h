/* The words of shm-layout, and the steps that several models share, in C11. Each function has the name of the Rust
 * function whose memory accesses it repeats, access by access.
 *
 * A model file begins with lines that scripts/models reads:
 *   RUN: OPTIONS       GenMC explores the model with these definitions, and must report no error. A second exploration
 *                      turns each `reached()` into an error, which GenMC must report: the model must not be vacuous.
 *   CONTROL: OPTIONS   The steps without one fence, ordering or second check. GenMC must report an error.
 *   NEEDLESS: OPTIONS  Like a CONTROL, but GenMC must report no error: the model shows that the step is not needed.
 * All lines are explored with -rc11, where the tensors' bytes are plain accesses: a data race is an error. The RUN lines
 * are also explored with -imm, which allows a load to take effect after a later store of its thread (RC11 does not).
 * There the bytes are relaxed accesses, and only a wrong value is an error. */
#include <assert.h>
#include <genmc.h>
#include <pthread.h>
#include <stdatomic.h>

/* Word: 8 bytes with one writer process. */
typedef atomic_int Word;

static inline int word_peek(Word *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static inline int word_read(Word *word)
{
	int value = atomic_load_explicit(word, memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	return value;
}

static inline void word_set(Word *word, int value) { atomic_store_explicit(word, value, memory_order_release); }

static inline void word_put(Word *word, int value) { atomic_store_explicit(word, value, memory_order_relaxed); }

static inline int word_swap(Word *word, int value)
{
	return atomic_exchange_explicit(word, value, memory_order_acq_rel);
}

static inline int word_set_bits(Word *word, int mask)
{
	return atomic_fetch_or_explicit(word, mask, memory_order_acq_rel);
}

static inline int word_clear_bits(Word *word, int mask)
{
	return atomic_fetch_and_explicit(word, ~mask, memory_order_acq_rel);
}

static inline void fence_seq_cst(void) { atomic_thread_fence(memory_order_seq_cst); }
static inline void fence_acquire(void) { atomic_thread_fence(memory_order_acquire); }
static inline void fence_release(void) { atomic_thread_fence(memory_order_release); }

/* The bytes of a slot. A producer fills a slot with the slot's generation, and a reader compares. */
#ifdef RELAXED_BYTES
typedef atomic_int Bytes;
static inline void fill(Bytes *bytes, int value) { word_put(bytes, value); }
static inline int take(Bytes *bytes) { return word_peek(bytes); }
#else
typedef int Bytes;
static inline void fill(Bytes *bytes, int value) { *bytes = value; }
static inline int take(Bytes *bytes) { return *bytes; }
#endif

/* Cell: generation and slot. Lease: the same, for a model's one owner. */
#define CELL(generation, slot) ((generation) << 3 | (slot))
#define GENERATION(cell) ((cell) >> 3)
#define SLOT(cell) ((cell)&7)
#define CELL_DELETED 7
#define IS_VALUE(cell) ((cell) != 0 && SLOT(cell) != 7)

/* OwnerWord: version, kind (1: live, 2: reserved, 0: no name) and cell. Each store of the daemon has the next version. */
#define LIVE(version, cell) ((version) << 5 | 1 << 3 | (cell))
#define RESERVED(version) ((version) << 5 | 2 << 3)
#define TOMB(version) ((version) << 5)
#define KIND(owner_word) ((owner_word) >> 3 & 3)
#define IS_LIVE(owner_word) (KIND(owner_word) == 1)
#define CELL_OF(owner_word) ((owner_word)&7)

/* A lease table with one shard. */
#ifndef ENTRIES
#define ENTRIES 1
#endif
struct LeaseTable {
	Word shards_used, high_water, entries[ENTRIES];
};

/* leases::scan_fence */
static inline void scan_fence(void)
{
#ifndef WITHOUT_SCAN_FENCE
	fence_seq_cst();
#endif
}

/* LeaseTable::scan: returns whether the table has this lease. */
static inline int has_lease(struct LeaseTable *table, int lease)
{
	int found = 0;
	int used = word_read(&table->shards_used);
	if (used & 1) {
		int high = word_read(&table->high_water);
		for (int at = 0; at < ENTRIES; at++)
			if (at < high && word_peek(&table->entries[at]) == lease)
				found = 1;
	}
#ifndef WITHOUT_SCAN_ACQUIRE
	fence_acquire();
#endif
	return found;
}

/* leases::store */
static inline void store_lease(Word *entry, int lease)
{
#ifdef RELAXED_LEASE
	word_put(entry, lease);
#else
	word_set(entry, lease);
#endif
}

/* leases::lease_fence */
static inline void lease_fence(void)
{
#ifndef WITHOUT_LEASE_FENCE
	fence_seq_cst();
#endif
}

/* leases::release */
static inline void release_lease(Word *entry)
{
#ifdef RELAXED_RELEASE
	word_put(entry, 0);
#else
	word_set(entry, 0);
#endif
}

/* Shard::free_entry_from(0): the lowest free entry; a model has enough of them. */
static inline int free_entry(struct LeaseTable *table)
{
	int at = 0;
#ifdef RELAXED_FREE_ENTRY
	while (at < ENTRIES - 1 && word_peek(&table->entries[at]) != 0)
		at++;
	__VERIFIER_assume(word_peek(&table->entries[at]) == 0);
#else
	while (at < ENTRIES - 1 && word_read(&table->entries[at]) != 0)
		at++;
	__VERIFIER_assume(word_read(&table->entries[at]) == 0);
#endif
#ifndef MARKS_LATE
	if (word_peek(&table->high_water) <= at)
		word_set(&table->high_water, at + 1);
	if (!(word_peek(&table->shards_used) & 1))
		word_set_bits(&table->shards_used, 1);
#endif
	return at;
}

/* A step that each model must reach in some execution. */
#ifdef MUST_REACH
#define reached() assert(!"reached")
#else
#define reached() ((void)0)
#endif

static inline void start(pthread_t *thread, void *(*run)(void *)) { pthread_create(thread, 0, run, 0); }
static inline void join(pthread_t thread) { pthread_join(thread, 0); }
