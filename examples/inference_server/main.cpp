// Problem: an HTTP server answers requests on a GPU that best-effort processes use as well, and has
// an event loop already, on which the scheduler is to run, too. Several of these servers share a
// node: one owns it, the others follow and take over.
//
// Notice: make_reactor(context) in embed(), and busy() in server.cpp: it begins when the head of a
// request is there, before its body is.
//
// Expected output, after SIGTERM or SIGINT:
//   listening on 127.0.0.1:8080
//   answered 12 of 12 requests, 192 tokens
//   12 queue suspends, 12 resumes, 0 of them forced; from a request's head to offline work off the
//   GPU p50 5.3 ms, p99 5.6 ms, longest 5.6 ms

#include "gpu_work.hpp"
#include "options.hpp"
#include "policy_choice.hpp"
#include "print.hpp"
#include "reset_text.hpp"
#include "scheduling_options.hpp"
#include "server.hpp"
#include "workload.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "sluice/asio.hpp"
#include "sluice/client.hpp"
#include "sluice/config.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/node.hpp"
#include "sluice/policy_registry.hpp"
#include "sluice/roles/classification.hpp"

namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using demo::checked;
using demo::failure;

struct settings {
  unsigned short port = 8080;
  inference::server_options serving;
  sluice::duration drain_limit = 10s;
  demo::scheduling_options scheduling;
  bool no_scheduler = false;
  std::string agent;
  std::string directory = sluice::node_files{}.directory;
};

/// A node on the server's own io_context, not yet started.
checked<std::unique_ptr<sluice::node>> embed(asio::io_context& context, const settings& with,
                                             sluice::policy_choice policy) {
  sluice::node_options options;
  options.driver = sluice::kfd::make_driver();
  sluice::node_settings& settings = options.settings;
  const std::string& file = with.scheduling.config_file;
  std::string message;
  auto roles = sluice::roles::load_classification(file, message);
  if (roles.has_error()) return failure(message);
  settings.roles = std::move(*roles);
  if (!file.empty()) {
    auto loaded = sluice::load_config(file, message, {std::string{options.driver->name()}});
    if (loaded.has_error()) return failure(message);
    settings.scheduler = *loaded;
  }
  if (const auto after = with.scheduling.attach_after) {
    settings.scheduler.attach_after = *after;
    settings.scheduler.attach_at_latest = std::max(settings.scheduler.attach_at_latest, *after);
  }
  settings.make_policy = [policy = std::move(policy)] { return policy.make(); };
  options.files.directory = with.directory;
  options.agent_path = with.agent;
  options.make_loop = [&context] { return sluice::make_reactor(context); };
  auto made = sluice::node::create(std::move(options), message);
  if (made.has_error()) return failure("cannot create the scheduler: " + message);
  return std::move(*made);
}

/// Of this program's own scheduler: where another program owns the node, they stand still.
std::string scheduler_metrics(const sluice::node& of) {
  const auto seen = of.stats();
  std::string out;
  const auto line = [&out](std::string_view name, std::string_view kind, std::uint64_t value) {
    out += fmt::format("# TYPE sluice_{0} {1}\nsluice_{0} {2}\n", name, kind, value);
  };
  line("owns_node", "gauge", of.state() == sluice::node_state::owning ? 1 : 0);
  line("suspended_queues", "gauge", seen->suspended_now);
  line("open_breakers", "gauge", seen->open_breakers);
  line("begins_total", "counter", seen->begins);
  line("suspends_total", "counter", seen->suspends);
  line("resumes_total", "counter", seen->resumes);
  line("forced_resumes_total", "counter", seen->forced_resumes);
  line("failed_outcomes_total", "counter", seen->failed_outcomes);
  line("attaches_total", "counter", seen->attaches);
  line("backend_restarts_total", "counter", seen->backend_restarts);
  line("policy_ejections_total", "counter", seen->policy_ejections);
  return out;
}

void print_summary(const sluice::node& of) {
  const auto seen = of.stats();
  if (seen->turns == 0) {
    demo::print("another program owned this node during the whole run; see its log\n");
    return;
  }
  demo::print(
      "{} queue suspends, {} resumes, {} of them forced; time from a request's head until offline "
      "work was off the GPU: p50 {}, p99 {}, max {}\n",
      seen->suspends.value(), seen->resumes.value(), seen->forced_resumes.value(),
      demo::rounded_text(seen->arrival_to_off.percentile(50)),
      demo::rounded_text(seen->arrival_to_off.percentile(99)),
      demo::rounded_text(seen->arrival_to_off.max()));
}

