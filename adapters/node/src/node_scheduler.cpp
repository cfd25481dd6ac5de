#include "node_scheduler.hpp"

#include "gang_link.hpp"
#include "node_source.hpp"

#include <sys/utsname.h>

#include <string>
#include <utility>
#include <vector>

#include "sluice/agent/agent_backend.hpp"
#include "sluice/breaker_store.hpp"
#include "sluice/driver.hpp"
#include "sluice/null_backend.hpp"
#include "sluice/policies/fixed_timeslice.hpp"
#include "sluice/reactor.hpp"

namespace sluice {
namespace {

/// For a recording.
std::string device_name(bool simulated) {
  utsname machine{};
  if (simulated) return "simulated";
  return ::uname(&machine) == 0 ? machine.nodename : "";
}

std::unique_ptr<client::server> make_clients(const node_options& options, discovery& roles,
                                             const node_wishes& wishes) {
  client::server_options with;
  with.socket = options.files.clients();
  with.group = options.socket_group;
  with.allow = wishes.grants;
  // One that is gone by then has no role.
  with.registered = [&roles](const client::peer& who, role what) {
    (void)roles.set_role({who.pid, who.start_time}, what);
  };
  with.withdrawn = [&roles](const client::peer& who, role) {
    (void)roles.withdraw_role({who.pid, who.start_time});
  };
  with.say = wishes.say;
  with.tell = options.tell;
  return client::make_server(std::move(with));
}

std::unique_ptr<backend> make_backend(const node_options& options, const node_wishes& wishes) {
  if (options.mode == node_mode::observe) return make_null_backend();
  agent::agent_options with;
  with.driver = options.driver->acting();
  with.agent_path = options.agent_path;
  with.cpu_latency = options.cpu_latency;
  with.owner_lock = options.files.owner();
  with.of_a_node = true;
  with.say = wishes.say;
  with.owned_by_another = wishes.owned_by_another;
  return agent::make_agent_backend(std::move(with));
}

}  // namespace

result<node_scheduler> make_node_scheduler(const node_options& options,
                                           const node_settings& settings,
                                           std::unique_ptr<discovery> finder, journal_sink& journal,
                                           node_wishes wishes) {
  auto loop = options.make_loop ? options.make_loop() : reactor::create();
  if (!loop) return loop.error();
  if (!finder)
    finder = make_discovery(options.driver->make_survey(wishes.say), settings.roles, wishes.say);
  node_scheduler made;
  made.roles = finder.get();
  std::vector<std::unique_ptr<source>> sources;
  sources.push_back(std::move(finder));
  sources.push_back(make_breaker_keeper(options.breakers, wishes.say));
  std::vector<std::string> sockets{options.files.gangs()};
  if (options.clients) sockets.push_back(options.files.clients());
  sources.push_back(make_node_source(
      {.sockets = std::move(sockets), .alive = options.alive, .alive_every = options.alive_every}));
  if (options.clients) {
    auto server = make_clients(options, *made.roles, wishes);
    made.clients = server.get();
    sources.push_back(std::move(server));
  }
  if (options.mode == node_mode::enforce &&
      settings.roles.gangs.across_nodes != roles::gang_engine::none)
    sources.push_back(make_gang_link({.socket = options.files.gangs(),
                                      .say = wishes.say,
                                      .tell = options.tell,
                                      .alone = wishes.link_alone}));
  auto record = options.record;
  if (record.device.empty()) record.device = device_name(options.driver->simulated());
  auto whole =
      scheduler::create(settings.scheduler, std::move(*loop), make_backend(options, wishes),
                        settings.make_policy ? settings.make_policy() : nullptr, std::move(sources),
                        {.fallback = [] { return make_fixed_timeslice(); },
                         .record = std::move(record),
                         .journal = &journal});
  if (!whole) {
    if (!options.record.file.empty() &&
        whole.error().category() == boost::system::system_category())
      wishes.say("cannot write the recording " + options.record.file + ": " +
                 whole.error().message());
    return whole.error();
  }
  made.whole = std::move(*whole);
  return made;
}

}  // namespace sluice
