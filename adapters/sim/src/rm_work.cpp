/// Kernels: from a program to the GPU model, and their ends back into the program's memory.

#include "driver.hpp"
#include "rm_state.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

namespace sluice::sim {

static_assert(nvidia_abi::mapping_of(0) == driver::mmap_begin, "else a node has no such pages");

rm_driver::impl::status rm_driver::impl::channel_of(const rm_call& c, rm::NvHandle client,
                                                    rm::NvHandle channel,
                                                    std::shared_ptr<rm_channel>& out) {
  rm_client* owner = find(client, c.file);
  if (owner == nullptr) return rm::NV_ERR_INVALID_CLIENT;
  const rm_object* object = owner->find(channel);
  if (object == nullptr || object->cls != rm::HOPPER_CHANNEL_GPFIFO_A)
    return rm::NV_ERR_OBJECT_NOT_FOUND;
  out = object->channel;
  return rm::NV_OK;
}

task<rm_driver::impl::status> rm_driver::impl::bind_channel(call_ptr c,
                                                            nvidia_abi::bind_args& args) {
  std::shared_ptr<rm_channel> channel;
  if (const auto wrong = channel_of(*c, args.hClient, args.hChannel, channel); wrong != rm::NV_OK)
    co_return wrong;
  if (args.page == 0) {
    if (channel->queue != model_queue::none)
      channel->group->gpu->model.lose_kernels(channel->queue);
    channel->started = channel->completed = channel->submitted;
    channel->news.clear();
    write_page(*channel);
    channel->before += channel->submitted;
    channel->bound.reset();
    channel->page_gone = false;
    channel->submitted = channel->started = channel->completed = channel->written = 0;
    channel->changed.wake_all();
    co_return rm::NV_OK;
  }
  const auto addresses = args.page | args.words.userd | args.words.record | args.words.states;
  if (addresses % sizeof(std::uint64_t) != 0 || args.count == 0 || channel->bound)
    co_return rm::NV_ERR_INVALID_ARGUMENT;
  channel->bound = c->caller;
  channel->page = args.page;
  channel->records = args.count;
  channel->words = args.words;
  co_return rm::NV_OK;
}

task<rm_driver::impl::status> rm_driver::impl::submit(call_ptr c, nvidia_abi::submit_args& args) {
  std::shared_ptr<rm_channel> channel;
  if (const auto wrong = channel_of(*c, args.hClient, args.hChannel, channel); wrong != rm::NV_OK)
    co_return wrong;
  if (!channel->computes) co_return rm::NV_ERR_NOT_SUPPORTED;
  if (!channel->bound || args.count > nvidia_abi::submit_limit)
    co_return rm::NV_ERR_INVALID_ARGUMENT;
  std::vector<nvidia_abi::kernel_entry> kernels(args.count);
  if (!c->caller->memory ||
      !c->caller->memory->read(args.kernels, std::as_writable_bytes(std::span{kernels})))
    co_return NV_ERR_INVALID_ADDRESS;
  // Protects the arithmetic of time points.
  constexpr std::uint64_t longest = std::numeric_limits<std::int64_t>::max() / 8;
  for (const auto& each : kernels) {
    if (each.length > longest || each.waves > std::numeric_limits<std::uint32_t>::max())
      co_return rm::NV_ERR_INVALID_ARGUMENT;
  }
  gpu_model& model = channel->group->gpu->model;
  if (channel->queue == model_queue::none) {
    constexpr std::uint32_t middle_priority = 7;
    channel->queue = model.add_queue(channel->group->model, middle_priority);
    channel->group->gpu->queues.emplace(channel->queue, channel);
    if (channel->disables == 0) model.set_listed(channel->queue, true, cycle_kind::ordinary);
  }
  for (const auto& each : kernels) {
    model.submit(channel->queue, {.length = duration{static_cast<std::int64_t>(each.length)},
                                  .waves = static_cast<std::uint32_t>(each.waves),
                                  .cookie = channel->submitted++});
  }
  co_return rm::NV_OK;
}

task<rm_driver::impl::status> rm_driver::impl::wait(call_ptr c, nvidia_abi::wait_args& args) {
  std::shared_ptr<rm_channel> channel;
  if (const auto wrong = channel_of(*c, args.hClient, args.hChannel, channel); wrong != rm::NV_OK)
    co_return wrong;
  if (args.index >= channel->submitted) co_return rm::NV_ERR_INVALID_ARGUMENT;
  constexpr std::uint64_t longest = 3'600'000'000'000;  // An hour.
  const auto timeout = duration{static_cast<std::int64_t>(std::min(args.timeout, longest))};
  const auto deadline = engine_.now() + timeout;
  // Fewer were submitted if the channel was bound anew: its kernels are gone.
  const auto is_gone = [&] { return channel->freed || channel->submitted <= args.index; };
  while (!is_gone() && channel->written <= args.index) {
    const auto why = co_await channel->changed.wait(c->signal, deadline);
    if (is_gone() || channel->written > args.index) break;
    if (why == wake_reason::timed_out) co_return nvidia_abi::NV_ERR_TIMEOUT;
    if (why == wake_reason::interrupted) {
      constexpr int kernel_restart = 512;  // ERESTARTSYS
      c->result = -kernel_restart;
      break;
    }
  }
  co_return is_gone() ? rm::NV_ERR_OBJECT_NOT_FOUND : rm::NV_OK;
}

task<rm_driver::impl::status> rm_driver::impl::gpu_info(call_ptr c,
                                                        nvidia_abi::gpu_info_args& args) {
  rm_client* client = find(args.hClient, c->file);
  if (client == nullptr) co_return rm::NV_ERR_INVALID_CLIENT;
  const rm_object* object = client->find(args.hSubdevice);
  if (object == nullptr || object->gpu == nullptr) co_return rm::NV_ERR_OBJECT_NOT_FOUND;
  args.waves = object->gpu->shape.wave_slots();
  co_return rm::NV_OK;
}

void rm_driver::impl::note(const std::shared_ptr<rm_channel>& channel) {
  if (std::exchange(channel->dirty, true)) return;
  dirty_.push_back(channel);
  if (dirty_.size() > 1) return;
  engine_.defer([weak = std::weak_ptr{alive_}] {
    if (const auto self = weak.lock()) (*self)->flush();
  });
}

void rm_driver::impl::flush() {
  for (const auto& channel : std::exchange(dirty_, {})) {
    channel->dirty = false;
    if (channel->freed) continue;
    write_page(*channel);
    channel->written = channel->completed;
    channel->news.clear();
    channel->changed.wake_all();
  }
}

namespace {

/// What shows the channel's work to others than its program: states before counts, so that a kernel
/// is at every moment one that has not started, one that runs, or one that has ended.
void add_words(const rm_channel& channel, std::vector<address_space::patch>& patches) {
  constexpr unsigned high_half = 32;
  const auto& at = channel.words;
  const auto started = channel.before + channel.started;
  if (started == 0) return;
  if (at.states != 0) {
    constexpr auto slots = nvidia_abi::state_slots;
    const auto oldest = started - std::min({started, slots, channel.started - channel.written});
    for (auto kernel = oldest; kernel < started; ++kernel) {
      const auto state =
          kernel < channel.before + channel.completed ? nvidia_abi::ended : nvidia_abi::running;
      patches.push_back({at.states + kernel % slots * sizeof(std::uint64_t),
                         ((kernel / slots + 1) << 2U | state) << high_half});
    }
  }
  if (at.record != 0) {
    patches.push_back(
        {at.record + sizeof(std::uint64_t), static_cast<std::uint64_t>(channel.began_at.count())});
    patches.push_back({at.record, static_cast<std::uint32_t>(started)});
  }
  if (at.userd != 0) {
    namespace userd = nvidia_abi::userd;
    // Each store covers a neighbour that is always 0, and none that the program writes.
    patches.push_back({at.userd + userd::get_high, userd::high});
    patches.push_back(
        {at.userd + userd::get, static_cast<std::uint32_t>(started * userd::push_bytes)});
    patches.push_back({at.userd + userd::gp_get - sizeof(std::uint32_t),
                       started % userd::ring_entries << high_half});
  }
}

}  // namespace

/// Stores records before the counts that announce them.
void rm_driver::impl::write_page(rm_channel& channel) {
  if (!channel.bound || !channel.bound->memory || channel.page_gone) return;
  address_space& memory = *channel.bound->memory;
  const auto stamp = [](time_point t) {
    return static_cast<std::uint64_t>(t.time_since_epoch().count());
  };
  std::vector<address_space::patch> patches;
  patches.push_back({channel.page + offsetof(nvidia_abi::channel_page, started), channel.started});
  bool broken = false;
  for (std::size_t i = 0; i < channel.news.size() && !broken; ++i) {
    const auto at = channel.page + sizeof(nvidia_abi::channel_page) +
                    (channel.written + i) % channel.records * sizeof(nvidia_abi::kernel_record);
    nvidia_abi::kernel_record record{};
    broken = !memory.read(at, std::as_writable_bytes(std::span{&record, 1}));
    patches.push_back(
        {at + offsetof(nvidia_abi::kernel_record, start), stamp(channel.news[i].start)});
    patches.push_back({at + offsetof(nvidia_abi::kernel_record, end), stamp(channel.news[i].end)});
    patches.push_back({at + offsetof(nvidia_abi::kernel_record, runs), record.runs + 1});
  }
  add_words(channel, patches);
  patches.push_back(
      {channel.page + offsetof(nvidia_abi::channel_page, completed), channel.completed});
  broken = broken || !memory.write_words(patches);
  // A process that is gone breaks nothing: its end follows.
  if (!broken || !memory.alive()) return;
  channel.page_gone = true;
  ++channel.owner->broken_channels;
}

}  // namespace sluice::sim
