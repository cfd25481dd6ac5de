#include "observing.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/observe/accounts.hpp"
#include "sluice/observe/job_log.hpp"
#include "sluice/observe/metrics.hpp"
#include "sluice/observe/metrics_server.hpp"
#include "sluice/observe/text_file.hpp"
#include "sluice/observe/timeline.hpp"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr duration metrics_file_every = 15s;
/// A picture for metrics is as old as this at most.
constexpr duration picture_age = 1s;
/// After a socket could not be had.
constexpr duration listen_again = 10s;
/// Whether its file is still there.
constexpr duration look_again = 1s;
constexpr duration flush_every = 1s;
/// A reload or `sluice policy --use` changes the targets.
constexpr duration aim_every = 1s;

/// Says a failure once, until it is another one or over.
class failure {
 public:
  failure(message_sink warn, std::string what) : warn_(std::move(warn)), what_(std::move(what)) {}
  void is(error_code now) { is(now, now.message()); }
  void is(error_code now, const std::string& words) {
    if (std::exchange(last_, now) != now && now) warn_(what_ + ": " + words);
  }
  explicit operator bool() const noexcept { return static_cast<bool>(last_); }

 private:
  message_sink warn_;
  std::string what_;
  error_code last_;
};

class jobs_reader final : public journal_reader {
 public:
  jobs_reader(observed_node& from, const observing& how, observe::process_reader read)
      : from_(from),
        tell_(how.tell),
        simulated_(how.simulated),
        file_(how.what.jobs),
        failure_(how.warn, "cannot write the jobs file " + how.what.jobs),
        accounts_({.write = [this](const auto& record) { write(record); },
                   .read = std::move(read),
                   .observed = !how.enforces}) {}

  void hear(const journal_entry& entry) override { accounts_.hear(entry); }
  void mend(const picture& seen) override { accounts_.mend(seen); }
  void begin_anew() override { accounts_.leave(clock::now()); }
  void tick(time_point now) override {
    accounts_.tick(now);
    if (now < next_look_ || !accounts_.curious()) return;
    next_look_ = now + picture_age;
    if (const auto seen = from_.look()) accounts_.see(*seen);
  }
  void owns(bool does) override {
    if (!does) accounts_.leave(clock::now());
  }

 private:
  void write(observe::job_record record) {
    record.simulated = simulated_();
    if (file_ != observing_options::jobs_to_log) {
      const auto wrote = observe::job_log{file_}.write(record);
      failure_.is(wrote ? error_code{} : wrote.error());
    } else if (record.suspensions != 0 || record.suspended != duration::zero()) {
      tell_("job: " + observe::to_json(record));
    }
  }

  observed_node& from_;
  message_sink tell_;
  std::function<bool()> simulated_;
  std::string file_;
  failure failure_;
  observe::accounts accounts_;
  time_point next_look_{};
};

class metrics_reader final : public journal_reader {
 public:
  metrics_reader(observed_node& from, reactor& loop, const observing& how,
                 observe::process_reader read)
      : from_(from),
        loop_(loop),
        how_(how),
        not_served_(how.warn, "cannot serve metrics at " + how.what.metrics),
        not_written_(how.warn, "cannot write the metrics file " + how.what.metrics_file),
        metrics_(std::move(read)) {
    if (how.what.metrics.empty()) return;
    address_ = observe::parse_metrics_address(how.what.metrics);
    if (!address_) {
      how.warn("metrics are not served: invalid address '" + how.what.metrics +
               "'; expected unix:/PATH or ADDRESS:PORT");
    } else if (!address_->local) {
      how.warn("metrics are served at " + how.what.metrics +
               ": every host that can reach this machine can read the names of jobs and their "
               "load; to prevent this, use an address such as 127.0.0.1:9464 or unix:/PATH");
    }
  }
  ~metrics_reader() override { shut(); }

  void hear(const journal_entry& entry) override { metrics_.hear(entry); }
  void missed(std::uint64_t entries) override { metrics_.missed(entries); }
  void mend(const picture& seen) override { metrics_.mend(seen); }
  void begin_anew() override { metrics_.begin_anew(clock::now()); }
  void tick(time_point now) override {
    metrics_.tick(now);
    if (now >= next_aim_) {
      next_aim_ = now + aim_every;
      metrics_.aim(how_.targets());
    }
    if (!owns_) return;
    if (address_ && now >= next_listen_) listen(now);
    if (!how_.what.metrics_file.empty() && now >= next_file_) write(now);
  }
  void owns(bool does) override {
    owns_ = does;
    counted_.reset();
    seen_.reset();
    next_look_ = {};
    if (does) {
      waited_ = false;
      next_listen_ = next_file_ = {};
      tick(clock::now());
    } else {
      metrics_.begin_anew(clock::now());
      shut();
      // What nobody keeps up to date says what is not so; the next owner's is another file.
      struct stat found {};
      const std::string& file = how_.what.metrics_file;
      if (inode_ != 0 && ::stat(file.c_str(), &found) == 0 && found.st_ino == inode_)
        ::unlink(file.c_str());
      inode_ = 0;
    }
  }

