/* The connection, kept by a thread of the library's own. */
#define _GNU_SOURCE

#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MS ((int64_t)1000000)

static const int64_t first_delay = 20 * MS;
static const int64_t longest_delay = 500 * MS;
static const int64_t refused_delay = 1000 * MS; /* Its grant may come: a cgroup, say. */
static const int64_t answer_limit = 2000 * MS;
static const int64_t look_interval = 500 * MS; /* At the socket's path, while connected. */
static const int64_t talk_pause = 1 * MS;

enum { most_at_once = 2 * SLUICE_WIRE_WAITS }; /* Messages of a scheduler before such a pause. */

/** The thread's own. */
typedef struct keeper {
  struct sluice_connection* client;
  int64_t next; /* When to connect, or until when the welcome must be there. */
  int64_t delay;
  int64_t look; /* When to look whether another scheduler has taken the path. */
  dev_t device; /* What was there when this one was connected to. */
  ino_t file;
} keeper;

static void say(struct sluice_connection* client, int error, const char* why) {
  client->error = -error;
  snprintf(client->why, sizeof client->why, "%s", why);
}

/** Zeros in place of the scheduler's words, or the words of the next one. The kernel puts the one
 * in the place of the other without a gap. Who still reads the former's has not rung the next one,
 * and need not: it is rung after this in any case.
 * \return false: the former is still there, which does no harm. What can fail does so elsewhere,
 * for a failed MAP_FIXED may leave nothing. */
static bool place(struct sluice_connection* client, int fd) {
  const size_t size = sizeof *client->scheduler;
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const made = mmap(NULL, size, PROT_READ, flags, fd, 0);
  if (made == MAP_FAILED) return false;
  if (madvise(made, size, MADV_DONTFORK) == 0 &&
      mremap(made, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, client->scheduler) != MAP_FAILED) {
    return true;
  }
  munmap(made, size);
  return false;
}

/** life->lock held, as in all below but those that say otherwise. */
static void hang_up(keeper* self, int error, const char* why) {
  struct sluice_connection* const client = self->client;
  if (client->connected) (void)place(client, -1);
  sluice_client_hang_up(client);
  client->connected = false;
  client->role = 0;
  client->scheduler_pid = 0;
  say(client, error, why);
  self->next = sluice_client_now() + self->delay;
  /* So that the next one is found late by a sixteenth of the time that there was none. */
  self->delay += self->delay / 16;
  if (self->delay > longest_delay) self->delay = longest_delay;
}

