#define FUSE_USE_VERSION 314
#include "fuse_fs.hpp"

#include "parse_number.hpp"

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace sluice::sim {

namespace {

// What never changes may be cached for good. Of the generated part that are the names below a
// process's or a queue's directory, whose identity is never reused; all else is asked for anew.
constexpr double for_good = 3600.0;

enum generated_kind : std::uint8_t {
  process_directory = 1,
  pasid_file,
  vram_file,
  sdma_file,
  queues_directory,
  queue_directory,
  queue_size_file,
  queue_type_file,
  queue_gpuid_file,
  stats_directory,
  evicted_file,
  occupancy_file,
  handed_directory,
  handed_file,  // Its item: the file's number.
};

// Of files without a poll operation (DEFAULT_POLLMASK).
constexpr unsigned always_ready = POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;

/// \param within of a directory: how many directories are in it; kernfs counts them as links.
struct stat attributes(std::uint64_t id, bool directory, std::uint32_t mode, std::int64_t size,
                       std::size_t within = 0) {
  struct stat out {};
  out.st_ino = id;
  out.st_mode = (directory ? S_IFDIR : S_IFREG) | mode;
  out.st_nlink = directory ? 2 + within : 1;
  out.st_size = size;
  out.st_blksize = 4096;
  return out;
}

// sysfs says 4096 of every attribute.
constexpr std::int64_t sysfs_size = 4096;

// The device node is a regular file, and only what lies below a file's size can be mapped.
constexpr std::int64_t device_size = static_cast<std::int64_t>(driver::mmap_end);

struct stat generated_attributes(std::uint64_t id, bool directory, std::size_t within = 0) {
  const auto kind = static_cast<std::uint8_t>(id >> 56U);
  if (kind == handed_directory) return attributes(id, true, 0111, 0);
  if (kind == handed_file) return attributes(id, false, 0666, 0);  // Only its opener finds it.
  return attributes(id, directory, directory ? 0555 : 0444, directory ? 0 : sysfs_size, within);
}

bool is_directory(const static_node& node) {
  return node.kind == node_kind::directory || node.kind == node_kind::processes;
}

bool is_command(const static_node& node) {
  return node.kind == node_kind::control || node.kind == node_kind::hang_hws;
}

struct stat static_attributes(std::uint64_t id, const static_node& node, std::size_t within) {
  const auto size = node.kind == node_kind::text     ? sysfs_size
                    : node.kind == node_kind::device ? device_size
                                                     : 0;
  auto out = attributes(id, is_directory(node), node.mode, size, within);
  if (node.kind == node_kind::control) out.st_uid = geteuid();  // Who runs the device commands it.
  return out;
}

/// libfuse reports its errors by a log function without a context: the last one is kept, to be put
/// into the one line that the user gets.
std::string last_fuse_message;  // NOLINT: start-up and shutdown only, on one thread.

void keep_message(fuse_log_level, const char* format, va_list arguments) {
  std::array<char, 512> text{};
  // Threads that serve may report, too; the text is of use while none runs.
  const int length = vsnprintf(text.data(), text.size(), format, arguments);
  if (length <= 0) return;
  static std::mutex guard;
  const std::lock_guard lock{guard};
  last_fuse_message.assign(text.data(), std::strcspn(text.data(), "\n"));
}

}  // namespace

/// Text or listing as of the last read of its beginning.
struct fuse_fs::handle {
  std::mutex mutex;
  std::shared_ptr<const std::string> text;            // Guarded by mutex.
  std::shared_ptr<const std::vector<entry>> entries;  // Guarded by mutex.
};

/// Room for a request as it comes from the kernel; one per thread that receives.
struct fuse_fs::receiver {
  receiver() = default;
  receiver(const receiver&) = delete;
  receiver& operator=(const receiver&) = delete;
  ~receiver() { std::free(buffer.mem); }  // NOLINT: libfuse allocated it by malloc.
  fuse_buf buffer{};
};

bool fuse_fs::is_generated(std::uint64_t id) noexcept { return (id >> 56U) != 0; }

std::optional<std::uint64_t> fuse_fs::handed_file_of(std::uint64_t inode) {
  if (unpack(inode).kind != handed_file) return std::nullopt;
  return unpack(inode).item;
}

std::uint64_t fuse_fs::pack(generated node) noexcept {
  return std::uint64_t{node.kind} << 56U | std::uint64_t{node.process & 0xffffffU} << 32U |
         node.item;
}

fuse_fs::generated fuse_fs::unpack(std::uint64_t id) noexcept {
  return {.kind = static_cast<std::uint8_t>(id >> 56U),
          .process = static_cast<std::uint32_t>(id >> 32U) & 0xffffffU,
          .item = static_cast<std::uint32_t>(id)};
}

bool fuse_fs::is_directory(generated node) noexcept {
  switch (node.kind) {
    case process_directory:
    case queues_directory:
    case queue_directory:
    case stats_directory:
    case handed_directory: return true;
    default: return false;
  }
}

// --- What the driver knows, on the loop's thread ------------------------------------------------

void fuse_fs::forget_attributes(std::uint64_t id) const {
  // Refused where the kernel keeps none.
  (void)fuse_lowlevel_notify_inval_inode(session_, id, -1, 0);
}

void fuse_fs::queues_changed(pid_t pid) const {
  if (const auto found = process_numbers_.find(pid); found != process_numbers_.end())
    forget_attributes(pack({queues_directory, found->second, 0}));
}

void fuse_fs::process_changed(pid_t pid, bool appeared) {
  forget_attributes(names_.processes());
  if (const auto old = process_numbers_.find(pid); old != process_numbers_.end()) {
    // Whoever has them open sees that nothing is in them.
    forget_attributes(pack({process_directory, old->second, 0}));
    forget_attributes(pack({queues_directory, old->second, 0}));
    process_pids_.erase(old->second);
    process_numbers_.erase(old);
  }
  if (!appeared) return;
  process_numbers_.emplace(pid, ++last_process_);
  process_pids_.emplace(last_process_, pid);
}

std::optional<pid_t> fuse_fs::pid_of(std::uint32_t process) const {
  const auto found = process_pids_.find(process);
  if (found == process_pids_.end()) return std::nullopt;
  return found->second;
}

std::vector<fuse_fs::entry> fuse_fs::list(std::uint64_t directory) const {
  std::vector<entry> out;
  const auto add = [&](std::string name, generated node) {
    out.push_back({std::move(name), pack(node), is_directory(node)});
  };
  if (!is_generated(directory)) {  // The root of the generated part: one entry per process.
    for (const auto& [pid, number] : process_numbers_) {
      add(std::to_string(pid), {process_directory, number, 0});
    }
    return out;
  }
  const auto node = unpack(directory);
  const auto pid = pid_of(node.process);
  if (!pid) return out;
  switch (node.kind) {
    case process_directory: {
      add("pasid", {pasid_file, node.process, 0});
      add("queues", {queues_directory, node.process, 0});
      for (const auto gpu : kfd_.gpus_of(*pid)) {
        const auto suffix = "_" + std::to_string(gpu);
        add("vram" + suffix, {vram_file, node.process, gpu});
        add("sdma" + suffix, {sdma_file, node.process, gpu});
        add("stats" + suffix, {stats_directory, node.process, gpu});
      }
      break;
    }
    case queues_directory:
      for (const auto& queue : kfd_.queues_of(*pid)) {
        add(std::to_string(queue.id),
            {queue_directory, node.process, static_cast<std::uint32_t>(queue.serial)});
      }
      break;
    case queue_directory:
      for (const auto& queue : kfd_.queues_of(*pid)) {
        if (static_cast<std::uint32_t>(queue.serial) != node.item) continue;
        add("gpuid", {queue_gpuid_file, node.process, node.item});
        add("size", {queue_size_file, node.process, node.item});
        add("type", {queue_type_file, node.process, node.item});
      }
      break;
    case stats_directory:
      add("evicted_ms", {evicted_file, node.process, node.item});
      if (kfd_.cu_occupancy(*pid, node.item)) {
        add("cu_occupancy", {occupancy_file, node.process, node.item});
      }
      break;
    default: break;
  }
  return out;
}

std::size_t fuse_fs::directories_in(std::uint64_t directory) const {
  if (const auto* node = names_.find(directory)) {
    if (node->kind == node_kind::processes) return process_numbers_.size();
    return static_cast<std::size_t>(std::count_if(
        node->children.begin(), node->children.end(),
        [this](std::uint64_t child) { return sim::is_directory(*names_.find(child)); }));
  }
  const auto node = unpack(directory);
  const auto pid = pid_of(node.process);
  if (!pid) return 0;
  if (node.kind == queues_directory) return kfd_.queues_of(*pid).size();
  // Its queues, and of each GPU the statistics.
  if (node.kind == process_directory) return 1 + kfd_.gpus_of(*pid).size();
  return 0;
}

std::optional<fuse_fs::entry> fuse_fs::look_up(std::uint64_t directory,
                                               std::string_view name) const {
  if (!is_generated(directory)) {  // Need not list every process.
    const auto pid = parse_number<pid_t>(name);
    if (!pid || std::to_string(*pid) != name) return std::nullopt;
    const auto number = process_numbers_.find(*pid);
    if (number == process_numbers_.end()) return std::nullopt;
    return entry{std::string{name}, pack({process_directory, number->second, 0}), true};
  }
  if (const auto node = unpack(directory); node.kind == queues_directory) {
    const auto pid = pid_of(node.process);
    const auto id = parse_number<std::uint32_t>(name);
    if (!pid || !id || std::to_string(*id) != name) return std::nullopt;
    for (const auto& queue : kfd_.queues_of(*pid)) {
      if (queue.id != *id) continue;
      return entry{std::string{name},
                   pack({queue_directory, node.process, static_cast<std::uint32_t>(queue.serial)}),
                   true};
    }
    return std::nullopt;
  }
  for (auto& each : list(directory)) {
    if (each.name == name) return std::move(each);
  }
  return std::nullopt;
}

std::optional<std::string> fuse_fs::content(std::uint64_t file) const {
  if (const auto* fixed = names_.find(file)) {
    switch (fixed->kind) {
      case node_kind::mqds: return kfd_.mqds();
      case node_kind::hqds: return kfd_.hqds();
      case node_kind::rls: return kfd_.rls();
      case node_kind::hang_hws: return "echo gpu_id > hang_hws\n";
      case node_kind::mem_limit: return kfd_.mem_limit();
      case node_kind::stats: return kfd_.stats_json();
      case node_kind::control: return last_control_;
      default: return fixed->text;
    }
  }
  const auto node = unpack(file);
  const auto pid = pid_of(node.process);
  if (!pid) return std::nullopt;
  switch (node.kind) {
    case pasid_file: return std::to_string(kfd_.pasid_of(*pid)) + "\n";
    case evicted_file: return std::to_string(kfd_.evicted_ms(*pid, node.item)) + "\n";
    case vram_file: return std::to_string(kfd_.vram_of(*pid, node.item)) + "\n";
    // No SDMA engine is simulated.
    case sdma_file: return "0\n";
    case occupancy_file: {
      const auto units = kfd_.cu_occupancy(*pid, node.item);
      return units ? std::optional{std::to_string(*units) + "\n"} : std::nullopt;
    }
    case queue_size_file:
    case queue_type_file:
    case queue_gpuid_file:
      for (const auto& queue : kfd_.queues_of(*pid)) {
        if (static_cast<std::uint32_t>(queue.serial) != node.item) continue;
        // kfd_procfs_queue show functions: no newline.
        if (node.kind == queue_size_file) return std::to_string(queue.ring_size);
        if (node.kind == queue_type_file) return std::to_string(queue.type);
        return std::to_string(queue.gpu);
      }
      return std::nullopt;
    default: return std::nullopt;
  }
}

void fuse_fs::smi_event(std::uint64_t client) {
  const auto found = smi_polls_.find(client);
  if (found != smi_polls_.end()) fuse_lowlevel_notify_poll(found->second);
}

int fuse_fs::control(std::string_view text) {
  std::size_t number = 1;
  for (; !text.empty(); ++number) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::string problem;
    if (const int error = kfd_.control(line, problem); error != 0) {
      last_control_ = "line " + std::to_string(number) + ": " + problem + "\n";
      return error;
    }
  }
  last_control_ = "done\n";
  return 0;
}

