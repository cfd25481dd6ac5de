#ifndef SLUICE_PLUGIN_H
#define SLUICE_PLUGIN_H
/**
 * \file
 * A policy as a shared library: what it exports, what it is shown, how it answers. C11 or C++, or
 * any language that can export a C function. In C++ prefer sluice/policy_plugin.hpp, which makes
 * this out of an ordinary policy; policy.hpp and world.hpp say in full what is only mirrored here.
 *
 * Times:     nanoseconds of the scheduler's monotonic clock; 0: never happened; SLUICE_NEVER: never
 *            will. Lengths are nanoseconds, too.
 * Threading: sluice_get_policy_plugin() and create() on any thread; decide() of one state is never
 *            called twice at once, and not always on the same thread; destroy() is its last call.
 * Lifetime:  the library stays loaded until the last of its states is destroyed. What a snapshot
 *            points to ends with the call of decide(); what a descriptor points to must stay.
 * Errors:    no C++ exception, longjmp or signal may leave a function of the plugin. One that fails
 *            says so by its return value and leaves a sentence in `problem`.
 * Stability: SLUICE_PLUGIN_ABI counts layouts. A scheduler refuses a library of another one. Within
 *            one, descriptor, snapshot and sink grow at their end only and say their size in
 *            `struct_size`; every other structure stays as it is. A descriptor must include
 *            destroy(); a scheduler reads each member after its end as NULL. New values of
 *            enumerations may appear: ignore events of a kind that you do not know.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_PLUGIN_ABI 2u

#if defined(__GNUC__)
#define SLUICE_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define SLUICE_PLUGIN_EXPORT
#endif

#define SLUICE_NEVER INT64_MAX

/* Parameters -------------------------------------------------------------------------------- */

/** Types of a parameter, and the member of sluice_value that holds a value of it. */
enum sluice_parameter_kind {
  SLUICE_PARAMETER_FLAG = 0,   /**< whole: 0 or 1 */
  SLUICE_PARAMETER_COUNT = 1,  /**< whole */
  SLUICE_PARAMETER_NUMBER = 2, /**< number */
  SLUICE_PARAMETER_SPAN = 3,   /**< whole, nanoseconds; written with a unit: "20ms" */
  SLUICE_PARAMETER_TEXT = 4    /**< text */
};

typedef struct sluice_value {
  const char* key;
  uint32_t kind; /**< SLUICE_PARAMETER_* */
  int64_t whole;
  double number;
  const char* text;
} sluice_value;

/** One parameter, as sluice::parameter. */
typedef struct sluice_parameter {
  /** The path in the table [policy], with dots ("ttft.p99"); one that ends in ".*" stands for any
   * key there. The default beside it says the type. */
  sluice_value fallback;
  uint32_t optional; /**< 1: without a value unless one is given. Always so for ".*". */
  double low;        /**< Least and largest value of a number; both are allowed. */
  double high;       /**< Not of flags and texts. */
  const char* help;  /**< One line: what it does. */
} sluice_parameter;

/* What a policy is shown -------------------------------------------------------------------- */

enum sluice_event_kind {
  SLUICE_EVENT_ONLINE_BEGIN = 0,  /**< `count` busy periods began on `gpu`. */
  SLUICE_EVENT_ONLINE_END = 1,    /**< `count` busy periods ended on `gpu`. */
  SLUICE_EVENT_ONLINE_MOVED = 2,  /**< Online queues on `gpu` got `count` packets. */
  SLUICE_EVENT_SPAN_BEGIN = 3,    /**< `client` began the span `span` of its request `request`. */
  SLUICE_EVENT_SPAN_END = 4,      /**< It ended; `length` is how long it took. */
  SLUICE_EVENT_SPAN_ABANDONED = 5 /**< It was open for `length`, and nobody will end it: its client
                                       withdrew, or it was open for max_busy. */
};

enum sluice_span_kind {
  SLUICE_SPAN_REQUEST = 0, /**< From arrival to the last byte of the answer. */
  SLUICE_SPAN_TTFT = 1,    /**< From arrival to the first token. */
  SLUICE_SPAN_ITL = 2      /**< From one token to the next. */
};

