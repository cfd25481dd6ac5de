#include "own_queues.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sluice/kfd.h"
#include "sluice/kfd/device.hpp"
#include "sluice/kfd/node_view.hpp"
#include "sluice/kfd/queue_holder.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/kfd/uapi_batch.hpp"

static_assert(sizeof(sluice_kfd_queue_ref) == 16 && sizeof(sluice_kfd_queue) == 40,
              "existing programs depend on this layout");

using namespace sluice;  // NOLINT: a file of C functions, which have no namespace.

struct sluice_kfd {
  kfd::roots where{};
  pid_t owner = ::getpid();
  std::unique_ptr<kfd::queue_holder> holder{};  // null: SLUICE_KFD_LIST_ONLY
  std::mutex own_mutex{};
  std::optional<kfd::own_queues> own{};  // guarded by own_mutex; has a value with holder
  std::atomic<bool> batched{false};      // A batch command may hold something.
  std::set<std::uint32_t> reserved{};    // GPUs; guarded by own_mutex
};

namespace {

using namespace std::chrono_literals;

thread_local std::string last_error;  // NOLINT: what the API is.

int fail(int error, std::string sentence) {
  last_error = std::move(sentence);
  return -error;
}
int fail(const hold_failure& why) { return fail(why.error, why.what); }

/// Nothing that is thrown may reach a C program.
template <class Body>
int guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    last_error.clear();  // a sentence would have to be allocated
    return -ENOMEM;
  } catch (const std::exception& error) {
    return fail(EIO, error.what());
  }
}

enum class needs { driver, nothing };

/// \return 0, or why the handle cannot be used for this.
int check(const sluice_kfd* handle, needs what) {
  if (handle == nullptr)
    return fail(EINVAL, "the handle is NULL; create one with sluice_kfd_init()");
  if (handle->owner != ::getpid())
    return fail(ECHILD, "this handle belongs to process " + std::to_string(handle->owner) +
                            "; a forked child must call sluice_kfd_init() itself");
  if (what == needs::driver && !handle->holder)
    return fail(
        EBADF,
        "this handle can only list queues (SLUICE_KFD_LIST_ONLY); create one without that flag");
  return 0;
}

int check_refs(const sluice_kfd_queue_ref* refs, size_t count) {
  if (refs != nullptr || count == 0) return 0;
  return fail(EINVAL, "refs is NULL, but count is " + std::to_string(count) +
                          "; refs must point to count entries");
}

time_point deadline_of(std::uint32_t timeout_ms) {
  const duration at_most = timeout_ms == SLUICE_KFD_DEFAULT_TIMEOUT
                               ? duration{10s}
                               : duration{std::chrono::milliseconds{timeout_ms}};
  return clock::now() + at_most;
}

std::uint32_t number(gpu_id gpu) { return static_cast<std::uint32_t>(gpu); }

/// What each ref asks for as orders for single queues; `of` says whose each is.
struct expansion {
  std::vector<queue_order> orders;
  std::vector<std::size_t> of;
};

int change(sluice_kfd* handle, command_kind kind, sluice_kfd_queue_ref* refs, size_t count,
           std::uint32_t timeout_ms) {
  if (const int bad = check(handle, needs::driver)) return bad;
  if (const int bad = check_refs(refs, count)) return bad;
  const time_point deadline = deadline_of(timeout_ms);
  const std::span all{refs, count};
  kfd::queue_holder& holder = *handle->holder;
  std::optional<hold_failure> first;
  expansion asked;
  for (std::size_t index = 0; index < all.size(); ++index) {
    sluice_kfd_queue_ref& ref = all[index];
    ref.status = 0;
    ref.gpu_id = 0;
    if (ref.queue_id != SLUICE_KFD_ALL_QUEUES) {
      asked.orders.push_back({.pid = ref.pid, .queue = driver_queue_id{ref.queue_id}});
      asked.of.push_back(index);
      continue;
    }
    hold_failure no;
    if (kind == command_kind::suspend)
      no = holder.attach(ref.pid, deadline);
    else if (!holder.holds(ref.pid))
      no = {ESRCH, "process " + std::to_string(ref.pid) + " is not held by this handle"};
    if (no) {
      ref.status = -no.error;
      if (!first) first = std::move(no);
      continue;
    }
    for (const auto& queue : holder.queues(ref.pid)) {
      if (queue.about.type != queue_kind::compute) continue;
      asked.orders.push_back({.pid = ref.pid, .queue = queue.about.id});
      asked.of.push_back(index);
    }
    if (kind == command_kind::suspend) continue;
    for (const driver_queue_id queue : holder.buried(ref.pid)) {
      asked.orders.push_back({.pid = ref.pid, .queue = queue});
      asked.of.push_back(index);
    }
  }
  auto failed = holder.change(kind, asked.orders, deadline);
  if (failed && !first) first = std::move(failed);
  for (std::size_t index = 0; index < asked.orders.size(); ++index) {
    const auto& order = asked.orders[index];
    sluice_kfd_queue_ref& ref = all[asked.of[index]];
    if (ref.status == 0) ref.status = -order.error;
    if (ref.gpu_id == 0) ref.gpu_id = number(order.gpu);
  }
  if (first) (void)fail(*first);
  return static_cast<int>(
      std::ranges::count_if(all, [](const auto& ref) { return ref.status == 0; }));
}

