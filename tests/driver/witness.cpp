// A debugger that drives the driver through AMD's own debugger library, ROCdbgapi. witness.sh
// builds it and runs it on the real driver and on the simulated device.
//
// Its target is integration_target, a client with a queue on each GPU. A line of the output is a
// step:
//   passed        the library and the target did what they should
//   not possible  the reason, which lies in the client or in the faked hardware
//   failed        what happened instead; the program ends with code 1

#include "../integration/target_process.hpp"
#include <amd-dbgapi.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;
using sluice::test::target_process;

/// For all that needs processor time, which a busy machine may not have.
constexpr std::chrono::minutes patience{2};

/// What ends the run.
struct failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void passed(const std::string& step, const std::string& detail = {}) {
  std::printf("passed        %s%s%s\n", step.c_str(), detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stdout);
}

void not_possible(const std::string& step, const std::string& reason) {
  std::printf("not possible  %s: %s\n", step.c_str(), reason.c_str());
  std::fflush(stdout);
}

std::string hex(std::uint64_t value) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string name_of(amd_dbgapi_status_t status) {
  const char* text = nullptr;
  amd_dbgapi_get_status_string(status, &text);
  return text == nullptr ? "status " + std::to_string(status) : text;
}

void require(bool condition, const std::string& what) {
  if (!condition) throw failure{what};
}

void require(amd_dbgapi_status_t status, const std::string& what) {
  if (status != AMD_DBGAPI_STATUS_SUCCESS) throw failure{what + ": " + name_of(status)};
}

// --- What the library asks of a debugger --------------------------------------------------------

/// The process that is debugged, as the library knows it: client_process_id points to this.
struct debuggee {
  pid_t pid = 0;
  /// Of a core file: what the library wrote for it. The memory is that of `pid`.
  amd_dbgapi_core_state_data_t core{};
  struct breakpoint {
    std::uint64_t address = 0;
    std::uint8_t replaced = 0;
  };
  std::map<std::uint64_t, breakpoint> breakpoints;
};

debuggee& of(amd_dbgapi_client_process_id_t client) { return *reinterpret_cast<debuggee*>(client); }

/// Warnings and errors of the library since the last look at them.
std::vector<std::string> complaints;

/// \return the number of bytes, or -1.
ssize_t transfer(pid_t pid, std::uint64_t address, void* read, const void* written,
                 std::size_t size) {
  const int fd = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  const auto at = static_cast<off_t>(address);
  const auto done = read != nullptr ? pread(fd, read, size, at) : pwrite(fd, written, size, at);
  close(fd);
  return done;
}

amd_dbgapi_status_t client_process_get_info(amd_dbgapi_client_process_id_t client,
                                            amd_dbgapi_client_process_info_t query,
                                            std::size_t size, void* value) {
  const auto& process = of(client);
  const bool from_core = process.core.data != nullptr;
  if (query == AMD_DBGAPI_CLIENT_PROCESS_INFO_OS_PID && !from_core) {
    const amd_dbgapi_os_process_id_t pid = process.pid;
    if (size != sizeof pid) return AMD_DBGAPI_STATUS_ERROR_INVALID_ARGUMENT_COMPATIBILITY;
    std::memcpy(value, &pid, size);
    return AMD_DBGAPI_STATUS_SUCCESS;
  }
  if (query == AMD_DBGAPI_CLIENT_PROCESS_INFO_CORE_STATE && from_core) {
    if (size != sizeof process.core) return AMD_DBGAPI_STATUS_ERROR_INVALID_ARGUMENT_COMPATIBILITY;
    auto copy = process.core;
    void* data = std::malloc(copy.size);  // The library frees it.
    copy.data = std::memcpy(data, process.core.data, copy.size);
    std::memcpy(value, &copy, size);
    return AMD_DBGAPI_STATUS_SUCCESS;
  }
  return AMD_DBGAPI_STATUS_ERROR_NOT_AVAILABLE;
}

/// At the function that a runtime calls when its code objects change. This client has none, and
/// never calls it.
amd_dbgapi_status_t insert_breakpoint(amd_dbgapi_client_process_id_t client,
                                      amd_dbgapi_global_address_t address,
                                      amd_dbgapi_breakpoint_id_t breakpoint) {
  constexpr std::uint8_t int3 = 0xcc;
  auto& process = of(client);
  debuggee::breakpoint made{.address = address};
  if (transfer(process.pid, address, &made.replaced, nullptr, 1) != 1 ||
      transfer(process.pid, address, nullptr, &int3, 1) != 1)
    return AMD_DBGAPI_STATUS_ERROR;
  process.breakpoints.insert({breakpoint.handle, made});
  return AMD_DBGAPI_STATUS_SUCCESS;
}

