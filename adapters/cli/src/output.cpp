#include "output.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::cli {

namespace {

/// Boost.JSON writes 50.757 as 5.0757E1, which is right and reads badly.
void append_json(std::string& to, const boost::json::value& from) {
  const char* before = "";
  if (const auto* const object = from.if_object()) {
    to += '{';
    for (const auto& [key, value] : *object) {
      to += std::exchange(before, ",");
      to += boost::json::serialize(key);
      to += ':';
      append_json(to, value);
    }
    to += '}';
  } else if (const auto* const array = from.if_array()) {
    to += '[';
    for (const auto& each : *array) {
      to += std::exchange(before, ",");
      append_json(to, each);
    }
    to += ']';
  } else if (from.is_double()) {
    fmt::format_to(std::back_inserter(to), "{}", from.get_double());
  } else {
    to += boost::json::serialize(from);
  }
}

}  // namespace

void complain(std::string_view sentence) {
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(sentence.size()), sentence.data());
}

bool print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return true;
  complain(fmt::format("cannot write to standard output: {}", error_text(errno)));
  return false;
}

bool print(const boost::json::value& value) {
  std::string text;
  append_json(text, value);
  return print(text + "\n");
}

std::string error_text(int error) { return std::generic_category().message(error); }

namespace {

/// So that the file's name is there after a crash, too, as far as the file system takes that.
void sync_directory_of(const std::string& path) {
  const auto above = std::filesystem::path{path}.parent_path();
  const unique_fd directory{
      ::open(above.empty() ? "." : above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (directory) (void)::fsync(directory.get());
}

}  // namespace

output_file::handle output_file::open(const std::string& path, const char* how) {
  return {path.empty() ? nullptr : std::fopen(path.c_str(), how),
          [](std::FILE* f) { return f == nullptr ? 0 : std::fclose(f); }};
}

output_file::output_file(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  struct stat found {};
  const bool new_file = ::lstat(path_.c_str(), &found) != 0;
  file_ = open(path_, "ae");
  if (!file_) {
    error_ = errno;
    return;
  }
  // /dev/stdout may be a file that the table goes to as well.
  const bool replaceable = ::fstat(::fileno(file_.get()), &found) == 0 && S_ISREG(found.st_mode) &&
                           !path_.starts_with("/dev/");
  if (!replaceable) return;
  file_.reset();
  if (new_file) ::unlink(path_.c_str());
}

bool output_file::ready() const {
  if (error_ == 0) return true;
  complain(fmt::format("cannot write {}: {}", path_, error_text(error_)));
  return false;
}

bool output_file::write(
    const std::function<void(const std::function<void(std::string_view)>&)>& produce) {
  return put(produce, false);
}

bool output_file::keep(std::string_view text) {
  return file_ || put([text](const auto& give) { give(text); }, true);
}

bool output_file::put(
    const std::function<void(const std::function<void(std::string_view)>&)>& produce,
    bool onto_disk) {
  if (path_.empty()) return true;
  std::string target = path_, beside;
  if (!file_) {
    std::error_code none;  // What a link names is replaced, not the link.
    if (const auto real = std::filesystem::canonical(path_, none); !none) target = real.string();
    beside = fmt::format("{}.{}", target, ::getpid());
    file_ = open(beside, "wxe");
    struct stat old {};
    if (file_ && ::stat(target.c_str(), &old) == 0)
      (void)::fchmod(::fileno(file_.get()), old.st_mode & 0777U);
    if (!file_) {  // The file may be ours to write, and its folder not.
      beside.clear();
      file_ = open(target, "we");
    }
  }
  bool good = file_ != nullptr;
  if (good) {
    produce([&](std::string_view text) {
      good = good && std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
    });
    good = good && std::fflush(file_.get()) == 0;
    good = good && (!onto_disk || ::fsync(::fileno(file_.get())) == 0);
  }
  if (good && !beside.empty()) good = ::rename(beside.c_str(), target.c_str()) == 0;
  if (good && onto_disk) sync_directory_of(target);
  if (!good) {
    complain(fmt::format("cannot write {}: {}", path_, error_text(errno)));
    if (!beside.empty()) ::unlink(beside.c_str());
  }
  file_.reset();
  return good;
}

std::string problem_with_files(
    const std::vector<std::pair<std::string_view, std::string>>& option_and_path) {
  std::map<std::string, std::string_view> named;
  for (const auto& [option, path] : option_and_path) {
    if (path.empty() || path.starts_with("/dev/")) continue;
    if (path == "-") {
      return fmt::format(
          "{} -: standard output already carries the results; name a file (/dev/stdout to mix "
          "both)",
          option);
    }
    std::error_code none;
    const auto whole =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path, none), none);
    const auto [first, added] = named.emplace(none ? path : whole.string(), option);
    if (!added) {
      return fmt::format("{} and {} name the same file, {}; use a separate file for each",
                         first->second, option, path);
    }
  }
  return {};
}

