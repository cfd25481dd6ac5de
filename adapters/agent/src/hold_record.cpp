#include "hold_record.hpp"

#include "found_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "sluice/os/node_lock.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::agent {

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t record_magic = 0x7364'6c6f'6863'6c73;
constexpr std::uint32_t record_version = 1;
constexpr duration look_every = 5ms;
enum slot_state : std::uint32_t { slot_free, slot_taken, slot_held };

/// Of this boot: after another, nothing is held.
std::string boot_id() {
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string line;
  std::getline(file, line);
  return line;
}

template <std::size_t Size>
void put(std::array<char, Size>& into, std::string_view text) noexcept {
  into.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), Size - 1), into.begin());
}
template <std::size_t Size>
std::string text_of(const std::array<char, Size>& from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
}

/// Lines "key=value".
std::string lines_of(const std::map<std::string, std::string>& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += key + "=" + value + "\n";
  return text;
}
std::map<std::string, std::string> settings_of(const std::string& text) {
  std::map<std::string, std::string> made;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (const auto at = line.find('='); at != std::string::npos)
      made.emplace(line.substr(0, at), line.substr(at + 1));
    begin = end + 1;
  }
  return made;
}

}  // namespace

struct hold_record::page {
  struct slot {
    std::atomic<std::uint32_t> state{slot_free};
    hold what{};
  };
  // Where every version has it.
  struct header {
    std::uint64_t magic = record_magic;
    std::uint32_t version = record_version;
    std::uint32_t size = sizeof(page);
    std::array<char, 40> boot{};

    bool is_of_this_boot() const { return magic == record_magic && text_of(boot) == boot_id(); }
    bool is_ours() const { return version == record_version && size == sizeof(page); }
  };
  header head{};
  std::array<char, 32> driver{};
  std::array<char, 4096> settings{};
  alignas(cache_line) std::atomic<duration::rep> agent_lived{0};
  alignas(cache_line) std::atomic<duration::rep> guardian_lived{0};
  std::atomic<std::uint32_t> ending{0};  ///< Not 0: the agent lets go of everything, and ends.
  std::atomic<std::uint32_t> wanted{0};  ///< Not 0: the next agent waits for the record.
  alignas(cache_line) std::array<slot, most_holds> slots{};

  std::vector<std::pair<number, hold>> held() const {
    std::vector<std::pair<number, hold>> all;
    for (number index = 0; index < most_holds; ++index) {
      // Acquire: pairs with enter(), which wrote it before it said so. One that was only taken has
      // nothing held yet.
      if (slots[index].state.load(std::memory_order_acquire) != slot_held) continue;
      hold copy = slots[index].what;
      copy.bytes = std::min(copy.bytes, static_cast<std::uint32_t>(hold::most_bytes));
      all.emplace_back(index, copy);
    }
    return all;
  }
};

namespace {

/// Nothing that somebody else could change, and no pipe.
result<unique_fd> open_file(const std::string& path, int how) {
  unique_fd file{::open(path.c_str(), how | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)};
  if (!file) return last_system_error();
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return last_system_error();
  const bool trusted = about.st_uid == ::geteuid() || about.st_uid == 0 || ::geteuid() == 0;
  if (!S_ISREG(about.st_mode) || about.st_nlink != 1 || !trusted)
    return error_code{EPERM, boost::system::system_category()};
  return file;
}

struct flock whole_record() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}
bool try_lock(int fd) noexcept {
  struct flock whole = whole_record();
  return ::fcntl(fd, F_OFD_SETLK, &whole) == 0;
}
/// Whether no process has it locked.
bool is_free(int fd) noexcept {
  struct flock whole = whole_record();
  return ::fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
}

/// Whether the process has the record locked over this descriptor, which a mere reader has not.
bool has_locked(const std::string& folder, int fd, const struct stat& record) {
  const std::string number = std::to_string(fd);
  struct statx about {};
  // Another file may have that name, in a file system that does not answer.
  if (::statx(AT_FDCWD, (folder + "/fd/" + number).c_str(), AT_STATX_DONT_SYNC, STATX_INO,
              &about) != 0 ||
      makedev(about.stx_dev_major, about.stx_dev_minor) != record.st_dev ||
      about.stx_ino != record.st_ino)
    return false;
  std::array<char, 1024> text;
  const auto locks = read_small_file((folder + "/fdinfo/" + number).c_str(), text);
  return locks && locks->find("OFDLCK") != std::string_view::npos;
}

