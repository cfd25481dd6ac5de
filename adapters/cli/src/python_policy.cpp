#include "python_policy.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include <fmt/format.h>

#include "sluice/plugin_loader.hpp"

namespace sluice::cli {
namespace {

/// What C++ and the Python code below tell each other.
struct request {
  const char* path = nullptr;
  const void* descriptor = nullptr;
  std::array<char, 1024> message{};
};

/// Runs the file in a namespace of its own, which is kept for good: ctypes' callbacks die with it.
constexpr const char* loader = R"python(
def sluice_load(address):
    import ctypes, os, sys, traceback

    class Request(ctypes.Structure):
        _fields_ = [("path", ctypes.c_char_p), ("descriptor", ctypes.c_void_p),
                    ("message", ctypes.c_char * 1024)]

    request = Request.from_address(address)
    path = os.fsdecode(request.path)
    try:
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        try:
            names = {"__name__": "sluice_policy_file", "__file__": path}
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), names)
            if "sluice_get_policy_plugin" not in names:
                raise LookupError("the file does not define sluice_get_policy_plugin()")
            request.descriptor = names["sluice_get_policy_plugin"]()
        finally:
            del sys.path[0]
        sluice_load.kept.append(names)
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, what = [error.lineno], error.msg
        elif isinstance(error, (OSError, LookupError)) and not lines:
            what = getattr(error, "strerror", None) or str(error)
        else:
            what = type(error).__name__ + ": " + str(error)
        place = ":%d" % lines[-1] if lines else ""
        what = "%s: %s" % (place, " ".join(what.split()))
        request.message = what.encode("utf-8", "replace")[:1023]

sluice_load.kept = []
import sys
sys.dont_write_bytecode = True  # Leave no files beside the user's.
sys.stdout = sys.stderr  # Standard output is reserved for results, such as JSON.
)python";

/// The few functions of libpython that this needs; all are of its stable ABI or older than it.
class interpreter {
 public:
  /// \return nullptr when there is none; `message` says so.
  static const interpreter* get(std::string& message) {
    static std::mutex mutex;
    static interpreter only;
    const std::lock_guard lock(mutex);
    if (!only.ready_ && !only.start(message)) return nullptr;
    return &only;
  }

  void load(request& what) const {
    const int state = ensure_();
    run_(fmt::format("sluice_load({})", reinterpret_cast<std::uintptr_t>(&what)).c_str());
    release_(state);
  }

 private:
  bool start(std::string& message) {
    void* const library = open();
    if (library == nullptr) {
      message =
          "cannot load libpython3, which Python policies need; install it (Debian: "
          "libpython3.11), or set SLUICE_PYTHON_LIBRARY to its path";
      return false;
    }
    void (*initialize)(int) = nullptr;
    int (*is_initialized)() = nullptr;
    void* (*save_thread)() = nullptr;
    if (!find(library, "Py_InitializeEx", initialize) ||
        !find(library, "Py_IsInitialized", is_initialized) ||
        !find(library, "PyEval_SaveThread", save_thread) ||
        !find(library, "PyGILState_Ensure", ensure_) ||
        !find(library, "PyGILState_Release", release_) ||
        !find(library, "PyRun_SimpleString", run_)) {
      message =
          "libpython3 lacks a function that Python policies need; set SLUICE_PYTHON_LIBRARY to the "
          "path of another version";
      return false;
    }
    if (is_initialized() == 0) {
      initialize(0);  // Leaves signals alone.
      save_thread();  // Any thread may enter from now on.
    }
    const int state = ensure_();
    ready_ = run_(loader) == 0;
    release_(state);
    if (!ready_)
      message =
          "libpython3 failed to run the loader for Python policies; see the Python error above";
    return ready_;
  }

  static void* open() {
    // Global: Python's own extension modules look for its symbols there.
    if (const char* const chosen = std::getenv("SLUICE_PYTHON_LIBRARY")) {
      return dlopen(chosen, RTLD_NOW | RTLD_GLOBAL);
    }
    for (int minor = 14; minor >= 9; --minor) {
      const auto name = fmt::format("libpython3.{}.so.1.0", minor);
      if (void* const found = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) return found;
    }
    return nullptr;
  }

  template <class Function>
  static bool find(void* library, const char* name, Function& into) {
    into = reinterpret_cast<Function>(dlsym(library, name));
    return into != nullptr;
  }

  bool ready_ = false;
  int (*ensure_)() = nullptr;
  void (*release_)(int) = nullptr;
  int (*run_)(const char*) = nullptr;
};

}  // namespace

result<policy_kind> load_python_policy(const std::string& path, std::string& message) {
  std::string why;
  const interpreter* const python = interpreter::get(why);
  if (python == nullptr) {
    message = fmt::format("{}: {}", path, why);
    return errc::not_supported;
  }
  request asked{.path = path.c_str()};
  python->load(asked);
  if (asked.message.front() != '\0') {
    message = path + asked.message.data();
    return errc::bad_config;
  }
  auto kind = make_plugin_kind(static_cast<const sluice_policy_plugin*>(asked.descriptor), nullptr,
                               message);
  if (!kind) message = fmt::format("{}: {}", path, message);
  return kind;
}

result<policy_kind> load_policy_file(const std::string& path, std::string& message) {
  return path.ends_with(".py") ? load_python_policy(path, message)
                               : load_policy_plugin(path, message);
}

}  // namespace sluice::cli