amd_dbgapi_status_t remove_breakpoint(amd_dbgapi_client_process_id_t client,
                                      amd_dbgapi_breakpoint_id_t breakpoint) {
  auto& process = of(client);
  const auto found = process.breakpoints.find(breakpoint.handle);
  if (found == process.breakpoints.end()) return AMD_DBGAPI_STATUS_ERROR_INVALID_BREAKPOINT_ID;
  // The process may be gone.
  (void)transfer(process.pid, found->second.address, nullptr, &found->second.replaced, 1);
  process.breakpoints.erase(found);
  return AMD_DBGAPI_STATUS_SUCCESS;
}

/// What the library cannot read by itself: the memory of a core file.
amd_dbgapi_status_t xfer_global_memory(amd_dbgapi_client_process_id_t client,
                                       amd_dbgapi_global_address_t address, amd_dbgapi_size_t* size,
                                       void* read, const void* written) {
  const auto& process = of(client);
  if (process.core.data == nullptr || read == nullptr) return AMD_DBGAPI_STATUS_ERROR_MEMORY_ACCESS;
  const auto done = transfer(process.pid, address, read, written, *size);
  if (done <= 0) return AMD_DBGAPI_STATUS_ERROR_MEMORY_ACCESS;
  *size = static_cast<amd_dbgapi_size_t>(done);
  return AMD_DBGAPI_STATUS_SUCCESS;
}

void log_message(amd_dbgapi_log_level_t level, const char* text) {
  if (level <= AMD_DBGAPI_LOG_LEVEL_WARNING) complaints.emplace_back(text);
  if (std::getenv("WITNESS_LOG") != nullptr) std::fprintf(stderr, "  %s\n", text);
}

/// Throws if the library complained since the last call.
void no_complaints(const std::string& step) {
  if (complaints.empty()) return;
  std::string all;
  for (const auto& each : std::exchange(complaints, {})) all += (all.empty() ? "" : "; ") + each;
  throw failure{step + ": ROCdbgapi reports: " + all};
}

// --- The library's lists and properties ---------------------------------------------------------

template <class Value, class Handle, class Query>
Value property(amd_dbgapi_status_t (*get)(Handle, Query, std::size_t, void*), Handle handle,
               Query query, const char* what) {
  Value value{};
  require(get(handle, query, sizeof value, &value), what);
  return value;
}

template <class Handle, class Query>
std::string text_property(amd_dbgapi_status_t (*get)(Handle, Query, std::size_t, void*),
                          Handle handle, Query query, const char* what) {
  char* text = property<char*>(get, handle, query, what);
  std::string out = text;
  std::free(text);
  return out;
}

template <class Handle>
std::vector<Handle> list(amd_dbgapi_status_t (*get)(amd_dbgapi_process_id_t, std::size_t*, Handle**,
                                                    amd_dbgapi_changed_t*),
                         amd_dbgapi_process_id_t process, const char* what) {
  Handle* items = nullptr;
  std::size_t count = 0;
  require(get(process, &count, &items, nullptr), what);
  std::vector<Handle> out(items, items + count);
  std::free(items);
  return out;
}

// --- A session ----------------------------------------------------------------------------------

/// The debugger of one target. One thread: the driver accepts only the one that traces.
class debugger {
 public:
  explicit debugger(target_process& target) : target_{target} { debuggee_.pid = target.pid(); }
  debugger(const debugger&) = delete;
  debugger& operator=(const debugger&) = delete;
  ~debugger() {
    if (attached_) amd_dbgapi_process_detach(process_);
  }

  amd_dbgapi_process_id_t process() const { return process_; }
  debuggee& client() { return debuggee_; }

  void seize() {
    if (ptrace(PTRACE_SEIZE, debuggee_.pid, nullptr, PTRACE_O_TRACEEXEC) != 0)
      throw failure{std::string{"PTRACE_SEIZE: "} + std::strerror(errno)};
  }

