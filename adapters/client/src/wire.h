#ifndef SLUICE_CLIENT_WIRE_H
#define SLUICE_CLIENT_WIRE_H
/**
 * \file
 * What goes over the socket: a client's registration, and its waits. Begins, ends and spans go
 * through the pages (sluice/client_words.h).
 *
 * One SEQPACKET message is one structure. The client speaks first: a hello with two descriptors,
 * its page (a memfd of sizeof(sluice_client_words), sealed against every change of its size) and
 * its eventfd. The scheduler answers with a welcome, and its own page where it grants the role.
 * When it grants that no longer, it sends another welcome, with an error, and hangs up.
 *
 * Why the client makes its page, and not the scheduler: so its counters work before there is a
 * scheduler, what is in flight outlives one, and coming back to the next changes no page under the
 * feet of a begin(). The scheduler loses nothing by it: a page that it made would be as hostile,
 * since the client writes it.
 */
#include <stdint.h>

#include "sluice/client_words.h"

#define SLUICE_WIRE_DEFAULT_SOCKET "/run/sluice/clients.sock"

enum {
  SLUICE_WIRE_VERSION = 1, /* Of these structures, but for the first three words of any. */
  SLUICE_WIRE_GPUS = 64,
  SLUICE_WIRE_NAME = 64,
  SLUICE_WIRE_WHY = 240,
  SLUICE_WIRE_WAITS = 64, /* Of one client at a time. */
  SLUICE_WIRE_DESCRIPTORS = 2
};

enum sluice_wire_type {
  SLUICE_WIRE_HELLO = 1,
  SLUICE_WIRE_WELCOME = 2,
  SLUICE_WIRE_WAIT = 3,
  SLUICE_WIRE_STOP_WAITING = 4,
  SLUICE_WIRE_ANSWER = 5
};

typedef struct sluice_wire_head {
  uint32_t type;
  uint32_t version; /* SLUICE_WIRE_VERSION */
  uint32_t layout;  /* SLUICE_WORDS_LAYOUT */
  uint32_t unused;
} sluice_wire_head;

typedef struct sluice_wire_hello {
  sluice_wire_head head;
  uint32_t role; /* As in sluice/client.h. */
  uint32_t gpu_count;
  int64_t targets[SLUICE_WORDS_SPANS];
  uint32_t gpus[SLUICE_WIRE_GPUS];
  char name[SLUICE_WIRE_NAME];
} sluice_wire_hello;

typedef struct sluice_wire_welcome {
  sluice_wire_head head;
  int32_t error; /* 0, or a positive errno: then `why` has a sentence, and no page comes. */
  uint32_t role;
  uint64_t client;
  char why[SLUICE_WIRE_WHY];
} sluice_wire_welcome;

typedef struct sluice_wire_wait {
  sluice_wire_head head; /* SLUICE_WIRE_WAIT or _STOP_WAITING */
  uint64_t number;
  int64_t timeout; /* Nanoseconds. */
} sluice_wire_wait;

typedef struct sluice_wire_answer {
  sluice_wire_head head;
  uint64_t number;
  uint32_t clear;
  uint32_t unused;
} sluice_wire_answer;

#endif
