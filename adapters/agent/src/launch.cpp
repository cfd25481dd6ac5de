#include "launch.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>
#include <string_view>
#include <vector>

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

constexpr duration start_patience = 5s;
constexpr duration rescue_patience = 12s;

/// A duplicate out of the way of the numbers that the agent expects.
unique_fd out_of_the_way(int fd) {
  return unique_fd{::fcntl(fd, F_DUPFD_CLOEXEC, 2 * first_free_fd)};
}

struct spawn_actions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  spawn_actions() {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
  }
  ~spawn_actions() {
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
  }
  spawn_actions(const spawn_actions&) = delete;
  spawn_actions& operator=(const spawn_actions&) = delete;
};

/// The host's environment without what would make the agent a scheduled process, or run code that
/// was meant for the host.
std::vector<char*> agent_environment() {
  std::vector<char*> kept;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry{*each};
    if (entry.starts_with("AMD_QUEUE_") || entry.starts_with("LD_PRELOAD=")) continue;
    kept.push_back(*each);
  }
  kept.push_back(nullptr);
  return kept;
}

/// Where this code is part of PREFIX/lib/libsluice.so, or of one in a folder of an architecture in
/// PREFIX/lib: PREFIX, wherever it was moved since it was built. Else empty.
std::filesystem::path prefix_of_this_library() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void*>(&agent_environment), &here) == 0 || !here.dli_fname)
    return {};
  std::error_code ignored;
  const auto file = std::filesystem::canonical(here.dli_fname, ignored);
  if (ignored || !file.filename().string().starts_with("libsluice")) return {};
  for (auto folder = file.parent_path(); folder.has_relative_path(); folder = folder.parent_path())
    if (folder.filename().string().starts_with("lib")) return folder.parent_path();
  return {};
}

result<std::unique_ptr<shared_page, unmap_page>> create_page(unique_fd& memory) {
  memory = unique_fd{::memfd_create("sluice-agent", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!memory || ::ftruncate(memory.get(), sizeof(shared_page)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return last_system_error();
  void* const mapped =
      ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) return last_system_error();
  // A forked child of the host must not write into a ring that has one producer.
  (void)::madvise(mapped, sizeof(shared_page), MADV_DONTFORK);
  return std::unique_ptr<shared_page, unmap_page>{new (mapped) shared_page};
}

error_code spawn(const std::string& program, const agent_options& options,
                 const std::array<int, 5>& descriptors) {
  std::array<unique_fd, 5> copies;
  for (std::size_t index = 0; index < copies.size(); ++index) {
    copies[index] = out_of_the_way(descriptors[index]);
    if (!copies[index]) return last_system_error();
  }
  spawn_actions with;
  int error =
      ::posix_spawn_file_actions_addopen(&with.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (std::size_t index = 0; index < copies.size() && error == 0; ++index)
    error = ::posix_spawn_file_actions_adddup2(&with.files, copies[index].get(),
                                               control_fd + static_cast<int>(index));
  // Nothing else of the host's is the agent's business: a listening socket kept open, say.
  if (error == 0) error = ::posix_spawn_file_actions_addclosefrom_np(&with.files, first_free_fd);
  sigset_t signals;
  sigfillset(&signals);
  if (error == 0) error = ::posix_spawnattr_setsigdefault(&with.attributes, &signals);
  sigemptyset(&signals);
  if (error == 0) error = ::posix_spawnattr_setsigmask(&with.attributes, &signals);
  if (error == 0)
    error = ::posix_spawnattr_setflags(&with.attributes,
                                       POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  if (error != 0) return {error, boost::system::system_category()};

  const std::string lease =
      std::to_string(std::chrono::ceil<std::chrono::milliseconds>(options.lease).count());
  std::vector<std::string> set;
  for (const auto& [key, value] : options.driver.settings) set.push_back(key + "=" + value);
  std::vector<const char*> arguments{"sluice-agent",
                                     "--driver",
                                     options.driver.driver.c_str(),
                                     "--owner-lock",
                                     options.owner_lock.c_str(),
                                     "--lease-ms",
                                     lease.c_str()};
  for (const std::string& each : set) {
    arguments.push_back("--set");
    arguments.push_back(each.c_str());
  }
  if (!options.roles.empty()) {
    arguments.push_back("--roles");
    arguments.push_back(options.roles.c_str());
  }
  if (options.of_a_node) arguments.push_back("--of-a-node");
  std::string latency;
  if (options.cpu_latency) {
    latency =
        std::to_string(std::chrono::floor<std::chrono::microseconds>(*options.cpu_latency).count());
    arguments.push_back("--cpu-latency-us");
    arguments.push_back(latency.c_str());
  }
  arguments.push_back(nullptr);
  std::vector<char*> environment = agent_environment();
  pid_t child = 0;
  error = ::posix_spawn(&child, program.c_str(), &with.files, &with.attributes,
                        const_cast<char**>(arguments.data()), environment.data());
  if (error != 0) return {error, boost::system::system_category()};
  // The child forks the agent and ends at once. A host that waits for everything, or ignores
  // SIGCHLD, may be faster to reap it: ECHILD is as good.
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return {};
}

bool has_capabilities(const std::string& program) {
  return ::getxattr(program.c_str(), "security.capability", nullptr, 0) > 0;
}

}  // namespace

std::string find_agent(const std::string& option, std::string& tried) {
  const auto usable = [&tried](const std::string& path) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0)
      return true;
    tried += (tried.empty() ? "" : ", ") + path;
    return false;
  };
  if (!option.empty()) return usable(option) ? option : "";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): make_agent_backend() says so
  if (const char* named = std::getenv("SLUICE_AGENT"); named != nullptr && *named != '\0')
    return usable(named) ? named : "";
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!ignored) {
    if (auto path = (self.parent_path() / "sluice-agent").string(); usable(path)) return path;
  }
  if (const auto prefix = prefix_of_this_library(); !prefix.empty()) {
    if (auto path = (prefix / "bin/sluice-agent").string(); usable(path)) return path;
  }
  if (std::string path = SLUICE_INSTALLED_AGENT; usable(path)) return path;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): make_agent_backend() says so
  const char* const listed = std::getenv("PATH");
  std::istringstream folders(listed != nullptr ? listed : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    // Absolute ones only: an empty entry means wherever the host happens to be.
    if (!folder.starts_with('/')) continue;
    if (std::string path = folder + "/sluice-agent"; usable(path)) return path;
  }
  return "";
}

