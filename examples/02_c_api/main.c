/* Problem: a program of your own, in C, decides when a process has to leave the GPU.
 *
 * Notice: one call suspends; what failed says so in a sentence; and nothing has to be undone by
 * hand: sluice_kfd_cleanup(), or the death of this program, resumes everything.
 *
 * Usage: 02_c_api PID [MILLISECONDS]. Expected output for a process with one queue:
 *   process 4242, queue 0 on GPU 51110: priority 7, 65536 bytes
 *   suspended 1 of 1 processes for 500 ms
 *   resumed
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sluice/kfd.h"

/* The whole text as a number from 1 to most, or 0. */
static long number(const char* text, long most) {
  char* end = NULL;
  errno = 0;
  const long value = strtol(text, &end, 10);
  return errno == 0 && end != text && *end == '\0' && value > 0 && value <= most ? value : 0;
}

static int fail(const char* what) {
  fprintf(stderr, "02_c_api: %s: %s\n", what, sluice_kfd_last_error());
  return 1;
}

/* Suspends the process, and resumes it after a while. */
static int hold(sluice_kfd* handle, int32_t pid, long milliseconds) {
  sluice_kfd_queue* queues = NULL;
  size_t count = 0;
  if (sluice_kfd_find_queues_by_process(handle, pid, sizeof *queues, &queues, &count) < 0)
    return fail("cannot list the queues");
  size_t compute = 0;
  for (size_t i = 0; i < count; ++i) {
    printf("process %d, queue %u on GPU %u: priority %d, %llu bytes\n", queues[i].pid,
           queues[i].queue_id, queues[i].gpu_id, queues[i].priority,
           (unsigned long long)queues[i].ring_bytes);
    compute += queues[i].type == SLUICE_KFD_COMPUTE;
  }
  sluice_kfd_free(queues);
  if (compute == 0) {
    fprintf(stderr, "02_c_api: process %d has no compute queue; nothing was suspended\n", pid);
    return 1;
  }

  sluice_kfd_queue_ref all = {.pid = pid, .queue_id = SLUICE_KFD_ALL_QUEUES};
  const int suspended = sluice_kfd_suspend_queues(handle, &all, 1, SLUICE_KFD_DEFAULT_TIMEOUT);
  if (suspended != 1) return fail("cannot suspend the queues");
  printf("suspended %d of 1 processes for %ld ms\n", suspended, milliseconds);
  fflush(stdout);

  const struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&wait, NULL);

  if (sluice_kfd_resume_queues(handle, &all, 1, SLUICE_KFD_DEFAULT_TIMEOUT) != 1)
    return fail("cannot resume the queues");
  printf("resumed\n");
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--help") == 0) {
    printf(
        "usage: 02_c_api PID [MILLISECONDS]\n"
        "Suspend the GPU queues of process PID for MILLISECONDS (default 500).\n");
    return 0;
  }
  const long pid = argc == 2 || argc == 3 ? number(argv[1], 0x7fffffff) : 0;
  const long milliseconds = argc == 3 ? number(argv[2], 3600000) : 500;
  if (pid == 0 || milliseconds == 0) {
    fprintf(stderr, "02_c_api: expected PID [MILLISECONDS] (see --help)\n");
    return 2;
  }
  sluice_kfd* handle = NULL;
  if (sluice_kfd_init(NULL, &handle) < 0) return fail("cannot open the driver");
  const int code = hold(handle, (int32_t)pid, milliseconds);
  if (sluice_kfd_cleanup(handle) < 0) return fail("cannot resume everything");
  return code;
}