  /// Lets a target that stopped itself continue, and waits until it stops after its exec.
  void continue_to_exec() {
    kill(debuggee_.pid, SIGCONT);
    until("the target executes its program", [&] { return stopped_in_exec_; });
  }
  void continue_from_exec() {
    stopped_in_exec_ = false;
    ptrace(PTRACE_CONT, debuggee_.pid, nullptr, nullptr);
  }

  /// PTRACE_DETACH requires a stopped target.
  void release() {
    interrupting_ = true;
    ptrace(PTRACE_INTERRUPT, debuggee_.pid, nullptr, nullptr);
    until("the target stops", [&] { return interrupted_; });
    ptrace(PTRACE_DETACH, debuggee_.pid, nullptr, nullptr);
    interrupting_ = interrupted_ = false;
  }

  void attach() {
    require(amd_dbgapi_process_attach(reinterpret_cast<amd_dbgapi_client_process_id_t>(&debuggee_),
                                      &process_),
            "attach");
    attached_ = true;
    notifier_ = property<amd_dbgapi_notifier_t>(amd_dbgapi_process_get_info, process_,
                                                AMD_DBGAPI_PROCESS_INFO_NOTIFIER, "notifier");
  }
  void detach() {
    attached_ = false;
    notifier_ = -1;
    require(amd_dbgapi_process_detach(process_), "detach");
  }

  /// Handles events and signals of the target until the condition holds.
  void until(const std::string& what, const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {
      handle_signals();
      handle_events();
      if (condition()) return;
      if (std::chrono::steady_clock::now() > end) throw failure{"not within two minutes: " + what};
      std::this_thread::sleep_for(1ms);
    }
  }

  /// The runtime's states that the library reported, oldest first.
  const std::vector<amd_dbgapi_runtime_state_t>& runtime_states() const { return runtime_states_; }
  bool gone() const { return gone_; }

  /// Answers of the target, which may need us to answer its driver calls.
  std::string ask(const std::string& command) {
    target_.send(command);
    return hear();
  }
  std::string hear() {
    std::optional<std::string> line;
    until("an answer of the target", [&] { return (line = target_.hear(10ms)).has_value(); });
    return *line;
  }
  std::uint64_t completed() { return std::stoull(ask("completed")); }

 private:
  void handle_signals() {
    while (!gone_ && !stopped_in_exec_ && !interrupted_) {
      const auto status = target_.wait_for(0ms, __WALL);
      if (!status) return;
      const int event = *status >> 16;
      if (!WIFSTOPPED(*status)) {
        gone_ = true;
      } else if (event == PTRACE_EVENT_EXEC) {
        stopped_in_exec_ = true;
      } else if (event == PTRACE_EVENT_STOP && interrupting_) {
        interrupted_ = true;
      } else {
        ptrace(PTRACE_CONT, debuggee_.pid, nullptr, event == 0 ? WSTOPSIG(*status) : 0);
      }
    }
  }

  void handle_events() {
    pollfd ready{.fd = notifier_, .events = POLLIN, .revents = 0};
    if (notifier_ < 0 || poll(&ready, 1, 0) <= 0) return;
    std::array<char, 64> bytes{};
    while (read(notifier_, bytes.data(), bytes.size()) > 0) {
    }
    for (;;) {
      amd_dbgapi_event_id_t event{};
      amd_dbgapi_event_kind_t kind{};
      require(amd_dbgapi_process_next_pending_event(process_, &event, &kind), "next event");
      if (kind == AMD_DBGAPI_EVENT_KIND_NONE) return;
      require(kind == AMD_DBGAPI_EVENT_KIND_RUNTIME, "unexpected event " + std::to_string(kind));
      runtime_states_.push_back(property<amd_dbgapi_runtime_state_t>(
          amd_dbgapi_event_get_info, event, AMD_DBGAPI_EVENT_INFO_RUNTIME_STATE, "runtime state"));
      require(amd_dbgapi_event_processed(event), "event processed");
    }
  }

  target_process& target_;
  debuggee debuggee_;
  amd_dbgapi_process_id_t process_{};
  amd_dbgapi_notifier_t notifier_ = -1;
  bool attached_ = false;
  bool stopped_in_exec_ = false;
  bool interrupting_ = false;
  bool interrupted_ = false;
  bool gone_ = false;
  std::vector<amd_dbgapi_runtime_state_t> runtime_states_;
};

// --- The steps ----------------------------------------------------------------------------------

