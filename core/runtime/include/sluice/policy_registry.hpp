#pragma once
/// \file
/// Policies by name, for programs that let a user choose. main() fills it; nothing registers
/// itself.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/policy.hpp"
#include "sluice/result.hpp"

namespace sluice {

/// Threading: none of its own. Lifetime: a plain value.
class policy_registry {
 public:
  using factory = std::function<std::unique_ptr<policy>()>;

  /// Adds or replaces.
  void add(std::string name, factory make);
  /// \return errc::unknown_target when nobody added that name.
  [[nodiscard]] result<std::unique_ptr<policy>> make(std::string_view name) const;
  /// Sorted.
  [[nodiscard]] std::vector<std::string_view> names() const;

 private:
  std::map<std::string, factory, std::less<>> factories_;
};

}  // namespace sluice
