// The processes of a node that have no program of their own to be tested with: a program that
// embeds the scheduler, and a client of it. Told what to do by lines on standard input; answers
// each by one.

#include "affliction.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/breaker_store.hpp"
#include "sluice/client.hpp"
#include "sluice/client_server.hpp"
#include "sluice/discovery.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/in_process_backend.hpp"
#include "sluice/nvidia/driver.hpp"
#include "sluice/os/standard_error.hpp"
#include "sluice/policies/pointer_polling.hpp"
#include "sluice/scheduler.hpp"

namespace {

using namespace std::chrono_literals;

void answer(const std::string& line) { std::cout << line << std::endl; }

std::chrono::milliseconds milliseconds(const char* text) {
  return std::chrono::milliseconds{std::strtol(text, nullptr, 10)};
}

/// What may differ between policies does not matter here; the quantum has to be restored, too.
std::unique_ptr<sluice::policy> make_policy(bool with_quantum) {
  const auto kind = sluice::pointer_polling_kind();
  sluice::parameters values;
  for (const auto& each : kind.schema) values.set(each.key, each.fallback);
  if (with_quantum) values.set("offline_quantum", sluice::duration{100us});
  std::string problem;
  auto made = kind.make(values, problem);
  if (!made) answer(problem);
  return made;
}

/// \return false when the input is over.
bool obey(const std::string& line) {
  if (!line.starts_with("suffer ")) return false;
  const std::string done = sluice::test::suffer(line.substr(7));
  answer(done.empty() ? "unknown affliction" : done);
  return true;
}

int host(const std::string& directory, sluice::duration lease, sluice::duration max_suspend,
         const std::string& how) {
  // Its log, and its agent's.
  const int log = ::open((directory + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(log, STDERR_FILENO);
  ::close(log);
  const bool nvidia = how == "nvidia";
  const std::unique_ptr<sluice::driver> on =
      nvidia ? sluice::nvidia::make_driver() : sluice::kfd::make_driver();
  const std::string lock = directory + "/owner";
  const sluice::message_sink say = [](std::string_view sentence) {
    sluice::log_to_standard_error("host", "info", sentence);
  };
  std::unique_ptr<sluice::backend> driver;
  if (how != "in-process") {
    sluice::agent::agent_options with;
    with.driver = on->acting();
    with.agent_path = SLUICE_AGENT_PROGRAM;
    with.owner_lock = lock;
    with.lease = lease;
    driver = sluice::agent::make_agent_backend(std::move(with));
  } else {
    driver = sluice::kfd::make_in_process_backend({.owner_lock = lock});
  }
  auto discovery = sluice::make_discovery(on->make_survey(say));
  sluice::client::server_options clients;
  clients.socket = directory + "/clients.sock";
  clients.allow = [](const auto&, auto) { return true; };
  clients.tell = say;
  std::vector<std::unique_ptr<sluice::source>> sources;
  sources.push_back(std::move(discovery));
  sources.push_back(sluice::make_breaker_keeper(directory + "/breakers"));
  sources.push_back(sluice::client::make_server(std::move(clients)));
  sluice::scheduler_config config;
  config.attach_after = 50ms;
  config.attach_at_latest = 100ms;
  config.max_suspend = max_suspend;
  config.offline_floor = 0;
  auto loop = sluice::reactor::create();
  if (!loop) return 3;
  auto made = sluice::scheduler::create(config, std::move(*loop), std::move(driver),
                                        make_policy(nvidia), std::move(sources));
  if (!made) return 3;
  sluice::scheduler& here = **made;
  if (const auto started = here.start(); !started) {
    answer("cannot start: " + started.error().message());
    return 3;
  }
  std::thread runner{[&here] { here.run(); }};
  answer("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "stats") {
      const auto now = here.stats();
      std::ostringstream out;
      out << "attached " << now.attaches.value() << " suspended " << now.suspended_now.value()
          << " restarts " << now.backend_restarts.value() << " breakers "
          << now.open_breakers.value() << " fallbacks " << now.mechanism_fallbacks.value();
      answer(out.str());
    } else if (line == "stop") {
      break;
    } else if (!obey(line)) {
      answer("unknown command");
    }
  }
  here.stop();
  runner.join();
  answer("stopped");
  return 0;
}

int client(const std::string& directory) {
  std::error_code error;
  auto here = sluice::client::connection::open(
      {.socket = directory + "/clients.sock", .name = "client"}, error);
  if (error) return 3;
  answer("ready");
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "begin") {
      here.begin();
      answer("begun");
    } else if (line == "end") {
      here.end();
      answer("ended");
    } else if (line == "connected") {
      answer(here.status().connected != 0 ? "yes" : "no");
    } else if (!obey(line)) {
      answer("unknown command");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A test that ends early leaves nobody behind.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> words(argv, argv + argc);
  if (argc == 6 && words[1] == "host")
    return host(words[2], milliseconds(argv[3]), milliseconds(argv[4]), words[5]);
  if (argc == 3 && words[1] == "client") return client(words[2]);
  std::cerr
      << "usage: faults_party host DIRECTORY LEASE_MS MAX_SUSPEND_MS agent|in-process|nvidia\n"
         "       faults_party client DIRECTORY\n";
  return 2;
}
