// Loaded before bash: a SIGTERM comes just as that has reaped a process that ended with 42, before
// it can note so.

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) pid_t waitpid(pid_t pid, int* status,
                                                                int options) {
  static const auto next = reinterpret_cast<decltype(&::waitpid)>(::dlsym(RTLD_NEXT, "waitpid"));
  const pid_t got = next(pid, status, options);
  if (got > 0 && options == 0 && WIFEXITED(*status) && WEXITSTATUS(*status) == 42)
    ::kill(::getpid(), SIGTERM);
  return got;
}
