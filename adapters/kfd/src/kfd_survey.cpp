#include "kfd_survey.hpp"

#include "pointer_watch.hpp"
#include "sysfs.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "sluice/kfd/driver_trees.hpp"
#include "sluice/os/proc.hpp"

namespace sluice::kfd {

namespace {

template <class Number>
std::optional<Number> read_number(const std::string& path, int directory = AT_FDCWD) {
  std::array<char, 64> buffer;
  const auto text = read_small_file(path.c_str(), buffer, directory);
  return text ? parse_number<Number>(*text) : std::nullopt;
}

/// The directory of a process's queues, kept open: to open it anew for every look costs more than
/// to read it.
class queue_directory final : public surveyed_process {
 public:
  explicit queue_directory(std::string path) : path_(std::move(path)) {}

  result<void> list_queues(std::vector<surveyed_queue>& into) override {
    // An empty one may be what is left of one that has another in its place, after an exec.
    if (!list() || listed_.empty()) {
      directory_ = open_directory(path_);
      if (!directory_) {
        queues_.clear();
        return last_system_error();
      }
      (void)list();
    }
    std::ranges::sort(listed_);
    result<void> done;
    if (!std::ranges::equal(listed_, queues_, {}, {}, key_of)) done = take_changes();
    into.insert(into.end(), queues_.begin(), queues_.end());
    return done;
  }

  /// kernfs counts the directories in one as links to it.
  bool unchanged() noexcept override {
    struct stat directory {};
    return ::fstat(directory_.get(), &directory) == 0 && directory.st_nlink == 2 + queues_.size();
  }

 private:
  using key = std::pair<std::uint32_t, std::uint64_t>;

  static std::uint32_t number_of(const surveyed_queue& each) noexcept {
    return static_cast<std::uint32_t>(each.id);
  }

  static key key_of(const surveyed_queue& each) noexcept {
    return {number_of(each), each.incarnation};
  }

  /// Makes queues_ what is listed, and reads the files of what is new.
  result<void> take_changes() {
    result<void> done;
    std::erase_if(queues_, [&](const surveyed_queue& each) {
      return !std::ranges::binary_search(listed_, key_of(each));
    });
    for (const auto& [id, inode] : listed_) {
      const auto place = std::ranges::lower_bound(queues_, id, {}, number_of);
      if (place != queues_.end() && number_of(*place) == id) continue;
      errno = 0;
      // Without a value it is gone again, or not complete yet: the next look tells.
      if (const auto seen = read_queue(id, inode))
        queues_.insert(place, *seen);
      else if (roles::is_for_want_of_descriptors(errno))
        done = last_system_error();
    }
    return done;
  }

  bool list() {
    listed_.clear();
    return for_each_numbered_entry<std::uint32_t>(
        directory_, [this](std::uint32_t id, ino_t inode) { listed_.emplace_back(id, inode); });
  }

