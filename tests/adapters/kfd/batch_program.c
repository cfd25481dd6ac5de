/* For valgrind, which does not know the system calls that tracing another process takes
 * (pidfd_open, in Debian 12's): what the C API does without. Lists queues, takes those of a process
 * off by batch commands, and puts them back; then everything that is refused. usage: batch_program
 * PID */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sluice/kfd.h"

static void expect(int is, const char* what) {
  if (is) return;
  fprintf(stderr, "batch_program: %s (%s)\n", what, sluice_kfd_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  const int32_t pid = argc == 2 ? (int32_t)strtol(argv[1], NULL, 10) : 0;
  sluice_kfd* handle = NULL;
  expect(sluice_kfd_init(NULL, &handle) == 0, "init");
  sluice_kfd_queue* all = NULL;
  sluice_kfd_queue* its = NULL;
  size_t all_count = 0;
  size_t count = 0;
  expect(sluice_kfd_get_all_queues(handle, sizeof *all, &all, &all_count) == 0, "all queues");
  expect(sluice_kfd_find_queues_by_process(handle, pid, sizeof *its, &its, &count) == 0,
         "its queues");
  expect(count > 0 && all_count >= count, "it has queues");
  sluice_kfd_free(all);
  expect(sluice_kfd_find_queues_by_priority(handle, 0, 15, sizeof *all, &all, &all_count) == 0,
         "by priority");
  sluice_kfd_free(all);

  /* One that is not there as well. */
  sluice_kfd_queue_ref* const refs = calloc(count + 1, sizeof *refs);
  expect(refs != NULL, "memory");
  for (size_t i = 0; i <= count; ++i) {
    refs[i].pid = pid;
    refs[i].queue_id = i < count ? its[i].queue_id : 200;
  }
  expect(sluice_kfd_batch_unmap_queues(handle, refs, count + 1, 0, 0) == (int)count, "unmapped");
  expect(refs[count].status == -ENOENT, "one is not there");
  expect(sluice_kfd_fast_remap_queues(handle, refs, count) == (int)count, "mapped again");
  expect(sluice_kfd_batch_unmap_queues(handle, refs, count, 0, 0) == (int)count, "unmapped");

  sluice_kfd_queue_ref own = {.pid = getpid()};
  expect(sluice_kfd_suspend_queues(handle, &own, 1, 0) == 0 && own.status != 0,
         "its own are refused");
  expect(sluice_kfd_batch_unmap_queues(handle, refs, count, 0, 77) == -EINVAL, "flags are checked");
  expect(sluice_kfd_release(handle, pid, 0) == -ESRCH, "it is not held");
  expect(strlen(sluice_kfd_last_error()) > 0, "a sentence");
  /* What is still held is given back. */
  expect(sluice_kfd_cleanup(handle) == 0, "cleanup");
  free(refs);
  sluice_kfd_free(its);
  printf("took %zu queues off and put them back\n", count);
  return 0;
}
