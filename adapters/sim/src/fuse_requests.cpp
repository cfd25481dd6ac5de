// The FUSE operations, on FUSE's threads.

#define FUSE_USE_VERSION 314
#include "fuse_fs.hpp"
#include "parse_number.hpp"

#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

namespace sluice::sim {

namespace {

// What never changes may be cached for good. Of the generated part that are the names below a
// process's or a queue's directory, whose identity is never reused; all else is asked for anew.
constexpr double for_good = 3600.0;

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

}  // namespace

/// Text or listing as of the last read of its beginning.
struct fuse_fs::handle {
  std::mutex mutex;
  std::shared_ptr<const std::string> text;                 // Guarded by mutex.
  std::shared_ptr<const std::vector<tree_entry>> entries;  // Guarded by mutex.
};

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

  static void reply_entry(fuse_req_t request, const std::optional<tree_entry>& found,
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
      if (!fs.kfd_->file_promised(number, caller)) {
        fuse_reply_err(request, ENOENT);
        return;
      }
      fuse_entry_param out{};  // Not to be kept: it is there once, for this thread.
      out.ino = pack({handed_file, 0, number});
      out.attr = generated_attributes(out.ino, false);
      out.attr.st_size = static_cast<off_t>(fs.kfd_->file_size(number));
      out.attr_timeout = for_good;
      fuse_reply_entry(request, &out);
    });
  }

  static void open_handed(fuse_req_t request, fuse_ino_t id, fuse_file_info file) {
    auto& fs = self(request);
    const pid_t caller = fuse_req_ctx(request)->pid;
    fs.loop_.post([&fs, request, file, caller, number = unpack(id).item]() mutable {
      if (const int error = fs.kfd_->file_open(number, caller); error != 0) {
        fuse_reply_err(request, -error);
        return;
      }
      file.fh = number;
      file.direct_io = 1;
      file.nonseekable = fs.kfd_->file_size(number) == 0 ? 1 : 0;  // Programs seek to find a size.
      if (fuse_reply_open(request, &file) != 0) fs.kfd_->file_release(number);
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
      const int error = fs.kfd_->smi_read(number, size, text);
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
      fuse_reply_poll(request, fs.kfd_->smi_readable(number) ? POLLIN | POLLRDNORM : 0);
    });
  }

  static void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
    auto& fs = self(request);
    if (fs.kfd_ != nullptr && parent == FUSE_ROOT_ID && std::string_view{name} == handed_folder) {
      reply_entry(request, tree_entry{{}, pack({handed_directory, 0, 0}), true});
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
      out.attr = static_attributes(id, node, counted ? fs.generated_.directories_in(id) : 0);
      out.attr_timeout = counted ? for_good : 0.0;
      out.entry_timeout = for_good;
      fuse_reply_entry(request, &out);
      return;
    }
    fs.loop_.post([&fs, request, parent, wanted = std::string{name}] {
      const auto found = fs.generated_.look_up(parent, wanted);
      reply_entry(request, found, found ? fs.generated_.directories_in(found->id) : 0);
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
      const auto within = fs.generated_.directories_in(id);
      auto out = node != nullptr ? static_attributes(id, *node, within)
                                 : generated_attributes(id, is_directory(unpack(id)), within);
      if (is_handed(id)) out.st_size = static_cast<off_t>(fs.kfd_->file_size(unpack(id).item));
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

  static void open_device(fuse_req_t request, std::uint32_t node, fuse_file_info file) {
    auto& fs = self(request);
    const pid_t caller = fuse_req_ctx(request)->pid;
    fs.loop_.post([&fs, request, node, file, caller]() mutable {
      file_id id = 0;
      const int error = fs.device_.open(caller, node, id);
      if (error != 0) {
        fuse_reply_err(request, -error);
        return;
      }
      file.fh = id;
      // Through the page cache, and one that outlives every open: what clients map of the node
      // (doorbells) lives there, and what they store there reaches nobody.
      file.keep_cache = 1;
      // The opener is gone: it will not release what it never got.
      if (fuse_reply_open(request, &file) != 0) fs.device_.release(id);
    });
  }

  static void open(fuse_req_t request, fuse_ino_t id, fuse_file_info* file) {
    const auto* node = self(request).names_.find(id);
    if (node != nullptr && node->kind == node_kind::device) {
      open_device(request, node->device, *file);
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
        fs.device_.release(opened);
        fuse_reply_err(request, 0);
      });
      return;
    }
    if (is_handed(id)) {
      fs.loop_.post([&fs, request, number = file->fh] {
        if (const auto kept = fs.smi_polls_.extract(number)) {
          fuse_pollhandle_destroy(kept.mapped());
        }
        fs.kfd_->file_release(number);
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
    fs.loop_.post([&fs, request, id, node, size, offset, opened] {
      const bool commands = node != nullptr && node->kind == node_kind::control;
      auto made = commands ? fs.last_control_ : fs.generated_.content(id);
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
                            const std::vector<tree_entry>& entries) {
    std::string buffer(size, '\0');
    std::size_t used = 0;
    for (auto i = static_cast<std::size_t>(offset); i < entries.size() + 2; ++i) {
      const tree_entry dots{i == 0 ? "." : "..", id, true};
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
      std::vector<tree_entry> entries;
      for (const auto child : node->children) {
        const auto& each = *fs.names_.find(child);
        entries.push_back({each.name, child, is_directory(each)});
      }
      reply_listing(request, id, size, offset, entries);
      return;
    }
    auto* opened = handle_of(file);
    if (offset != 0) {
      std::shared_ptr<const std::vector<tree_entry>> entries;
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
      auto entries = std::make_shared<const std::vector<tree_entry>>(fs.generated_.list(id));
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
            reply(fs.kfd_->smi_write(number, std::as_bytes(std::span{text})));
          else if (node->kind == node_kind::hang_hws)
            fs.kfd_->hang_hws(text, reply);
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
      const auto started = fs.device_.ioctl(
          caller, opened, command, argument, [&fs, request, number, out_size](ioctl_reply reply) {
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
      if (at_once) fs.device_.interrupt(started);
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
  if (request != 0) device_.interrupt(request);
}

int fuse_fs::control(std::string_view text) {
  std::size_t number = 1;
  for (; !text.empty(); ++number) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::string problem;
    if (const int error = device_.control(line, problem); error != 0) {
      last_control_ = "line " + std::to_string(number) + ": " + problem + "\n";
      return error;
    }
  }
  last_control_ = "done\n";
  return 0;
}

fuse_lowlevel_ops fuse_fs::operations() {
  fuse_lowlevel_ops all{};
  all.init = requests::init;
  all.lookup = requests::lookup;
  all.getattr = requests::getattr;
  all.setattr = requests::setattr;
  all.open = requests::open;
  all.read = requests::read;
  all.write = requests::write;
  all.release = requests::release;
  all.opendir = requests::opendir;
  all.readdir = requests::readdir;
  all.releasedir = requests::releasedir;
  all.ioctl = requests::ioctl;
  all.poll = requests::poll;
  return all;
}

}  // namespace sluice::sim
