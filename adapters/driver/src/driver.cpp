#include "sluice/driver.hpp"

#include <algorithm>
#include <iterator>

#include "sluice/driver_list.hpp"

namespace sluice {

namespace {

/// "kfd, nvidia"
std::string names_of(const drivers& all) {
  std::string names;
  for (const auto& each : all) names += (names.empty() ? "" : ", ") + std::string{each->name()};
  return names;
}

}  // namespace

std::string take_setting(const setting& value, bool& into) {
  const bool* const given = std::get_if<bool>(&value);
  if (given == nullptr) return "must be true or false";
  into = *given;
  return {};
}

std::string take_setting(const setting& value, std::string& into) {
  const std::string* const given = std::get_if<std::string>(&value);
  if (given == nullptr) return "must be a string in quotes";
  into = *given;
  return {};
}

std::string driver::set(std::string_view key, const setting& value) {
  (void)key;
  (void)value;
  return "is not a setting of [" + std::string{name()} + "]";
}

std::string driver::why_no_look(const error_code& error) const {
  return "cannot list the GPUs of the driver " + std::string{name()} + ": " + error.message();
}

std::string driver::why_not_listed(pid_t pid) const {
  return sluice::why_not_listed(pid, "the driver " + std::string{name()});
}

drivers make_all(const driver_list& list) {
  drivers all;
  for (const auto& make : list) all.push_back(make());
  return all;
}

std::vector<std::string> driver_names(const drivers& all) {
  std::vector<std::string> names;
  for (const auto& each : all) names.emplace_back(each->name());
  return names;
}

drivers candidates(const drivers& all, std::string_view name) {
  drivers found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const auto& each) {
    return name == any_driver ? each->present() : each->name() == name;
  });
  if (found.empty() && name == any_driver && all.size() == 1) return all;
  return found;
}

result<std::shared_ptr<const driver>> choose_driver(const drivers& all, std::string_view name,
                                                    std::string& message) {
  const drivers found = candidates(all, name);
  if (found.size() == 1) return std::shared_ptr<const driver>{found.front()};
  if (found.size() > 1) {
    message = "several drivers are present: " + names_of(found) +
              "; set driver of [daemon], or --driver, to one of them";
  } else if (name != any_driver || all.empty()) {
    message = "unknown driver '" + std::string{name} + "'; available: " + names_of(all);
  } else {
    message = "no driver is present: ";
    for (const auto& each : all)
      message +=
          (each == all.front() ? "" : "; ") + std::string{each->name()} + ": " + each->why_absent();
  }
  return errc::not_supported;
}

}  // namespace sluice
