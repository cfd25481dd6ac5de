#ifndef SLUICE_CLIENT_H
#define SLUICE_CLIENT_H
/**
 * \file
 * How a program tells the scheduler, from its own process, when it has online work and how its
 * requests fare. C11 or C++, or anything that loads libsluice_client.so. In C++ prefer
 * sluice/client.hpp; inside the scheduler's own process, sluice/online_client.hpp.
 *
 * Whether a scheduler runs, and when it is restarted, is no concern of the caller: every call works
 * without one, and what is in flight counts as soon as one is there.
 *
 * Values:    a call returns what it says, or a negative errno value; then
 *            sluice_client_last_error() has a sentence. A client that is NULL gives -EINVAL.
 * Threading: any thread may call anything at any time, but for sluice_client_close(), which must be
 *            the last call. One thread of the library's own, with every signal blocked, keeps the
 *            connection, and calls what sluice_client_wait() was given.
 * Process:   after fork() the child's first call starts anew: nothing that its parent had in flight
 *            is the child's, and waits stay the parent's. fork() closes the child's descriptors of
 *            its parent's clients, so that those end with the parent, whether that exits or calls
 *            exec, over which nothing is passed on. Whoever makes processes with clone() himself
 *            runs no such handler: his child keeps the parent registered until it calls exec.
 * Cost:      begin, end and spans take no lock, do not allocate and do not wait, and make no system
 *            call while the scheduler is awake: one write to an eventfd while it sleeps. The first
 *            call in a forked child is the exception.
 * Trust:     a process's role is granted by the scheduler's configuration, by its user, group or
 *            cgroup, or set by an administrator for its pid or cgroup. Without that everything
 *            here works and nothing counts; status says why.
 * Stability: a program built against this header works with every later library of the same
 *            SLUICE_CLIENT_VERSION_MAJOR. Structures grow at their end only and say how large the
 *            caller's are. New values may appear where a comment says so.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SLUICE_CLIENT_API __attribute__((visibility("default")))
#else
#define SLUICE_CLIENT_API
#endif

#define SLUICE_CLIENT_VERSION_MAJOR 0
#define SLUICE_CLIENT_VERSION_MINOR 1
/** Of this header; sluice_client_version() is the library's. */
#define SLUICE_CLIENT_VERSION ((SLUICE_CLIENT_VERSION_MAJOR << 16) | SLUICE_CLIENT_VERSION_MINOR)

/** SLUICE_CLIENT_VERSION of the library: the major number in the upper 16 bits. */
SLUICE_CLIENT_API uint32_t sluice_client_version(void);

/**
 * What the calling thread's last failing call was about: one sentence without a line end. Empty
 * when none failed yet. Valid until the thread's next call.
 */
SLUICE_CLIENT_API const char* sluice_client_last_error(void);

/** One client. A process may have several, of one role. */
typedef struct sluice_connection sluice_connection;

/** What the process is. */
enum {
  SLUICE_CLIENT_ONLINE = 1, /**< Latency-critical: never suspended, and its begins count. */
  SLUICE_CLIENT_OFFLINE = 2 /**< Best effort: may be suspended. Its begins count for nothing. */
};

/** Spans of a request. */
enum {
  SLUICE_CLIENT_REQUEST = 0, /**< From arrival to the last byte of the answer. */
  SLUICE_CLIENT_TTFT = 1,    /**< From arrival to the first token. */
  SLUICE_CLIENT_ITL = 2      /**< From one token to the next. */
};

#define SLUICE_CLIENT_MOST_GPUS 64

typedef struct sluice_client_options {
  uint32_t size; /**< sizeof(sluice_client_options) */
  uint32_t role; /**< SLUICE_CLIENT_ONLINE or _OFFLINE; 0: online. */
  /** The scheduler's socket. NULL: the environment's SLUICE_CLIENT_SOCKET, else
   * /run/sluice/clients.sock. */
  const char* socket;
  const char* name; /**< For logs and policies, at most 63 bytes. NULL: the program's. */
  /** Where the work runs: gpu_id of the driver's topology, at most SLUICE_CLIENT_MOST_GPUS. None:
   * every GPU of the node. The work of a rank of an online gang counts on all GPUs of the gang. */
  const uint32_t* gpus;
  size_t gpu_count;
  /** How long spans should take at most, by kind, in nanoseconds; 0: not said. Policies may use
   * them. */
  int64_t targets[3];
} sluice_client_options;

/**
 * Makes a client and returns at once, whether there is a scheduler or not.
 * \param options NULL: all defaults. Nothing in it is needed afterwards.
 * \param client  receives it; NULL on failure.
 * \return 0; -EINVAL; -EMFILE, -ENOMEM, -EAGAIN where the system gave no descriptors, memory or
 *         thread.
 */
SLUICE_CLIENT_API int sluice_client_open(const sluice_client_options* options,
                                         sluice_connection** client);