typedef struct sluice_event {
  uint32_t kind; /**< SLUICE_EVENT_* */
  uint32_t gpu;  /**< 0 for spans. */
  uint64_t client;
  uint32_t count;
  uint32_t span; /**< SLUICE_SPAN_*; spans only, as `request` and `length`. */
  int64_t at;
  uint64_t request;
  int64_t length;
} sluice_event;

enum sluice_online_work {
  SLUICE_WORK_UNKNOWN = 0,  /**< Nobody looks, or the pointers cannot be read. */
  SLUICE_WORK_WAITING = 1,  /**< Some packet was not consumed yet. */
  SLUICE_WORK_CONSUMED = 2, /**< Every packet was; the last kernels may still run. */
  SLUICE_WORK_FINISHED = 3, /**< Every packet was, and nothing runs. */
  SLUICE_WORK_RUNNING = 4   /**< Every packet was, and something still runs. */
};

typedef struct sluice_gpu {
  uint32_t id;
  uint32_t online_in_flight; /**< Busy periods begun and not ended. */
  uint32_t lost;             /**< 1: nothing on it is suspended. */
  uint32_t can_reserve;      /**< 1: sluice_sink::reserve() does something. */
  uint32_t can_set_quantum;  /**< 1: sluice_sink::set_quantum() does something. */
  uint32_t slots;            /**< Hardware slots for compute queues; 0: not known. */
  uint32_t work;             /**< SLUICE_WORK_* */
  uint32_t can_see_work;     /**< 1: sluice_sink::poll_pointers() makes `work` known. */
  int64_t suspend_cost;      /**< Median of the last driver calls; 0 before the first. */
  int64_t resume_cost;
  int64_t last_move; /**< Of online queues' write pointers. */
  int64_t last_begin;
  int64_t last_end;
  const uint64_t* offline; /**< Offline groups with queues on it. */
  size_t offline_count;
} sluice_gpu;

enum sluice_role {
  SLUICE_ROLE_UNMATCHED = 0, /**< Observed, never touched. */
  SLUICE_ROLE_ONLINE = 1,    /**< Never suspended. */
  SLUICE_ROLE_OFFLINE = 2    /**< What hold() can hold. */
};

enum sluice_run_state {
  SLUICE_STATE_RUNNING = 0,
  SLUICE_STATE_SUSPENDING = 1,
  SLUICE_STATE_SUSPENDED = 2,
  SLUICE_STATE_RESUMING = 3,
  SLUICE_STATE_MIXED = 4
};

/** What is suspended together. */
typedef struct sluice_group {
  uint64_t id;
  uint32_t role;             /**< SLUICE_ROLE_* */
  uint32_t state;            /**< SLUICE_STATE_* */
  uint32_t manageable;       /**< 1: a hold can take effect. */
  uint32_t priority;         /**< 0 to 15 */
  uint32_t queues;           /**< Managed queues... */
  const uint32_t* gpus;      /**< ...GPUs on which the group owns some, `gpu_count` of them... */
  const uint32_t* queues_on; /**< ...and how many on each, in the same order. */
  size_t gpu_count;
  int64_t state_since;
} sluice_group;

/** An online client. */
typedef struct sluice_client {
  uint64_t id;
  const char* name; /**< As it registered; `name_length` bytes, without a final 0. */
  size_t name_length;
  const uint32_t* gpus; /**< Where its work runs; none: every GPU of the node. */
  size_t gpu_count;
  /** How long its spans should take at most, by SLUICE_SPAN_*; 0: it did not say. */
  int64_t targets[3];
} sluice_client;

/** One consistent picture, taken at the start of a turn. */
typedef struct sluice_snapshot sluice_snapshot;
struct sluice_snapshot {
  uint32_t struct_size;
  int64_t now;                /**< The only clock that a policy has. */
  uint64_t turn;              /**< Increases by one per call. */
  const sluice_event* events; /**< In order of arrival; may be empty (a wake-up). */
  size_t event_count;
  const uint64_t* changed; /**< Groups that are new, changed queues, GPUs or state, or whose
                                declaration expired. */
  size_t changed_count;
  const sluice_gpu* gpus; /**< Every GPU of the node. */
  size_t gpu_count;
  /** Fills `group` with the group of that id. Takes constant time.
   * \return 1; 0 when there is none (any more): then `group` is left as it was. */
  int32_t (*find_group)(const sluice_snapshot* self, uint64_t id, sluice_group* group);
  /** The same for a client; also for those that events of this turn name. */
  int32_t (*find_client)(const sluice_snapshot* self, uint64_t id, sluice_client* client);
  /** \return the one of `gpus` with that id, or NULL. */
  const sluice_gpu* (*find_gpu)(const sluice_snapshot* self, uint32_t id);
  const void* host; /**< The scheduler's own. */
};