  std::optional<surveyed_queue> read_queue(std::uint32_t id, ino_t inode) const {
    // So that its name is looked up once.
    const unique_fd directory{
        ::openat(directory_.get(), std::to_string(id).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (!directory) return {};
    const auto gpu = read_number<std::uint32_t>("gpuid", directory.get());
    const auto type = read_number<int>("type", directory.get());
    if (!gpu || !type) return {};
    return surveyed_queue{driver_queue_id{id}, gpu_id{*gpu}, kind_of(type_from_sysfs(*type)),
                          inode};
  }

  const std::string path_;
  unique_fd directory_;
  std::vector<surveyed_queue> queues_;  // by id
  std::vector<key> listed_;             // scratch
};

}  // namespace

kfd_survey::kfd_survey(roots where, message_sink say)
    : where_(std::move(where)),
      say_(std::move(say)),
      processes_(where_.sysfs + "/proc"),
      topology_(where_.sysfs + "/topology") {}

/// The file stays open; it fails when it was of a driver that is no longer loaded.
std::optional<std::string_view> kfd_survey::read_generation(std::span<char> into) {
  const auto read = [&] { return ::pread(generation_file_.get(), into.data(), into.size(), 0); };
  ssize_t got = read();
  if (got <= 0) {
    const std::string path = topology_ + "/generation_id";
    generation_file_ = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    got = read();
  }
  if (got < 0) return {};
  return std::string_view{into.data(), static_cast<std::size_t>(got)};
}

std::span<const surveyed_gpu> kfd_survey::gpus() {
  std::array<char, 64> buffer;
  const auto generation = read_generation(buffer);
  if (generation && *generation == generation_ && !gpus_.empty()) return gpus_;
  if (generation) generation_ = *generation;
  const std::string nodes = topology_ + "/nodes";
  for_each_numbered_entry<std::uint32_t>(nodes, [&](std::uint32_t node) {
    const auto number = read_number<std::uint32_t>(nodes + "/" + std::to_string(node) + "/gpu_id");
    if (!number || *number == 0) return;  // a CPU, or hidden from this device cgroup
    const gpu_id id{*number};
    if (std::ranges::find(gpus_, id, &surveyed_gpu::id) != gpus_.end()) return;
    // Without properties it counts as alone.
    std::array<char, 8192> text;
    const auto properties =
        read_small_file((nodes + "/" + std::to_string(node) + "/properties").c_str(), text);
    const auto number_of = [&](std::string_view key) {
      return properties ? property(*properties, key).value_or(0) : 0;
    };
    gpus_.push_back(
        {id, number_of("hive_id"), static_cast<std::uint32_t>(number_of("num_cp_queues"))});
  });
  return gpus_;
}

result<void> kfd_survey::list_processes(std::vector<pid_t>& into) {
  const auto add = [&](pid_t pid) { into.push_back(pid); };
  // An empty one may be that of a driver that is no longer loaded.
  if (for_each_numbered_entry<pid_t>(processes_directory_, add) && !into.empty()) return {};
  processes_directory_ = open_directory(processes_);
  if (!processes_directory_) return last_system_error();
  (void)for_each_numbered_entry<pid_t>(processes_directory_, add);
  return {};
}

std::unique_ptr<surveyed_process> kfd_survey::open(const process_identity& who) {
  return std::make_unique<queue_directory>(processes_ + "/" + std::to_string(who.pid) + "/queues");
}

/// To open the device would make this process one that uses it.
result<void> kfd_survey::check(std::string& message) {
  const auto fail = [&](const std::string& path, const error_code& why) {
    message = "cannot read " + path + ": " + why.message();
    return why;
  };
  // Opened: of a file system whose server has ended, attributes may still be known.
  const unique_fd tree = open_directory(processes_);
  if (!tree) return fail(processes_, last_system_error());
  if (::access(where_.device.c_str(), F_OK) == 0)
    has_device_ = true;
  else if (has_device_)
    return fail(where_.device, last_system_error());
  return {};
}

std::string kfd_survey::remedy() const {
  return "load the amdgpu driver, or set SLUICE_KFD_SYSFS to the driver's directory in sysfs";
}

void kfd_survey::watch(int epoll, std::uint64_t first_tag) {
  first_tag_ = first_tag;
  listener_ = std::make_unique<gpu_listener>(where_.device, epoll, first_tag + 1, heard_);
  auto trees = tree_watch::create();
  trees_ = trees ? std::move(*trees) : nullptr;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = first_tag;
  if (trees_ && ::epoll_ctl(epoll, EPOLL_CTL_ADD, trees_->fd(), &event) == 0) {
    trees_->watch_opens(where_.device);
    trees_->watch_directory(where_.debugfs);
    trees_->watch_directory(where_.debugfs + "/proc");
    if (trees_->watching(where_.device)) return;
  }
  say_("cannot watch " + where_.device + "; sluice finds new processes up to 1 s later");
}

void kfd_survey::read_events(std::uint64_t tag, survey_news& news) {
  if (tag != first_tag_) {
    news.look = listener_->hear(tag, [&](gpu_id gpu) { news.resets.push_back(gpu); });
    return;
  }
  news.look = trees_->read([&](const tree_event& each) {
    if (each.path != where_.device) return;
    if (each.what == tree_event::change::opened)
      news.queues_follow = true;
    else
      listener_->forget();  // The node itself has come or gone: another driver's, perhaps.
  });
}

bool kfd_survey::renew_watches() {
  std::vector<gpu_id> ids;
  for (const surveyed_gpu& each : gpus_) ids.push_back(each.id);
  listener_->listen(ids);
  // Watches what inotify does not tell of: a debugfs mounted since, say.
  return trees_ && trees_->refresh();
}

result<std::vector<std::pair<pid_t, roles::queue_traits>>> kfd_survey::list_queue_traits(
    std::string& message) {
  const auto seen = read_mqds(where_);
  if (!seen) {
    message = "cannot read " + where_.debugfs + "/mqds: " + seen.error().message() +
              "; the rules about queues ([roles] rings, queue_priority) have no effect; mount "
              "debugfs and run as root";
    return seen.error();
  }
  std::vector<std::pair<pid_t, roles::queue_traits>> all;
  for (const mqd& each : seen->queues)
    if (each.type == mqd_type::compute) all.push_back({each.pid, {each.ring_base, each.priority}});
  return all;
}

std::unique_ptr<work_watch> kfd_survey::watch_work(inbox_producer& inbox) {
  return std::make_unique<pointer_watch>(where_, inbox, say_);
}

std::unique_ptr<survey> make_survey(roots where, message_sink say) {
  return std::make_unique<kfd_survey>(std::move(where), std::move(say));
}

}  // namespace sluice::kfd
