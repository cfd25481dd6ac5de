#include "measured_costs.hpp"

#include "toml_file.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <variant>

#include <spdlog/fmt/fmt.h>

#include "sluice/duration_text.hpp"
#include "sluice/os/whole_file.hpp"

namespace sluice::core {
namespace {

const parameter* find(const policy_kind& kind, std::string_view key) {
  const auto found = std::ranges::find(kind.schema, key, &parameter::key);
  return found == kind.schema.end() ? nullptr : &*found;
}

/// The largest of the GPUs'. \return nothing where no GPU says it.
std::optional<duration> cost_of(const toml::table& profile, const std::string& path,
                                const parameter& which, std::string& wrong) {
  std::optional<duration> most;
  const auto* const gpus = profile.get_as<toml::array>("gpu");
  if (gpus == nullptr) return {};
  for (const auto& each : *gpus) {
    const auto* const gpu = each.as_table();
    const auto* const node = gpu == nullptr ? nullptr : gpu->get(which.key);
    if (node == nullptr) continue;
    const auto text = node->value_exact<std::string>();
    const auto value = text ? parse_duration(*text) : std::nullopt;
    const auto length = value ? static_cast<double>(value->count()) : -1;
    if (!(length >= which.low && length <= which.high)) {
      wrong = fmt::format("profile {}:{}: {} must be a duration in quotes, from {} to {}", path,
                          line_of(*node), which.key,
                          to_text(duration(static_cast<std::int64_t>(which.low))),
                          to_text(duration(static_cast<std::int64_t>(which.high))));
      return {};
    }
    most = std::max(most.value_or(*value), *value);
  }
  return most;
}

/// \return `otherwise` where [measured] does not say it.
bool measured_flag(const toml::table& profile, const std::string& path, const char* key,
                   bool otherwise, std::string& wrong) {
  const auto* const measured = profile.get_as<toml::table>("measured");
  const auto* const node = measured == nullptr ? nullptr : measured->get(key);
  if (node == nullptr) return otherwise;
  const auto said = node->value_exact<bool>();
  if (!said)
    wrong = fmt::format("profile {}:{}: {} must be true or false", path, line_of(*node), key);
  return said.value_or(otherwise);
}

}  // namespace

profile_use use_profile(const policy_kind& kind, parameters& values,
                        const std::filesystem::path& folder) {
  const auto given = values.all().find("profile");
  if (given == values.all().end() || find(kind, "profile") == nullptr) return {};
  const auto* const name = std::get_if<std::string>(&given->second);
  if (name == nullptr) return {};  // which check_parameters() says
  const std::string path = (folder / *name).string();
  std::string message;
  const auto content = read_whole_file(path);
  if (!content)
    return {.wrong =
                fmt::format("profile {}: cannot be read: {}{}", path, content.error().message(),
                            folder.empty() || std::filesystem::path(*name).is_absolute()
                                ? ""
                                : "; a relative path is relative to the configuration's folder")};
  const auto file = parse_toml(*content, path, message);
  if (!file) return {.wrong = "profile " + message};
  const bool accepted = measured_flag(*file, path, "accepted", true, message);
  const bool simulated = measured_flag(*file, path, "simulated", false, message);
  if (message.empty() && !accepted)
    message = fmt::format(
        "profile {} contains accepted = false: a step of 'sluice accept' failed or did not run, so "
        "its costs are not reliable; run 'sluice accept' again",
        path);
  if (!message.empty()) return {.wrong = message};
  values.erase("profile");
  bool any = false;
  for (const char* const key : {"suspend_cost", "resume_cost"}) {
    const parameter* const which = find(kind, key);
    if (which == nullptr) continue;
    const auto cost = cost_of(*file, path, *which, message);
    if (!message.empty()) return {.wrong = message};
    any |= cost.has_value();
    if (cost && !values.has(key)) values.set(key, *cost);
  }
  if (!any)
    return {.wrong = fmt::format("profile {} contains no costs: no [[gpu]] has suspend_cost or "
                                 "resume_cost; run 'sluice accept' to measure them",
                                 path)};
  if (!simulated) return {};
  return {
      .note = fmt::format(
          "profile {} was measured on a simulated device: its costs are not those of a real GPU",
          path)};
}

}  // namespace sluice::core