// ---- the batch commands of a patched driver ----

/// Whether a batch command was refused because the driver has none.
bool is_stock(const error_code& error, const kfd::device& node) {
  return (error.value() == ENOTTY || error.value() == EINVAL) && !node.has_batch_commands();
}

hold_failure meaning_of_batch(const error_code& error, const kfd::device& node) {
  const int number = error.value();
  if (is_stock(error, node))
    return {EOPNOTSUPP, node.path() +
                            " belongs to a stock driver without batch commands; use "
                            "sluice_kfd_suspend_queues(), or install a patched driver"};
  if (number == EOPNOTSUPP)
    return {EOPNOTSUPP,
            "this GPU supports no reservation, because its firmware (MES) assigns queue slots by "
            "itself"};
  if (number == EPERM) return {EPERM, "a reservation needs CAP_SYS_ADMIN; run as root"};
  if (number == EBUSY)
    return {EBUSY,
            "another program has a reservation on this GPU; try again when that program has ended"};
  return {number, "the driver refused the command: " + error.message()};
}

/// One call for each KFD_BATCH_MAX_QUEUES refs. `call` performs one on an array of entries.
template <class Call>
int batched(std::span<sluice_kfd_queue_ref> refs, const kfd::device& node, Call call) {
  int done = 0;
  std::optional<hold_failure> first;
  for (auto& ref : refs) {
    ref.gpu_id = 0;
    ref.status = -ECANCELED;
  }
  std::vector<kfd::uapi::kfd_batch_queue_entry> entries;
  for (std::size_t from = 0; from < refs.size(); from += kfd::uapi::KFD_BATCH_MAX_QUEUES) {
    const auto part = refs.subspan(
        from, std::min<std::size_t>(refs.size() - from, kfd::uapi::KFD_BATCH_MAX_QUEUES));
    entries.clear();
    for (const auto& ref : part) entries.push_back({ref.pid, ref.queue_id});
    const result<int> called = call(entries);
    if (!called) {
      const auto why = meaning_of_batch(called.error(), node);
      if (from == 0) return fail(why);
      first = why;
      break;
    }
    for (std::size_t index = 0; index < part.size(); ++index) {
      auto& ref = part[index];
      const std::uint32_t status = entries[index].queue_id ^ (ref.queue_id & 0x3fffffffU);
      ref.status = status == 0 ? 0 : status == 0x80000000U ? -ENOENT : -EIO;
      if (ref.status == 0)
        ++done;
      else if (!first)
        first = {-ref.status,
                 "queue " + std::to_string(ref.queue_id) + " of process " +
                     std::to_string(ref.pid) +
                     (ref.status == -ENOENT
                          ? ": no such queue, no permission, or another handle holds it"
                          : ": the hardware failed; see dmesg")};
    }
  }
  if (first) (void)fail(*first);
  return done;
}

// ---- lists ----

std::uint32_t type_of(const queue_description& queue) {
  if (queue.kind == queue_kind::compute) return SLUICE_KFD_COMPUTE;
  return queue.type == "sdma" ? SLUICE_KFD_SDMA : SLUICE_KFD_SDMA_XGMI;
}

