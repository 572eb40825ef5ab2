/* A thread announces its sleep in a parked word, polls once more, and sleeps on a bell. Another process stores news,
 * reads the parked word, rings the bell and wakes the sleepers. The kernel's futex is a queue under a lock: it compares
 * the bell with the sample and adds the thread to the queue in one step, and a wake-up empties the queue.
 *
 * NAME: a client waits for a newer value of a name: wait.rs `wait_key`, parking.rs `Parking::change`; publish.rs
 *       `overwrite` and `ring`; members.rs `wake`, when the daemon moves the name (MOVED).
 * SUBSCRIBER: subscriber.rs `sleep` and `park`; writer.rs `send` and `wake`.
 * PRODUCER: writer.rs `park`, `Asleep::sleep`, `unpark`; subscriber.rs `advance` and `unblock`.
 * NUDGE: the daemon sleeps while clients announce: absorb.rs `absorb_turn`; announce.rs `announce`. The eventfd counts.
 *
 * Bounds: NEWS pieces of news; the sleeper polls and sleeps until it has all of them, at most LOOPS times. THREADS=2:
 * another thread of the sleeper's client waits for other news, and stops waiting at any moment. No sleep has a timeout,
 * so that each lost wake-up is an error.
 *
 * RUN: -DNAME -DNEWS=1
 * RUN: -DNAME -DNEWS=2
 * RUN: -DNAME -DNEWS=1 -DMOVED
 * RUN: -DNAME -DNEWS=3
 * RUN: -DNAME -DNEWS=1 -DTHREADS=2
 * RUN: -DNAME -DNEWS=2 -DTHREADS=2
 * RUN: -DSUBSCRIBER -DNEWS=1
 * RUN: -DSUBSCRIBER -DNEWS=2
 * RUN: -DPRODUCER -DNEWS=1
 * RUN: -DPRODUCER -DNEWS=1 -DTHREADS=2
 * RUN: -DNUDGE -DNEWS=1
 * RUN: -DNUDGE -DNEWS=2
 * CONTROL: -DNAME -DNEWS=1 -DWITHOUT_DECLARE_FENCE
 * CONTROL: -DNAME -DNEWS=1 -DWITHOUT_NEWS_FENCE
 * CONTROL: -DNAME -DNEWS=1 -DSAMPLED_LATE
 * CONTROL: -DNAME -DNEWS=1 -DPOLLED_EARLY
 * CONTROL: -DNAME -DNEWS=1 -DWAKES_FIRST
 * CONTROL: -DNAME -DNEWS=1 -DWAKE_WITHOUT_RING
 * CONTROL: -DNAME -DNEWS=1 -DMOVED -DWITHOUT_NEWS_FENCE
 * CONTROL: -DNAME -DNEWS=1 -DMOVED -DONE_BELL
 * CONTROL: -DNAME -DNEWS=1 -DTHREADS=2 -DMARK_REPLACED
 * CONTROL: -DNAME -DNEWS=1 -DTHREADS=2 -DWITHOUT_LOCK
 * CONTROL: -DSUBSCRIBER -DNEWS=1 -DWITHOUT_DECLARE_FENCE
 * CONTROL: -DSUBSCRIBER -DNEWS=1 -DWITHOUT_NEWS_FENCE
 * CONTROL: -DSUBSCRIBER -DNEWS=1 -DSAMPLED_LATE
 * CONTROL: -DPRODUCER -DNEWS=1 -DWITHOUT_DECLARE_FENCE
 * CONTROL: -DPRODUCER -DNEWS=1 -DWITHOUT_NEWS_FENCE
 * CONTROL: -DPRODUCER -DNEWS=1 -DSAMPLED_LATE
 * CONTROL: -DPRODUCER -DNEWS=1 -DTHREADS=2 -DMARK_REPLACED
 * CONTROL: -DNUDGE -DNEWS=1 -DWITHOUT_DECLARE_FENCE
 * CONTROL: -DNUDGE -DNEWS=1 -DWITHOUT_NEWS_FENCE
 * CONTROL: -DNUDGE -DNEWS=1 -DPOLLED_EARLY
 */