// --- Requests, on FUSE's threads ----------------------------------------------------------------

struct fuse_fs::requests {
  static fuse_fs& self(fuse_req_t request) {
    return *static_cast<fuse_fs*>(fuse_req_userdata(request));
  }
  static handle* handle_of(const fuse_file_info* file) {
    return reinterpret_cast<handle*>(file->fh);  // NOLINT: FUSE's handle is a number.
  }

  static void init(void*, fuse_conn_info* connection) {
    // Replies are small; and listings must not fill the kernel's name cache.
    connection->want &=
        ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_READDIRPLUS);
    connection->want |= connection->capable & FUSE_CAP_PARALLEL_DIROPS;
  }

  static void reply_entry(fuse_req_t request, const std::optional<entry>& found,
                          std::size_t within = 0) {
    fuse_entry_param out{};
    if (!found) {
      fuse_reply_err(request, ENOENT);
      return;
    }
    const auto kind = unpack(found->id).kind;
    out.entry_timeout = kind == process_directory || kind == queue_directory ? 0.0 : for_good;
    out.attr_timeout = for_good;
    out.ino = found->id;
    out.attr = generated_attributes(found->id, found->directory, within);
    fuse_reply_entry(request, &out);
  }

  static bool is_handed(std::uint64_t id) { return unpack(id).kind == handed_file; }

  static void look_up_handed(fuse_req_t request, const char* name) {
    auto& fs = self(request);
    const pid_t caller = fuse_req_ctx(request)->pid;
    const auto number = parse_number<std::uint32_t>(name);
    if (!number) {
      fuse_reply_err(request, ENOENT);
      return;
    }
    fs.loop_.post([&fs, request, caller, number = *number] {
      if (!fs.kfd_.file_promised(number, caller)) {
        fuse_reply_err(request, ENOENT);
        return;
      }
      fuse_entry_param out{};  // Not to be kept: it is there once, for this thread.
      out.ino = pack({handed_file, 0, number});
      out.attr = generated_attributes(out.ino, false);
      out.attr.st_size = static_cast<off_t>(fs.kfd_.file_size(number));
      out.attr_timeout = for_good;
      fuse_reply_entry(request, &out);
    });
  }

  static void open_handed(fuse_req_t request, fuse_ino_t id, fuse_file_info file) {
    auto& fs = self(request);
    const pid_t caller = fuse_req_ctx(request)->pid;
    fs.loop_.post([&fs, request, file, caller, number = unpack(id).item]() mutable {
      if (const int error = fs.kfd_.file_open(number, caller); error != 0) {
        fuse_reply_err(request, -error);
        return;
      }
      file.fh = number;
      file.direct_io = 1;
      file.nonseekable = fs.kfd_.file_size(number) == 0 ? 1 : 0;  // Programs seek to find a size.
      if (fuse_reply_open(request, &file) != 0) fs.kfd_.file_release(number);
    });
  }

  static void read_handed(fuse_req_t request, std::uint64_t number, std::size_t size) {
    auto& fs = self(request);
    if (fuse_req_ctx(request)->pid == fs.loop_thread_) {
      fuse_reply_err(request, EIO);
      return;
    }
    fs.loop_.post([&fs, request, number, size] {
      std::string text;
      const int error = fs.kfd_.smi_read(number, size, text);
      if (error != 0) {
        fuse_reply_err(request, -error);
      } else {
        fuse_reply_buf(request, text.data(), text.size());
      }
    });
  }

  static void poll(fuse_req_t request, fuse_ino_t id, fuse_file_info* file,
                   fuse_pollhandle* waiting) {
    if (!is_handed(id)) {
      if (waiting != nullptr) fuse_pollhandle_destroy(waiting);
      fuse_reply_poll(request, always_ready);
      return;
    }
    auto& fs = self(request);
    fs.loop_.post([&fs, request, number = file->fh, waiting] {
      // One handle stands for everybody who waits on that file; the newest will do.
      if (waiting != nullptr) {
        auto& kept = fs.smi_polls_[number];
        if (auto* old = std::exchange(kept, waiting)) fuse_pollhandle_destroy(old);
      }
      fuse_reply_poll(request, fs.kfd_.smi_readable(number) ? POLLIN | POLLRDNORM : 0);
    });
  }

  static void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
    auto& fs = self(request);
    if (parent == FUSE_ROOT_ID && std::string_view{name} == handed_folder) {
      reply_entry(request, entry{{}, pack({handed_directory, 0, 0}), true});
      return;
    }
    if (is_generated(parent) && unpack(parent).kind == handed_directory) {
      look_up_handed(request, name);
      return;
    }
    const auto* directory = fs.names_.find(parent);
    if (directory != nullptr && directory->kind == node_kind::directory) {
      const auto id = fs.names_.child(parent, name);
      if (id == 0) {
        fuse_reply_err(request, ENOENT);
        return;
      }
      const auto& node = *fs.names_.find(id);
      const bool counted = node.kind != node_kind::processes;  // Those are the loop's to count.
      fuse_entry_param out{};
      out.ino = id;
      out.attr = static_attributes(id, node, counted ? fs.directories_in(id) : 0);
      out.attr_timeout = counted ? for_good : 0.0;
      out.entry_timeout = for_good;
      fuse_reply_entry(request, &out);
      return;
    }
    fs.loop_.post([&fs, request, parent, wanted = std::string{name}] {
      const auto found = fs.look_up(parent, wanted);
      reply_entry(request, found, found ? fs.directories_in(found->id) : 0);
    });
  }

  static void getattr(fuse_req_t request, fuse_ino_t id, fuse_file_info*) {
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    if (node == nullptr && !is_generated(id)) {
      fuse_reply_err(request, ENOENT);
      return;
    }
    const auto reply = [&fs, request, id, node] {
      const auto within = fs.directories_in(id);
      auto out = node != nullptr ? static_attributes(id, *node, within)
                                 : generated_attributes(id, is_directory(unpack(id)), within);
      if (is_handed(id)) out.st_size = static_cast<off_t>(fs.kfd_.file_size(unpack(id).item));
      fuse_reply_attr(request, &out, for_good);
    };
    if (node != nullptr && node->kind != node_kind::processes)
      reply();
    else
      fs.loop_.post(reply);
  }

  static void setattr(fuse_req_t request, fuse_ino_t id, struct stat*, int what,
                      fuse_file_info* file) {
    // open(O_TRUNC) arrives as a change of size; who takes commands ignores it.
    const auto* node = self(request).names_.find(id);
    const bool ignores = node != nullptr && (node->kind == node_kind::device || is_command(*node));
    if (ignores && what == FUSE_SET_ATTR_SIZE) {
      getattr(request, id, file);
    } else {
      fuse_reply_err(request, EPERM);
    }
  }

  static void open_device(fuse_req_t request, fuse_file_info file) {
    auto& fs = self(request);
    const pid_t caller = fuse_req_ctx(request)->pid;
    fs.loop_.post([&fs, request, file, caller]() mutable {
      file_id id = 0;
      const int error = fs.kfd_.open(caller, id);
      if (error != 0) {
        fuse_reply_err(request, -error);
        return;
      }
      file.fh = id;
      // Through the page cache, and one that outlives every open: what clients map of the node
      // (doorbells) lives there, and what they store there reaches nobody.
      file.keep_cache = 1;
      // The opener is gone: it will not release what it never got.
      if (fuse_reply_open(request, &file) != 0) fs.kfd_.release(id);
    });
  }

  static void open(fuse_req_t request, fuse_ino_t id, fuse_file_info* file) {
    const auto* node = self(request).names_.find(id);
    if (node != nullptr && node->kind == node_kind::device) {
      open_device(request, *file);
      return;
    }
    if (is_handed(id)) {
      open_handed(request, id, *file);
      return;
    }
    const bool writable = node != nullptr && is_command(*node);
    if (!writable && (file->flags & O_ACCMODE) != O_RDONLY) {
      fuse_reply_err(request, EACCES);
      return;
    }
    open_handle(request, file, fuse_reply_open);
  }

  static void opendir(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    open_handle(request, file, fuse_reply_open);
  }

  static void open_handle(fuse_req_t request, fuse_file_info* file,
                          int (*reply)(fuse_req_t, const fuse_file_info*)) {
    auto opened = std::make_unique<handle>();
    file->fh = reinterpret_cast<std::uint64_t>(opened.get());  // NOLINT: as above.
    file->direct_io = 1;  // Lengths are known only when the text is made.
    if (reply(request, file) == 0) [[maybe_unused]]
      auto* kernels = opened.release();
  }

  static void release(fuse_req_t request, fuse_ino_t id, fuse_file_info* file) {
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    if (node != nullptr && node->kind == node_kind::device) {
      fs.loop_.post([&fs, request, opened = file->fh] {
        fs.kfd_.release(opened);
        fuse_reply_err(request, 0);
      });
      return;
    }
    if (is_handed(id)) {
      fs.loop_.post([&fs, request, number = file->fh] {
        if (const auto kept = fs.smi_polls_.extract(number)) {
          fuse_pollhandle_destroy(kept.mapped());
        }
        fs.kfd_.file_release(number);
        fuse_reply_err(request, 0);
      });
      return;
    }
    releasedir(request, id, file);
  }

  static void releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
    delete handle_of(file);  // NOLINT: the kernel owned it since the open.
    fuse_reply_err(request, 0);
  }

  static void reply_slice(fuse_req_t request, std::string_view text, std::size_t size,
                          off_t offset) {
    const auto from = std::min(text.size(), static_cast<std::size_t>(offset));
    const auto piece = text.substr(from, size);
    fuse_reply_buf(request, piece.data(), piece.size());
  }

  static void read(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset,
                   fuse_file_info* file) {
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    if (node != nullptr && node->kind == node_kind::text) {
      reply_slice(request, node->text, size, offset);
      return;
    }
    if (node != nullptr && node->kind == node_kind::device) {
      if (static_cast<std::uint64_t>(offset) < driver::mmap_begin) {
        fuse_reply_err(request, EINVAL);  // The driver has no read operation.
      } else {
        const std::string fresh_pages(size, '\0');
        fuse_reply_buf(request, fresh_pages.data(), fresh_pages.size());
      }
      return;
    }
    if (is_handed(id)) {
      read_handed(request, file->fh, size);
      return;
    }
    auto* opened = handle_of(file);
    if (offset != 0) {
      std::shared_ptr<const std::string> text;
      {
        const std::lock_guard lock{opened->mutex};
        text = opened->text;
      }
      if (text) {
        reply_slice(request, *text, size, offset);
        return;
      }
    }
    if (fuse_req_ctx(request)->pid == fs.loop_thread_) {
      fuse_reply_err(request, EIO);
      return;
    }
    // As seq_file does it: reading the beginning makes the text anew, the rest comes from that
    // text.
    fs.loop_.post([&fs, request, id, size, offset, opened] {
      auto made = fs.content(id);
      if (!made) {
        fuse_reply_err(request, ENODEV);  // kernfs, of a removed file.
        return;
      }
      auto text = std::make_shared<const std::string>(std::move(*made));
      {
        const std::lock_guard lock{opened->mutex};
        opened->text = text;
      }
      reply_slice(request, *text, size, offset);
    });
  }

  static void reply_listing(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset,
                            const std::vector<entry>& entries) {
    std::string buffer(size, '\0');
    std::size_t used = 0;
    for (auto i = static_cast<std::size_t>(offset); i < entries.size() + 2; ++i) {
      const entry dots{i == 0 ? "." : "..", id, true};
      const auto& each = i < 2 ? dots : entries[i - 2];
      const auto about = attributes(each.id, each.directory, 0, 0);
      const auto needed = fuse_add_direntry(request, buffer.data() + used, size - used,
                                            each.name.c_str(), &about, static_cast<off_t>(i + 1));
      if (needed > size - used) break;
      used += needed;
    }
    fuse_reply_buf(request, buffer.data(), used);
  }

  static void readdir(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset,
                      fuse_file_info* file) {
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    if (node != nullptr && node->kind == node_kind::directory) {
      std::vector<entry> entries;
      for (const auto child : node->children) {
        const auto& each = *fs.names_.find(child);
        entries.push_back({each.name, child, sim::is_directory(each)});
      }
      reply_listing(request, id, size, offset, entries);
      return;
    }
    auto* opened = handle_of(file);
    if (offset != 0) {
      std::shared_ptr<const std::vector<entry>> entries;
      {
        const std::lock_guard lock{opened->mutex};
        entries = opened->entries;
      }
      if (entries) {
        reply_listing(request, id, size, offset, *entries);
        return;
      }
    }
    fs.loop_.post([&fs, request, id, size, offset, opened] {
      auto entries = std::make_shared<const std::vector<entry>>(fs.list(id));
      {
        const std::lock_guard lock{opened->mutex};
        opened->entries = entries;
      }
      // Without the lock: once it has the reply, the client may close, and `opened` is gone.
      reply_listing(request, id, size, offset, *entries);
    });
  }

  static void write(fuse_req_t request, fuse_ino_t id, const char* data, std::size_t size, off_t,
                    fuse_file_info* file) {
    if (file->writepage != 0) {
      fuse_reply_write(request, size);  // The kernel cleans its pages of stores to doorbells.
      return;
    }
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    const bool commands = node != nullptr && is_command(*node);
    if (!commands && !is_handed(id)) {
      fuse_reply_err(request, EINVAL);  // The device node has no write operation.
      return;
    }
    fs.loop_.post(
        [&fs, request, node, commands, number = file->fh, text = std::string{data, size}] {
          const auto reply = [request, commands, size = text.size()](int result) {
            if (result < 0) {
              fuse_reply_err(request, -result);
            } else {
              fuse_reply_write(request, commands ? size : static_cast<std::size_t>(result));
            }
          };
          if (!commands)
            reply(fs.kfd_.smi_write(number, std::as_bytes(std::span{text})));
          else if (node->kind == node_kind::hang_hws)
            fs.kfd_.hang_hws(text, reply);
          else
            reply(fs.control(text));
        });
  }

  // --- The device ---

  static void interrupted(fuse_req_t request, void* data) {
    auto& fs = self(request);
    const auto number = reinterpret_cast<std::uint64_t>(data);  // NOLINT: see ioctl().
    const std::lock_guard lock{fs.calls_mutex_};
    const auto found = fs.calls_.find(number);
    if (found == fs.calls_.end()) return;  // It has just been answered.
    found->second.interrupted = true;
    // Not posted yet: ioctl() below will see it.
    if (found->second.posted) fs.loop_.post([&fs, number] { fs.interrupt(number); });
  }

  static void ioctl(fuse_req_t request, fuse_ino_t id, unsigned command, void*,
                    fuse_file_info* file, unsigned flags, const void* in, std::size_t in_size,
                    std::size_t out_size) {
    auto& fs = self(request);
    const auto* node = fs.names_.find(id);
    if (node == nullptr || node->kind != node_kind::device) {
      fuse_reply_err(request, ENOTTY);
      return;
    }
    if ((flags & FUSE_IOCTL_COMPAT) != 0) {
      fuse_reply_err(request, EPERM);  // The driver refuses 32-bit callers.
      return;
    }
    const auto* bytes = static_cast<const std::byte*>(in);
    std::vector<std::byte> argument(bytes, bytes + in_size);
    const pid_t caller = fuse_req_ctx(request)->pid;
    const auto opened = file->fh;

    // An interrupt may come as soon as its handler is set, and after the reply; so it carries a
    // number, never a pointer. And the reply may come as soon as the call is posted, so that is
    // last.
    std::uint64_t number = 0;
    {
      const std::lock_guard lock{fs.calls_mutex_};
      number = ++fs.last_call_;
      fs.calls_.try_emplace(number).first->second.waiting = request;
    }
    fuse_req_interrupt_func(request, interrupted, reinterpret_cast<void*>(number));  // NOLINT
    const std::lock_guard lock{fs.calls_mutex_};
    auto& mine = fs.calls_.at(number);
    mine.posted = true;
    fs.loop_.post([&fs, request, caller, opened, command, number, out_size,
                   at_once = mine.interrupted, argument = std::move(argument)] {
      const auto started = fs.kfd_.ioctl(caller, opened, command, argument,
                                         [&fs, request, number, out_size](ioctl_reply reply) {
                                           {
                                             const std::lock_guard answered{fs.calls_mutex_};
                                             fs.calls_.erase(number);
                                           }
                                           fuse_reply_ioctl(request, reply.result, reply.out.data(),
                                                            std::min(reply.out.size(), out_size));
                                         });
      if (started == 0) return;
      {
        const std::lock_guard waiting{fs.calls_mutex_};
        const auto found = fs.calls_.find(number);
        if (found == fs.calls_.end()) return;
        found->second.request = started;
      }
      if (at_once) fs.kfd_.interrupt(started);
    });
  }
};

