#pragma once
/// \file
/// Who waits for clear GPUs: found by number, by client and by deadline, so that a turn costs what
/// is due and one question per client that waits, however often that does.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/time.hpp"

namespace sluice {
struct client_page;
}

namespace sluice::core {

class wait_list {
 public:
  struct wait {
    std::uint64_t number = 0;  ///< Unique.
    client_id client{};
    time_point deadline{};
    std::function<void(bool)> done;
  };
  using answer = std::pair<wait, bool>;

  std::size_t size() const noexcept { return waits_.size(); }
  /// The earliest deadline.
  time_point next() const noexcept {
    return by_deadline_.empty() ? never : by_deadline_.begin()->first;
  }
  /// \param page the client's.
  void add(wait one, std::shared_ptr<client_page> page) {
    waiting& of = by_client_[one.client];
    of.page = std::move(page);
    of.numbers.insert(one.number);
    by_deadline_.emplace(one.deadline, one.number);
    const auto number = one.number;
    waits_.emplace(number, std::move(one));
  }
  /// \return it; number 0: it was not there.
  wait take(std::uint64_t number) {
    const auto found = waits_.find(number);
    if (found == waits_.end()) return {};
    wait taken = std::move(found->second);
    waits_.erase(found);
    const auto of = by_client_.find(taken.client);
    of->second.numbers.erase(number);
    if (of->second.numbers.empty()) by_client_.erase(of);
    by_deadline_.erase({taken.deadline, number});
    return taken;
  }
  /// Takes the waits of clients for which `is_clear(id, page)` holds, and those that are due.
  template <class Predicate>
  std::vector<answer> take_answered(time_point now, Predicate&& is_clear) {
    std::vector<answer> taken;
    for (auto at = by_client_.begin(); at != by_client_.end();) {
      const auto& [client, of] = *at++;  // What is taken may end it.
      if (!is_clear(client, of.page)) continue;
      for (auto left = of.numbers.size(); left != 0; --left) {
        taken.emplace_back(take(*of.numbers.begin()), true);
      }
    }
    while (!by_deadline_.empty() && next() <= now) {
      taken.emplace_back(take(by_deadline_.begin()->second), false);
    }
    return taken;
  }

 private:
  struct waiting {
    std::shared_ptr<client_page> page;
    std::set<std::uint64_t> numbers;
  };
  std::map<std::uint64_t, wait> waits_;
  std::map<client_id, waiting> by_client_;
  std::set<std::pair<time_point, std::uint64_t>> by_deadline_;
};

}  // namespace sluice::core
