#ifndef SLUICE_CLIENT_WORDS_H
#define SLUICE_CLIENT_WORDS_H
/**
 * \file
 * The memory that a client and the scheduler share, and what each may do to it: words without
 * pointers, the same for a client in the scheduler's process and in another. C11 or C++, with the
 * __atomic functions of gcc and clang. Programs use sluice/client.h or sluice/online_client.hpp.
 *
 * One page belongs to the client, which alone writes it, but for `seen` and what takes marks. One
 * belongs to the scheduler, and all clients read it.
 *
 * To begin: `begun` goes up, a seq_cst fence, `sleeping` is read, and the client's eventfd written
 * where it is set. The scheduler: `sleeping` set, a seq_cst fence, every page looked at once more,
 * then it blocks. Either the client sees `sleeping`, or that last look sees the begin. No two
 * sleeps have the same number, so a client that has rung for one need not ring for it again:
 * whatever is published while that number stands is seen by the last look before the next, at the
 * latest.
 *
 * Trust: the scheduler believes nothing that it reads in a client's page. Whatever stands there
 * costs it a bounded time and harms nobody but that client.
 *
 * Stability: SLUICE_WORDS_LAYOUT counts layouts; a scheduler and a client of different ones refuse
 * each other.
 */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define SLUICE_WORDS_ASSERT(what) static_assert(what, #what)
#else
#include <assert.h>
#define SLUICE_WORDS_ASSERT(what) static_assert(what, #what)
#endif

#define SLUICE_WORDS_LAYOUT 1u

enum {
  SLUICE_WORDS_MARKS = 1024, /**< As many marks can wait to be looked at. */
  SLUICE_WORDS_SPANS = 3     /**< Kinds of spans: requests, first tokens, tokens. */
};

/** Where a span begins or ends. */
typedef struct sluice_mark {
  uint64_t number; /**< Ticket + 1 of what was written here last. */
  uint64_t request;
  int64_t at; /**< CLOCK_MONOTONIC, nanoseconds. */
  uint32_t kind;
  uint32_t begins; /**< 1: the span begins; 0: it ends. */
} sluice_mark;

/** A client's page. All zeros at first. */
typedef struct __attribute__((aligned(64))) sluice_client_words {
  /** Busy periods begun, and when the oldest began that the scheduler has not looked at: a hint
   * that feeds latencies, exact unless threads race to be first. */
  uint64_t begun;
  int64_t first_unseen;
  uint64_t unused_0[6];
  uint64_t ended;
  uint64_t unused_1[7];
  /** The scheduler's: the `begun` of its last look. */
  uint64_t seen;
  uint64_t unused_2[7];
  /** Marks: a producer takes a credit, which fails when all slots are taken, then a ticket, which
   * names its slot. There are never more credits out than slots, so the slot of a ticket is free.
   */
  uint64_t used;
  uint64_t next;
  uint64_t lost; /**< Marks that found no room. */
  uint64_t unused_3[5];
  /** The scheduler's: marks that it took, for the next scheduler to go on from. */
  uint64_t taken;
  uint64_t unused_4[7];
  sluice_mark marks[SLUICE_WORDS_MARKS];
} sluice_client_words;
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_client_words, ended) == 64);
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_client_words, seen) == 128);
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_client_words, used) == 192);
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_client_words, taken) == 256);
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_client_words, marks) == 320);
SLUICE_WORDS_ASSERT(sizeof(sluice_mark) == 32 && sizeof(sluice_client_words) == 33088);

/** What the scheduler does. */
enum sluice_mode {
  SLUICE_MODE_NONE = 0,     /**< There is none. */
  SLUICE_MODE_ACTIVE = 1,   /**< A policy decides. */
  SLUICE_MODE_PASSIVE = 2,  /**< No policy: everything runs. */
  SLUICE_MODE_STOPPING = 3, /**< It resumes everything and goes. */
  /** It decides, and acts on nothing: everything runs. A value more changes no layout: who does not
   * know it takes it for a number that he does not know. */
  SLUICE_MODE_OBSERVING = 4
};

/** The scheduler's page. All zeros, as where there is none, means that nobody sleeps. */
typedef struct __attribute__((aligned(64))) sluice_scheduler_words {
  uint64_t sleeping; /**< Not 0: who publishes something must ring. The number of this sleep. */
  uint32_t listened[SLUICE_WORDS_SPANS]; /**< 1: marks of that kind of span ring, too. */
  uint32_t unused_0[11];
  uint64_t turns;     /**< Goes up with every turn: it lives. */
  uint64_t suspended; /**< Queues that are suspended now, or not known to run; observing: 0. */
  uint32_t mode;      /**< SLUICE_MODE_* */
  uint32_t unused_1[11];
} sluice_scheduler_words;
SLUICE_WORDS_ASSERT(__builtin_offsetof(sluice_scheduler_words, turns) == 64);
SLUICE_WORDS_ASSERT(sizeof(sluice_scheduler_words) == 128);

