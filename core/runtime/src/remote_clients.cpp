#include "remote_clients.hpp"

#include <algorithm>
#include <utility>

namespace sluice::core {

result<client_id> remote_clients::add(client_options options,
                                      std::shared_ptr<sluice_client_words> words,
                                      remote_client& hears) {
  if (desk_->is_closed()) return errc::stopped;
  if (std::any_of(options.gpus.begin(), options.gpus.end(),
                  [&](gpu_id id) { return !knows(id); })) {
    return errc::unknown_target;
  }
  auto page = std::make_shared<client_page>(desk_->next_id(), std::move(options), desk_,
                                            std::move(words), &hears);
  pages_.emplace(page->id, page);
  const client_id id = page->id;
  desk_->register_page(std::move(page));
  return id;
}

void remote_clients::remove(client_id id) {
  const auto found = pages_.find(id);
  if (found == pages_.end()) return;
  found->second->remote = nullptr;
  found->second->withdrawn.store(true, std::memory_order_release);
  pages_.erase(found);
  desk_->wake().ring();
}

std::uint64_t remote_clients::wait_until_clear(client_id id, time_point deadline,
                                               std::function<void(bool)> done) {
  const auto found = pages_.find(id);
  if (found == pages_.end()) return 0;
  return desk_->add_wait(found->second, deadline, std::move(done));
}

}  // namespace sluice::core
