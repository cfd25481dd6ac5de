#include "sluice/journal.hpp"

#include "front_desk.hpp"

#include <cerrno>
#include <utility>

#include <boost/lockfree/spsc_queue.hpp>

#include "sluice/histogram.hpp"

namespace sluice {

class journal::impl {
 public:
  explicit impl(std::size_t capacity) : entries(capacity), half(capacity / 2) {}

  boost::lockfree::spsc_queue<journal_entry> entries;
  const std::size_t half;
  alignas(64) std::uint64_t sleeping = 0;
  core::wake_word wake{sleeping};  // The reader is who sleeps.
  counter lost;
};

result<std::unique_ptr<journal>> journal::create(std::size_t capacity) {
  auto body = std::make_unique<impl>(capacity);
  if (body->wake.fd() < 0) return error_code{EMFILE, boost::system::system_category()};
  return std::unique_ptr<journal>(new journal(std::move(body)));
}

journal::journal(std::unique_ptr<impl> body) noexcept : impl_(std::move(body)) {}
journal::~journal() = default;

void journal::put(const journal_entry& entry) noexcept {
  if (!impl_->entries.push(entry)) impl_->lost.add();
  // A turn that makes many does not end before the reader has begun.
  if (impl_->entries.write_available() < impl_->half) impl_->wake.ring();
}

void journal::pass_on() noexcept { impl_->wake.ring(); }

int journal::ready_fd() const noexcept { return impl_->wake.fd(); }

std::size_t journal::take(std::span<journal_entry> into) noexcept {
  impl_->wake.awake();
  impl_->wake.clear_eventfd();
  return impl_->entries.pop(into.data(), into.size());
}

bool journal::sleep() noexcept {
  impl_->wake.sleep();
  if (impl_->entries.read_available() == 0) return true;
  impl_->wake.awake();
  return false;
}

std::uint64_t journal::lost() const noexcept { return impl_->lost; }

}  // namespace sluice