bool is_everybodys(const std::string& program) {
  struct stat about {};
  return ::stat(program.c_str(), &about) == 0 && (about.st_mode & S_IXOTH) != 0 &&
         has_capabilities(program);
}

bool are_capabilities_ignored(const std::string& program) {
  return ::geteuid() != 0 && ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 &&
         has_capabilities(program);
}

result<void> receive(int control, note& into, unique_fd& pidfd) {
  iovec data{&into, sizeof(into)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // in the padding a second one would fit
  ssize_t got = 0;
  do {
    got = ::recvmsg(control, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return last_system_error();
  if (got < 0) return errc::lost;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    pidfd.reset(fd);
  }
  if (got == 0) return errc::lost;  // or an empty note, which may have brought a descriptor
  if (static_cast<std::size_t>(got) != sizeof(into) || into.magic != protocol_magic)
    return errc::not_supported;
  into.text.back() = '\0';
  return {};
}

result<connection> launch(const std::string& program, const agent_options& options) {
  connection made;
  unique_fd memory;
  const auto refused = [&](error_code why) {
    options.say("cannot start " + program + ": " + why.message());
    return why;
  };
  auto page = create_page(memory);
  if (!page) return refused(page.error());
  made.page = std::move(*page);
  made.page->lease_renewed.store(clock::now().time_since_epoch().count());
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return refused(last_system_error());
  made.control = unique_fd{ends[0]};
  unique_fd agent_end{ends[1]};
  made.agent_doorbell = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int bell_ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, bell_ends) != 0)
    return refused(last_system_error());
  made.host_doorbell = unique_fd{bell_ends[0]};
  unique_fd agents_bell{bell_ends[1]};
  const unique_fd self{static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))};
  if (!made.agent_doorbell || !self) return refused(last_system_error());

  const error_code spawned = spawn(
      program, options,
      {agent_end.get(), memory.get(), made.agent_doorbell.get(), agents_bell.get(), self.get()});
  if (spawned) return refused(spawned);
  agent_end.reset();
  agents_bell.reset();

  const time_point give_up = clock::now() + start_patience;
  for (;;) {
    const duration left = give_up - clock::now();
    if (left <= duration{}) {
      options.say("cannot start the agent: " + program + " did not answer within 5 s");
      return error_code{ETIMEDOUT, boost::system::system_category()};
    }
    pollfd waiting{made.control.get(), POLLIN, 0};
    (void)::poll(&waiting, 1,
                 static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    note heard;
    const auto received = receive(made.control.get(), heard, made.pidfd);
    if (!received) {
      if (received.error() == boost::system::errc::resource_unavailable_try_again) continue;
      if (received.error() == errc::lost)
        options.say("cannot start the agent: " + program + " exited before it was ready");
      return received.error();
    }
    switch (heard.kind) {
      case note_kind::message: options.say(heard.get_text()); continue;
      case note_kind::guardian: made.guardian = std::move(made.pidfd); continue;
      case note_kind::ready:
        if (made.pidfd) return made;
        return errc::not_supported;
      case note_kind::refused:
      case note_kind::farewell: {
        options.say(heard.get_text());
        const error_code why{heard.error};
        return why ? why : error_code{errc::lost};
      }
    }
  }
}

void rescue(const std::string& program, const std::string& owner_lock) {
  const std::array<const char*, 5> arguments{"sluice-agent", "--rescue", "--owner-lock",
                                             owner_lock.c_str(), nullptr};
  std::vector<char*> environment = agent_environment();
  spawn_actions with;
  // Its words are for the log, and nothing of the host's is its business.
  if (::posix_spawn_file_actions_addopen(&with.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0) !=
          0 ||
      ::posix_spawn_file_actions_adddup2(&with.files, STDERR_FILENO, STDOUT_FILENO) != 0 ||
      ::posix_spawn_file_actions_addclosefrom_np(&with.files, STDERR_FILENO + 1) != 0)
    return;
  pid_t child = 0;
  if (::posix_spawn(&child, program.c_str(), &with.files, &with.attributes,
                    const_cast<char* const*>(arguments.data()), environment.data()) != 0)
    return;
  const unique_fd ended{static_cast<int>(::syscall(SYS_pidfd_open, child, 0))};
  pollfd waiting{ended.get(), POLLIN, 0};
  (void)::poll(&waiting, 1, static_cast<int>(rescue_patience / 1ms));
  // Where it goes on after that, nobody of this process waits for it any more.
  (void)::waitpid(child, nullptr, WNOHANG);
}

}  // namespace sluice::agent
