#define _GNU_SOURCE

#include "sluice/client.h"

#include "connection.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000

static _Thread_local char last_text[256];
static _Thread_local const char* last_error = "";

static_assert((int)SLUICE_CLIENT_ITL == (int)SLUICE_WORDS_SPANS - 1 &&
                  (int)SLUICE_CLIENT_MOST_GPUS == (int)SLUICE_WIRE_GPUS,
              "the API and the wire protocol use the same numbers");
static_assert((int)SLUICE_CLIENT_MODE_ACTIVE == (int)SLUICE_MODE_ACTIVE &&
                  (int)SLUICE_CLIENT_MODE_PASSIVE == (int)SLUICE_MODE_PASSIVE &&
                  (int)SLUICE_CLIENT_MODE_STOPPING == (int)SLUICE_MODE_STOPPING &&
                  (int)SLUICE_CLIENT_MODE_OBSERVING == (int)SLUICE_MODE_OBSERVING,
              "the API and the shared page use the same numbers");

int64_t sluice_client_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

int sluice_client_fail(int error, const char* format, ...) {
  va_list all;
  va_start(all, format);
  vsnprintf(last_text, sizeof last_text, format, all);
  va_end(all);
  last_error = last_text;
  return -error;
}

uint32_t sluice_client_version(void) { return SLUICE_CLIENT_VERSION; }
const char* sluice_client_last_error(void) { return last_error; }

/* Opening and closing ------------------------------------------------------------------------ */

static int read_options(const sluice_client_options* options, struct sluice_connection* client) {
  sluice_client_options given;
  memset(&given, 0, sizeof given);
  if (options != NULL) {
    if (options->size < offsetof(sluice_client_options, socket)) {
      return sluice_client_fail(
          EINVAL, "invalid options.size %u: expected sizeof(sluice_client_options)", options->size);
    }
    memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
  }
  if (given.role == 0) given.role = SLUICE_CLIENT_ONLINE;
  if (given.role > SLUICE_CLIENT_OFFLINE) {
    return sluice_client_fail(EINVAL,
                              "invalid options.role %u: expected SLUICE_CLIENT_ONLINE or "
                              "SLUICE_CLIENT_OFFLINE",
                              given.role);
  }
  if (given.gpu_count > SLUICE_WIRE_GPUS || (given.gpu_count != 0 && given.gpus == NULL)) {
    return sluice_client_fail(
        EINVAL,
        "invalid options.gpu_count %zu: expected at most %d, with options.gpus "
        "not NULL",
        given.gpu_count, SLUICE_WIRE_GPUS);
  }
  const char* const name = given.name != NULL ? given.name : program_invocation_short_name;
  if (given.name != NULL && strlen(name) >= SLUICE_WIRE_NAME) {
    return sluice_client_fail(EINVAL, "invalid options.name of %zu bytes: expected at most %d",
                              strlen(name), SLUICE_WIRE_NAME - 1);
  }
  sluice_wire_hello* const hello = &client->hello;
  hello->head.type = SLUICE_WIRE_HELLO;
  hello->head.version = SLUICE_WIRE_VERSION;
  hello->head.layout = SLUICE_WORDS_LAYOUT;
  hello->role = given.role;
  hello->gpu_count = (uint32_t)given.gpu_count;
  if (given.gpu_count != 0) memcpy(hello->gpus, given.gpus, given.gpu_count * sizeof *given.gpus);
  strncpy(hello->name, name, SLUICE_WIRE_NAME - 1);
  for (int i = 0; i < SLUICE_WORDS_SPANS; ++i) {
    if (given.targets[i] < 0) {
      return sluice_client_fail(EINVAL,
                                "invalid options.targets[%d]: expected 0 or more nanoseconds", i);
    }
    hello->targets[i] = given.targets[i];
  }
  const char* path = given.socket;
  if (path == NULL) path = secure_getenv("SLUICE_CLIENT_SOCKET");
  if (path == NULL || *path == '\0') path = SLUICE_WIRE_DEFAULT_SOCKET;
  const size_t room = sizeof((struct sockaddr_un*)NULL)->sun_path;
  if (strlen(path) >= room) {
    return sluice_client_fail(ENAMETOOLONG,
                              "invalid socket path of %zu bytes: expected at most %zu",
                              strlen(path), room - 1);
  }
  client->socket = strdup(path);
  return client->socket != NULL
             ? 0
             : sluice_client_fail(ENOMEM, "cannot open the client: out of memory");
}

static void destroy(struct sluice_connection* client) {
  if (client->life != NULL) munmap(client->life, sizeof *client->life);
  free(client->socket);
  free(client);
}

static void withdraw(struct sluice_connection* client) {
  sluice_client_unguard_forks(client);
  destroy(client);
}