#include "words.h"

#ifndef THREADS
#define THREADS 1
#endif
#define LOOPS (NEWS + 2)
#define MARK 1
#define OTHER_MARK 2

static Word news, parked, bell, directory_bell;

/* The kernel. */
static pthread_mutex_t queue_lock;
static int is_queued, is_woken;

/* futex.rs `wait_any`: sleeps unless a bell differs from its sample. Returns whether the thread sleeps. */
static int falls_asleep(int sample, int directory_sample)
{
	pthread_mutex_lock(&queue_lock);
	int same = word_peek(&bell) == sample;
#ifndef ONE_BELL
	same = same && word_peek(&directory_bell) == directory_sample;
#endif
	is_queued = same;
	is_woken = 0;
	pthread_mutex_unlock(&queue_lock);
	return same;
}

/* futex.rs `wake_all` */
static void wake_all(void)
{
	pthread_mutex_lock(&queue_lock);
	if (is_queued)
		is_woken = 1;
	is_queued = 0;
	pthread_mutex_unlock(&queue_lock);
}

/* Bell::ring */
static void ring(Word *its_bell)
{
#ifndef WAKE_WITHOUT_RING
	atomic_fetch_add_explicit(its_bell, 1, memory_order_release);
#endif
	wake_all();
}

static void news_fence(void)
{
#ifndef WITHOUT_NEWS_FENCE
	fence_seq_cst();
#endif
}

/* wake::declare */
static void declare(int mark)
{
	word_set(&parked, mark);
#ifndef WITHOUT_DECLARE_FENCE
	fence_seq_cst();
#endif
}

/* The marks of a client's threads: parking.rs `Parking`, or `State::asleep` of a producer. */
static pthread_mutex_t marks_lock;
static int marks[2];

static void change(int thread, int is_waiting)
{
#if THREADS == 2 && !defined(WITHOUT_LOCK)
	pthread_mutex_lock(&marks_lock);
#endif
#ifdef WITHOUT_LOCK
	/* Each thread computes the word from what it knows. */
	atomic_store_explicit((atomic_int *)&marks[thread], is_waiting, memory_order_relaxed);
	int others = atomic_load_explicit((atomic_int *)&marks[1 - thread], memory_order_relaxed);
	int word = thread == 0 ? (is_waiting ? MARK : 0) | (others ? OTHER_MARK : 0)
			       : (is_waiting ? OTHER_MARK : 0) | (others ? MARK : 0);
#else
	marks[thread] = is_waiting;
#ifdef PRODUCER
	/* Writer::unpark leaves the word while another thread has declared its sleep. */
	int word = marks[0] || marks[1] ? 1 : 0;
#else
	int word = (marks[0] ? MARK : 0) | (marks[1] ? OTHER_MARK : 0);
#endif
#ifdef MARK_REPLACED
	word = is_waiting ? (thread ? OTHER_MARK : MARK) : 0;
#endif
#endif
#ifndef NAME
	/* Subscription::unpark and Writer::unpark have no fence. */
	if (!is_waiting)
		word_set(&parked, word);
	else
#endif
		declare(word);
#if THREADS == 2 && !defined(WITHOUT_LOCK)
	pthread_mutex_unlock(&marks_lock);
#endif
}

static int is_asleep; /* the sleeper sleeps in its last step */

