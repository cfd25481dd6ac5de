/* Plugins that a loader has to refuse: one per value of BROKEN. Plain C11. */
#include "sluice/plugin.h"

/* Values of BROKEN. */
#define WRONG_ABI 1
#define SMALL 2
#define NULL_DESCRIPTOR 3
#define NO_NAME 4
#define BAD_NAME 5
#define NO_DECIDE 6
#define NO_PARAMETERS 7
#define BAD_DEFAULT 8
#define TWICE 9
#define RESERVED_KEY 10
#define NO_KEY 11
#define NO_TYPE 12
#define UNDEFINED_SYMBOL 13
#define NO_SYMBOL 14

static void* create(const sluice_value* values, size_t count, char* problem, size_t size) {
  static int state;
  (void)values, (void)count, (void)problem, (void)size;
  return &state;
}

#if BROKEN == UNDEFINED_SYMBOL
void nobody_has_this_function(void);
#endif

static int32_t decide(void* state, const sluice_snapshot* seen, const sluice_sink* out,
                      char* problem, size_t size) {
  (void)state, (void)seen, (void)out, (void)problem, (void)size;
#if BROKEN == UNDEFINED_SYMBOL
  nobody_has_this_function();
#endif
  return 0;
}

static void destroy(void* state) { (void)state; }

static const sluice_parameter parameters[] = {
    {{BROKEN == RESERVED_KEY ? "plugin"
      : BROKEN == NO_KEY     ? NULL
                             : "share",
      BROKEN == NO_TYPE ? 17 : SLUICE_PARAMETER_NUMBER, 0, BROKEN == BAD_DEFAULT ? 1.5 : 0.5, NULL},
     0,
     0,
     1,
     "a share"},
    {{BROKEN == TWICE ? "share" : "other", SLUICE_PARAMETER_SPAN, 1000000, 0, NULL},
     0,
     1000,
     1e9,
     "a span"}};

static const sluice_policy_plugin plugin = {
    .abi_version = BROKEN == WRONG_ABI ? SLUICE_PLUGIN_ABI - 1 : SLUICE_PLUGIN_ABI,
    .struct_size = BROKEN == SMALL ? 24 : sizeof(sluice_policy_plugin),
    .name = BROKEN == NO_NAME    ? NULL
            : BROKEN == BAD_NAME ? "My Policy"
                                 : "broken",
    .summary = "is refused",
    .parameters = BROKEN == NO_PARAMETERS ? NULL : parameters,
    .parameter_count = sizeof parameters / sizeof *parameters,
    .create = create,
    .decide = BROKEN == NO_DECIDE ? NULL : decide,
    .destroy = destroy};

#if BROKEN == NO_SYMBOL
SLUICE_PLUGIN_EXPORT const sluice_policy_plugin* another_name(void);
const sluice_policy_plugin* another_name(void) { return &plugin; }
#else
const sluice_policy_plugin* sluice_get_policy_plugin(void) {
  return BROKEN == NULL_DESCRIPTOR ? NULL : &plugin;
}
#endif