 private:
  void listen(time_point now) {
    next_listen_ = now + look_again;
    if (server_ && server_->is_in_place()) return;
    if (server_) {
      how_.warn("the metrics socket " + address_->unix_path +
                " was removed or replaced; creating it again");
      shut();
      was_served_ = false;
    }
    std::string problem;
    auto made = observe::metrics_server::listen(
        *address_, [this](observe::metrics_form form) { return page(form); }, problem);
    error_code why = made ? error_code{} : made.error();
    if (made) {
      const auto watched = loop_.watch((*made)->ready_fd(), [this] { server_->serve(); });
      if (watched) {
        watch_ = *watched;
        server_ = std::move(*made);
      } else {
        why = watched.error();
        problem = why.message();
      }
    }
    // An owner that is about to end may still serve it: that is no news.
    if (why == errc::already_owned && !std::exchange(waited_, true)) return;
    if (why) next_listen_ = now + listen_again;
    if (!why) waited_ = false;
    if (!why && (not_served_ || !was_served_))
      how_.tell("metrics are now served at " + how_.what.metrics);
    was_served_ = was_served_ || !why;
    not_served_.is(why, problem);
  }
  void shut() {
    if (!server_) return;
    loop_.unwatch(watch_);
    server_.reset();
  }
  void write(time_point now) {
    next_file_ = now + metrics_file_every;
    const auto wrote =
        observe::replace_text_file(how_.what.metrics_file, page(observe::metrics_form::prometheus));
    not_written_.is(wrote ? error_code{} : wrote.error());
    struct stat found {};
    inode_ = wrote && ::stat(how_.what.metrics_file.c_str(), &found) == 0 ? found.st_ino : 0;
  }
  std::string page(observe::metrics_form form) {
    const time_point now = clock::now();
    if (now >= next_look_) {
      next_look_ = now + picture_age;
      counted_ = from_.stats();
      auto looked = from_.look();
      seen_ = looked ? std::make_unique<picture>(std::move(*looked)) : nullptr;
    }
    return metrics_.text(form,
                         {.counted = counted_.get(),
                          .seen = seen_.get(),
                          .owns = owns_,
                          .paused = how_.paused(),
                          .enforces = how_.enforces,
                          .simulated = how_.simulated(),
                          .driver_gone = how_.driver_gone && how_.driver_gone(),
                          .without_gangs = how_.without_gangs && how_.without_gangs()},
                         now);
  }

  observed_node& from_;
  reactor& loop_;
  observing how_;
  failure not_served_;
  failure not_written_;
  observe::metrics metrics_;
  std::optional<observe::metrics_address> address_;
  std::unique_ptr<observe::metrics_server> server_;
  watch_id watch_{};
  std::unique_ptr<statistics> counted_;
  std::unique_ptr<picture> seen_;
  time_point next_look_{};
  time_point next_listen_{};
  time_point next_file_{};
  time_point next_aim_{};
  ino_t inode_ = 0;  // Of the metrics file as it was written.
  bool owns_ = false;
  bool waited_ = false;     // For one that serves it.
  bool was_served_ = true;  // And the file was not lost since: no news.
};

/// The file is made anew when this program comes to own the node: until then it may be the owner's.
class trace_reader final : public journal_reader {
 public:
  trace_reader(const observing& how, observe::process_reader read)
      : how_(how),
        read_(std::move(read)),
        not_written_(how.warn, "cannot write the trace " + how.what.trace) {}
  ~trace_reader() override { end(); }

  void hear(const journal_entry& entry) override {
    if (timeline_) return timeline_->hear(entry);
    // A scheduler begins before it is known to have the node.
    if (owns_) return;
    if (entry.kind == journal_kind::policy && entry.turn == 0) early_.clear();
    if (early_.size() < most_early) early_.push_back(entry);
  }
  void missed(std::uint64_t entries) override {
    if (timeline_) timeline_->missed(entries);
  }
  void mend(const picture& seen) override {
    if (timeline_) timeline_->mend(seen);
  }
  void begin_anew() override {
    early_.clear();
    if (timeline_) timeline_->finish(clock::now());
  }
  void tick(time_point now) override {
    if (!to_ || now < next_flush_) return;
    next_flush_ = now + flush_every;
    to_->flush();
    not_written_.is(to_->error());
  }
  void owns(bool does) override {
    owns_ = does;
    if (does) {
      begin();
    } else {
      end();
    }
    early_.clear();
  }

 private:
  static constexpr std::size_t most_early = 4096;

  void begin() {
    auto made = observe::trace_file::create(how_.what.trace);
    not_written_.is(made ? error_code{} : made.error());
    if (!made) return;
    to_ = std::move(*made);
    timeline_ = std::make_unique<observe::timeline>(
        *to_, observe::timeline_options{
                  .read = read_, .observed = !how_.enforces, .simulated = how_.simulated});
    for (const journal_entry& each : early_) timeline_->hear(each);
  }
  void end() {
    if (timeline_) timeline_->finish(clock::now());
    timeline_.reset();
    to_.reset();
  }

  observing how_;
  observe::process_reader read_;
  failure not_written_;
  std::unique_ptr<observe::trace_file> to_;
  std::unique_ptr<observe::timeline> timeline_;
  std::vector<journal_entry> early_;
  time_point next_flush_{};
  bool owns_ = false;
};

}  // namespace

void add_readers(observer& to, observed_node& from, const observing& how) {
  const auto read = observe::reads_once();
  if (!how.what.jobs.empty()) to.add(std::make_unique<jobs_reader>(from, how, read));
  if (!how.what.metrics.empty() || !how.what.metrics_file.empty())
    to.add(std::make_unique<metrics_reader>(from, to.loop(), how, read));
  if (!how.what.trace.empty()) to.add(std::make_unique<trace_reader>(how, read));
}

}  // namespace sluice
