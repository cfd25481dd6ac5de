#ifndef SLUICE_CLIENT_CONNECTION_H
#define SLUICE_CLIENT_CONNECTION_H
/**
 * \file
 * What the library's parts share: one client.
 */
#include "wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "sluice/client.h"

/** In a page that the kernel wipes in a forked child (MADV_WIPEONFORK): there it says that all else
 * is the parent's, and its lock is free, whoever held it at the fork. */
typedef struct life {
  uint32_t alive;
  pthread_mutex_t lock;
} life;

typedef struct wait {
  struct wait* next;
  int64_t number;
  int64_t deadline;
  sluice_client_clear done;
  void* context;
  bool sent;
} wait;

struct sluice_connection {
  struct sluice_connection* next; /* Of those that fork() is told of (forks.c). */

  /* Made by open() and never changed. */
  life* life;
  char* socket;
  sluice_wire_hello hello;

  /* Of this process: made by open() or the child's first call, before `alive` is set. Descriptors
   * come and go under life->lock only, so that fork() finds all there are; -1: none. */
  sluice_client_words* words;
  sluice_scheduler_words* scheduler; /* Always readable: zeros while there is no scheduler. */
  int page;
  int bell;
  int kick; /* Wakes the thread. */
  pthread_t thread;
  uint64_t rung; /* For which of the scheduler's sleeps. */

  /* Guarded by life->lock. */
  int link; /* To the scheduler. */
  bool closing;
  bool connected;
  uint32_t role;
  int32_t error;
  int32_t scheduler_pid;
  uint64_t connections;
  char why[SLUICE_WIRE_WHY];
  wait* waits;
  int waiting;
  int64_t last_wait;
};

int64_t sluice_client_now(void);
/** Keeps the sentence for the caller's thread. \return -error. */
int sluice_client_fail(int error, const char* format, ...) __attribute__((format(printf, 2, 3)));

/** Pages, descriptors and the thread of this process, life->lock held, with nothing in flight. */
int sluice_client_start(struct sluice_connection* client);
/** Forgets what a forked child has of its parent's memory. */
void sluice_client_disown(struct sluice_connection* client);
/** life->lock held, as for all that closes. */
void sluice_client_free_pages(struct sluice_connection* client);
/** Ends the connection, whoever else may have its descriptor. */
void sluice_client_hang_up(struct sluice_connection* client);
void sluice_client_close_fd(int* fd);

/** From here to the other the client's descriptors are closed in every child that fork() makes.
 * \return 0, or an errno value. */
int sluice_client_guard_forks(struct sluice_connection* client);
void sluice_client_unguard_forks(struct sluice_connection* client);

/** life->lock held: the scheduler need not answer that wait. */
void sluice_client_tell_stopped(struct sluice_connection* client, int64_t number);
/** The thread: connects, and again when the connection is lost, until `closing`. */
void* sluice_client_run(void* client);

#endif