/// Whether the process has the record locked, as far as this user may see.
bool has_locked(pid_t pid, const struct stat& record, const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string folder = "/proc/" + std::to_string(pid);
  bool has = false;
  (void)for_each_numbered_entry<int>(folder + "/fd", [&](int fd) {
    // By its name first: to ask for the attributes of any file may block.
    const std::string link = folder + "/fd/" + std::to_string(fd);
    std::array<char, 4096> target;
    const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
    const std::string_view words{target.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
    has |= words.ends_with(name) && has_locked(folder, fd, record);
  });
  return has;
}

/// By a signal or a tracer.
bool is_stopped(pid_t pid) {
  std::array<char, 1024> room;
  const auto stat = read_small_file(("/proc/" + std::to_string(pid) + "/stat").c_str(), room);
  const auto end = stat ? stat->rfind(')') : std::string_view::npos;
  if (end == std::string_view::npos) return false;
  const auto rest = stat->substr(end);
  return rest.starts_with(") T ") || rest.starts_with(") t ");
}

/// Of each process that has the file locked: a clause about it. Empty: none can be seen.
std::string who_has(int file, const std::string& path) {
  std::string all;
  struct stat own {};
  if (::fstat(file, &own) != 0) return all;
  (void)for_each_numbered_entry<pid_t>("/proc", [&](pid_t pid) {
    if (pid == ::getpid() || !has_locked(pid, own, path)) return;
    std::array<char, 1024> text;
    const auto stat = read_small_file(("/proc/" + std::to_string(pid) + "/stat").c_str(), text);
    const std::string number = std::to_string(pid);
    all +=
        std::string{all.empty() ? "" : "; "} + "process " + number + " (" + command_of(pid) + ") ";
    const auto state = stat ? stat->substr(std::min(stat->rfind(')') + 1, stat->size()), 3) : "";
    if (state == " t ")
      all += "is stopped by " + debugger_of(pid) +
             ", and suspended work waits for it: let it go on there, or end it with 'kill -KILL " +
             number + "'";
    else if (state == " T ")
      all += "is stopped, and suspended work waits for it: run 'kill -CONT " + number +
             "', or end it with 'kill -KILL " + number + "'";
    else
      all += "resumes what it suspended, and exits then";
  });
  return all;
}

/// As found_record::stopped_guardian. The guardian is a child of its agent.
pid_t find_stopped_guardian(int file, const std::string& path) {
  pid_t found = 0;
  struct stat own {};
  if (::fstat(file, &own) != 0) return found;
  (void)for_each_numbered_entry<pid_t>("/proc", [&](pid_t pid) {
    if (command_of(pid) != "sluice-guardian" || !is_stopped(pid) || !has_locked(pid, own, path))
      return;
    std::array<char, 4096> room;
    const auto status = read_small_file(("/proc/" + std::to_string(pid) + "/status").c_str(), room);
    const auto parent = static_cast<pid_t>(status ? status_number(*status, "PPid").value_or(0) : 0);
    if (parent == 0 || is_stopped(parent) || !has_locked(parent, own, path)) found = pid;
  });
  return found;
}

}  // namespace

/// Nothing of another boot is held.
result<hold_record::content_kind> hold_record::kind_of(int file) {
  page::header head{};
  head.magic = 0;
  const ssize_t got = ::pread(file, &head, sizeof head, 0);
  if (got < 0) return last_system_error();
  if (got != ssize_t{sizeof head} || !head.is_of_this_boot()) return content_kind::none;
  struct stat about {};
  if (::fstat(file, &about) != 0) return last_system_error();
  return head.is_ours() && about.st_size == off_t{sizeof(page)} ? content_kind::ours
                                                                : content_kind::another_version;
}

hold_record::hold_record(unique_fd file, page* mapped, bool others) noexcept
    : file_(std::move(file)), page_(mapped), others_(others) {}
hold_record::~hold_record() { ::munmap(page_, sizeof(page)); }

result<std::unique_ptr<hold_record>> hold_record::open(const std::string& path, duration patience,
                                                       const message_sink& say) {
  unique_fd file;
  if (path.empty()) {
    file = unique_fd{::memfd_create("sluice-holds", MFD_CLOEXEC)};
    if (!file) return last_system_error();
  } else {
    auto opened = open_file(path, O_RDWR | O_CREAT);
    if (!opened) {
      say("cannot open " + path +
          ", in which the agent records what it suspends: " + opened.error().message());
      return opened.error();
    }
    file = std::move(*opened);
  }
  page* there = nullptr;
  for (const time_point give_up = clock::now() + patience; there == nullptr;) {
    const bool ours = path.empty() || try_lock(file.get());
    const auto kind = kind_of(file.get());
    if (!kind) return kind.error();
    if (*kind == content_kind::another_version) {
      say(path + " was written by another version of sluice; run 'rescue' of that version first");
      return errc::not_supported;
    }
    if (ours && *kind == content_kind::none) {
      // So that a full file system refuses it here, and not at the first store.
      if (const int error = ::posix_fallocate(file.get(), 0, sizeof(page)); error != 0)
        return error_code{error, boost::system::system_category()};
      if (::ftruncate(file.get(), sizeof(page)) != 0) return last_system_error();
    }
    if (ours || *kind == content_kind::ours) {
      void* const mapped =
          ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      if (mapped == MAP_FAILED) return last_system_error();
      there = static_cast<page*>(mapped);
      if (ours && *kind == content_kind::none) {
        there = new (mapped) page;
        put(there->head.boot, boot_id());
      }
    }
    if (ours) {
      there->wanted.store(0);
      break;
    }
    // A guardian that cannot let go of something hands it over.
    if (there != nullptr) there->wanted.store(1);
    if (clock::now() >= give_up) {
      if (there != nullptr) ::munmap(there, sizeof(page));
      const std::string who = who_has(file.get(), path);
      say("another agent or its guardian still has " + path + ": " +
          (who.empty() ? "run 'pgrep -l sluice-' to find it, and end it if it is stopped" : who));
      return errc::busy;
    }
    if (there != nullptr) ::munmap(std::exchange(there, nullptr), sizeof(page));
    std::this_thread::sleep_for(look_every);
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) about.st_uid = 0;
  return std::unique_ptr<hold_record>{
      new hold_record{std::move(file), there, about.st_uid != ::geteuid() && about.st_uid != 0}};
}

