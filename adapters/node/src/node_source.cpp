#include "node_source.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "sluice/kfd/file_watch.hpp"

namespace sluice {
namespace {

/// Where inotify tells nothing.
constexpr duration look_anyway_every = std::chrono::seconds(1);

class node_source final : public source {
 public:
  explicit node_source(node_source_options options)
      : options_(std::move(options)), file_(options_.disabled) {
    (void)file_.changed();
  }

  std::string_view name() const noexcept override { return "node"; }

  result<void> start(source_host& host) override {
    loop_ = &host.loop();
    remove_socket();
    auto watched = file_.fd() < 0 ? watch_id::none : loop_->watch(file_.fd(), [this] { look(); });
    if (!watched) return watched.error();
    watch_ = *watched;
    if (auto made = add_timer(look_timer_, look_anyway_every, [this] { look(); }); !made)
      return made;
    if (options_.alive) {
      if (auto made = add_timer(alive_timer_, options_.alive_every, options_.alive); !made)
        return made;
    }
    return {};
  }

  void resync() override {}

  void stop() override {
    loop_->unwatch(watch_);
    for (const timer_id each : {look_timer_, alive_timer_}) loop_->remove(each);
  }

 private:
  result<void> add_timer(timer_id& into, duration every, std::function<void()> work) {
    auto made = loop_->add_timer([this, &into, every, work = std::move(work)] {
      work();
      loop_->arm(into, clock::now() + every);
    });
    if (!made) return made.error();
    into = *made;
    loop_->arm(into, clock::now() + every);
    return {};
  }

  void remove_socket() const {
    struct stat found {};
    if (!options_.socket.empty() && ::lstat(options_.socket.c_str(), &found) == 0 &&
        S_ISSOCK(found.st_mode))
      ::unlink(options_.socket.c_str());
  }

  void look() {
    if (file_.changed()) options_.look();
  }

  const node_source_options options_;
  kfd::file_watch file_;
  reactor* loop_ = nullptr;
  watch_id watch_{};
  timer_id look_timer_{};
  timer_id alive_timer_{};
};

}  // namespace

std::unique_ptr<source> make_node_source(node_source_options options) {
  return std::make_unique<node_source>(std::move(options));
}

}  // namespace sluice
