/// Events of KFD: what clients wait for (kfd_events.c).

#include "driver_state.hpp"

#include <algorithm>
#include <cerrno>
#include <deque>

namespace sluice::sim {

event_waiter::event_waiter(kfd_event& awaited, wait_queue& sleeping)
    : event{&awaited}, wake{sleeping} {
  awaited.waiters.push_back(this);
}

event_waiter::~event_waiter() {
  if (event != nullptr) std::erase(event->waiters, this);
}

kfd_event::~kfd_event() {
  for (event_waiter* waiter : waiters) {
    waiter->event = nullptr;
    waiter->wake.wake_all();
  }
}

void kfd_event::set() {
  // Auto-reset happens here when somebody waits, else the next to wait finds it signaled.
  signaled = !auto_reset || waiters.empty();
  if (++age == 0) age = 2;  // 0 and 1 are reserved for "do not care" and "never".
  for (event_waiter* waiter : waiters) {
    waiter->activated = true;
    waiter->wake.wake_all();
  }
}

namespace {

/// Signal events have slots below KFD_SIGNAL_EVENT_LIMIT, 0 being reserved; others live above.
constexpr std::uint32_t first_signal_id = 1;
constexpr std::uint32_t first_other_id = 0x40000000;  // KFD_FIRST_NONSIGNAL_EVENT_ID

constexpr std::uint32_t immediate = 0;
constexpr std::uint32_t infinite = 0xffffffff;

constexpr bool has_slot(std::uint32_t type) {
  return type == uapi::KFD_IOC_EVENT_SIGNAL || type == uapi::KFD_IOC_EVENT_DEBUG_EVENT;
}

}  // namespace

int driver::impl::create_event(call& c, uapi::kfd_ioctl_create_event_args& args) {
  auto& events = c.caller->events;
  if (args.event_page_offset != 0) {
    if (const int error = set_event_page(*c.caller, args.event_page_offset)) return error;
  }
  const bool slot = has_slot(args.event_type);
  std::uint32_t id = slot ? first_signal_id : first_other_id;
  for (auto it = events.lower_bound(id); it != events.end() && it->first == id; ++it) ++id;
  if (slot && id >= uapi::KFD_SIGNAL_EVENT_LIMIT) return -ENOSPC;
  kfd_event& event = events[id];
  event.type = args.event_type;
  event.auto_reset = args.auto_reset != 0;
  args.event_id = id;
  if (slot) {
    if (!c.caller->event_page) c.caller->event_page = 0;  // From now on, the driver's own.
    args.event_page_offset = mmap_offset(mmap_type::events, c.caller->pasid, 0);
  }
  args.event_trigger_data = slot ? id : 0;
  args.event_slot_index = slot ? id : 0;
  return 0;
}

int driver::impl::destroy_event(call& c, uapi::kfd_ioctl_destroy_event_args& args) {
  return c.caller->events.erase(args.event_id) == 0 ? -EINVAL : 0;
}

int driver::impl::set_event(call& c, uapi::kfd_ioctl_set_event_args& args) {
  const auto it = c.caller->events.find(args.event_id);
  if (it == c.caller->events.end() || it->second.type != uapi::KFD_IOC_EVENT_SIGNAL) return -EINVAL;
  it->second.set();
  return 0;
}

int driver::impl::reset_event(call& c, uapi::kfd_ioctl_reset_event_args& args) {
  const auto it = c.caller->events.find(args.event_id);
  if (it == c.caller->events.end() || it->second.type != uapi::KFD_IOC_EVENT_SIGNAL) return -EINVAL;
  it->second.signaled = false;
  return 0;
}

namespace {

std::uint32_t test_condition(bool all, const std::deque<event_waiter>& waiters) {
  std::size_t activated = 0;
  for (const auto& waiter : waiters) {
    if (waiter.event == nullptr) return uapi::KFD_IOC_WAIT_RESULT_FAIL;
    if (!waiter.activated) continue;
    if (!all) return uapi::KFD_IOC_WAIT_RESULT_COMPLETE;
    ++activated;
  }
  return activated == waiters.size() ? uapi::KFD_IOC_WAIT_RESULT_COMPLETE
                                     : uapi::KFD_IOC_WAIT_RESULT_TIMEOUT;
}

/// copy_signaled_event_data.
bool copy_data(address_space& memory, std::uint64_t events_ptr,
               const std::deque<event_waiter>& waiters) {
  std::uint64_t at = events_ptr;
  for (const auto& waiter : waiters) {
    if (waiter.activated && waiter.event != nullptr &&
        waiter.event->type == uapi::KFD_IOC_EVENT_HW_EXCEPTION) {
      // As kfd_signal_reset_event leaves it after a hang.
      const uapi::kfd_hsa_hw_exception_data lost{0, 0, 1, waiter.event->gpu};
      if (!memory.write(at + offsetof(uapi::kfd_event_data, hw_exception_data), bytes_of(lost))) {
        return false;
      }
    }
    if (waiter.activated && waiter.event != nullptr &&
        waiter.event->type == uapi::KFD_IOC_EVENT_MEMORY) {
      uapi::kfd_hsa_memory_exception_data fault{};  // At address 0.
      fault.gpu_id = waiter.event->gpu;
      if (!memory.write(at + offsetof(uapi::kfd_event_data, memory_exception_data),
                        bytes_of(fault))) {
        return false;
      }
    }
    if (waiter.activated && waiter.age_enabled && waiter.event != nullptr &&
        waiter.event->type == uapi::KFD_IOC_EVENT_SIGNAL) {
      if (!memory.write(at + offsetof(uapi::kfd_event_data, signal_event_data),
                        bytes_of(waiter.event->age))) {
        return false;
      }
    }
    at += sizeof(uapi::kfd_event_data);
  }
  return true;
}

}  // namespace

task<int> driver::impl::wait_events(call_ptr c, uapi::kfd_ioctl_wait_events_args& args) {
  kfd_process& process = *c->caller;
  const bool all = args.wait_for_all != 0;
  args.wait_result = uapi::KFD_IOC_WAIT_RESULT_FAIL;
  // Far above what a process can own; the driver's allocation would fail somewhere above it.
  if (args.num_events > 16 * uapi::KFD_SIGNAL_EVENT_LIMIT) co_return -ENOMEM;
  std::vector<uapi::kfd_event_data> wanted(args.num_events);
  if (!process.memory->read(args.events_ptr, std::as_writable_bytes(std::span{wanted}))) {
    co_return -EFAULT;
  }

  wait_queue sleeping{engine_};
  std::deque<event_waiter> waiters;  // They are linked by address.
  for (const auto& each : wanted) {
    const auto it = process.events.find(each.event_id);
    if (it == process.events.end()) co_return -EINVAL;
    kfd_event& event = it->second;
    event_waiter& waiter = waiters.emplace_back(event, sleeping);
    waiter.activated = event.signaled;
    event.signaled = event.signaled && !event.auto_reset;
    const auto age = each.signal_event_data.last_event_age;
    if (event.type == uapi::KFD_IOC_EVENT_SIGNAL && age != 0) {
      waiter.age_enabled = true;
      if (event.age != age) waiter.activated = true;
    }
  }

  const bool finite = args.timeout != immediate && args.timeout != infinite;
  const auto deadline =
      args.timeout == infinite ? never : engine_.now() + std::chrono::milliseconds{args.timeout};
  int error = 0;
  for (;;) {
    args.wait_result = test_condition(all, waiters);
    if (args.wait_result != uapi::KFD_IOC_WAIT_RESULT_TIMEOUT) break;
    if (engine_.now() >= deadline) break;
    const auto why = co_await sleeping.wait(c->signal, deadline);
    if (why != wake_reason::interrupted) continue;
    // A wake-up that came together with the signal counts for the wait, not for the signal.
    args.wait_result = test_condition(all, waiters);
    if (args.wait_result != uapi::KFD_IOC_WAIT_RESULT_TIMEOUT) break;
    error = -kernel_erestartsys;
    if (finite) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - engine_.now());
      args.timeout = static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 0));
    }
    break;
  }
  if (error == 0 && args.wait_result == uapi::KFD_IOC_WAIT_RESULT_COMPLETE &&
      !copy_data(*process.memory, args.events_ptr, waiters)) {
    error = -EFAULT;
  }
  // A restarted call must find what this one took from auto-reset events.
  std::vector<kfd_event*> taken;
  for (const auto& waiter : waiters) {
    if (waiter.activated && waiter.event != nullptr && waiter.event->auto_reset) {
      taken.push_back(waiter.event);
    }
  }
  waiters.clear();
  if (error == -kernel_erestartsys) {
    for (kfd_event* event : taken) event->set();
  }
  if (error != 0) {
    args.wait_result = uapi::KFD_IOC_WAIT_RESULT_FAIL;
  } else if (args.wait_result == uapi::KFD_IOC_WAIT_RESULT_FAIL) {
    error = -EIO;
  }
  co_return error;
}

}  // namespace sluice::sim
