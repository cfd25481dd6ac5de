#pragma once
/// \file
/// The drivers that a program knows, and the choice of one. main() fills the list; nothing
/// registers itself.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/driver.hpp"
#include "sluice/result.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// Each makes a driver whose settings are the defaults.
using driver_list = std::vector<std::function<std::unique_ptr<driver>()>>;

using drivers = std::vector<std::shared_ptr<driver>>;
[[nodiscard]] drivers make_all(const driver_list& list);

/// Stands for the only driver that is present.
inline constexpr std::string_view any_driver = "auto";

/// Of each, which is the name of its table in a configuration, too.
[[nodiscard]] std::vector<std::string> driver_names(const drivers& all);

/// What to look at for people: the driver of that name, or for any_driver all that are present, or
/// the only one known where it is absent, for then it can explain why. Empty: none of several is
/// present, or the name is unknown.
[[nodiscard]] drivers candidates(const drivers& all, std::string_view name);

/// The driver to use: candidates() has exactly one.
/// \param message on failure, one sentence that names the drivers and what to do.
/// \return errc::not_supported.
[[nodiscard]] result<std::shared_ptr<const driver>> choose_driver(const drivers& all,
                                                                  std::string_view name,
                                                                  std::string& message);

}  // namespace sluice
#pragma GCC visibility pop