/// Gives the queues that `wanted(process, entry)` keeps, in entries as large as the caller's.
template <class Wanted>
int list(sluice_kfd* handle, size_t entry_size, sluice_kfd_queue** queues, size_t* count,
         Wanted wanted, std::optional<pid_t> of = {}) {
  if (queues == nullptr || count == nullptr)
    return fail(EINVAL, "queues or count is NULL; both must point to memory for the list");
  *queues = nullptr;
  *count = 0;
  if (const int bad = check(handle, needs::nothing)) return bad;
  if (entry_size < sizeof(std::uint64_t) || entry_size % alignof(sluice_kfd_queue) != 0)
    return fail(EINVAL, "entry_size is " + std::to_string(entry_size) +
                            "; it must be sizeof(sluice_kfd_queue)");
  auto view = kfd::look_at_node(handle->where);
  if (!view)
    return fail(view.error().value(), "cannot read " + handle->where.sysfs + "/proc: " +
                                          view.error().message() + "; load the amdgpu driver");
  kfd::known_rings rings;
  if (handle->holder)
    for (const pid_t pid : handle->holder->held())
      for (const auto& queue : handle->holder->queues(pid))
        rings[pid].push_back({queue.about.id, queue.about.gpu, queue.about.incarnation});
  kfd::add_priorities(*view, handle->where, rings);

  std::vector<sluice_kfd_queue> found;
  bool seen = !of;
  for (const auto& process : view->processes) {
    if (of == process.pid) seen = true;
    std::vector<held_queue> held;
    if (handle->holder) held = handle->holder->queues(process.pid);
    for (const auto& queue : process.queues) {
      const bool here = std::ranges::any_of(
          held, [&](const auto& each) { return each.about.id == queue.id && each.suspended; });
      const sluice_kfd_queue entry{
          .pid = process.pid,
          .queue_id = static_cast<std::uint32_t>(queue.id),
          .gpu_id = number(queue.gpu),
          .type = type_of(queue),
          .priority = queue.priority ? static_cast<std::int32_t>(*queue.priority) : -1,
          .flags = here ? std::uint32_t{SLUICE_KFD_SUSPENDED_HERE} : 0,
          .ring_bytes = queue.ring_bytes,
          .start_time = process.start_time};
      if (wanted(entry)) found.push_back(entry);
    }
  }
  if (!seen) return fail(ESRCH, kfd::why_not_listed(*of, handle->where));
  if (found.empty()) return 0;
  void* const memory = std::calloc(found.size(), entry_size);  // NOLINT: freed by sluice_kfd_free.
  if (memory == nullptr) return fail(ENOMEM, "out of memory for the list of queues");
  for (std::size_t index = 0; index < found.size(); ++index)
    std::memcpy(static_cast<char*>(memory) + index * entry_size, &found[index],
                std::min(entry_size, sizeof found[index]));
  *queues = static_cast<sluice_kfd_queue*>(memory);
  *count = found.size();
  return 0;
}

}  // namespace