static bool send_message(struct sluice_connection* client, const void* what, size_t size,
                         const int* fds, size_t fd_count) {
  struct iovec data = {.iov_base = (void*)(uintptr_t)what, .iov_len = size};
  union {
    char bytes[CMSG_SPACE(SLUICE_WIRE_DESCRIPTORS * sizeof(int))];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (fd_count != 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    struct cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
  }
  return sendmsg(client->link, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

/** Why nobody was reached there. */
static void why_not(const char* path, int error, char why[SLUICE_WIRE_WHY]) {
  struct stat there;
  const char* const cause = strerror(error);
  if (error == EACCES || error == EPERM) {
    snprintf(why, SLUICE_WIRE_WHY,
             "%s: cannot connect as this user (%s); add the user to the scheduler's socket_group; "
             "retrying",
             path, cause);
  } else if (error == EPROTOTYPE || (stat(path, &there) == 0 && !S_ISSOCK(there.st_mode))) {
    snprintf(why, SLUICE_WIRE_WHY, "%s is not the socket of a scheduler (%s); retrying", path,
             cause);
  } else {
    snprintf(why, SLUICE_WIRE_WHY, "no scheduler at %s (%s); retrying", path, cause);
  }
}

static void connect_now(keeper* self) {
  struct sluice_connection* const client = self->client;
  char why[SLUICE_WIRE_WHY];
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  memcpy(to.sun_path, client->socket, strlen(client->socket) + 1); /* It fits: read_options(). */
  /* Before, so that one that comes in between is taken for another. */
  struct stat there;
  const bool found = stat(client->socket, &there) == 0;
  self->device = found ? there.st_dev : 0;
  self->file = found ? there.st_ino : 0;
  client->link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (client->link < 0 || connect(client->link, (const struct sockaddr*)&to, sizeof to) != 0) {
    const int error = errno;
    why_not(client->socket, error, why);
    hang_up(self, error, why);
    return;
  }
  const int fds[SLUICE_WIRE_DESCRIPTORS] = {client->page, client->bell};
  if (!send_message(client, &client->hello, sizeof client->hello, fds, SLUICE_WIRE_DESCRIPTORS)) {
    const int error = errno;
    snprintf(why, sizeof why, "cannot send the registration to the scheduler (%s); retrying",
             strerror(error));
    hang_up(self, error, why);
    return;
  }
  self->next = sluice_client_now() + answer_limit;
}

static bool is_sealed_page(int fd) {
  struct stat about;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 &&
         about.st_size >= (off_t)sizeof(sluice_scheduler_words);
}

static void welcome(keeper* self, const sluice_wire_welcome* said, int page) {
  struct sluice_connection* const client = self->client;
  if (said->error != 0) {
    char why[SLUICE_WIRE_WHY];
    memcpy(why, said->why, sizeof why);
    why[sizeof why - 1] = '\0';
    hang_up(self, said->error > 0 ? said->error : EPROTO, why);
    /* A GPU may only not be known yet: the scheduler has just started. */
    if (said->error != ENODEV) self->next = sluice_client_now() + refused_delay;
    return;
  }
  if (page < 0 || !is_sealed_page(page) || !place(client, page)) {
    hang_up(self, EPROTO, "cannot map the memory that the scheduler shares; retrying");
    return;
  }
  struct ucred peer = {.pid = 0};
  socklen_t size = sizeof peer;
  (void)getsockopt(client->link, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  client->scheduler_pid = peer.pid;
  client->connected = true;
  client->role = said->role;
  ++client->connections;
  say(client, 0, "");
  self->delay = first_delay;
  self->look = sluice_client_now() + look_interval;
  /* What began before the page was there has not rung. */
  (void)eventfd_write(client->bell, 1);
}

/** A scheduler that hangs hangs up on nobody, though another has taken its place. As long as it has
 * its socket, no other file gets that number. */
static void look_for_another(keeper* self) {
  struct sluice_connection* const client = self->client;
  if (!client->connected || sluice_client_now() < self->look) return;
  self->look = sluice_client_now() + look_interval;
  struct stat there;
  if (stat(client->socket, &there) != 0 ||
      (there.st_dev == self->device && there.st_ino == self->file)) {
    return;
  }
  hang_up(self, ECONNRESET, "another scheduler has taken over the socket; connecting to it");
}

/** Takes the wait off the list. */
static wait* take_wait(struct sluice_connection* client, int64_t number, int64_t due) {
  for (wait** at = &client->waits; *at != NULL; at = &(*at)->next) {
    wait* const one = *at;
    if (one->number != number && one->deadline > due) continue;
    *at = one->next;
    --client->waiting;
    return one;
  }
  return NULL;
}

/** Calls without the lock, and takes it again. */
static void answer(struct sluice_connection* client, wait* one, int32_t clear) {
  pthread_mutex_unlock(&client->life->lock);
  const pid_t process = getpid();
  one->done(one->context, clear);
  /* A child that was forked in there has no client for this thread to keep, and no other thread. */
  if (getpid() != process) _exit(0);
  free(one);
  pthread_mutex_lock(&client->life->lock);
}

static void handle(keeper* self, const void* message, size_t size, int page) {
  struct sluice_connection* const client = self->client;
  sluice_wire_head head;
  if (size < sizeof head) return;
  memcpy(&head, message, sizeof head);
  if (head.type == SLUICE_WIRE_WELCOME && size >= sizeof(sluice_wire_welcome)) {
    sluice_wire_welcome said;
    memcpy(&said, message, sizeof said);
    /* Later it is a farewell: what was granted is so no more. */
    if (!client->connected || said.error != 0) welcome(self, &said, page);
  } else if (head.type == SLUICE_WIRE_ANSWER && size >= sizeof(sluice_wire_answer)) {
    sluice_wire_answer said;
    memcpy(&said, message, sizeof said);
    wait* const one = take_wait(client, (int64_t)said.number, INT64_MIN);
    if (one != NULL) answer(client, one, said.clear != 0);
  }
}

/** \return whether there may be more. Not all at once: a scheduler that never stops talking must
 * not keep the lock from the program's calls. */
static bool receive(keeper* self) {
  struct sluice_connection* const client = self->client;
  for (int count = 0; client->link >= 0; ++count) {
    if (count == most_at_once) return true;
    union {
      sluice_wire_welcome welcome;
      sluice_wire_answer answer;
    } message;
    union {
      char bytes[CMSG_SPACE(sizeof(int))];
      struct cmsghdr align;
    } control;
    struct iovec data = {.iov_base = &message, .iov_len = sizeof message};
    struct msghdr from = {.msg_iov = &data,
                          .msg_iovlen = 1,
                          .msg_control = &control,
                          /* Not all of its room: a second descriptor would fit in the padding. */
                          .msg_controllen = CMSG_LEN(sizeof(int))};
    const ssize_t got = recvmsg(client->link, &from, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* A scheduler that closes without having read everything leaves ECONNRESET, which the kernel
     * reports once, before what the scheduler has said. */
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (got < 0 && errno == EAGAIN) return false;
    if (got < 0) {
      hang_up(self, errno, "the scheduler closed the connection; retrying");
      return false;
    }
    int page = -1;
    const struct cmsghdr* const head = CMSG_FIRSTHDR(&from);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      memcpy(&page, CMSG_DATA(head), sizeof page);
    }
    /* An empty message looks like the end, but may bring a descriptor. */
    if (got == 0) {
      hang_up(self, ECONNRESET, "the scheduler closed the connection; retrying");
    } else {
      handle(self, &message, (size_t)got, page);
    }
    if (page >= 0) close(page);
  }
  return false;
}

static bool ask(struct sluice_connection* client, uint32_t type, int64_t number, int64_t timeout) {
  sluice_wire_wait asked = {
      .head = client->hello.head, .number = (uint64_t)number, .timeout = timeout};
  asked.head.type = type;
  return send_message(client, &asked, sizeof asked, NULL, 0);
}

void sluice_client_tell_stopped(struct sluice_connection* client, int64_t number) {
  /* Else it is answered some time, to nobody. */
  if (client->connected) (void)ask(client, SLUICE_WIRE_STOP_WAITING, number, 0);
}

static void send_waits(keeper* self) {
  struct sluice_connection* const client = self->client;
  for (wait* one = client->waits; one != NULL && client->connected; one = one->next) {
    if (one->sent) continue;
    const int64_t left = one->deadline - sluice_client_now();
    /* Where it cannot be asked, its deadline is ours. */
    if (!ask(client, SLUICE_WIRE_WAIT, one->number, left > 0 ? left : 0)) return;
    one->sent = true;
  }
}

/** While nobody knows the client, nobody will make room either: then that is every wait. */
static void answer_what_is_over(struct sluice_connection* client) {
  wait* over = NULL;
  while (!client->closing &&
         (over = take_wait(client, -1, client->connected ? sluice_client_now() : INT64_MAX)) !=
             NULL) {
    answer(client, over, 0);
  }
}

static int64_t next_due(const keeper* self) {
  const struct sluice_connection* const client = self->client;
  if (!client->connected) return self->next;
  int64_t due = self->look;
  for (const wait* one = client->waits; one != NULL; one = one->next) {
    if (one->deadline < due) due = one->deadline;
  }
  return due;
}

/** Without the lock: until something comes. */
static void sleep_until(int64_t due, int kick, int link) {
  struct pollfd both[2] = {{.fd = kick, .events = POLLIN}, {.fd = link, .events = POLLIN}};
  const int64_t left = due - sluice_client_now();
  struct timespec timeout = {.tv_sec = left / (1000 * MS), .tv_nsec = left % (1000 * MS)};
  if (left <= 0) timeout = (struct timespec){0};
  (void)ppoll(both, 2, &timeout, NULL);
  eventfd_t ignored;
  if (both[0].revents != 0) (void)eventfd_read(kick, &ignored);
}

void* sluice_client_run(void* argument) {
  keeper self = {.client = argument, .delay = first_delay};
  struct sluice_connection* const client = self.client;
  pthread_setname_np(pthread_self(), "sluice-client");
  pthread_mutex_lock(&client->life->lock);
  while (!client->closing) {
    if (client->link < 0 && sluice_client_now() >= self.next) connect_now(&self);
    const bool talks_on = client->link >= 0 && receive(&self);
    if (client->link >= 0 && !client->connected && sluice_client_now() >= self.next) {
      hang_up(&self, ETIMEDOUT, "the scheduler did not answer within 2 s; retrying");
    }
    look_for_another(&self);
    send_waits(&self);
    answer_what_is_over(client);
    if (client->closing) break;
    const int64_t pause_end = sluice_client_now() + talk_pause;
    int64_t due = next_due(&self);
    if (talks_on && pause_end < due) due = pause_end;
    const int link = talks_on ? -1 : client->link;
    pthread_mutex_unlock(&client->life->lock);
    sleep_until(due, client->kick, link);
    pthread_mutex_lock(&client->life->lock);
  }
  wait* left = NULL;
  while ((left = take_wait(client, -1, INT64_MAX)) != NULL) answer(client, left, 0);
  pthread_mutex_unlock(&client->life->lock);
  return NULL;
}
