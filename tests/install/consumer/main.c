/* The C API outside the tree: the refusal for a device that is not there is an error value. */
#include <sluice/kfd.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  sluice_kfd_options options = {.size = sizeof options, .device = "/nonexistent/kfd"};
  sluice_kfd* handle = NULL;
  if (sluice_kfd_version() >> 16 != SLUICE_KFD_VERSION_MAJOR) return 1;
  if (sluice_kfd_init(&options, &handle) != -ENOENT || handle != NULL) return 1;
  puts(sluice_kfd_last_error());
  return strstr(sluice_kfd_last_error(), "cannot open /nonexistent/kfd") != NULL ? 0 : 1;
}
