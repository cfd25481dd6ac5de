#include "toml_file.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "sluice/os/whole_file.hpp"

namespace sluice::core {
namespace {

/// The tables that a configuration may have, whoever reads them. [roles] is adapters/roles',
/// [daemon] adapters/node's.
constexpr std::array<std::string_view, 4> known_tables{"scheduler", "policy", "roles", "daemon"};

}  // namespace

std::string unknown_table(const toml::table& file, const std::string& path,
                          const std::vector<std::string>& others) {
  std::vector<std::string_view> known{known_tables.begin(), known_tables.end()};
  known.insert(known.end(), others.begin(), others.end());
  const toml::key* first = nullptr;
  for (const auto& [key, node] : file) {
    const bool is_known = std::find(known.begin(), known.end(), key.str()) != known.end();
    if (!is_known && (first == nullptr || key.source().begin < first->source().begin)) first = &key;
  }
  if (first == nullptr) return {};
  return fmt::format("{}:{}: unknown table '{}'; available: [{}]", path, first->source().begin.line,
                     first->str(), fmt::join(known, "], ["));
}

result<toml::table> read_toml(const std::string& path, std::string& message) {
  const auto content = read_whole_file(path);
  if (!content) {
    message = fmt::format("{}: cannot read the configuration: {}", path, content.error().message());
    return content.error();
  }
  return parse_toml(*content, path, message);
}

result<toml::table> parse_toml(const std::string& text, const std::string& path,
                               std::string& message) {
  toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    message = fmt::format("{}:{}:{}: {}", path, parsed.error().source().begin.line,
                          parsed.error().source().begin.column, parsed.error().description());
    return errc::bad_config;
  }
  return std::move(parsed).table();
}

result<const toml::table*> table_of(const toml::table& file, const std::string& path,
                                    std::string_view name, std::string& message) {
  const toml::node* const section = file.get(name);
  if (section == nullptr) return static_cast<const toml::table*>(nullptr);
  if (const toml::table* const table = section->as_table()) return table;
  message = fmt::format("{}:{}: {} must be a table: [{}]", path, line_of(*section), name, name);
  return errc::bad_config;
}

}  // namespace sluice::core
