#pragma once
/// \file
/// What a policy can be told: parameters with a type, a range and a default, and their values. The
/// same description checks a TOML file, a command line and a plugin's caller.

#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/time.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// The order is that of sluice_parameter_kind in plugin.h.
using parameter_value = std::variant<bool, std::int64_t, double, duration, std::string>;

/// One parameter. `key` is the path in the policy's table, with dots between its parts
/// ("ttft.p99"); one that ends in ".*" stands for any key there ("slice_of.*").
struct parameter {
  std::string key;
  parameter_value fallback;  ///< Its type is the parameter's.
  bool optional = false;     ///< Without a value unless one is given; always so for ".*".
  /// Least and largest value of a number; of a duration in nanoseconds. Both are allowed.
  double low = std::numeric_limits<double>::lowest();
  double high = std::numeric_limits<double>::max();
  std::string help;  ///< One line: what it does.

  static parameter span(std::string key, duration fallback, duration low, duration high,
                        std::string help) {
    return {std::move(key),
            fallback,
            false,
            static_cast<double>(low.count()),
            static_cast<double>(high.count()),
            std::move(help)};
  }
  static parameter number(std::string key, double fallback, double low, double high,
                          std::string help) {
    return {std::move(key), fallback, false, low, high, std::move(help)};
  }
  static parameter count(std::string key, std::int64_t fallback, std::int64_t low,
                         std::int64_t high, std::string help) {
    return {std::move(key), fallback, false, static_cast<double>(low), static_cast<double>(high),
            std::move(help)};
  }
  static parameter flag(std::string key, bool fallback, std::string help) {
    return {std::move(key), fallback, false, 0, 1, std::move(help)};
  }
  static parameter text(std::string key, std::string fallback, std::string help) {
    return {std::move(key), std::move(fallback), false, 0, 0, std::move(help)};
  }
  /// The same without a default.
  parameter but_optional() && {
    optional = true;
    return std::move(*this);
  }
};

/// Values by key. What a policy is made from has passed check_parameters(): every parameter that is
/// not optional has a value of its type, in its range, and nothing else is there.
///
/// Threading: a plain value. Errors: asking for what is not there, or as another type, is a bug of
/// the caller and throws std::out_of_range or std::invalid_argument, which name the key and the
/// types.
class parameters {
 public:
  void set(std::string key, parameter_value value) {
    values_.insert_or_assign(std::move(key), std::move(value));
  }
  void erase(std::string_view key) {
    if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
  }
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }

  bool flag(std::string_view key) const { return get<bool>(key); }
  std::int64_t count(std::string_view key) const { return get<std::int64_t>(key); }
  double number(std::string_view key) const { return get<double>(key); }
  duration span(std::string_view key) const { return get<duration>(key); }
  const std::string& text(std::string_view key) const { return get<std::string>(key); }

  /// Calls `call(rest of the key, value)` for each key that begins with `prefix` and a dot.
  template <class Function>
  void for_each_below(std::string_view prefix, Function&& call) const {
    for (const auto& [key, value] : values_) {
      const std::string_view whole = key;
      if (whole.size() > prefix.size() + 1 && whole.starts_with(prefix) &&
          whole[prefix.size()] == '.') {
        call(whole.substr(prefix.size() + 1), value);
      }
    }
  }

  const std::map<std::string, parameter_value, std::less<>>& all() const noexcept {
    return values_;
  }

 private:
  template <class T>
  const T& get(std::string_view key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      throw std::out_of_range("parameter \"" + std::string(key) + "\" has no value");
    }
    if (const T* const value = std::get_if<T>(&found->second)) return *value;
    throw std::invalid_argument("parameter \"" + std::string(key) + "\" was requested as a " +
                                type_name(parameter_value(T())) + ", but it is a " +
                                type_name(found->second));
  }
  /// As the functions above are called.
  static const char* type_name(const parameter_value& value) noexcept {
    constexpr const char* names[] = {"flag", "count", "number", "span", "text"};
    static_assert(std::size(names) == std::variant_size_v<parameter_value>);
    return names[value.index()];
  }
  std::map<std::string, parameter_value, std::less<>> values_;
};

}  // namespace sluice
#pragma GCC visibility pop
