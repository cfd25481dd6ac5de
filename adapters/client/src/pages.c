#define _GNU_SOURCE

#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

void sluice_client_close_fd(int* fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void sluice_client_disown(struct sluice_connection* client) {
  /* Those that fork() has not closed (forks.c) are left alone: by now the numbers may be somebody
   * else's. */
  client->page = client->bell = client->kick = client->link = -1;
  while (client->waits != NULL) {
    wait* const one = client->waits;
    client->waits = one->next;
    free(one);
  }
  client->waiting = 0;
  /* The parent's pages are not mapped here (MADV_DONTFORK), and something else may be there. */
  client->words = NULL;
  client->scheduler = NULL;
}

void sluice_client_hang_up(struct sluice_connection* client) {
  if (client->link >= 0) shutdown(client->link, SHUT_RDWR);
  sluice_client_close_fd(&client->link);
}

void sluice_client_free_pages(struct sluice_connection* client) {
  sluice_client_hang_up(client);
  if (client->words != NULL) munmap(client->words, sizeof *client->words);
  if (client->scheduler != NULL) munmap(client->scheduler, sizeof *client->scheduler);
  client->words = NULL;
  client->scheduler = NULL;
  sluice_client_close_fd(&client->page);
  sluice_client_close_fd(&client->bell);
  sluice_client_close_fd(&client->kick);
}

static int make_page(struct sluice_connection* client) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("sluice-client", flags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create("sluice-client", flags); /* Before Linux 6.3. */
  client->page = fd;
  if (fd < 0 || ftruncate(fd, sizeof *client->words) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return -1;
  }
  void* const words = mmap(NULL, sizeof *client->words, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (words == MAP_FAILED) return -1;
  client->words = words;
  void* const scheduler =
      mmap(NULL, sizeof *client->scheduler, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (scheduler == MAP_FAILED) return -1;
  client->scheduler = scheduler;
  return madvise(words, sizeof *client->words, MADV_DONTFORK) != 0 ||
                 madvise(scheduler, sizeof *client->scheduler, MADV_DONTFORK) != 0
             ? -1
             : 0;
}

/** With every signal blocked: handlers are the program's business. */
static int start_thread(struct sluice_connection* client) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&client->thread, NULL, &sluice_client_run, client);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

int sluice_client_start(struct sluice_connection* client) {
  client->closing = false;
  client->connected = false;
  client->role = 0;
  client->error = -ENOTCONN;
  client->scheduler_pid = 0;
  client->connections = 0;
  snprintf(client->why, sizeof client->why, "connecting to %s", client->socket);
  int error = 0;
  if (make_page(client) != 0) {
    error = sluice_client_fail(errno, "cannot create memory to share with the scheduler: %s",
                               strerror(errno));
  } else {
    client->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    client->kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (client->bell < 0 || client->kick < 0) {
      error = sluice_client_fail(errno, "cannot create an eventfd: %s", strerror(errno));
    } else {
      const int why = start_thread(client);
      if (why != 0) error = sluice_client_fail(why, "cannot start a thread: %s", strerror(why));
    }
  }
  if (error != 0) {
    sluice_client_free_pages(client);
    return error;
  }
  __atomic_store_n(&client->life->alive, 1, __ATOMIC_RELEASE);
  return 0;
}
