#pragma once
/// \file
/// A kind of policy: its name, what it can be told, and how to make one.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sluice/parameters.hpp"
#include "sluice/policy.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Threading: a plain value; make() from any thread.
struct policy_kind {
  std::string name;     ///< As users write it: lower case and underscores.
  std::string summary;  ///< One line: what it promises.
  std::vector<parameter> schema;
  /// \param values checked against `schema`, defaults filled in.
  /// \param problem when nullptr is returned: one sentence that names key, value and what to do.
  std::function<std::unique_ptr<policy>(const parameters& values, std::string& problem)> make;
  /// Of a kind that wraps another, instead of `make`: the parameter `of` names the other, and all
  /// the other parameters are the other's.
  std::function<std::unique_ptr<policy>(std::unique_ptr<policy> other)> wrap = nullptr;
};

}  // namespace sluice
#pragma GCC visibility pop
