#include "sluice/policy_registry.hpp"

#include <utility>

namespace sluice {

void policy_registry::add(std::string name, factory make) {
  factories_.insert_or_assign(std::move(name), std::move(make));
}

result<std::unique_ptr<policy>> policy_registry::make(std::string_view name) const {
  const auto found = factories_.find(name);
  if (found == factories_.end()) return errc::unknown_target;
  return found->second();
}

std::vector<std::string_view> policy_registry::names() const {
  std::vector<std::string_view> all;
  all.reserve(factories_.size());
  for (const auto& [name, make] : factories_) all.push_back(name);
  return all;
}

}  // namespace sluice
