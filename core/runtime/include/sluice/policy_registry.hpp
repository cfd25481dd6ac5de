#pragma once
/// \file
/// Policies by name, for programs that let a user choose, and the [policy] table of a
/// configuration. main() fills the registry; nothing registers itself.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/parameters.hpp"
#include "sluice/policy.hpp"
#include "sluice/policy_kind.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Checks values against a schema and fills in the defaults.
///
/// \return one sentence that names key, value and range (or the known keys) of the first value that
///         is wrong; empty when there is none.
[[nodiscard]] std::string check_parameters(const std::vector<parameter>& schema, parameters& given);
/// The same. \return such a sentence for every value that is wrong.
[[nodiscard]] std::vector<std::string> parameter_problems(const std::vector<parameter>& schema,
                                                          parameters& given);

/// "20ms to 1h", "0 to 0.9", "true or false", for help texts and messages.
[[nodiscard]] std::string range_text(const parameter& which);
/// As a user would write it: "20ms", 0.5, true, "text".
[[nodiscard]] std::string to_text(const parameter_value& value);

/// A policy as command lines write it (NAME|FILE[:KEY=VALUE,...]), with every parameter, since
/// another program's defaults may differ. For record_options::policy.
///
/// \param name what they call `kind`.
/// \return empty where they cannot say it.
[[nodiscard]] std::string command_text(std::string_view name, const policy_kind& kind,
                                       parameters values);

/// Makes a policy of that kind.
///
/// \param values  are checked, and defaults filled in.
/// \param message on failure, one sentence that names key, value and range.
/// \return errc::bad_config.
[[nodiscard]] result<std::unique_ptr<policy>> make_policy(const policy_kind& kind,
                                                          parameters values, std::string& message);

/// Threading: none of its own. Lifetime: a plain value.
class policy_registry {
 public:
  /// Adds or replaces.
  void add(policy_kind kind);
  /// Adds or replaces what a plugin holds; load_policy_plugin() says what may go wrong.
  /// \return the kind, as find() would.
  [[nodiscard]] result<const policy_kind*> load(const std::string& path, std::string& message);
  const policy_kind* find(std::string_view name) const noexcept;
  /// \param message on failure, one sentence: which name or parameter is wrong, and what there is.
  /// \return errc::unknown_target when nobody added that name, errc::bad_config.
  [[nodiscard]] result<std::unique_ptr<policy>> make(std::string_view name, parameters values,
                                                     std::string& message) const;
  /// Sorted.
  [[nodiscard]] std::vector<std::string_view> names() const;

 private:
  result<std::unique_ptr<policy>> wrap(const policy_kind& kind, const parameters& values,
                                       std::string& message) const;

  std::map<std::string, policy_kind, std::less<>> kinds_;
};

/// Makes the policy that the table [policy] of a TOML file asks for: `name`, or `plugin`, the path
/// of a shared library (one that is not absolute begins at the file's folder); and the parameters
/// of that policy. With both, `name` is the plugin's, or that of a kind that wraps it. A file
/// without the table, or with neither, gives `fallback`; where that is empty, it is an error. Other
/// tables than load_config() names are errors.
///
/// \param message on failure, one line that names file, line, key, value and range.
/// \param text    becomes its command_text().
/// \param others  as of load_config().
/// \return errc::bad_config, or the system's error for a file that cannot be read.
[[nodiscard]] result<std::unique_ptr<policy>> load_policy(
    const policy_registry& known, const std::string& path, std::string_view fallback,
    std::string& message, std::string* text = nullptr, const std::vector<std::string>& others = {});

/// What a file asks for, for programs that make more than one of it.
struct policy_choice {
  policy_registry known;  ///< With the plugin that the file names.
  std::string name;
  parameters values;
  std::string text;  ///< Its command_text().

  /// One more, whatever has become of the file. Any thread. It never fails where it gave one
  /// before.
  [[nodiscard]] std::unique_ptr<policy> make() const;
};

/// As load_policy(); make() gave a policy once.
///
/// \param problems on failure, one such line for every error that could be found is added.
/// \return empty when the file has no table [policy] and there is no `fallback`.
[[nodiscard]] result<std::optional<policy_choice>> read_policy(
    const policy_registry& known, const std::string& path, std::vector<std::string>& problems,
    std::string_view fallback = {}, const std::vector<std::string>& others = {});

}  // namespace sluice
#pragma GCC visibility pop
