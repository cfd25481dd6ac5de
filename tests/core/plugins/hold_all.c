/* A policy in plain C11: holds every offline group that it hears of. It can be told to misbehave.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sluice/plugin.h"

struct hold_all {
  int64_t hold_for;
  int64_t sleep;
  int64_t fail_at;
};

static void* create(const sluice_value* values, size_t count, char* problem, size_t size) {
  /* In the order of their keys. */
  struct hold_all made = {
      .fail_at = values[0].whole, .hold_for = values[1].whole, .sleep = values[2].whole};
  if (count != 3) {
    snprintf(problem, size, "there are %zu values instead of 3", count);
    return NULL;
  }
  if (made.hold_for == 13000000) {
    snprintf(problem, size, "hold_for is 13ms, which brings bad luck;\nchoose another");
    return NULL;
  }
  struct hold_all* self = malloc(sizeof *self);
  if (self != NULL) *self = made;
  return self;
}

static int32_t decide(void* state, const sluice_snapshot* seen, const sluice_sink* out,
                      char* problem, size_t size) {
  const struct hold_all* self = state;
  for (size_t i = 0; i < seen->changed_count; ++i) {
    sluice_group group;
    if (!seen->find_group(seen, seen->changed[i], &group)) continue;
    if (group.role == SLUICE_ROLE_OFFLINE) {
      out->hold(out, group.id, self->hold_for == 0 ? SLUICE_NEVER : seen->now + self->hold_for);
    }
  }
  if (self->sleep != 0) {
    const struct timespec length = {self->sleep / 1000000000, self->sleep % 1000000000};
    nanosleep(&length, NULL);
  }
  if (self->fail_at != 0 && seen->turn >= (uint64_t)self->fail_at) {
    snprintf(problem, size, "turn %llu is one too many", (unsigned long long)seen->turn);
    return 1;
  }
  return 0;
}

static void destroy(void* state) { free(state); }

static const sluice_parameter parameters[] = {
    {{"fail_at", SLUICE_PARAMETER_COUNT, 0, 0, NULL}, 0, 0, 1e9, "turn that fails; 0: none"},
    {{"hold_for", SLUICE_PARAMETER_SPAN, 0, 0, NULL}, 0, 0, 60e9, "length of a hold; 0: for ever"},
    {{"sleep", SLUICE_PARAMETER_SPAN, 0, 0, NULL}, 0, 0, 1e9, "how long each turn sleeps"}};

const sluice_policy_plugin* sluice_get_policy_plugin(void) {
  static const sluice_policy_plugin plugin = {
      .abi_version = SLUICE_PLUGIN_ABI,
      .struct_size = sizeof(sluice_policy_plugin),
      .name = "hold_all",
      .summary = "holds everything",
      .parameters = parameters,
      .parameter_count = sizeof parameters / sizeof *parameters,
      .create = create,
      .decide = decide,
      .destroy = destroy};
  return &plugin;
}
