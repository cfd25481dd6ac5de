#include "output.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
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

namespace sluice::cli {

void complain(std::string_view sentence) {
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(sentence.size()), sentence.data());
}

bool print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return true;
  complain(fmt::format("cannot write to standard output: {}", error_text(errno)));
  return false;
}

bool print(const boost::json::value& value) { return print(boost::json::serialize(value) + "\n"); }

std::string error_text(int error) { return std::generic_category().message(error); }

output_file::output_file(std::string path)
    : path_(std::move(path)),
      file_(path_.empty() ? nullptr : std::fopen(path_.c_str(), "we"),
            [](std::FILE* f) { return f == nullptr ? 0 : std::fclose(f); }),
      error_(errno) {}

bool output_file::ready() const {
  if (path_.empty() || file_) return true;
  complain(fmt::format("{}: cannot be written: {}", path_, error_text(error_)));
  return false;
}

bool output_file::write(
    const std::function<void(const std::function<void(std::string_view)>&)>& produce) {
  if (path_.empty()) return true;
  bool good = file_ != nullptr;
  if (good) {
    produce([&](std::string_view text) {
      good = good && std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
    });
    good = good && std::fflush(file_.get()) == 0;
  }
  if (!good) complain(fmt::format("{}: cannot be written: {}", path_, error_text(errno)));
  file_.reset();
  return good;
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
  explicit few_alike(std::string_view where) : where_(where) {}
  ~few_alike() override {
    if (left_out_ != 0) complain(fmt::format("{}: {} such lines were left out", where_, left_out_));
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
      complain(fmt::format("{}: {}", where_, text));
    }
  }
  void flush_() override {}

  const std::string where_;
  std::map<std::string, std::uint64_t> seen_;
  std::uint64_t left_out_ = 0;
};

}  // namespace

marked_logs::marked_logs(std::string_view where) {
  const auto logger =
      std::make_shared<spdlog::logger>("sluice", std::make_shared<few_alike>(where));
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

const kfd::gpu_description* find_gpu(const kfd::node_view& node, const std::string& word) {
  const auto first = [&](const auto& matches) -> const kfd::gpu_description* {
    const auto found = std::ranges::find_if(node.gpus, matches);
    return found == node.gpus.end() ? nullptr : &*found;
  };
  if (word.starts_with("0x")) {
    const auto id = whole_number<std::uint64_t>(std::string_view{word}.substr(2), 16);
    return first([&](const auto& gpu) { return id && gpu.unique_id == *id; });
  }
  const auto id = whole_number<std::uint32_t>(word);
  if (!id) return first([&](const auto& gpu) { return gpu.pci == word; });
  if (const auto* const gpu = node.find(gpu_id{*id})) return gpu;
  return first([&](const auto& gpu) { return gpu.ordinal == *id; });
}

}  // namespace sluice::cli
