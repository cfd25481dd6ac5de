#include "sluice/plugin_loader.hpp"

#include "plugin_policy.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/fmt/fmt.h>

#include "sluice/policy_plugin.hpp"
#include "sluice/policy_registry.hpp"

namespace sluice {
namespace {

constexpr const char* entry_point = "sluice_get_policy_plugin";

bool is_name(const char* text) {
  const std::string_view name(text == nullptr ? "" : text);
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9') || each == '_';
  });
}

/// \return what is wrong with it, after "parameter <key>"; empty when nothing is.
std::string read(const sluice_parameter& from, std::vector<parameter>& schema) {
  const sluice_value& value = from.fallback;
  const std::string_view key = value.key;
  if (value.kind > SLUICE_PARAMETER_TEXT) return fmt::format("has the unknown type {}", value.kind);
  if (key == "name" || key == "plugin") return "has a name that [policy] reserves";
  if (value.kind == SLUICE_PARAMETER_TEXT && value.text == nullptr) return "has no default text";
  const auto same = [&](const parameter& one) { return one.key == key; };
  if (std::any_of(schema.begin(), schema.end(), same)) return "is defined twice";
  schema.push_back({.key = value.key,
                    .fallback = plugin::value_from(value),
                    .optional = from.optional != 0,
                    .low = value.kind == SLUICE_PARAMETER_FLAG ? 0 : from.low,
                    .high = value.kind == SLUICE_PARAMETER_FLAG ? 1 : from.high,
                    .help = from.help == nullptr ? "" : core::one_line(from.help)});
  if (schema.back().optional || key.ends_with(".*")) return {};
  parameters fallback;
  fallback.set(std::string(key), schema.back().fallback);
  const std::vector<parameter> alone{schema.back()};
  const std::string wrong = check_parameters(alone, fallback);
  return wrong.empty() ? wrong : "has a default that is out of range: " + wrong;
}

/// Every descriptor has so much. The members that follow are optional, or were added later.
constexpr std::size_t least_descriptor =
    offsetof(sluice_policy_plugin, destroy) + sizeof(sluice_policy_plugin::destroy);

/// Copies the descriptor. Members that it does not have become NULL.
/// \return what is wrong with it, as a sentence without a subject; empty when nothing is.
std::string copy(const sluice_policy_plugin* from, sluice_policy_plugin& into) {
  if (from == nullptr) return fmt::format("{}() returned no descriptor", entry_point);
  if (from->abi_version != SLUICE_PLUGIN_ABI) {
    return fmt::format(
        "is built for plugin ABI {}, but this sluice requires {}; rebuild it with this version's "
        "header sluice/plugin.h",
        from->abi_version, SLUICE_PLUGIN_ABI);
  }
  if (from->struct_size < least_descriptor) {
    return fmt::format("has a descriptor of {} bytes; at least {} are required", from->struct_size,
                       least_descriptor);
  }
  into = {};
  std::memcpy(&into, from, std::min<std::size_t>(from->struct_size, sizeof into));
  return {};
}

/// \return as copy().
std::string read(const sluice_policy_plugin& from, policy_kind& into) {
  if (from.name == nullptr || *from.name == '\0') return "has a descriptor without a name";
  if (!is_name(from.name)) {
    return fmt::format(
        "has the name \"{}\"; a name must consist of lower-case letters, digits and _",
        core::one_line(from.name));
  }
  if (from.create == nullptr || from.decide == nullptr || from.destroy == nullptr) {
    return fmt::format("has a descriptor without {}()", from.create == nullptr   ? "create"
                                                        : from.decide == nullptr ? "decide"
                                                                                 : "destroy");
  }
  if (from.parameters == nullptr && from.parameter_count != 0) {
    return "has a descriptor with a parameter count but no parameters";
  }
  into.name = from.name;
  into.summary = from.summary == nullptr ? "" : core::one_line(from.summary);
  std::size_t number = 0;
  for (const sluice_parameter& one : std::span(from.parameters, from.parameter_count)) {
    ++number;
    if (one.fallback.key == nullptr || *one.fallback.key == '\0') {
      return fmt::format("has a parameter without a key (number {})", number);
    }
    if (const std::string wrong = read(one, into.schema); !wrong.empty()) {
      return fmt::format("has a parameter {} that {}", core::one_line(one.fallback.key), wrong);
    }
  }
  return {};
}

