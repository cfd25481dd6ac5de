#include "log.hpp"

#include <memory>
#include <mutex>
#include <string>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "sluice/standard_error.hpp"

namespace sluice {
namespace {

/// The reactor logs from its turns, and must not wait for a terminal or a pipe. What could not be
/// written is counted and said with the next line that can be.
class never_waiting_sink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (lost_ != 0) {
      const auto said =
          fmt::format("sluice: {} log lines were lost: standard error was blocked\n", lost_);
      if (write_to_standard_error(said)) lost_ = 0;
    }
    if (!write_to_standard_error({line.data(), line.size()})) ++lost_;
  }
  void flush_() override {}

 private:
  std::uint64_t lost_ = 0;
};

std::shared_ptr<spdlog::logger> fallback() {
  static const auto logger = [] {
    auto made = std::make_shared<spdlog::logger>("sluice", std::make_shared<never_waiting_sink>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e [%n] [%l] %v");
    return made;
  }();
  return logger;
}

}  // namespace

void write_log(log_level level, std::string_view text) noexcept {
  try {
    // Looked up each time: the program may set it up after the runtime started.
    auto logger = spdlog::get("sluice");
    if (!logger) logger = fallback();
    switch (level) {
      case log_level::info: logger->info(text); break;
      case log_level::warning: logger->warn(text); break;
      case log_level::error: logger->error(text); break;
    }
  } catch (...) {
    // A sink that fails must not take the scheduler with it.
  }
}

}  // namespace sluice
