#include "daemon_log.hpp"

#include <memory>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "sluice/standard_error.hpp"

namespace sluice::cli {

namespace {

std::string_view name_of(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "error";
  return level == spdlog::level::warn ? "warning" : "info";
}

spdlog::level::level_enum level_of(daemon_log_level level) {
  switch (level) {
    case daemon_log_level::info: break;
    case daemon_log_level::warning: return spdlog::level::warn;
    case daemon_log_level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

class standard_error_sink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    log_to_standard_error("sluice", name_of(message.level),
                          {message.payload.data(), message.payload.size()});
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

}  // namespace

void start_log(daemon_log_level least) {
  spdlog::register_logger(
      std::make_shared<spdlog::logger>("sluice", std::make_shared<standard_error_sink>()));
  set_log_level(least);
}

void set_log_level(daemon_log_level least) { spdlog::get("sluice")->set_level(level_of(least)); }

void log_info(std::string_view sentence) { spdlog::get("sluice")->info(sentence); }
void log_warning(std::string_view sentence) { spdlog::get("sluice")->warn(sentence); }

}  // namespace sluice::cli