/// What dlopen() would not say: it maps what the headers speak of, and a file that ends before (one
/// that is still being copied) then kills the process by SIGBUS.
/// \return empty when nothing is wrong.
std::string trouble_with_file(int fd) {
  ElfW(Ehdr) head{};
  if (pread(fd, &head, sizeof head, 0) != ssize_t{sizeof head} ||
      std::string_view(reinterpret_cast<const char*>(head.e_ident), SELFMAG) != ELFMAG) {
    return "is not a shared library";
  }
  // Of another machine: dlopen() says it.
  if (head.e_ident[EI_CLASS] != (sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32)) return {};
  struct stat file {};
  if (fstat(fd, &file) != 0) return "cannot be read: " + last_system_error().message();
  const auto size = static_cast<std::uint64_t>(file.st_size);
  for (std::uint64_t i = 0; i < head.e_phnum; ++i) {
    ElfW(Phdr) part{};
    const auto at = static_cast<off_t>(head.e_phoff + i * sizeof part);
    if (pread(fd, &part, sizeof part, at) != ssize_t{sizeof part} ||
        (part.p_type == PT_LOAD && part.p_offset + part.p_filesz > size)) {
      return fmt::format(
          "is truncated: it has {} bytes, but its headers describe more; copy it again", size);
    }
  }
  return {};
}

}  // namespace

result<policy_kind> make_plugin_kind(const sluice_policy_plugin* descriptor,
                                     std::shared_ptr<const void> keep, std::string& message) {
  policy_kind kind;
  sluice_policy_plugin whole;
  message = copy(descriptor, whole);
  if (message.empty()) message = read(whole, kind);
  if (!message.empty()) return errc::bad_config;
  kind.make = [plugin = whole, library = std::move(keep)](
                  const parameters& given, std::string& problem) -> std::unique_ptr<policy> {
    std::vector<sluice_value> values;
    values.reserve(given.all().size());
    for (const auto& [key, value] : given.all()) values.push_back(plugin::to_c(key, value));
    std::array<char, 512> text{};
    void* const state = plugin.create(values.data(), values.size(), text.data(), text.size());
    if (state != nullptr) return std::make_unique<core::plugin_policy>(plugin, state, library);
    text.back() = '\0';
    problem = text.front() != '\0'
                  ? core::one_line(text.data())
                  : fmt::format("policy {}: create() failed without a reason", plugin.name);
    return nullptr;
  };
  return kind;
}

result<policy_kind> load_policy_plugin(const std::string& path, std::string& message) {
  // dlopen() looks for a name without a slash elsewhere.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const error_code why = last_system_error();
    message = fmt::format("{}: cannot be read: {}", path, why.message());
    return why;
  }
  const std::string wrong = trouble_with_file(fd);
  close(fd);
  if (!wrong.empty()) {
    message = fmt::format("{}: {}", path, wrong);
    return errc::bad_config;
  }
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::string why = dlerror();
    if (why.starts_with(file + ": ")) why.erase(0, file.size() + 2);
    message = fmt::format("{}: cannot be loaded: {}", path, core::one_line(why));
    return errc::bad_config;
  }
  const std::shared_ptr<const void> library(handle, [](void* which) { dlclose(which); });
  void* const symbol = dlsym(handle, entry_point);
  if (symbol == nullptr) {
    message = fmt::format("{}: is not a policy plugin: it does not export {}()", path, entry_point);
    return errc::bad_config;
  }
  const auto entry = reinterpret_cast<decltype(&sluice_get_policy_plugin)>(symbol);
  auto kind = make_plugin_kind(entry(), library, message);
  if (!kind) message = fmt::format("{}: {}", path, message);
  return kind;
}

}  // namespace sluice
