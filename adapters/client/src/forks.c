/* What fork() does: its child has nothing of its parent's clients.
 *
 * A child that held its parent's socket would keep the parent registered when that exec()s, for
 * then nobody else tells the scheduler: the pidfd goes on over exec. To close it with the child's
 * first call would be too late, for most children never call.
 *
 * Every lock is held over fork(), so that the child sees each descriptor that there is, and no
 * number that is none any more. The child only calls close() and unlocks, as is allowed there.
 * Children that are made without fork()'s handlers share all descriptors until they exec():
 * vfork() and posix_spawn() do at once. */
#define _GNU_SOURCE

#include "connection.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sluice_connection* list;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int installed; /* 0, or why not. */

static void before_fork(void) {
  pthread_mutex_lock(&list_lock);
  for (struct sluice_connection* each = list; each != NULL; each = each->next) {
    pthread_mutex_lock(&each->life->lock);
  }
}

static void in_parent(void) {
  for (struct sluice_connection* each = list; each != NULL; each = each->next) {
    pthread_mutex_unlock(&each->life->lock);
  }
  pthread_mutex_unlock(&list_lock);
}

static void in_child(void) {
  for (struct sluice_connection* each = list; each != NULL; each = each->next) {
    sluice_client_close_fd(&each->page);
    sluice_client_close_fd(&each->bell);
    sluice_client_close_fd(&each->kick);
    sluice_client_close_fd(&each->link);
    /* Its lock was wiped, and is free. */
  }
  pthread_mutex_unlock(&list_lock);
}

static void install(void) { installed = pthread_atfork(&before_fork, &in_parent, &in_child); }

int sluice_client_guard_forks(struct sluice_connection* client) {
  pthread_once(&once, &install);
  if (installed != 0) return installed;
  pthread_mutex_lock(&list_lock);
  client->next = list;
  list = client;
  pthread_mutex_unlock(&list_lock);
  return 0;
}

void sluice_client_unguard_forks(struct sluice_connection* client) {
  pthread_mutex_lock(&list_lock);
  for (struct sluice_connection** at = &list; *at != NULL; at = &(*at)->next) {
    if (*at != client) continue;
    *at = client->next;
    break;
  }
  pthread_mutex_unlock(&list_lock);
}
