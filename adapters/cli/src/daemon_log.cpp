#include "daemon_log.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <spdlog/async.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "sluice/os/standard_error.hpp"

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

/// Whether standard error is the journal's: JOURNAL_STREAM of systemd.exec(5).
bool is_journal() {
  struct stat about {};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): there is one thread yet
  const char* const named = std::getenv("JOURNAL_STREAM");
  return named != nullptr && ::fstat(STDERR_FILENO, &about) == 0 &&
         fmt::format("{}:{}", about.st_dev, about.st_ino) == named;
}

/// As sd-daemon(3) numbers them.
int priority_of(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return 3;
  return level == spdlog::level::warn ? 4 : 6;
}

/// The journal has a time and a program for each line, and a priority where the line says it.
class journal_sink final : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    (void)write_to_standard_error(
        fmt::format("<{}>[{}] {:.4000}\n", priority_of(message.level), name_of(message.level),
                    std::string_view{message.payload.data(), message.payload.size()}));
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}
};

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

constexpr std::size_t most_lines_waiting = 8192;

std::string name_of(log_part part) { return "sluice." + std::string(to_string(part)); }

void log(spdlog::level::level_enum level, std::string_view sentence) {
  if (const auto logger = spdlog::get(name_of(log_part::node)))
    logger->log(level, "{} part={}", sentence, to_string(log_part::node));
}

}  // namespace

daemon_log::daemon_log(const daemon_config& levels) {
  spdlog::init_thread_pool(most_lines_waiting, 1, [] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  });
  spdlog::sink_ptr sink;
  if (is_journal())
    sink = std::make_shared<journal_sink>();
  else
    sink = std::make_shared<standard_error_sink>();
  for (const log_part each : all_log_parts)
    spdlog::register_logger(std::make_shared<spdlog::async_logger>(
        name_of(each), sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest));
  set_log_levels(levels);
}

daemon_log::~daemon_log() { spdlog::shutdown(); }

void set_log_levels(const daemon_config& levels) {
  for (const log_part each : all_log_parts) {
    const auto own = levels.log_levels[static_cast<std::size_t>(each)];
    if (const auto logger = spdlog::get(name_of(each)))
      logger->set_level(level_of(own.value_or(levels.log_level)));
  }
}

void log_info(std::string_view sentence) { log(spdlog::level::info, sentence); }
void log_warning(std::string_view sentence) { log(spdlog::level::warn, sentence); }

}  // namespace sluice::cli