std::size_t terminal_width() {
  if (const char* columns = std::getenv("COLUMNS")) {  // NOLINT: nobody sets it meanwhile.
    if (const auto width = whole_number<std::size_t>(columns)) return *width;
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char each : text) {
    const auto code = static_cast<unsigned char>(each);
    out += code < 0x20 || code >= 0x7f ? '?' : each;
  }
  return out;
}

namespace {

class few_alike final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  few_alike(std::string_view where, std::string_view (*which)()) : where_(where), which_(which) {}
  ~few_alike() override {
    if (left_out_ != 0) complain(fmt::format("{}: {} similar lines suppressed", where_, left_out_));
  }

 private:
  static constexpr std::uint64_t most_alike = 3;

  void sink_it_(const spdlog::details::log_msg& line) override {
    const std::string text(line.payload.data(), line.payload.size());
    std::string shape;
    std::copy_if(text.begin(), text.end(), std::back_inserter(shape), [](char each) {
      return std::string_view("0123456789.e+-").find(each) == std::string_view::npos;
    });
    if (++seen_[shape] > most_alike) {
      ++left_out_;
    } else {
      const std::string_view which = which_();
      complain(which.empty() ? fmt::format("{}: {}", where_, text)
                             : fmt::format("{} ({}): {}", where_, which, text));
    }
  }
  void flush_() override {}

  const std::string where_;
  std::string_view (*const which_)();
  std::map<std::string, std::uint64_t> seen_;
  std::uint64_t left_out_ = 0;
};

}  // namespace

marked_logs::marked_logs(std::string_view where, std::string_view (*which)()) {
  const auto logger =
      std::make_shared<spdlog::logger>("sluice", std::make_shared<few_alike>(where, which));
  logger->set_level(spdlog::level::warn);
  spdlog::register_logger(logger);
}

marked_logs::~marked_logs() { spdlog::drop("sluice"); }

std::string command_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream{fmt::format("/proc/{}/comm", pid)}, name);
  return name.empty() ? "?" : printable(name);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units{'B', 'K', 'M', 'G', 'T', 'P', 'E'};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}B", bytes);
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, units[unit]);
}

const gpu_description* find_gpu(const node_view& node, const std::string& word) {
  const auto first = [&](const auto& matches) -> const gpu_description* {
    const auto found = std::ranges::find_if(node.gpus, matches);
    return found == node.gpus.end() ? nullptr : &*found;
  };
  const auto hexadecimal = [](std::string_view text) {
    return text.starts_with("0x") ? whole_number<std::uint64_t>(text.substr(2), 16) : std::nullopt;
  };
  const auto same = [&](const std::string& shown) {
    const auto value = hexadecimal(word);
    return shown == word || (value && value == hexadecimal(shown));
  };
  const auto id = whole_number<std::uint32_t>(word);
  if (!id) {
    return first([&](const gpu_description& gpu) {
      return gpu.pci == word || std::ranges::any_of(gpu.facts, [&](const driver_fact& each) {
               const auto* const text = std::get_if<std::string>(&each.value);
               return text != nullptr && same(*text);
             });
    });
  }
  if (const auto* const gpu = node.find(gpu_id{*id})) return gpu;
  return first([&](const gpu_description& gpu) { return gpu.ordinal == *id; });
}

}  // namespace sluice::cli
