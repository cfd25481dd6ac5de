#pragma once
/// \file
/// The clients of other processes, as sources bring them in.

#include "front_desk.hpp"
#include "table.hpp"

#include <functional>
#include <map>
#include <memory>

#include "sluice/client_host.hpp"

namespace sluice::core {

/// Threading: reactor thread.
class remote_clients final : public client_host {
 public:
  remote_clients(std::shared_ptr<front_desk> desk, const table& world) noexcept
      : desk_(std::move(desk)), table_(world) {}

  void on_look(std::function<void()> turn) { turn_ = std::move(turn); }

  int scheduler_page() const noexcept override { return desk_->shared().fd(); }
  bool knows(gpu_id which) const override { return table_.find(which) != nullptr; }
  result<client_id> add(client_options options, std::shared_ptr<sluice_client_words> words,
                        remote_client& hears) override;
  void remove(client_id id) override;
  std::uint64_t wait_until_clear(client_id id, time_point deadline,
                                 std::function<void(bool)> done) override;
  bool stop_waiting(std::uint64_t wait) override { return desk_->remove_wait(wait); }
  void look() override {
    if (turn_) turn_();
  }

 private:
  const std::shared_ptr<front_desk> desk_;
  const table& table_;
  std::function<void()> turn_;
  std::map<client_id, std::shared_ptr<client_page>> pages_;
};

}  // namespace sluice::core
