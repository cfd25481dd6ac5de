#include "gangs.hpp"

#include <openssl/err.h>
#include <openssl/x509err.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <random>
#include <stdexcept>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/json/array.hpp>
#include <fmt/format.h>

#include "sluice/os/unique_fd.hpp"
#include "sluice/roles/gangs.hpp"

namespace sluice::fleet {
namespace {

namespace asio = boost::asio;
namespace json = boost::json;
using boost::system::error_code;
using namespace std::chrono_literals;

/// Until a beat is `fresh` no more, so many beats may be lost. What is left of the lease is for the
/// driver, and for clocks of the others.
constexpr int beats_of_lease = 5;
constexpr int fresh_beats = 3;

/// Without gangs, etcd is tried after so many beats.
constexpr unsigned idle_beats = 30;

// What fails.
constexpr std::string_view reading = "cannot read keys";
constexpr std::string_view writing = "cannot write keys";
constexpr std::string_view watching = "the watch ended";
constexpr std::string_view getting = "cannot get a lease";
constexpr std::string_view keeping = "cannot keep the lease";

error_code no_lease() { return make_error_code(boost::system::errc::bad_message); }

void say(std::string_view line) { fmt::print(stderr, "sluice-gangs: {}\n", line); }

std::string job_of(std::uint64_t key) {
  const auto job = roles::slurm_job::of(key);
  return fmt::format("job {} of user {}", job.number, job.user);
}

asio::ssl::context tls_of(const gangs_options& options) {
  asio::ssl::context made{asio::ssl::context::tls_client};
  made.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  made.set_verify_mode(asio::ssl::verify_peer);
  const auto use = [](const char* option, const std::string& file, auto&& load) {
    error_code why;
    load(why);
    if (!why) return;
    const bool other =
        ERR_GET_REASON(static_cast<unsigned long>(why.value())) == X509_R_KEY_VALUES_MISMATCH &&
        why.category() == asio::error::get_ssl_category();
    throw std::runtime_error(fmt::format("cannot use {} {}: {}", option, file,
                                         other ? "it is not the key of --cert" : why.message()));
  };
  use("--ca", options.ca, [&](error_code& why) { (void)made.load_verify_file(options.ca, why); });
  use("--cert", options.certificate,
      [&](error_code& why) { (void)made.use_certificate_chain_file(options.certificate, why); });
  struct stat key {};
  if (::stat(options.key.c_str(), &key) == 0 && (key.st_mode & S_IROTH) != 0)
    throw std::runtime_error(
        "cannot use --key " + options.key +
        ": every user can read it, and with it hold jobs on all nodes; run chmod o-r " +
        options.key);
  use("--key", options.key, [&](error_code& why) {
    (void)made.use_private_key_file(options.key, asio::ssl::context::pem, why);
  });
  return made;
}

}  // namespace

gangs::gangs(gangs_options options, asio::io_context& loop)
    : options_(std::move(options)),
      every_(options_.lease / beats_of_lease),
      loop_(loop),
      tls_(tls_of(options_)),
      access_{loop, tls_, options_.endpoints, endpoint_, every_ * fresh_beats},
      puts_(access_),
      calls_(access_),
      daemon_(loop),
      timer_(loop) {}

void gangs::start() {
  connect();
  ask();
}

void gangs::stop() {
  stopping_ = true;
  timer_.cancel();
  revoke([this] { loop_.stop(); });
}

// The daemon ------------------------------------------------------------------------------------

void gangs::connect() {
  unique_fd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  options_.socket.copy(address.sun_path, sizeof address.sun_path - 1);
  if (!made ||
      ::connect(made.get(), reinterpret_cast<const sockaddr*>(&address),  // NOLINT: sockets
                sizeof address) != 0) {
    if (!std::exchange(waiting_, true))
      say(fmt::format("waiting for a daemon in mode enforce with gang_across_nodes at {}: {}",
                      options_.socket, last_system_error().message()));
    return;
  }
  waiting_ = false;
  daemon_.assign(made.release());
  receive();
}

void gangs::lose(std::string_view why) {
  if (!daemon_.is_open()) return;
  if (lost_ != why)
    say(fmt::format(
        "the connection to the daemon ended: {}; if that repeats, another sluice-gangs uses it",
        why));
  lost_ = why;
  daemon_.close();
  for (auto& [key, one] : gangs_) {
    if (one->watch) one->watch->stop();
  }
  gangs_.clear();
  revoke([] {});
}

void gangs::receive() {
  daemon_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code why) {
    if (why) return;
    while (daemon_.is_open()) {
      gang_packet got;
      const ssize_t size = ::recv(daemon_.native_handle(), &got, sizeof got, MSG_TRUNC);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (size <= 0) return lose(size == 0 ? "it closed it" : last_system_error().message());
      if (size != sizeof got || got.version != gang_packets_version)
        return lose("the daemon is of another release; install both from the same package");
      take(got);
    }
    if (daemon_.is_open()) receive();
  });
}