/** Withdraws the client: what it had in flight counts as ended, waits are answered "not clear".
 * NULL is fine.
 * \return 0; -EDEADLK on the library's own thread, where it cannot be done. */
SLUICE_CLIENT_API int sluice_client_close(sluice_connection* client);

/** Online work begins: offline work makes room as long as any is in flight.
 * \return 0; in a forked child's first call what sluice_client_open() says. */
SLUICE_CLIENT_API int sluice_client_begin(sluice_connection* client);
/** It ended. One that nobody began is ignored. As sluice_client_begin(). */
SLUICE_CLIENT_API int sluice_client_end(sluice_connection* client);

/**
 * The span `kind` of a request begins. Beginning one that is open ends it and begins it anew, so a
 * server that marks every token needs one call per token. Spans are for policies that know targets;
 * online work begins with sluice_client_begin().
 * \param request the caller's number, unique among the client's open spans of this kind.
 * \return 0; -EINVAL for a kind that is none; -ENOBUFS: a thousand marks wait to be looked at
 * (there is no scheduler, say), and this one is dropped.
 */
SLUICE_CLIENT_API int sluice_client_begin_span(sluice_connection* client, uint32_t kind,
                                               uint64_t request);
/** The same, begun `since`: nanoseconds of CLOCK_MONOTONIC, not later than now. */
SLUICE_CLIENT_API int sluice_client_begin_span_since(sluice_connection* client, uint32_t kind,
                                                     uint64_t request, int64_t since);
SLUICE_CLIENT_API int sluice_client_end_span(sluice_connection* client, uint32_t kind,
                                             uint64_t request);

/** Called once, on the library's thread. Do not wait in it, and do not close the client. It may
 * fork(); a child in which it returns ends there, by _exit(0).
 * \param clear 1: every offline queue on the client's GPUs that can be suspended is. 0: the time
 *              was over first, or nobody makes room. */
typedef void (*sluice_client_clear)(void* context, int32_t clear);

/**
 * Waits, without blocking, for the GPUs to be clear. Begin first: that is what makes them so.
 * Answered 0 at once, whatever the timeout, where nobody makes room: there is no scheduler, or the
 * client is not registered yet, or it was refused; the scheduler only observes; the client is
 * offline. So are waits that are open when the scheduler goes. A scheduler without a policy (mode
 * passive, as while the node is paused), or that stops, answers at once, too, waits that are open
 * included: 1 where nothing runs on the GPUs anyway.
 * \param timeout nanoseconds, up to 60 s; more counts as that.
 * \return a number, 1 or more, for sluice_client_stop_waiting(); -EINVAL; -EAGAIN: 64 wait already.
 */
SLUICE_CLIENT_API int64_t sluice_client_wait(sluice_connection* client, int64_t timeout,
                                             sluice_client_clear done, void* context);
/** \return 1: it was in time, and `done` will not be called; 0: it was, or is being called. */
SLUICE_CLIENT_API int sluice_client_stop_waiting(sluice_connection* client, int64_t number);

/** What the scheduler does. New values may appear. */
enum {
  SLUICE_CLIENT_MODE_NONE = 0,     /**< There is none, or it refused the client. */
  SLUICE_CLIENT_MODE_ACTIVE = 1,   /**< A policy decides. */
  SLUICE_CLIENT_MODE_PASSIVE = 2,  /**< No policy: everything runs. */
  SLUICE_CLIENT_MODE_STOPPING = 3, /**< It resumes everything and goes. */
  SLUICE_CLIENT_MODE_OBSERVING = 4 /**< It decides, and acts on nothing: everything runs. */
};

typedef struct sluice_client_status {
  uint32_t size;         /**< sizeof(sluice_client_status), set by the caller. */
  uint32_t connected;    /**< 1: the scheduler knows the client. */
  uint32_t role;         /**< As granted, SLUICE_CLIENT_*; 0: none. */
  uint32_t mode;         /**< SLUICE_CLIENT_MODE_* */
  int32_t error;         /**< While not connected: a negative errno value. -EACCES: refused. */
  int32_t scheduler_pid; /**< As the socket says; 0: not connected. */
  uint64_t in_flight;    /**< Begun and not ended. */
  uint64_t connections;  /**< How often the client has been registered. */
  uint64_t suspended;    /**< Queues on the node that are suspended now; observing: 0. */
  uint64_t turns;        /**< Of the scheduler: it goes up while that lives. */
  uint64_t lost_marks;   /**< Spans' marks that found no room. */
  char why[240];         /**< While not connected: one sentence. */
} sluice_client_status;

/** Looks, without asking the scheduler. Takes a lock.
 * \return 0; -EINVAL when status->size is too small to be one. */
SLUICE_CLIENT_API int sluice_client_get_status(sluice_connection* client,
                                               sluice_client_status* status);

#ifdef __cplusplus
}
#endif

#endif
