/* Problem: a server that uses the GPU tells the scheduler, which runs in another process, when it
 * has work.
 *
 * Notice: nothing here waits for a scheduler, and nothing breaks without one; begin and end go
 * through memory that the two share, so they may stand around every request.
 *
 * Usage: 03_client [REQUESTS]. Beside a scheduler that grants this process its role it prints
 *
 *   connected: online
 *
 *   answered 10 requests
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sluice/client.h"

static void sleep_ms(long milliseconds) {
  const struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&wait, NULL);
}

/* A whole decimal number from 1 to `most`, or 0. */
static long number(const char* text, long most) {
  char* end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && value > 0 && value <= most ? value : 0;
}

static const char* name_of(uint32_t role) {
  return role == SLUICE_CLIENT_ONLINE ? "online" : "offline";
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--help") == 0) {
    printf(
        "usage: 03_client [REQUESTS]\n"
        "Simulate REQUESTS requests (default 10) and announce each to the scheduler.\n");
    return 0;
  }
  const long requests = argc == 1 ? 10 : argc == 2 ? number(argv[1], 1000000) : 0;
  if (requests == 0) {
    fprintf(stderr, "03_client: expected REQUESTS, a number from 1 to 1000000 (see --help)\n");
    return 2;
  }
  const sluice_client_options options = {.size = sizeof options,
                                         .name = "03_client",
                                         .targets = {[SLUICE_CLIENT_REQUEST] = 200000000}};
  sluice_connection* client = NULL;
  if (sluice_client_open(&options, &client) < 0) {
    fprintf(stderr, "03_client: %s\n", sluice_client_last_error());
    return 1;
  }
  for (long i = 0; i < requests; ++i) {
    sluice_client_begin_span(client, SLUICE_CLIENT_REQUEST, (uint64_t)i);
    sluice_client_begin(client); /* Offline work makes room. */
    sleep_ms(20);                /* Here the GPU would answer the request. */
    sluice_client_end(client);
    sluice_client_end_span(client, SLUICE_CLIENT_REQUEST, (uint64_t)i);
    sleep_ms(10);
  }
  sluice_client_status seen = {.size = sizeof seen};
  if (sluice_client_get_status(client, &seen) == 0)
    printf("%s%s\n", seen.connected ? "connected: " : "not connected: ",
           seen.connected ? name_of(seen.role) : seen.why);
  printf("answered %ld requests\n", requests);
  return sluice_client_close(client) < 0;
}