int sluice_client_open(const sluice_client_options* options, sluice_connection** to) {
  if (to == NULL)
    return sluice_client_fail(EINVAL,
                              "cannot open the client: the pointer that receives it is NULL");
  *to = NULL;
  struct sluice_connection* const client = calloc(1, sizeof *client);
  if (client == NULL) return sluice_client_fail(ENOMEM, "cannot open the client: out of memory");
  client->page = client->bell = client->kick = client->link = -1;
  int error = read_options(options, client);
  if (error == 0) {
    void* const page = mmap(NULL, sizeof *client->life, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    client->life = page == MAP_FAILED ? NULL : page;
    if (client->life == NULL || madvise(page, sizeof *client->life, MADV_WIPEONFORK) != 0) {
      error = sluice_client_fail(
          errno, "cannot open the client: cannot map memory with MADV_WIPEONFORK: %s",
          strerror(errno));
    }
  }
  if (error == 0) {
    const int why = sluice_client_guard_forks(client);
    if (why != 0) error = sluice_client_fail(why, "cannot open the client: out of memory");
  }
  if (error != 0) {
    destroy(client);
    return error;
  }
  pthread_mutex_lock(&client->life->lock);
  error = sluice_client_start(client);
  pthread_mutex_unlock(&client->life->lock);
  if (error != 0) {
    withdraw(client);
    return error;
  }
  *to = client;
  return 0;
}

/** In a forked child: nothing of the parent's but its options is ours. */
static int start_anew(struct sluice_connection* client) {
  pthread_mutex_lock(&client->life->lock);
  int error = 0;
  if (!client->life->alive) {
    sluice_client_disown(client);
    error = sluice_client_start(client);
  }
  pthread_mutex_unlock(&client->life->lock);
  return error;
}

/** Before anything else that a call does. */
static inline int ours(struct sluice_connection* client) {
  if (__builtin_expect(
          client != NULL && __atomic_load_n(&client->life->alive, __ATOMIC_ACQUIRE) != 0, 1)) {
    return 0;
  }
  if (client == NULL)
    return sluice_client_fail(EINVAL, "client is NULL: it was not opened, or it was closed");
  return start_anew(client);
}

static void kick(struct sluice_connection* client) {
  const int before = errno;
  (void)eventfd_write(client->kick, 1);
  errno = before;
}

int sluice_client_close(sluice_connection* client) {
  if (client == NULL) return 0;
  if (!__atomic_load_n(&client->life->alive, __ATOMIC_ACQUIRE)) {
    sluice_client_disown(client);
    withdraw(client);
    return 0;
  }
  if (pthread_equal(client->thread, pthread_self())) {
    return sluice_client_fail(
        EDEADLK, "cannot close the client on the library's own thread; close it on another thread");
  }
  pthread_mutex_lock(&client->life->lock);
  client->closing = true;
  pthread_mutex_unlock(&client->life->lock);
  kick(client);
  pthread_join(client->thread, NULL);
  pthread_mutex_lock(&client->life->lock);
  sluice_client_free_pages(client);
  pthread_mutex_unlock(&client->life->lock);
  withdraw(client);
  return 0;
}

/* Work and spans ----------------------------------------------------------------------------- */

static void ring(struct sluice_connection* client) {
  const uint64_t sleep = sluice_words_asleep(&client->scheduler->sleeping);
  if (sleep == 0 || __atomic_load_n(&client->rung, __ATOMIC_ACQUIRE) == sleep) return;
  const int before = errno;
  (void)eventfd_write(client->bell, 1);
  errno = before;
  /* Only now: another thread that sees this relies on the eventfd. */
  __atomic_store_n(&client->rung, sleep, __ATOMIC_RELEASE);
}

int sluice_client_begin(sluice_connection* client) {
  const int error = ours(client);
  if (error != 0) return error;
  sluice_client_words* const words = client->words;
  /* For ring(), while the other pages are waited for: a process that has slept finds none of them
   * near. */
  __builtin_prefetch(&client->scheduler->sleeping);
  if (sluice_words_all_seen(words)) sluice_words_first_unseen(words, sluice_client_now());
  sluice_words_begin(words);
  ring(client);
  return 0;
}

int sluice_client_end(sluice_connection* client) {
  const int error = ours(client);
  if (error != 0) return error;
  if (sluice_words_end(client->words)) ring(client);
  return 0;
}

/** Every mark of a server without a scheduler comes here: nothing is formatted. */
static int no_room(void) {
  static_assert(SLUICE_WORDS_MARKS == 1024, "the text below contains this number");
  last_error = "mark dropped: 1024 marks already wait for the scheduler";
  return -ENOBUFS;
}

static int push_mark(struct sluice_connection* client, uint32_t kind, uint32_t begins,
                     uint64_t request, int64_t at) {
  if (kind >= SLUICE_WORDS_SPANS) {
    return sluice_client_fail(EINVAL, "invalid span kind %u: expected 0 to %d", kind,
                              SLUICE_WORDS_SPANS - 1);
  }
  const int error = ours(client);
  if (error != 0) return error;
  const int64_t now = sluice_client_now();
  const enum sluice_pushed pushed =
      sluice_words_push(client->words, kind, begins, request, at < now ? at : now);
  if (pushed == SLUICE_PUSHED_NOT) return no_room();
  if (pushed == SLUICE_PUSHED_HALF_FULL ||
      __atomic_load_n(&client->scheduler->listened[kind], __ATOMIC_RELAXED)) {
    ring(client);
  }
  return 0;
}

int sluice_client_begin_span(sluice_connection* client, uint32_t kind, uint64_t request) {
  return push_mark(client, kind, 1, request, INT64_MAX);
}
int sluice_client_begin_span_since(sluice_connection* client, uint32_t kind, uint64_t request,
                                   int64_t since) {
  return push_mark(client, kind, 1, request, since);
}
int sluice_client_end_span(sluice_connection* client, uint32_t kind, uint64_t request) {
  return push_mark(client, kind, 0, request, INT64_MAX);
}

/* Waiting and looking ------------------------------------------------------------------------- */

int64_t sluice_client_wait(sluice_connection* client, int64_t timeout, sluice_client_clear done,
                           void* context) {
  const int64_t longest = 60 * (int64_t)NS_PER_S;
  if (done == NULL || timeout < 0) {
    return sluice_client_fail(EINVAL, "invalid wait: done is NULL, or timeout is negative");
  }
  const int error = ours(client);
  if (error != 0) return error;
  wait* const one = calloc(1, sizeof *one);
  if (one == NULL) return sluice_client_fail(ENOMEM, "cannot start the wait: out of memory");
  one->deadline = sluice_client_now() + (timeout < longest ? timeout : longest);
  one->done = done;
  one->context = context;
  pthread_mutex_lock(&client->life->lock);
  const bool full = client->waiting >= SLUICE_WIRE_WAITS;
  int64_t number = 0;
  if (!full) {
    number = one->number = ++client->last_wait;
    one->next = client->waits;
    client->waits = one;
    ++client->waiting;
  }
  pthread_mutex_unlock(&client->life->lock);
  if (full) {
    free(one);
    return sluice_client_fail(EAGAIN, "limit reached: the client has %d open waits",
                              SLUICE_WIRE_WAITS);
  }
  kick(client);
  return number;
}

int sluice_client_stop_waiting(sluice_connection* client, int64_t number) {
  const int error = ours(client);
  if (error != 0) return error;
  wait* found = NULL;
  pthread_mutex_lock(&client->life->lock);
  for (wait** at = &client->waits; *at != NULL; at = &(*at)->next) {
    if ((*at)->number != number) continue;
    found = *at;
    *at = found->next;
    --client->waiting;
    break;
  }
  if (found != NULL && found->sent) sluice_client_tell_stopped(client, number);
  pthread_mutex_unlock(&client->life->lock);
  free(found);
  return found != NULL;
}

int sluice_client_get_status(sluice_connection* client, sluice_client_status* status) {
  if (status == NULL || status->size < offsetof(sluice_client_status, connected)) {
    return sluice_client_fail(
        EINVAL, "invalid status: NULL, or status.size is not sizeof(sluice_client_status)");
  }
  const int error = ours(client);
  if (error != 0) return error;
  sluice_client_status seen;
  memset(&seen, 0, sizeof seen);
  seen.size = status->size;
  pthread_mutex_lock(&client->life->lock);
  seen.connected = client->connected;
  seen.role = client->role;
  seen.error = client->error;
  seen.scheduler_pid = client->scheduler_pid;
  seen.connections = client->connections;
  memcpy(seen.why, client->why, sizeof seen.why);
  pthread_mutex_unlock(&client->life->lock);
  const sluice_scheduler_words* const scheduler = client->scheduler;
  if (seen.connected) {
    seen.mode = __atomic_load_n(&scheduler->mode, __ATOMIC_RELAXED);
    seen.suspended = __atomic_load_n(&scheduler->suspended, __ATOMIC_RELAXED);
    seen.turns = __atomic_load_n(&scheduler->turns, __ATOMIC_RELAXED);
  }
  const uint64_t ended = __atomic_load_n(&client->words->ended, __ATOMIC_ACQUIRE);
  seen.in_flight = __atomic_load_n(&client->words->begun, __ATOMIC_RELAXED) - ended;
  seen.lost_marks = __atomic_load_n(&client->words->lost, __ATOMIC_RELAXED);
  memcpy(status, &seen, seen.size < sizeof seen ? seen.size : sizeof seen);
  return 0;
}