/* How it answers ---------------------------------------------------------------------------- */

/** Where a policy says what it wants. A declaration stands until the policy replaces it, until its
 * expiry, or until the policy is removed; a group without one runs. */
typedef struct sluice_sink sluice_sink;
struct sluice_sink {
  uint32_t struct_size;
  /** Wants every queue of the group suspended, until `until`. */
  void (*hold)(const sluice_sink* self, uint64_t group, int64_t until);
  /** Wants the group to run. */
  void (*run)(const sluice_sink* self, uint64_t group);
  /** Asks for a turn at or after `when`. */
  void (*wake_at)(const sluice_sink* self, int64_t when);
  /** Wants pointers of online queues looked at every `every` from now on; 0: not at all. */
  void (*poll_pointers)(const sluice_sink* self, int64_t every);
  /** Wants at most `offline_share` (0 to 1) of the GPU's slots used by offline queues; 1: all. */
  void (*reserve)(const sluice_sink* self, uint32_t gpu, double offline_share);
  /** How long the group may keep a GPU once others want it; 0: the driver's default. */
  void (*set_quantum)(const sluice_sink* self, uint64_t group, int64_t length);
  /** Whether marks of spans of this kind (SLUICE_SPAN_*) are wanted at once, from now on. At the
   * start those of requests and first tokens are; those of tokens wait for the next turn. */
  void (*listen)(const sluice_sink* self, uint32_t span, int32_t at_once);
  /** Tells the operator something that the policy found out. Each "{}" in the text stands for the
   * next of the numbers. */
  void (*note)(const sluice_sink* self, const char* text, const double* numbers, size_t count);
  void* host; /**< The scheduler's own. */
};

/* What the library exports ------------------------------------------------------------------ */

typedef struct sluice_policy_plugin {
  uint32_t abi_version; /**< SLUICE_PLUGIN_ABI */
  uint32_t struct_size; /**< sizeof(sluice_policy_plugin) */
  const char* name;     /**< As users write it: lower case letters, digits and underscores. */
  const char* summary;  /**< One line: what it promises. */
  const sluice_parameter* parameters; /**< NULL: it has none. */
  size_t parameter_count;
  /**
   * Makes one policy.
   * \param values  in the order of their keys; every parameter that is not optional has one of its
   *                type, in its range, and nothing else is there. Copy what is to be kept.
   * \param problem takes up to `problem_size` bytes with the final 0: on failure one sentence that
   *                names key, value and what to do. Empty before the call.
   * \return the state that decide() and destroy() get; NULL on failure.
   */
  void* (*create)(const sluice_value* values, size_t count, char* problem, size_t problem_size);
  /**
   * One turn, a pure function of state and snapshots: no I/O, no other clock, no blocking, no
   * allocation once it is warm. Its cost should be what changed, not what exists.
   * \return 0. Anything else: it failed, and the scheduler removes it; `problem` says why.
   */
  int32_t (*decide)(void* state, const sluice_snapshot* seen, const sluice_sink* out, char* problem,
                    size_t problem_size);
  void (*destroy)(void* state);
  /** What to call this state in logs and reports; it changes when behaviour changes. May be NULL:
   * `name`. What is returned must stay until destroy(). */
  const char* (*name_of)(const void* state);
  /** Kinds of spans of which clients must mark at least one, or the policy does nothing: the sum of
   * 1 << SLUICE_SPAN_* over them. Called once, after create(). May be NULL, as 0: it works without
   * marks. */
  uint32_t (*needs_marks)(const void* state);
} sluice_policy_plugin;

/** The one symbol that a library exports. NULL: it cannot be used here. */
SLUICE_PLUGIN_EXPORT const sluice_policy_plugin* sluice_get_policy_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