void fuse_fs::interrupt(std::uint64_t number) {
  request_id request = 0;
  {
    const std::lock_guard lock{calls_mutex_};
    const auto found = calls_.find(number);
    if (found == calls_.end()) return;
    request = found->second.request;
  }
  if (request != 0) kfd_.interrupt(request);
}

// --- Mounting and serving -----------------------------------------------------------------------

fuse_fs::fuse_fs(realtime_loop& loop, driver& kfd, static_tree names, options how)
    : loop_{loop},
      kfd_{kfd},
      names_{std::move(names)},
      mountpoint_{std::move(how.mountpoint)},
      loop_thread_{gettid()},
      stop_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {
  fuse_set_log_func(keep_message);
  fuse_lowlevel_ops operations{};
  operations.init = requests::init;
  operations.lookup = requests::lookup;
  operations.getattr = requests::getattr;
  operations.setattr = requests::setattr;
  operations.open = requests::open;
  operations.read = requests::read;
  operations.write = requests::write;
  operations.release = requests::release;
  operations.opendir = requests::opendir;
  operations.readdir = requests::readdir;
  operations.releasedir = requests::releasedir;
  operations.ioctl = requests::ioctl;
  operations.poll = requests::poll;

  std::vector<std::string> words{"sluice-sim", "-o",
                                 "default_permissions,fsname=sluice-sim,subtype=sluice-sim"};
  if (how.allow_other) words.back() += ",allow_other";
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  fuse_args parsed = FUSE_ARGS_INIT(static_cast<int>(arguments.size()), arguments.data());
  session_ = fuse_session_new(&parsed, &operations, sizeof operations, this);
  fuse_opt_free_args(&parsed);
  const auto fail = [&](const std::string& what) {
    if (session_ != nullptr) fuse_session_destroy(session_);
    throw std::runtime_error{what + (last_fuse_message.empty() ? "" : ": " + last_fuse_message)};
  };
  if (session_ == nullptr) fail("cannot start libfuse");
  if (fuse_session_mount(session_, mountpoint_.c_str()) != 0) {
    fail("cannot mount a FUSE file system at " + mountpoint_);
  }
  // All sleep in epoll, where a stop can wake them, and never in the read itself. The loop is the
  // first to watch, so a request goes to it if it sleeps: one thread less to wake for most calls.
  const int device = fuse_session_fd(session_);
  fcntl(device, F_SETFL, fcntl(device, F_GETFL) | O_NONBLOCK);
  loops_receiver_ = std::make_unique<receiver>();
  loop_.watch_shared(device, [this] {
    if (!receive(*loops_receiver_)) loop_.unwatch(fuse_session_fd(session_));
  });
  for (unsigned i = 0; i < std::max(how.threads, 2U); ++i) {
    threads_.emplace_back([this] { serve(); });
  }
}