result<hold_record::content> hold_record::look(const std::string& path) {
  const auto file = open_file(path, O_RDONLY);
  if (!file && file.error() == boost::system::errc::no_such_file_or_directory) return content{};
  if (!file) return file.error();
  const bool free = is_free(file->get());
  const auto kind = kind_of(file->get());
  if (!kind) return kind.error();
  if (*kind == content_kind::another_version) return errc::not_supported;
  content seen;
  seen.is_there = true;
  if (*kind == content_kind::none) return seen;
  void* const mapped = ::mmap(nullptr, sizeof(page), PROT_READ, MAP_SHARED, file->get(), 0);
  if (mapped == MAP_FAILED) return last_system_error();
  const auto* const there = static_cast<const page*>(mapped);
  seen.by = {text_of(there->driver), settings_of(text_of(there->settings))};
  for (auto& [number, what] : there->held()) seen.holds.push_back(what);
  ::munmap(mapped, sizeof(page));
  // Looked at before and after, because an agent may have begun or ended meanwhile.
  seen.is_orphaned = !seen.holds.empty() && free && is_free(file->get());
  if (!seen.holds.empty() && !free)
    seen.stopped_guardian = find_stopped_guardian(file->get(), path);
  return seen;
}

std::vector<found_record> find_records(const std::string& owner_lock) {
  std::vector<found_record> all;
  for (unsigned which = 0; which <= most_hand_locks; ++which) {
    found_record one;
    one.owner_lock = which == 0 ? owner_lock : hand_lock(owner_lock, which);
    one.path = holds_beside(one.owner_lock);
    if (auto seen = hold_record::look(one.path); !seen) {
      one.error = seen.error();
    } else {
      if (!seen->is_there) continue;
      one.holds = std::move(seen->holds);
      one.is_orphaned = seen->is_orphaned;
      one.stopped_guardian = seen->stopped_guardian;
    }
    all.push_back(std::move(one));
  }
  return all;
}

std::optional<hold_book::number> hold_record::enter(const hold& what) noexcept {
  for (number index = 0; index < most_holds; ++index) {
    page::slot& slot = page_->slots[index];
    std::uint32_t expected = slot_free;
    if (!slot.state.compare_exchange_strong(expected, slot_taken, std::memory_order_relaxed))
      continue;
    slot.what = what;
    // Release: what it is stands there before it counts.
    slot.state.store(slot_held, std::memory_order_release);
    return index;
  }
  return {};
}

void hold_record::strike(number which) noexcept {
  if (which < most_holds) page_->slots[which].state.store(slot_free, std::memory_order_release);
}

acting_choice hold_record::left_by() const {
  return {text_of(page_->driver), settings_of(text_of(page_->settings))};
}

result<void> hold_record::begin(const acting_choice& by) {
  const std::string settings = lines_of(by.settings);
  if (settings.size() >= page_->settings.size() || by.driver.size() >= page_->driver.size())
    return errc::full;
  put(page_->driver, by.driver);
  put(page_->settings, settings);
  for (page::slot& each : page_->slots) {
    // An agent took it, and ended before it had written the hold.
    std::uint32_t expected = slot_taken;
    (void)each.state.compare_exchange_strong(expected, slot_free);
  }
  page_->ending.store(0);
  agent_lives({});
  guardian_lives(clock::now());
  return {};
}

std::vector<std::pair<hold_book::number, hold>> hold_record::held() const { return page_->held(); }

void hold_record::agent_lives(time_point now) noexcept {
  page_->agent_lived.store(now.time_since_epoch().count(), std::memory_order_release);
}
void hold_record::guardian_lives(time_point now) noexcept {
  page_->guardian_lived.store(now.time_since_epoch().count(), std::memory_order_release);
}
time_point hold_record::agent_lived() const noexcept {
  return time_point{duration{page_->agent_lived.load(std::memory_order_acquire)}};
}
time_point hold_record::guardian_lived() const noexcept {
  return time_point{duration{page_->guardian_lived.load(std::memory_order_acquire)}};
}

void hold_record::agent_ends() noexcept { page_->ending.store(1, std::memory_order_release); }
bool hold_record::agent_is_ending() const noexcept {
  return page_->ending.load(std::memory_order_acquire) != 0;
}
bool hold_record::is_wanted() const noexcept { return page_->wanted.load() != 0; }

}  // namespace sluice::agent
