#include "table.hpp"

namespace sluice::core {

// Rows come and go ------------------------------------------------------------------------------

process& table::insert_process(pid_t pid, std::uint64_t start_time) {
  auto& one = processes_.insert();
  stats_.processes.add();
  dirty_.reserve(processes_.capacity());
  one.pid = pid;
  one.start_time = start_time;
  one.seen_since = now_;
  one.own = pid == own_pid_;
  newest_.insert_or_assign(pid, one.id);
  by_pid_.emplace(process_key{pid, start_time}, one.id);
  return one;
}

group& table::insert_group(std::uint64_t key) {
  auto& one = groups_.insert();
  for (auto* list : {&changed_, &touched_, &reshaped_}) list->reserve(groups_.capacity());
  gone_gangs_.reserve(groups_.capacity());
  for (auto& each : gpus_) {
    each.offline.reserve(groups_.capacity());
    view_of(each).offline = each.offline;
  }
  one.key = key;
  one.view.id = one.id;
  one.view.state_since = now_;
  if (key != 0) by_key_.emplace(key, one.id);
  return one;
}

queue& table::insert_queue() {
  stats_.queues.add();
  return queues_.insert();
}

void table::erase(process& which) {
  const auto newest = newest_.find(which.pid);
  if (newest != newest_.end() && newest->second == which.id) newest_.erase(newest);
  processes_.erase(which.id);
  stats_.processes.subtract(1);
}

void table::erase(group& which) {
  if (which.key != 0) by_key_.erase(which.key);
  if (which.told != gang_wish::gone) gone_gangs_.push_back(which.key);
  groups_.erase(which.id);
  ++shape_;
}

void table::erase(queue& which) {
  queues_.erase(which.id);
  stats_.queues.subtract(1);
}

void table::mark_gone(process& which) {
  by_pid_.erase({which.pid, which.start_time});
  which.gone = true;
  ++shape_;
  mark_dirty(which);
}

gpu& table::gpu_at(gpu_id id) {
  if (gpu* known = find_gpu(id)) return *known;
  const auto index = static_cast<std::uint32_t>(gpus_.size());
  auto& one = gpus_.emplace_back();
  one.index = index;
  one.id = id;
  one.offline.reserve(groups_.capacity());
  gpu_views_.emplace_back().id = id;
  by_gpu_.emplace(id, index);
  ++new_gpus_;
  return one;
}

// By their ids ----------------------------------------------------------------------------------

gpu* table::find_gpu(gpu_id id) noexcept {
  const auto found = by_gpu_.find(id);
  return found == by_gpu_.end() ? nullptr : &gpus_[found->second];
}

process* table::find(pid_t pid, std::uint64_t start_time) noexcept {
  const auto found = by_pid_.find({pid, start_time});
  return found == by_pid_.end() ? nullptr : processes_.find(found->second);
}

group* table::find_gang(std::uint64_t key) noexcept {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : groups_.find(found->second);
}

std::span<const gpu_id> table::online_gang_of(pid_t pid) const noexcept {
  const auto found = newest_.find(pid);
  if (found == newest_.end()) return {};
  const group& in = *processes_.find(found->second)->in;
  if (in.key == 0 || in.view.what != role::online) return {};
  return in.gpus;
}

const gpu_view* table::find(gpu_id id) const noexcept {
  const auto found = by_gpu_.find(id);
  return found == by_gpu_.end() ? nullptr : &gpu_views_[found->second];
}

const group_view* table::find(group_id id) const noexcept {
  const group* one = groups_.find(id);
  return one == nullptr ? nullptr : &one->view;
}

const client_view* table::find(client_id id) const noexcept {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : &found->second;
}

// What wants a look -----------------------------------------------------------------------------

void table::reconsider_attach(process& which) {
  if (which.compute_queues == 0) which.attach_from = never;
  attach_candidates_.push_back(which.id);
}

void table::clear_changed() noexcept {
  for (const group_id id : changed_) {
    if (group* one = groups_.find(id)) one->listed = false;
  }
  changed_.clear();
}

}  // namespace sluice::core
