#include "hold_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
  std::uint64_t magic = record_magic;
  std::uint32_t version = record_version;
  std::uint32_t size = sizeof(page);
  std::array<char, 40> boot{};
  std::array<char, 32> driver{};
  std::array<char, 4096> settings{};
  alignas(cache_line) std::atomic<duration::rep> agent_lived{0};
  alignas(cache_line) std::atomic<duration::rep> guardian_lived{0};
  alignas(cache_line) std::array<slot, most_holds> slots{};

  bool fits() const {
    return magic == record_magic && version == record_version && size == sizeof(page) &&
           text_of(boot) == boot_id();
  }
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
  if (!S_ISREG(about.st_mode) || about.st_nlink != 1 ||
      (about.st_uid != ::geteuid() && about.st_uid != 0))
    return error_code{EPERM, boost::system::system_category()};
  return file;
}

bool try_lock(int fd) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_SETLK, &whole) == 0;
}

}  // namespace

hold_record::hold_record(unique_fd file, page* mapped) noexcept
    : file_(std::move(file)), page_(mapped) {}
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
          ", in which the agent writes down what it holds: " + opened.error().message());
      return opened.error();
    }
    file = std::move(*opened);
    for (const time_point give_up = clock::now() + patience; !try_lock(file.get());) {
      if (clock::now() >= give_up) {
        say("another agent or its guardian still has " + path +
            ": it resumes what it holds and ends, or is stopped; 'pgrep -l sluice-' finds it");
        return errc::busy;
      }
      std::this_thread::sleep_for(look_every);
    }
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return last_system_error();
  const bool whole = about.st_size == off_t{sizeof(page)};
  if (!whole && (::ftruncate(file.get(), 0) != 0 || ::ftruncate(file.get(), sizeof(page)) != 0))
    return last_system_error();
  void* const mapped =
      ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return last_system_error();
  auto* there = static_cast<page*>(mapped);
  if (!whole || !there->fits()) {
    there = new (mapped) page;
    put(there->boot, boot_id());
  }
  return std::unique_ptr<hold_record>{new hold_record{std::move(file), there}};
}

result<hold_record::content> hold_record::look(const std::string& path) {
  const auto file = open_file(path, O_RDONLY);
  if (!file && file.error() == boost::system::errc::no_such_file_or_directory) return content{};
  if (!file) return file.error();
  struct stat about {};
  if (::fstat(file->get(), &about) != 0) return last_system_error();
  if (about.st_size != off_t{sizeof(page)}) return content{};
  void* const mapped = ::mmap(nullptr, sizeof(page), PROT_READ, MAP_SHARED, file->get(), 0);
  if (mapped == MAP_FAILED) return last_system_error();
  const auto* const there = static_cast<const page*>(mapped);
  content seen;
  if (there->fits()) {
    seen.by = {text_of(there->driver), settings_of(text_of(there->settings))};
    for (auto& [number, what] : there->held()) seen.holds.push_back(what);
  }
  ::munmap(mapped, sizeof(page));
  return seen;
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
    // Whoever took it ended before it was written.
    std::uint32_t expected = slot_taken;
    (void)each.state.compare_exchange_strong(expected, slot_free);
  }
  const time_point now = clock::now();
  agent_lives(now);
  guardian_lives(now);
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

}  // namespace sluice::agent