void gangs::take(const gang_packet& got) {
  if (got.kind == gang_packet_kind::alive) {
    if (got.number != number_) return;
    lost_.clear();
    alive_ = asked_;
    beat();
    return;
  }
  if (got.kind != gang_packet_kind::state) return;
  gang* one = find(got.key);
  if (one != nullptr && (got.wish == gang_wish::gone || got.nodes != one->room.nodes())) {
    leave(*one);
    one = nullptr;
  }
  if (got.wish == gang_wish::gone) {
    if (gangs_.empty()) revoke([] {});  // without gangs, the lease is not kept
    return;
  }
  if (one == nullptr) {
    const auto job = roles::slurm_job::of(got.key);
    auto made = std::make_unique<gang>(gang{
        .key = got.key,
        .serial = ++serial_,
        .prefix = fmt::format("/sluice/{}/gangs/{}/{}/", options_.cluster, job.user, job.number),
        .room = gang_room(options_.node, got.nodes, every_ * fresh_beats, std::random_device()())});
    one = gangs_.insert_or_assign(got.key, std::move(made)).first->second.get();
  }
  one->room.wants(got.wish);
  if (lease_.empty())
    get_lease();
  else if (!one->watch)
    enter(*one);
  else
    put(*one);
}

/// Deletes its key, so that the other nodes need not wait: after a put that is on its way, and
/// before the next one. Another gang may take the job's place here: what was said is no more.
void gangs::leave(gang& one) {
  if (one.watch) one.watch->stop();
  if (one.told.until != time_point{}) send({.kind = gang_packet_kind::heard, .key = one.key});
  puts_.call("kv/deleterange", {{"key", to_base64(one.prefix + options_.node)}},
             [](error_code, const json::object&) {});
  gangs_.erase(one.key);
}

void gangs::send(const gang_packet& packet) {
  if (!daemon_.is_open()) return;
  if (::send(daemon_.native_handle(), &packet, sizeof packet, MSG_NOSIGNAL) == sizeof packet)
    return;
  // Later: the caller may still use a gang, and lose() ends all of them.
  asio::post(loop_, [this, why = last_system_error().message()] { lose(why); });
}

/// A beat goes out once the thread that decides has answered: the lease of a daemon that hangs
/// ends.
void gangs::ask() {
  if (stopping_) return;
  if (!daemon_.is_open()) connect();
  if (gangs_.empty() && (!answered_ || !failing_.empty() || ++idle_ % idle_beats == 0)) try_etcd();
  asked_ = clock::now();
  send({.kind = gang_packet_kind::ask, .number = ++number_});
  timer_.expires_after(every_);
  timer_.async_wait([this](error_code why) {
    if (!why) ask();
  });
}

// etcd ------------------------------------------------------------------------------------------

