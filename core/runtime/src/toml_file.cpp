#include "toml_file.hpp"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace sluice::core {

result<toml::table> read_toml(const std::string& path, std::string& message) {
  errno = 0;
  std::ifstream file(path);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    const error_code why =
        errno != 0 ? last_system_error() : error_code{EIO, boost::system::system_category()};
    message = fmt::format("{}: cannot read the configuration: {}", path, why.message());
    return why;
  }
  toml::parse_result parsed = toml::parse(content, path);
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