/** Any thread: whether the next begin is the first that the scheduler has not looked at, and so
 * wants sluice_words_first_unseen() before it. */
static inline int sluice_words_all_seen(const sluice_client_words* words) {
  return __atomic_load_n(&words->begun, __ATOMIC_RELAXED) ==
         __atomic_load_n(&words->seen, __ATOMIC_RELAXED);
}
static inline void sluice_words_first_unseen(sluice_client_words* words, int64_t now) {
  __atomic_store_n(&words->first_unseen, now, __ATOMIC_RELAXED);
}

/** Any thread; ring afterwards. */
static inline void sluice_words_begin(sluice_client_words* words) {
  (void)__atomic_fetch_add(&words->begun, 1, __ATOMIC_RELEASE);
}

/** Any thread; ring afterwards.
 * \return 0: nothing was in flight, so there is nothing to end. */
static inline int sluice_words_end(sluice_client_words* words) {
  /* In this order: when nothing is left that began before the first load, the caller's own begin
   * has been ended, or never was. */
  const uint64_t ended = __atomic_load_n(&words->ended, __ATOMIC_ACQUIRE);
  if (ended >= __atomic_load_n(&words->begun, __ATOMIC_RELAXED)) return 0;
  (void)__atomic_fetch_add(&words->ended, 1, __ATOMIC_RELEASE);
  return 1;
}

enum sluice_pushed {
  SLUICE_PUSHED = 0,
  SLUICE_PUSHED_HALF_FULL = 1, /**< And it is time that the scheduler takes some: ring. */
  SLUICE_PUSHED_NOT = 2        /**< No room: not done, but counted. */
};

/** Any thread, wait-free; ring afterwards where the scheduler listens to that kind.
 * Ordering: the release of `used` in sluice_words_take() (the slot was read) pairs with the acquire
 * here; from the producer that saw it the tickets' acq_rel carries it on to later ones. */
static inline enum sluice_pushed sluice_words_push(sluice_client_words* words, uint32_t kind,
                                                   uint32_t begins, uint64_t request, int64_t at) {
  const uint64_t used = __atomic_fetch_add(&words->used, 1, __ATOMIC_ACQUIRE);
  if (used >= SLUICE_WORDS_MARKS) {
    (void)__atomic_fetch_sub(&words->used, 1, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&words->lost, 1, __ATOMIC_RELAXED);
    return SLUICE_PUSHED_NOT;
  }
  const uint64_t ticket = __atomic_fetch_add(&words->next, 1, __ATOMIC_ACQ_REL);
  sluice_mark* const mine = &words->marks[ticket % SLUICE_WORDS_MARKS];
  __atomic_store_n(&mine->request, request, __ATOMIC_RELAXED);
  __atomic_store_n(&mine->at, at, __ATOMIC_RELAXED);
  __atomic_store_n(&mine->kind, kind, __ATOMIC_RELAXED);
  __atomic_store_n(&mine->begins, begins, __ATOMIC_RELAXED);
  __atomic_store_n(&mine->number, ticket + 1, __ATOMIC_RELEASE);
  return used == SLUICE_WORDS_MARKS / 2 ? SLUICE_PUSHED_HALF_FULL : SLUICE_PUSHED;
}

/** The scheduler's thread: whether the mark of ticket `read` is there. */
static inline int sluice_words_has_mark(const sluice_client_words* words, uint64_t read) {
  return __atomic_load_n(&words->marks[read % SLUICE_WORDS_MARKS].number, __ATOMIC_ACQUIRE) ==
         read + 1;
}

/** The scheduler's thread: takes the mark of ticket `*read`, each word read once, and counts
 * `*read` up.
 * \param read the scheduler's own count: only where it begins comes from `taken`.
 * \return 0: there is none yet. */
static inline int sluice_words_take(sluice_client_words* words, uint64_t* read, sluice_mark* mark) {
  if (!sluice_words_has_mark(words, *read)) return 0;
  const sluice_mark* const from = &words->marks[*read % SLUICE_WORDS_MARKS];
  mark->number = ++*read;
  mark->request = __atomic_load_n(&from->request, __ATOMIC_RELAXED);
  mark->at = __atomic_load_n(&from->at, __ATOMIC_RELAXED);
  mark->kind = __atomic_load_n(&from->kind, __ATOMIC_RELAXED);
  mark->begins = __atomic_load_n(&from->begins, __ATOMIC_RELAXED);
  /* A scheduler that dies in between costs one slot. */
  __atomic_store_n(&words->taken, *read, __ATOMIC_RELAXED);
  (void)__atomic_fetch_sub(&words->used, 1, __ATOMIC_RELEASE);
  return 1;
}

/** Any thread, after publishing.
 * \return the number of the sleep for which the scheduler must be rung; 0: it is awake. */
static inline uint64_t sluice_words_asleep(const uint64_t* sleeping) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return __atomic_load_n(sleeping, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif

#endif