fuse_fs::~fuse_fs() {
  unmounting_.store(true, std::memory_order_release);
  eventfd_write(stop_.get(), 1);
  threads_.clear();
  loop_.unwatch(fuse_session_fd(session_));
  // Nobody else will answer these.
  for (const auto& [number, each] : calls_) fuse_reply_err(each.waiting, ENODEV);
  for (const auto& [client, waiting] : smi_polls_) fuse_pollhandle_destroy(waiting);
  // Forced, so that clients that keep the device open are cut off instead of waiting for nobody.
  // Who is not root has only libfuse's polite way, which notices if there is nothing left to do.
  umount2(mountpoint_.c_str(), MNT_FORCE | MNT_DETACH);
  fuse_session_unmount(session_);
  fuse_session_destroy(session_);
}

/// Receives and processes one request, if there is one. \return false when none will come any more.
bool fuse_fs::receive(receiver& into) {
  const int received = fuse_session_receive_buf(session_, &into.buffer);
  if (received == -EINTR || received == -EAGAIN) return true;
  if (received <= 0) {  // Unmounted by somebody else.
    loop_.post([this] {
      if (on_unmounted) on_unmounted();
    });
    return false;
  }
  fuse_session_process_buf(session_, &into.buffer);
  return true;
}

void fuse_fs::serve() {
  const unique_fd epoll{epoll_create1(EPOLL_CLOEXEC)};
  epoll_event event{};
  event.events = EPOLLIN | EPOLLEXCLUSIVE;  // One thread per request.
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fuse_session_fd(session_), &event);
  event.events = EPOLLIN;
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop_.get(), &event);
  receiver mine;
  for (;;) {
    if (epoll_wait(epoll.get(), &event, 1, -1) < 0 && errno == EINTR) continue;
    if (unmounting_.load(std::memory_order_acquire) || !receive(mine)) return;
  }
}

}  // namespace sluice::sim
