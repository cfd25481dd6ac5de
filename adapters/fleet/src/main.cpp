/// \file
/// sluice-gangs: lets the nodes of a cluster hold jobs on several nodes together.

#include "gangs.hpp"

#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/node_files.hpp"

namespace {

using namespace std::chrono_literals;

/// What is part of a key of etcd.
CLI::Validator a_name() {
  return CLI::Validator(
      [](std::string& text) {
        return sluice::fleet::is_name(text)
                   ? std::string()
                   : fmt::format("invalid name '{}': expected letters, digits, '.', '_' and '-'",
                                 text);
      },
      "");
}

std::string host_name() {
  char name[256]{};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

int main(int argc, char** argv) {
  sluice::fleet::gangs_options options;
  sluice::node_files files;
  std::vector<std::string> endpoints;
  options.node = host_name();
  CLI::App program{
      "Hold jobs on several nodes together: connect this node's daemon with those of\n"
      "the job's other nodes through etcd. The daemon needs gang_across_nodes in [roles].",
      "sluice-gangs"};
  program.set_version_flag("--version", "sluice-gangs " SLUICE_VERSION);
  program
      .add_option("--etcd", endpoints,
                  "Endpoint of etcd, as https://HOST[:PORT] [2379]; may be repeated")
      ->required()
      ->type_name("URL")
      ->check([&options](const std::string& text) {
        const auto read = sluice::fleet::parse_endpoint(text);
        if (!read) return fmt::format("invalid endpoint '{}': expected https://HOST[:PORT]", text);
        options.endpoints.push_back(*read);
        return std::string();
      });
  program.add_option("--cluster", options.cluster, "Name of the cluster, which all its nodes use")
      ->required()
      ->type_name("NAME")
      ->check(a_name());
  program
      .add_option("--node", options.node, "Name of this node, unique in the cluster [host name]")
      ->type_name("NAME")
      ->check(a_name());
  program.add_option("--ca", options.ca, "Certificate of the authority of etcd's servers")
      ->required()
      ->type_name("FILE");
  program.add_option("--cert", options.certificate, "Certificate of this client")
      ->required()
      ->type_name("FILE");
  program.add_option("--key", options.key, "Private key of this client")
      ->required()
      ->type_name("FILE");
  program
      .add_option_function<std::string>(
          "--lease",
          [&options](const std::string& text) {
            const auto value = sluice::parse_duration(text);
            if (!value || *value < 2s || *value > 1min)
              throw CLI::ValidationError(
                  "--lease", "invalid duration '" + text + "': expected 2s to 1min, such as 5s");
            options.lease = *value;
          },
          "When a node is cut off, its gangs run within this time, 2s to 1min [5s]")
      ->type_name("TIME");
  program
      .add_option("--directory", files.directory, "Directory of the daemon's files [/run/sluice]")
      ->type_name("DIR");
  program.footer("Exit code 0: ended by SIGTERM or SIGINT; 1: failed; 2: invalid command line.");
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return program.exit(done);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "sluice-gangs: {}\n", wrong.what());
    return 2;
  }
  options.socket = files.gangs();
  if (options.socket.size() >= sizeof(sockaddr_un::sun_path)) {
    fmt::print(stderr, "sluice-gangs: --directory is too long for the path of a socket\n");
    return 2;
  }
  std::signal(SIGPIPE, SIG_IGN);
  try {
    boost::asio::io_context loop{1};
    sluice::fleet::gangs all{std::move(options), loop};
    boost::asio::signal_set ends{loop, SIGTERM, SIGINT};
    ends.async_wait([&](boost::system::error_code, int) {
      all.stop();
      // A second one does not wait for etcd.
      ends.async_wait([&](boost::system::error_code, int) { loop.stop(); });
    });
    all.start();
    loop.run();
  } catch (const std::exception& why) {
    fmt::print(stderr, "sluice-gangs: {}\n", why.what());
    return 1;
  }
  return 0;
}