#ifndef NUDGE
static void *sleeper(void *unused)
{
	int seen = 0;
	is_asleep = 0;
	for (int loop = 0; loop < LOOPS; loop++) {
#ifdef SAMPLED_LATE
		change(0, 1);
		int now = word_read(&news);
		int directory_sample = word_read(&directory_bell), sample = word_read(&bell);
#elif defined(POLLED_EARLY)
		int directory_sample = word_read(&directory_bell), sample = word_read(&bell);
		int now = word_read(&news);
		change(0, 1);
#else
		/* wait_key: the directory's bell first, then the owner's; Writer::park and wake::park: one bell */
		int directory_sample = word_read(&directory_bell), sample = word_read(&bell);
		change(0, 1);
		int now = word_read(&news);
#endif
		if (now == seen && falls_asleep(sample, directory_sample)) {
			/* Either the sleep has ended by now, or this thread does nothing more. */
			pthread_mutex_lock(&queue_lock);
			is_asleep = !is_woken;
			pthread_mutex_unlock(&queue_lock);
			if (is_asleep)
				return 0;
		}
		change(0, 0);
		seen = now;
		if (seen == NEWS)
			return 0;
	}
	return 0;
}

/* Another thread of the sleeper's client, which waits for something else. */
static void *other_sleeper(void *unused)
{
	change(1, 1);
	change(1, 0);
	return 0;
}

static void *waker(void *unused)
{
	for (int n = 1; n <= NEWS; n++) {
#ifdef WAKES_FIRST
		news_fence();
		if (word_read(&parked) & MARK)
			ring(&bell);
		word_set(&news, n);
		continue;
#endif
#if defined(NAME) && !defined(MOVED)
		word_swap(&news, n); /* the cell */
#else
		word_set(&news, n); /* the owner word, the message, the cursor */
#endif
		news_fence(); /* `overwrite`: the fence after the swap */
		int mark = word_read(&parked);
		if (mark & MARK) {
#ifdef MOVED
			ring(&directory_bell);
#else
			ring(&bell);
#endif
		}
	}
	return 0;
}

int main(void)
{
	pthread_t threads[3];
	pthread_mutex_init(&queue_lock, 0);
	pthread_mutex_init(&marks_lock, 0);
	start(&threads[0], sleeper);
	start(&threads[1], waker);
	if (THREADS == 2)
		start(&threads[2], other_sleeper);
	for (int i = 0; i < 1 + THREADS; i++)
		join(threads[i]);
	if (is_asleep) {
		reached();
		assert(is_woken);
	}
	return 0;
}
#else
/* `parked` is `wants_nudge`, `news` is `ring_head`. The eventfd is edge-triggered: epoll reports each write once. */
static Word absorbed;
static int is_pending;

/* Bindings::absorb_turn. Returns true if the daemon sleeps afterwards, and false if a timer starts its next turn. */
static int absorb_turn(void)
{
	word_set(&parked, 0);
	int index = word_peek(&absorbed), announced = word_read(&news);
	if (announced > index) {
		word_set(&absorbed, announced);
		return 0;
	}
#ifdef POLLED_EARLY
	int has_announcements = word_read(&news) != index;
	declare(1);
#else
	declare(1);
	int has_announcements = word_read(&news) != index;
#endif
	if (!has_announcements)
		return 1;
	word_set(&parked, 0);
	return 0;
}

static void *daemon(void *unused)
{
	for (int loop = 0; loop < 2 * LOOPS; loop++) {
		if (!absorb_turn())
			continue;
		pthread_mutex_lock(&queue_lock);
		is_asleep = !is_pending;
		is_pending = 0;
		pthread_mutex_unlock(&queue_lock);
		if (is_asleep)
			return 0;
	}
	__VERIFIER_assume(0);
	return 0;
}

static void *client(void *unused)
{
	for (int n = 1; n <= NEWS; n++) {
		word_set(&news, n); /* Catalogue::announce */
		news_fence();
		if (word_read(&parked) != 0) {
			pthread_mutex_lock(&queue_lock);
			is_pending = 1;
			pthread_mutex_unlock(&queue_lock);
		}
	}
	return 0;
}

int main(void)
{
	pthread_t threads[2];
	pthread_mutex_init(&queue_lock, 0);
	start(&threads[0], daemon);
	start(&threads[1], client);
	for (int i = 0; i < 2; i++)
		join(threads[i]);
	if (word_peek(&absorbed) != NEWS) {
		reached();
		assert(is_pending); /* the write ends the daemon's sleep */
	}
	return 0;
}
#endif