extern "C" {

uint32_t sluice_kfd_version(void) { return SLUICE_KFD_VERSION; }

const char* sluice_kfd_last_error(void) { return last_error.c_str(); }

int sluice_kfd_init(const sluice_kfd_options* options, sluice_kfd** handle) {
  return guarded([&] {
    if (handle == nullptr)
      return fail(EINVAL, "handle is NULL; it must point to memory for the handle");
    *handle = nullptr;
    auto made = std::make_unique<sluice_kfd>();
    made->where = kfd::roots::from_environment();
    sluice_kfd_options given{};
    if (options != nullptr) {
      if (options->size < sizeof options->size + sizeof options->flags)
        return fail(EINVAL, "options.size is " + std::to_string(options->size) +
                                "; it must be sizeof(sluice_kfd_options)");
      std::memcpy(&given, options, std::min<std::size_t>(options->size, sizeof given));
    }
    if ((given.flags & ~std::uint32_t{SLUICE_KFD_LIST_ONLY}) != 0)
      return fail(EINVAL,
                  "options.flags contains a flag that this library does not support; use a newer "
                  "library, or omit the flag");
    if (given.device != nullptr) made->where.device = given.device;
    if (given.sysfs != nullptr) made->where.sysfs = given.sysfs;
    if (given.debugfs != nullptr) made->where.debugfs = given.debugfs;
    if ((given.flags & SLUICE_KFD_LIST_ONLY) == 0) {
      hold_failure why;
      made->holder = kfd::queue_holder::open(made->where, why);
      if (!made->holder) return fail(why);
      made->own.emplace(made->holder->node(), made->where.sysfs);
    }
    *handle = made.release();
    return 0;
  });
}

int sluice_kfd_cleanup(sluice_kfd* handle) {
  return guarded([&] {
    if (handle == nullptr) return 0;
    // In a forked child the threads are not there, and nothing is ours to resume: leak it.
    if (const int bad = check(handle, needs::nothing)) return bad;
    const std::unique_ptr<sluice_kfd> owned{handle};
    if (!owned->holder) return 0;
    (void)owned->own->resume();
    const time_point deadline = deadline_of(SLUICE_KFD_DEFAULT_TIMEOUT);
    hold_failure failed;
    for (const pid_t pid : owned->holder->held())
      if (auto no = owned->holder->release(pid, deadline); no.error == EIO && !failed)
        failed = std::move(no);
    // The file's last close would do both; but a forked child may keep the file open.
    const kfd::device& node = owned->holder->node();
    bool mapped = true;
    if (owned->batched) {
      kfd::uapi::kfd_ioctl_fast_remap_args everything{};
      const auto done = node.call(kfd::uapi::AMDKFD_IOC_FAST_REMAP, &everything);
      mapped = done || is_stock(done.error(), node);  // A stock driver holds nothing.
    }
    for (const auto gpu : owned->reserved) {
      kfd::uapi::kfd_ioctl_set_hqd_reservation_args none{gpu, 0, 100, 0};
      (void)node.call(kfd::uapi::AMDKFD_IOC_SET_HQD_RESERVATION, &none);
    }
    if (!mapped)
      return fail(EIO,
                  "the driver refused to resume queues suspended by batch commands; they stay "
                  "suspended until this process, and all children that share its device "
                  "descriptor, have exited");
    if (owned->holder->stranded())
      return fail(
          EIO, "the driver refuses to resume suspended queues; they resume when this process ends");
    return failed ? fail(failed) : 0;
  });
}

int sluice_kfd_suspend_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs, size_t count,
                              uint32_t timeout_ms) {
  return guarded([&] { return change(handle, command_kind::suspend, refs, count, timeout_ms); });
}

int sluice_kfd_resume_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs, size_t count,
                             uint32_t timeout_ms) {
  return guarded([&] { return change(handle, command_kind::resume, refs, count, timeout_ms); });
}

int sluice_kfd_release(sluice_kfd* handle, int32_t pid, uint32_t timeout_ms) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    const auto no = handle->holder->release(pid, deadline_of(timeout_ms));
    return no ? fail(no) : 0;
  });
}

int sluice_kfd_suspend_own_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs, size_t count) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    if (const int bad = check_refs(refs, count)) return bad;
    const std::span all{refs, count};
    for (auto& ref : all) {
      if (ref.pid != 0 && ref.pid != ::getpid())
        return fail(EINVAL, "process " + std::to_string(ref.pid) +
                                " is not the calling process; use sluice_kfd_suspend_queues()");
      ref.gpu_id = 0;
      ref.status = 0;
    }
    const std::scoped_lock lock{handle->own_mutex};
    std::vector<kfd::own_queues::order> orders;
    for (const auto& ref : all) orders.push_back({.queue = driver_queue_id{ref.queue_id}});
    if (refs == nullptr || std::ranges::any_of(all, [](const auto& ref) {
          return ref.queue_id == SLUICE_KFD_ALL_QUEUES;
        }))
      orders.clear();  // all of them
    const auto no = handle->own->suspend(orders);
    if (no && no.whole) return fail(no.why);
    if (no) (void)fail(no.why);
    int done = 0;
    for (const auto& order : orders) {
      if (order.error == 0) ++done;
      for (auto& ref : all) {
        if (ref.queue_id != static_cast<std::uint32_t>(order.queue) &&
            ref.queue_id != SLUICE_KFD_ALL_QUEUES)
          continue;
        ref.gpu_id = number(order.gpu);
        if (ref.status == 0) ref.status = -order.error;
      }
    }
    return done;
  });
}

int sluice_kfd_resume_own_queues(sluice_kfd* handle) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    const std::scoped_lock lock{handle->own_mutex};
    const auto no = handle->own->resume();
    return no ? fail(no) : 0;
  });
}