checked<int> run(const settings& with, sluice::policy_choice policy) {
  asio::io_context context(1);  // The hint: one thread runs it.
  auto device = inference::gpu::open(context);
  if (device.has_error()) {
    return failure("cannot use the GPU: " + device.error().message() +
                   "; set SLUICE_KFD_DEVICE to the dev/kfd of a simulated device");
  }
  std::unique_ptr<sluice::node> node;
  sluice::client::connection client;  // Without a scheduler its calls do nothing.
  if (!with.no_scheduler) {
    auto embedded = embed(context, with, std::move(policy));
    if (embedded.has_error()) return embedded.error();
    node = std::move(*embedded);
    std::error_code error;
    client = node->connect({.name = "inference_server"}, error);
    if (error) return failure("cannot create a client: " + error.message());
  }

  inference::server server(context, **device, std::move(client), with.serving);
  const auto port = server.listen(with.port);
  if (port.has_error()) {
    return failure(
        fmt::format("cannot listen on 127.0.0.1:{}: {}", with.port, port.error().message()));
  }
  if (node) {
    if (auto started = node->start(); started.has_error())
      return failure("cannot start the scheduler: " + started.error().message());
  }

  // The end: what has begun is finished, within a limit and unless a second signal comes; then the
  // scheduler resumes what is suspended, on this loop, for which node->stop() waits on a thread of
  // its own.
  auto until_stopped = asio::make_work_guard(context);
  std::jthread stopper;
  sluice::error_code gpu_failure;
  asio::signal_set signals(context, SIGINT, SIGTERM);
  asio::steady_timer drain(context);
  const auto give_up = [&] {
    (*device)->stop();
    server.abort();
  };
  signals.async_wait([&](const sluice::error_code& cancelled, int) {
    if (cancelled) return;
    server.stop();
    drain.expires_after(with.drain_limit);
    drain.async_wait([&](const sluice::error_code& over) {
      if (!over) give_up();
    });
    signals.async_wait([&](const sluice::error_code& over, int) {
      if (!over) give_up();
    });
  });
  server.on_gpu_failure = [&](sluice::error_code why) {
    gpu_failure = why;
    give_up();
  };
  server.on_end = [&] {
    drain.cancel();
    signals.cancel();
    stopper = std::jthread([&] {
      if (node) node->stop();
      until_stopped.reset();
    });
  };
  if (node) server.more_metrics = [&] { return scheduler_metrics(*node); };
  demo::print("listening on 127.0.0.1:{}\n", *port);
  std::fflush(stdout);
  context.run();
  stopper.join();

  const inference::server_counts& did = server.counts();
  demo::print("answered {} of {} requests, {} tokens\n", did.answered, did.requests, did.tokens);
  if (node) print_summary(*node);
  if (gpu_failure == sluice::errc::lost) return failure(demo::reset_text);
  if (gpu_failure) return failure("the GPU refused work: " + gpu_failure.message());
  return 0;
}

void add_options(CLI::App& app, settings& with) {
  using demo::add_duration;
  using demo::add_number;
  inference::server_options& serving = with.serving;
  add_number<unsigned short>(app, "--port", with.port, 0, 65535,
                             "Port on 127.0.0.1; 0 selects a free port and prints it");
  add_number(app, "--tokens", serving.default_tokens, 1u, serving.most_tokens,
             "Number of tokens, if a request does not specify it");
  add_number(app, "--prefill-kernels", serving.prefill.kernels, 1u, 1000u,
             "Number of kernels for the first token of a request");
  add_number(app, "--kernels", serving.decode.kernels, 1u, 1000u,
             "Number of kernels for each further token");
  add_duration(app, "--kernel-length", serving.decode.length, "Length of each kernel", {1us, 1s});
  add_number(
      app, "--connections", serving.most_connections, std::size_t{1}, std::size_t{100000},
      "Maximum number of open connections; a further connection closes the one that was idle "
      "longest");
  add_number(app, "--body-limit", serving.body_limit, std::size_t{2}, std::size_t{1} << 30u,
             "Maximum size of a request body, in bytes");
  add_duration(app, "--head-time", serving.head_time,
               "Time limit for the head of a request, including the idle time before it",
               {1ms, 1h});
  add_duration(app, "--body-time", serving.body_time,
               "Time limit from the head to the end of the body; offline work is held during this "
               "time",
               {1ms, 1h});
  add_duration(app, "--write-time", serving.write_time, "Time limit for the peer to read a token",
               {1ms, 1h});
  add_duration(app, "--drain-limit", with.drain_limit,
               "Time limit for requests in flight after SIGTERM or SIGINT", {0s, 1h});
  with.scheduling.add_to(app, "2 s, or the configured value");
  app.add_flag("--no-scheduler", with.no_scheduler, "Serve without a scheduler");
  app.add_option("--agent", with.agent,
                 "Path of the agent program (default: sluice-agent in this program's directory)")
      ->type_name("FILE");
  app.add_option(
         "--directory", with.directory,
         "Directory that all programs on this node's GPUs share: one program owns the node, "
         "the others follow")
      ->type_name("DIRECTORY")
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  settings with;
  CLI::App app(
      "Run an HTTP server with the scheduler on its event loop: POST /generate, GET /healthz, GET\n"
      "/metrics. The GPU is simulated; SLUICE_KFD_DEVICE, SLUICE_KFD_SYSFS and SLUICE_KFD_DEBUGFS\n"
      "are its paths. On SIGTERM or SIGINT the server finishes the requests in flight and exits.",
      "inference_server");
  add_options(app, with);
  if (const int code = demo::parse(app, argc, argv); code >= 0) return code;
  with.serving.prefill.length = with.serving.decode.length;

  auto policy = demo::choose_policy(with.scheduling);
  if (policy.has_error()) {
    demo::print(stderr, "inference_server: {}\n", policy.error().message);
    return 2;
  }
  const auto code = run(with, std::move(*policy));
  if (code.has_error()) {
    demo::print(stderr, "inference_server: {}\n", code.error().message);
    return 1;
  }
  return *code;
}
