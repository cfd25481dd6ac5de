#include "node_source.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace sluice {
namespace {

class node_source final : public source {
 public:
  explicit node_source(node_source_options options) : options_(std::move(options)) {}

  std::string_view name() const noexcept override { return "node"; }

  result<void> start(source_host& host) override {
    loop_ = &host.loop();
    for (const std::string& each : options_.sockets) remove_socket(each);
    if (!options_.alive) return {};
    const auto made = loop_->add_timer([this] {
      options_.alive();
      arm();
    });
    if (!made) return made.error();
    timer_ = *made;
    arm();
    return {};
  }

  void resync() override {}

  void stop() override { loop_->remove(timer_); }

 private:
  void arm() { loop_->arm(timer_, clock::now() + options_.alive_every); }

  static void remove_socket(const std::string& path) {
    struct stat found {};
    if (::lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) ::unlink(path.c_str());
  }

  const node_source_options options_;
  reactor* loop_ = nullptr;
  timer_id timer_{};
};

}  // namespace

std::unique_ptr<source> make_node_source(node_source_options options) {
  return std::make_unique<node_source>(std::move(options));
}

}  // namespace sluice