gangs::gang* gangs::find(std::uint64_t key) noexcept {
  const auto found = gangs_.find(key);
  return found == gangs_.end() ? nullptr : found->second.get();
}

/// The gang for which something was asked, if it is still that one.
gangs::gang* gangs::find(std::uint64_t key, std::uint64_t serial) noexcept {
  gang* const found = find(key);
  return found != nullptr && found->serial == serial ? found : nullptr;
}

void gangs::etcd_failed(const etcd_connection& at, std::string_view what, error_code why,
                        const json::object& answer) {
  if (stopping_ || !failing_.emplace(what).second) return;
  // Of a stream, such as the lease's, it is an object.
  const json::object* const object = object_in(answer, "error");
  std::string said = object == nullptr ? text_in(answer, "error") : text_in(*object, "message");
  if (said.empty()) said = at.problem();
  say(fmt::format("etcd at {}: {}: {}; until that works, gangs on several nodes run",
                  text_of(at.endpoint()), what, said.empty() ? words_of(why) : said));
}

/// Once all works, so that one thing that fails is said once.
void gangs::etcd_works(const etcd_connection& at, std::string_view what) {
  const auto found = failing_.find(what);
  const bool failed = found != failing_.end();
  if (failed) failing_.erase(found);
  if (!failing_.empty() || (answered_ && !failed)) return;
  answered_ = true;
  say(fmt::format("etcd at {} answers{}", text_of(at.endpoint()), failed ? " again" : ""));
}

/// Says whether it can be used before a gang needs it.
void gangs::try_etcd() {
  if (std::exchange(trying_, true)) return;
  calls_.call(
      "kv/range",
      {{"key", to_base64(fmt::format("/sluice/{}/", options_.cluster))}, {"count_only", true}},
      [this](error_code why, const json::object& answer) {
        trying_ = false;
        // Without a gang, no other kind of call is made again: only this one can still fail.
        if (!why && gangs_.empty() && !failing_.empty()) failing_ = {std::string(reading)};
        if (why) return etcd_failed(calls_.connection(), reading, why, answer);
        etcd_works(calls_.connection(), reading);
      });
}

void gangs::get_lease() {
  if (granting_ || stopping_) return;
  granting_ = true;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(options_.lease).count();
  calls_.call("lease/grant", {{"TTL", std::to_string(seconds)}},
              [this](error_code why, const json::object& answer) {
                granting_ = false;
                const std::string id = text_in(answer, "ID");
                // The next beat tries again.
                if (why || id.empty())
                  return etcd_failed(calls_.connection(), getting, why ? why : no_lease(), answer);
                etcd_works(calls_.connection(), getting);
                lease_ = id;
                for (auto& [key, one] : gangs_) one->watch ? put(*one) : enter(*one);
              });
}

/// The keys are gone: they are put again, with another one.
void gangs::lost_lease() {
  lease_.clear();
  if (!gangs_.empty()) get_lease();
}

void gangs::revoke(std::function<void()> then) {
  if (lease_.empty()) return then();
  calls_.call("lease/revoke", {{"ID", std::exchange(lease_, {})}},
              [then = std::move(then)](error_code, const json::object&) { then(); });
}

void gangs::keep_lease() {
  if (std::exchange(keeping_, true)) return;
  calls_.call("lease/keepalive", {{"ID", lease_}},
              [this, id = lease_](error_code why, const json::object& answer) {
                keeping_ = false;
                if (why) return etcd_failed(calls_.connection(), keeping, why, answer);
                etcd_works(calls_.connection(), keeping);
                const json::object* const result = object_in(answer, "result");
                if (id == lease_ && (result == nullptr || text_in(*result, "TTL").empty()))
                  lost_lease();
              });
}

void gangs::beat() {
  if (gangs_.empty()) return;
  if (lease_.empty()) return get_lease();
  keep_lease();
  for (auto& [key, one] : gangs_) {
    if (!one->watch) {
      enter(*one);
      continue;
    }
    put(*one);
    judge(*one);
  }
}