int sluice_kfd_batch_unmap_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs, size_t count,
                                  uint32_t grace_us, uint32_t flags) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    if (const int bad = check_refs(refs, count)) return bad;
    const kfd::device& node = handle->holder->node();
    const std::span all{refs, count};
    handle->batched = true;
    if (std::ranges::any_of(all,
                            [](const auto& ref) { return ref.queue_id == SLUICE_KFD_ALL_QUEUES; }))
      return fail(
          EINVAL,
          "the batch commands need queue ids, not SLUICE_KFD_ALL_QUEUES; list the queues first");
    const int done = batched(all, node, [&](auto& entries) {
      kfd::uapi::kfd_ioctl_batch_unmap_queues_args args{};
      args.num_queues = static_cast<std::uint32_t>(entries.size());
      args.grace_period_us = grace_us;
      args.flags = flags;
      args.queue_array_ptr = reinterpret_cast<std::uintptr_t>(entries.data());  // NOLINT: the ABI
      return node.call(kfd::uapi::AMDKFD_IOC_BATCH_UNMAP_QUEUES, &args);
    });
    // The driver takes a queue whose hardware part failed for held: give it back.
    std::vector<sluice_kfd_queue_ref> failed;
    for (const auto& ref : all)
      if (ref.status == -EIO) failed.push_back(ref);
    if (!failed.empty()) {
      const std::string sentence = last_error;
      (void)sluice_kfd_fast_remap_queues(handle, failed.data(), failed.size());
      last_error = sentence;
    }
    return done;
  });
}

int sluice_kfd_fast_remap_queues(sluice_kfd* handle, sluice_kfd_queue_ref* refs, size_t count) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    if (const int bad = check_refs(refs, count)) return bad;
    const kfd::device& node = handle->holder->node();
    const auto call = [&](std::uint64_t array, std::size_t number_of) {
      kfd::uapi::kfd_ioctl_fast_remap_args args{};
      args.num_queues = static_cast<std::uint32_t>(number_of);
      args.queue_array_ptr = array;
      return node.call(kfd::uapi::AMDKFD_IOC_FAST_REMAP, &args);
    };
    if (refs == nullptr) {
      const auto done = call(0, 0);
      return done ? *done : fail(meaning_of_batch(done.error(), node));
    }
    return batched(std::span{refs, count}, node, [&](auto& entries) {
      return call(reinterpret_cast<std::uintptr_t>(entries.data()),  // NOLINT: the ABI
                  entries.size());
    });
  });
}

int sluice_kfd_set_hqd_reservation(sluice_kfd* handle, uint32_t gpu_id, uint32_t online_percent,
                                   uint32_t offline_percent) {
  return guarded([&] {
    if (const int bad = check(handle, needs::driver)) return bad;
    const kfd::device& node = handle->holder->node();
    kfd::uapi::kfd_ioctl_set_hqd_reservation_args args{};
    args.gpu_id = gpu_id;
    args.online_percent = online_percent;
    args.offline_percent = offline_percent;
    const auto done = node.call(kfd::uapi::AMDKFD_IOC_SET_HQD_RESERVATION, &args);
    if (!done) return fail(meaning_of_batch(done.error(), node));
    const std::scoped_lock lock{handle->own_mutex};
    handle->reserved.insert(gpu_id);
    return 0;
  });
}

int sluice_kfd_get_all_queues(sluice_kfd* handle, size_t entry_size, sluice_kfd_queue** queues,
                              size_t* count) {
  return guarded([&] {
    return list(handle, entry_size, queues, count, [](const sluice_kfd_queue&) { return true; });
  });
}

int sluice_kfd_find_queues_by_priority(sluice_kfd* handle, uint32_t least, uint32_t most,
                                       size_t entry_size, sluice_kfd_queue** queues,
                                       size_t* count) {
  return guarded([&] {
    return list(handle, entry_size, queues, count, [=](const sluice_kfd_queue& entry) {
      return entry.priority >= 0 && static_cast<std::uint32_t>(entry.priority) >= least &&
             static_cast<std::uint32_t>(entry.priority) <= most;
    });
  });
}

int sluice_kfd_find_queues_by_process(sluice_kfd* handle, int32_t pid, size_t entry_size,
                                      sluice_kfd_queue** queues, size_t* count) {
  return guarded([&] {
    return list(
        handle, entry_size, queues, count,
        [=](const sluice_kfd_queue& entry) { return entry.pid == pid; }, pid);
  });
}

void sluice_kfd_free(sluice_kfd_queue* queues) { std::free(queues); }  // NOLINT: from calloc.

}  // extern "C"