std::string count_of(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void expect_runtime(debugger& of, const std::string& step) {
  of.until("a runtime event", [&] { return !of.runtime_states().empty(); });
  require(of.runtime_states() == std::vector{AMD_DBGAPI_RUNTIME_STATE_LOADED_SUCCESS},
          step + ": the runtime's state is " + std::to_string(of.runtime_states().back()));
  no_complaints(step);
  passed(step, "the runtime is loaded");
}

std::size_t list_agents(debugger& of) {
  const auto agents = list(amd_dbgapi_process_agent_list, of.process(), "agents");
  require(!agents.empty(), "agents: none");
  for (const auto agent : agents) {
    const auto of_agent = [&]<class Value>(amd_dbgapi_agent_info_t query, Value) {
      return property<Value>(amd_dbgapi_agent_get_info, agent, query, "agent");
    };
    const auto architecture =
        of_agent(AMD_DBGAPI_AGENT_INFO_ARCHITECTURE, amd_dbgapi_architecture_id_t{});
    require(of_agent(AMD_DBGAPI_AGENT_INFO_STATE, amd_dbgapi_agent_state_t{}) ==
                AMD_DBGAPI_AGENT_STATE_SUPPORTED,
            "agents: debugging is not supported");
    passed(
        "agent",
        text_property(amd_dbgapi_architecture_get_info, architecture,
                      AMD_DBGAPI_ARCHITECTURE_INFO_NAME, "architecture") +
            " '" +
            text_property(amd_dbgapi_agent_get_info, agent, AMD_DBGAPI_AGENT_INFO_NAME, "name") +
            "', " +
            count_of(of_agent(AMD_DBGAPI_AGENT_INFO_EXECUTION_UNIT_COUNT, std::size_t{}), "SIMD") +
            ", " +
            count_of(of_agent(AMD_DBGAPI_AGENT_INFO_MAX_WAVES_PER_EXECUTION_UNIT, std::size_t{}),
                     "wave") +
            " each");
  }
  no_complaints("agents");
  return agents.size();
}

std::vector<amd_dbgapi_queue_id_t> list_queues(debugger& of, std::size_t expected) {
  std::vector<amd_dbgapi_queue_id_t> queues;
  of.until(count_of(expected, "queue"), [&] {
    queues = list(amd_dbgapi_process_queue_list, of.process(), "queues");
    return queues.size() == expected;
  });
  for (const auto queue : queues) {
    const auto of_queue = [&]<class Value>(amd_dbgapi_queue_info_t query, Value) {
      return property<Value>(amd_dbgapi_queue_get_info, queue, query, "queue");
    };
    require(of_queue(AMD_DBGAPI_QUEUE_INFO_TYPE, amd_dbgapi_os_queue_type_t{}) ==
                AMD_DBGAPI_OS_QUEUE_TYPE_HSA_AQL,
            "queues: a queue is not of type AQL");
    passed(
        "queue",
        "id " + std::to_string(of_queue(AMD_DBGAPI_QUEUE_INFO_OS_ID, amd_dbgapi_os_queue_id_t{})) +
            ", " + count_of(of_queue(AMD_DBGAPI_QUEUE_INFO_SIZE, amd_dbgapi_size_t{}), "byte") +
            " at " + hex(of_queue(AMD_DBGAPI_QUEUE_INFO_ADDRESS, amd_dbgapi_global_address_t{})));
  }
  no_complaints("queues");
  return queues;
}

/// To list the waves of a process that makes no progress, the library suspends all its queues. They
/// stay so.
void suspend(debugger& of, const std::vector<amd_dbgapi_queue_id_t>& queues) {
  require(amd_dbgapi_process_set_progress(of.process(), AMD_DBGAPI_PROGRESS_NO_FORWARD), "suspend");
  const auto waves = list(amd_dbgapi_process_wave_list, of.process(), "waves");
  require(waves.empty(), "suspend: the library found waves");
  std::size_t packets = 0;
  for (const auto queue : queues) {
    amd_dbgapi_os_queue_packet_id_t read = 0;
    amd_dbgapi_os_queue_packet_id_t written = 0;
    std::size_t size = 0;
    void* bytes = nullptr;
    require(amd_dbgapi_queue_packet_list(queue, &read, &written, &size, &bytes),
            "suspend: packets");
    std::free(bytes);
    packets += written - read;
  }
  // For completions that are on their way.
  std::this_thread::sleep_for(50ms);
  const auto before = of.completed();
  std::this_thread::sleep_for(200ms);
  require(of.completed() == before, "suspend: the target's kernels went on");
  no_complaints("suspend");
  passed("suspend",
         count_of(queues.size(), "queue") + ", " + count_of(packets, "packet") + " in their rings");
}

void resume(debugger& of) {
  const auto before = of.completed();
  require(amd_dbgapi_process_set_progress(of.process(), AMD_DBGAPI_PROGRESS_NORMAL), "resume");
  of.until("the target's kernels go on", [&] { return of.completed() > before; });
  no_complaints("resume");
  passed("resume", "the target's kernels go on");
}

void set_memory_precision(debugger& of) {
  const auto supported = property<amd_dbgapi_memory_precision_t>(
      amd_dbgapi_process_get_info, of.process(), AMD_DBGAPI_PROCESS_INFO_PRECISE_MEMORY_SUPPORTED,
      "precision");
  const auto status =
      amd_dbgapi_set_memory_precision(of.process(), AMD_DBGAPI_MEMORY_PRECISION_PRECISE);
  if (supported == AMD_DBGAPI_MEMORY_PRECISION_NONE) {
    require(status == AMD_DBGAPI_STATUS_ERROR_NOT_SUPPORTED, "memory precision: not refused");
    not_possible("memory precision", "the driver reports that this GPU does not support it");
  } else {
    require(status, "memory precision");
    require(amd_dbgapi_set_memory_precision(of.process(), AMD_DBGAPI_MEMORY_PRECISION_NONE),
            "memory precision: back to none");
    passed("memory precision", "set and reset");
  }
  no_complaints("memory precision");
}

void set_alu_precision(debugger& of) {
  const auto supported = property<amd_dbgapi_alu_exceptions_precision_t>(
      amd_dbgapi_process_get_info, of.process(),
      AMD_DBGAPI_PROCESS_INFO_PRECISE_ALU_EXCEPTIONS_SUPPORTED, "precision");
  const auto status = amd_dbgapi_set_alu_exceptions_precision(
      of.process(), AMD_DBGAPI_ALU_EXCEPTIONS_PRECISION_PRECISE);
  require((status == AMD_DBGAPI_STATUS_SUCCESS) ==
              (supported == AMD_DBGAPI_ALU_EXCEPTIONS_PRECISION_PRECISE),
          "precision of ALU exceptions: " + name_of(status));
  no_complaints("precision of ALU exceptions");
  if (status == AMD_DBGAPI_STATUS_SUCCESS)
    passed("precision of ALU exceptions");
  else
    not_possible("precision of ALU exceptions",
                 "the driver reports that this GPU does not support it");
}

void set_watch_points(debugger& of, amd_dbgapi_queue_id_t queue) {
  const auto ring = property<amd_dbgapi_global_address_t>(amd_dbgapi_queue_get_info, queue,
                                                          AMD_DBGAPI_QUEUE_INFO_ADDRESS, "queue");
  const auto count =
      property<std::size_t>(amd_dbgapi_process_get_info, of.process(),
                            AMD_DBGAPI_PROCESS_INFO_WATCHPOINT_COUNT, "watch points");
  constexpr std::uint64_t distance = 256;
  constexpr std::array kinds{AMD_DBGAPI_WATCHPOINT_KIND_LOAD,
                             AMD_DBGAPI_WATCHPOINT_KIND_STORE_AND_RMW,
                             AMD_DBGAPI_WATCHPOINT_KIND_RMW, AMD_DBGAPI_WATCHPOINT_KIND_ALL};
  std::vector<amd_dbgapi_watchpoint_id_t> set;
  std::string sizes;
  for (std::size_t i = 0; i < count; ++i) {
    amd_dbgapi_watchpoint_id_t made{};
    require(amd_dbgapi_set_watchpoint(of.process(), ring + i * distance, 4, kinds[i % kinds.size()],
                                      &made),
            "watch point " + std::to_string(i));
    set.push_back(made);
    require(property<amd_dbgapi_global_address_t>(amd_dbgapi_watchpoint_get_info, made,
                                                  AMD_DBGAPI_WATCHPOINT_INFO_ADDRESS,
                                                  "watch point") == ring + i * distance,
            "watch points: another address");
    sizes = std::to_string(property<amd_dbgapi_size_t>(
        amd_dbgapi_watchpoint_get_info, made, AMD_DBGAPI_WATCHPOINT_INFO_SIZE, "watch point"));
  }
  amd_dbgapi_watchpoint_id_t more{};
  require(amd_dbgapi_set_watchpoint(of.process(), ring + count * distance, 4,
                                    AMD_DBGAPI_WATCHPOINT_KIND_ALL,
                                    &more) == AMD_DBGAPI_STATUS_ERROR_NO_WATCHPOINT_AVAILABLE,
          "watch points: more than there are");
  for (const auto each : set) require(amd_dbgapi_remove_watchpoint(each), "watch points: remove");
  no_complaints("watch points");
  passed("watch points", count_of(set.size(), "watch point") + " of " + sizes +
                             " bytes set and removed, one more refused");
}

/// New waves stop at their start. Those of the faked hardware do not, and the library finds none.
void stop_wave_creation(debugger& of) {
  require(amd_dbgapi_process_set_wave_creation(of.process(), AMD_DBGAPI_WAVE_CREATION_STOP),
          "wave creation: stop");
  require(amd_dbgapi_process_set_wave_creation(of.process(), AMD_DBGAPI_WAVE_CREATION_NORMAL),
          "wave creation: normal");
  no_complaints("wave creation");
  passed("wave creation", "stopped and set to normal");
}

/// The driver's part of a core file, and a session of the library with it.
void write_core(debugger& of, std::size_t agents, std::size_t queues) {
  const auto process = of.process();
  require(amd_dbgapi_process_set_progress(process, AMD_DBGAPI_PROGRESS_NO_FORWARD),
          "core: no progress");
  require(amd_dbgapi_process_set_wave_creation(process, AMD_DBGAPI_WAVE_CREATION_STOP),
          "core: wave creation");
  require(amd_dbgapi_process_freeze(process), "core: freeze");
  debuggee core;
  core.pid = of.client().pid;
  core.core = property<amd_dbgapi_core_state_data_t>(
      amd_dbgapi_process_get_info, process, AMD_DBGAPI_PROCESS_INFO_CORE_STATE, "core: state");
  amd_dbgapi_process_id_t opened{};
  require(
      amd_dbgapi_process_attach(reinterpret_cast<amd_dbgapi_client_process_id_t>(&core), &opened),
      "core: open");
  require(list(amd_dbgapi_process_agent_list, opened, "core: agents").size() == agents,
          "core: agents are missing");
  require(list(amd_dbgapi_process_queue_list, opened, "core: queues").size() == queues,
          "core: queues are missing");
  require(amd_dbgapi_process_detach(opened), "core: close");
  std::free(const_cast<void*>(core.core.data));
  require(amd_dbgapi_process_unfreeze(process), "core: unfreeze");
  require(amd_dbgapi_process_set_wave_creation(process, AMD_DBGAPI_WAVE_CREATION_NORMAL),
          "core: wave creation");
  require(amd_dbgapi_process_set_progress(process, AMD_DBGAPI_PROGRESS_NORMAL), "core: progress");
  no_complaints("core");
  passed("core file", count_of(core.core.size, "byte") + " with all agents and queues");
}

void list_what_this_client_has_not(debugger& of) {
  require(list(amd_dbgapi_process_code_object_list, of.process(), "code objects").empty(),
          "code objects: some");
  not_possible("code objects", "a kernel of this client is a duration, without code");
  require(list(amd_dbgapi_process_dispatch_list, of.process(), "dispatches").empty(),
          "dispatches: some");
  not_possible("waves and dispatches",
               "the device saves no waves, in which the library finds dispatches");
  no_complaints("code objects");
}

// --- The scenarios ------------------------------------------------------------------------------

constexpr std::size_t queue_count = 2;

/// A debugger that comes to a running process, leaves it, comes back, and sees it end.
void attach_to_a_running_process(const std::string& program) {
  std::puts("a debugger attaches to a running process");
  target_process target{program, {std::to_string(queue_count), "2000", "all-gpus"}, {}};
  require(target.hear(patience) == "ready", "the target did not start");
  debugger first{target};
  first.seize();
  first.attach();
  passed("attach");
  expect_runtime(first, "runtime");
  const auto agents = list_agents(first);
  const auto queues = list_queues(first, queue_count);
  list_what_this_client_has_not(first);
  suspend(first, queues);
  resume(first);
  set_memory_precision(first);
  set_alu_precision(first);
  set_watch_points(first, queues.front());
  stop_wave_creation(first);
  write_core(first, agents, queues.size());
  suspend(first, queues);
  first.detach();
  no_complaints("detach");
  const auto before = first.completed();
  first.until("the target's kernels go on", [&] { return first.completed() > before; });
  passed("detach", "from suspended queues; the target's kernels go on");
  first.release();

  debugger second{target};
  second.seize();
  second.attach();
  expect_runtime(second, "second session");
  const auto again = list_queues(second, queue_count);
  suspend(second, again);
  resume(second);
  require(second.ask("drain") == "0",
          "the target counts kernels that did not run once and in order");
  passed("end", "every kernel of the target ran once and in order");
  for (std::size_t i = 0; i < queue_count; ++i)
    require(second.ask("destroy " + std::to_string(i)) == "destroyed",
            "the target cannot destroy a queue");
  list_queues(second, 0);
  target.finish();
  second.until("the target ends", [&] { return second.gone(); });
  require(second.runtime_states().back() == AMD_DBGAPI_RUNTIME_STATE_UNLOADED,
          "end: the runtime was not unloaded");
  second.detach();
  no_complaints("end");
  passed("end", "the runtime was unloaded, and the process ended");
}

/// A debugger that starts the process, before its runtime exists; at last it is killed.
void start_a_process(const std::string& program) {
  std::puts("a debugger starts a process");
  target_process target{"/bin/sh",
                        {"-c", "kill -STOP $$; exec \"$@\"", "sh", program,
                         std::to_string(queue_count), "2000", "all-gpus"},
                        {}};
  const auto stopped = target.wait_for(patience, WUNTRACED);
  require(stopped && WIFSTOPPED(*stopped), "the target did not stop itself");
  debugger session{target};
  session.seize();
  session.continue_to_exec();
  session.attach();
  require(session.runtime_states().empty(), "attach: the runtime is loaded before it is");
  passed("attach", "before the process opens the device");
  list_agents(session);
  session.continue_from_exec();
  expect_runtime(session, "runtime");
  require(session.hear() == "ready", "the target did not start");
  const auto queues = list_queues(session, queue_count);
  suspend(session, queues);
  resume(session);
  set_watch_points(session, queues.back());
  require(session.ask("drain") == "0",
          "the target counts kernels that did not run once and in order");
  require(session.ask("destroy 0") == "destroyed", "the target cannot destroy a queue");
  list_queues(session, queue_count - 1);
  passed("queue", "the library notices that one was destroyed");
  kill(target.pid(), SIGKILL);
  session.until("the target ends", [&] { return session.gone(); });
  require(list(amd_dbgapi_process_queue_list, session.process(), "killed: queues").empty(),
          "killed: queues are left");
  session.detach();
  no_complaints("killed");
  passed("killed target", "the library lists no queues, and detaches");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc == 3 ? argv[2] : "";
  if (argc < 2 || argc > 3 || (argc == 3 && only != "running" && only != "started")) {
    std::fprintf(stderr, "usage: witness INTEGRATION_TARGET [running|started]\n");
    return 2;
  }
  try {
    amd_dbgapi_callbacks_t callbacks{.allocate_memory = std::malloc,
                                     .deallocate_memory = std::free,
                                     .client_process_get_info = client_process_get_info,
                                     .insert_breakpoint = insert_breakpoint,
                                     .remove_breakpoint = remove_breakpoint,
                                     .xfer_global_memory = xfer_global_memory,
                                     .log_message = log_message};
    amd_dbgapi_set_log_level(std::getenv("WITNESS_LOG") != nullptr ? AMD_DBGAPI_LOG_LEVEL_VERBOSE
                                                                   : AMD_DBGAPI_LOG_LEVEL_WARNING);
    require(amd_dbgapi_initialize(&callbacks), "initialize");
    if (only != "started") attach_to_a_running_process(argv[1]);
    if (only != "running") start_a_process(argv[1]);
    require(amd_dbgapi_finalize(), "finalize");
    no_complaints("finalize");
  } catch (const std::exception& error) {
    std::printf("failed        %s\n", error.what());
    for (const auto& each : complaints) std::printf("              ROCdbgapi: %s\n", each.c_str());
    return 1;
  }
  std::puts("every step passed that is possible");
}