/// Reads what is there, and watches what comes.
void gangs::enter(gang& one) {
  if (std::exchange(one.reading, true)) return;
  one.room.forget();
  calls_.call(
      "kv/range",
      {{"key", to_base64(one.prefix)}, {"range_end", to_base64(end_of_prefix(one.prefix))}},
      [this, key = one.key, serial = one.serial](error_code why, const json::object& answer) {
        gang* const found = find(key, serial);
        if (found == nullptr) return;
        found->reading = false;
        const json::object* const header = object_in(answer, "header");
        const std::int64_t revision =
            header == nullptr ? 0 : std::atoll(text_in(*header, "revision").c_str());
        // The next beat tries again.
        if (why || revision <= 0) return etcd_failed(calls_.connection(), reading, why, answer);
        etcd_works(calls_.connection(), reading);
        const json::value* const pairs = answer.if_contains("kvs");
        if (pairs != nullptr && pairs->is_array()) {
          for (const json::value& each : pairs->get_array()) {
            if (!each.is_object()) continue;
            const std::string name = from_base64(text_in(each.get_object(), "key"));
            if (name.starts_with(found->prefix))
              found->room.reads(name.substr(found->prefix.size()),
                                from_base64(text_in(each.get_object(), "value")));
          }
        }
        watch(*found, revision + 1);
        put(*found);
      });
}

void gangs::watch(gang& one, std::int64_t revision) {
  const auto mine = [this, key = one.key, serial = one.serial] { return find(key, serial); };
  one.watch = std::make_shared<etcd_watch>(
      access_, one.prefix, revision,
      etcd_watch::handlers{
          .changed =
              [this, mine](const std::string& name, const std::optional<std::string>& value) {
                gang* const at = mine();
                if (at == nullptr) return;
                etcd_works(at->watch->connection(), watching);
                at->room.hears(name, value, clock::now());
                judge(*at);
              },
          .failed =
              [this, mine](error_code why, std::string_view said) {
                gang* const at = mine();
                if (at == nullptr) return;
                etcd_failed(at->watch->connection(), watching, why, {{"error", said}});
                at->watch.reset();  // and the next beat enters
              }});
  one.watch->start();
}

/// One at a time, so that the last one stays. A beat and a new state are the same: who hears the
/// beat knows the state.
void gangs::put(gang& one) {
  if (one.putting || lease_.empty() || !one.watch) return;
  one.putting = true;
  const time_point now = clock::now();
  one.put = one.room.state(now);
  puts_.call(
      "kv/put",
      {{"key", to_base64(one.prefix + options_.node)},
       {"value", to_base64(one.room.beat(alive_, now))},
       {"lease", lease_}},
      [this, key = one.key, serial = one.serial](error_code why, const json::object& answer) {
        gang* const found = find(key, serial);
        if (found == nullptr) return;
        found->putting = false;
        // The next beat tries again.
        if (why) return etcd_failed(puts_.connection(), writing, why, answer);
        etcd_works(puts_.connection(), writing);
        if (found->room.state(clock::now()) != found->put) put(*found);
      });
}

void gangs::judge(gang& one) {
  const time_point now = clock::now();
  if (one.room.state(now) != one.put) put(one);
  const gang_room::verdict is = one.room.decide(now);
  if (is != one.told)
    send({.kind = gang_packet_kind::heard,
          .key = one.key,
          .until_ns = is.until.time_since_epoch().count(),
          .hold = is.hold});
  one.told = is;
  std::string problem = is.until == time_point{} ? one.room.problem(now) : "";
  if (one.said == problem) return;
  say(fmt::format("{} {}", job_of(one.key),
                  problem.empty() ? "can be held: all of its nodes answer" : "runs: " + problem));
  one.said = std::move(problem);
}

}  // namespace sluice::fleet
