#include "agent_settings.hpp"

#include "host_line.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace sluice::agent {

namespace {

constexpr std::string_view usage =
    "sluice-agent: suspends and resumes GPU queues for a scheduler.\n"
    "The program that embeds the scheduler starts it and passes shared memory and\n"
    "sockets as descriptors 3 to 7. Do not start it by hand.\n"
    "  --driver NAME      driver on which the agent acts\n"
    "  --set KEY=VALUE    setting of this driver; see below\n"
    "  --owner-lock PATH  lock file that names the owner of the node; empty: no lock\n"
    "  --roles FILE       attach only to processes that are offline by table [roles]\n"
    "                     of FILE; the agent checks each process itself and ignores\n"
    "                     the roles that queues and clients announce\n"
    "  --of-a-node        the host obeys 'sluice pause'; record this in the lock file\n"
    "  --lease-ms N       resume everything and exit after the host has been silent\n"
    "                     for N milliseconds (default: 500)\n"
    "  --cpu-latency-us N while a process is attached, keep processors from sleeping so\n"
    "                     deeply that they take longer than N microseconds to wake up\n"
    "  --rescue           resume what an agent suspended that was killed together with\n"
    "                     its guardian, then exit; see 'sluice rescue'\n"
    "  --everything       with --rescue: resume all processes of the driver\n"
    "  --help             print this text\n"
    "  --version          print the version; the host must come from the same build\n"
    "\n"
    "SIGTERM and SIGINT: resume everything and exit. If the agent is killed, the\n"
    "kernel resumes what it suspended, or where the kernel does not, the agent's child\n"
    "sluice-guardian does.\n";

[[noreturn]] void end(int status) {
  std::exit(status);  // NOLINT(concurrency-mt-unsafe): there is one thread yet
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "sluice-agent: %s\n", why.c_str());
  end(2);
}

std::int32_t number_of(std::string_view name, std::string_view value, std::int32_t least) {
  std::int32_t number = 0;
  const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || last != value.data() + value.size() || number < least)
    fail("invalid " + std::string{name} + " '" + std::string{value} +
         "': expected a number of at least " + std::to_string(least));
  return number;
}

[[noreturn]] void help(const acting_drivers& drivers) {
  std::fwrite(usage.data(), 1, usage.size(), stdout);
  for (const auto& each : drivers) {
    const auto driver = each();
    if (driver->help().empty()) continue;
    std::printf("\nSettings of driver %s:\n%s", std::string{driver->name()}.c_str(),
                std::string{driver->help()}.c_str());
  }
  end(0);
}

}  // namespace

std::string names_of(const acting_drivers& drivers) {
  std::string all;
  for (const auto& each : drivers) all += (all.empty() ? "" : ", ") + std::string{each()->name()};
  return all;
}

std::unique_ptr<acting_driver> make(const acting_drivers& drivers, std::string_view name) {
  for (const auto& each : drivers)
    if (auto made = each(); made->name() == name) return made;
  return nullptr;
}

std::string apply(const acting_choice& choice, acting_driver& driver) {
  for (const auto& [key, value] : choice.settings) {
    std::string why;
    if (driver.set(key, value, why)) continue;
    return "invalid setting " + key + "=" + value + " of driver " + std::string{driver.name()} +
           (why.empty() ? "" : ": " + why);
  }
  return {};
}

agent_settings parse(int argc, char** argv, const acting_drivers& drivers) {
  agent_settings chosen;
  for (int index = 1; index < argc; ++index) {
    const std::string_view name = argv[index];
    if (name == "--help") help(drivers);
    if (name == "--version") {
      std::puts("sluice-agent " SLUICE_VERSION);
      end(0);
    }
    if (bool* const flag = name == "--of-a-node"    ? &chosen.of_a_node
                           : name == "--rescue"     ? &chosen.rescue
                           : name == "--everything" ? &chosen.everything
                                                    : nullptr) {
      *flag = true;
      continue;
    }
    if (name != "--driver" && name != "--set" && name != "--owner-lock" && name != "--lease-ms" &&
        name != "--roles" && name != "--cpu-latency-us")
      fail("unknown argument '" + std::string{name} + "'; see --help");
    if (++index == argc) fail(std::string{name} + " needs a value; see --help");
    const std::string_view value = argv[index];
    if (name == "--driver") chosen.choice.driver = value;
    if (name == "--owner-lock") chosen.owner_lock = value;
    if (name == "--roles") chosen.roles = value;
    if (name == "--lease-ms") chosen.lease = std::chrono::milliseconds{number_of(name, value, 1)};
    if (name == "--cpu-latency-us")
      chosen.cpu_latency = std::chrono::microseconds{number_of(name, value, 0)};
    if (name == "--set") {
      const std::size_t at = value.find('=');
      if (at == value.npos) fail("invalid --set '" + std::string{value} + "': expected KEY=VALUE");
      chosen.choice.settings.emplace(value.substr(0, at), value.substr(at + 1));
    }
  }
  if (chosen.everything && (!chosen.rescue || chosen.choice.driver.empty()))
    fail("--everything needs --rescue and --driver; see --help");
  if (chosen.rescue) return chosen;
  if (!has_host())
    fail(
        "cannot start: descriptor 3 is not the host's socket; the program that embeds the "
        "scheduler starts sluice-agent, so do not start it by hand; see --help");
  return chosen;
}

}  // namespace sluice::agent
