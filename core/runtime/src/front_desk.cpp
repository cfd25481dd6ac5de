#include "front_desk.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace core {

wake_word::wake_word(std::uint64_t& sleeping) noexcept
    : sleeping_(sleeping),
      last_sleep_(static_cast<std::uint64_t>(clock::now().time_since_epoch().count())),
      fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  sleep();  // Until the first turn.
}

wake_word::~wake_word() {
  if (fd_ >= 0) close(fd_);
}

void wake_word::ring() noexcept {
  if (sluice_words_asleep(&sleeping_) != 0 &&
      __atomic_exchange_n(&sleeping_, 0, __ATOMIC_RELAXED) != 0) {
    ring_always();
  }
}

void wake_word::ring_always() noexcept {
  // Fails only when the counter is near 2^64: then the reactor has been woken already.
  eventfd_write(fd_, 1);
}

void wake_word::sleep() noexcept {
  __atomic_store_n(&sleeping_, ++last_sleep_, __ATOMIC_RELAXED);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void wake_word::clear_eventfd() noexcept {
  eventfd_t ignored = 0;
  eventfd_read(fd_, &ignored);
}

front_desk::front_desk(const time_source& time, const scheduler_config& config, bool acts)
    : time_(time), acts_(acts), wake_(page_.words().sleeping), config_(config) {
  // As decision_sink::listen() says of the start.
  listen(span_kind::request, true);
  listen(span_kind::ttft, true);
}

void front_desk::register_page(std::shared_ptr<client_page> page) {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(std::move(page));
    arrivals_waiting_.store(true, std::memory_order_release);
  }
  wake_.ring();
}

std::uint64_t front_desk::add_wait(std::shared_ptr<client_page> page, time_point deadline,
                                   std::function<void(bool)> done) {
  if (!acts_) return 0;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return 0;
    number = ++last_wait_;
    const client_id client = page->id;
    waits_.add({number, client, deadline, std::move(done)}, std::move(page));
    new_waits_.store(true, std::memory_order_release);
    waits_waiting_.store(waits_.size(), std::memory_order_release);
  }
  wake_.ring();
  return number;
}

bool front_desk::remove_wait(std::uint64_t number) {
  wait_list::wait taken;  // Ends outside the lock.
  const std::lock_guard lock(mutex_);
  taken = waits_.take(number);
  waits_waiting_.store(waits_.size(), std::memory_order_release);
  return taken.number != 0;
}

std::vector<std::shared_ptr<client_page>> front_desk::take_arrivals() {
  const std::lock_guard lock(mutex_);
  arrivals_waiting_.store(false, std::memory_order_release);
  return std::exchange(arrivals_, {});
}

void front_desk::add_rearm(gpu_id which) {
  {
    const std::lock_guard lock(mutex_);
    rearms_.push_back(which);
    rearms_waiting_.store(true, std::memory_order_release);
  }
  wake_.ring_always();
}

std::vector<gpu_id> front_desk::take_rearms() {
  const std::lock_guard lock(mutex_);
  rearms_waiting_.store(false, std::memory_order_release);
  return std::exchange(rearms_, {});
}

void front_desk::offer_policy(std::unique_ptr<policy> next) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return;
    policy_.swap(next);  // One that no turn has taken goes at the end, outside the lock.
    policy_waiting_.store(true, std::memory_order_release);
  }
  wake_.ring_always();
}

std::unique_ptr<policy> front_desk::take_policy() {
  const std::lock_guard lock(mutex_);
  policy_waiting_.store(false, std::memory_order_release);
  return std::move(policy_);
}

result<void> front_desk::offer_config(const scheduler_config& next) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return errc::stopped;
    if (scheduler_config kept = next; !kept.keep_fixed(config_).empty()) return errc::not_supported;
    config_ = next;
    config_waiting_.store(true, std::memory_order_release);
  }
  wake_.ring_always();
  return {};
}

scheduler_config front_desk::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

scheduler_config front_desk::take_config() {
  const std::lock_guard lock(mutex_);
  config_waiting_.store(false, std::memory_order_release);
  return config_;
}

void front_desk::close() {
  std::vector<wait_list::answer> left;
  std::unique_ptr<policy> unused;
  {
    const std::lock_guard lock(mutex_);
    closed_.store(true, std::memory_order_release);
    left = waits_.take_answered(never, [](const auto&...) { return false; });
    waits_waiting_.store(0, std::memory_order_release);
    arrivals_.clear();
    arrivals_waiting_.store(false, std::memory_order_release);
    unused.swap(policy_);
    policy_waiting_.store(false, std::memory_order_release);
  }
  for (auto& [request, clear] : left) request.done(clear);
}

}  // namespace core

namespace {

/// A page that says that more ended than began is wrong, but must not count backwards.
std::uint64_t past(const sluice_client_words& words) noexcept {
  const std::uint64_t ended = core::load_word(words.ended);
  return std::min(ended, core::load_word(words.begun));
}

}  // namespace

client_page::client_page(client_id with_id, client_options with_options,
                         std::shared_ptr<core::front_desk> at,
                         std::shared_ptr<sluice_client_words> with_words, remote_client* from,
                         made_by made)
    : id(with_id),
      options(std::move(with_options)),
      desk(std::move(at)),
      words(std::move(with_words)),
      base(past(*words)),
      taken(core::load_word(words->taken)),
      lost(core::load_word(words->lost)),
      foreign(from != nullptr),
      maker(made),
      remote(from) {}

void client_page::begin() noexcept {
  if (sluice_words_all_seen(words.get()) != 0) {
    sluice_words_first_unseen(words.get(), desk->now().time_since_epoch().count());
  }
  sluice_words_begin(words.get());
  desk->wake().ring();
}

void client_page::begin(time_point at) noexcept {
  if (sluice_words_all_seen(words.get()) != 0) {
    sluice_words_first_unseen(words.get(), at.time_since_epoch().count());
  }
  sluice_words_begin(words.get());
}

void client_page::end() noexcept {
  if (sluice_words_end(words.get()) != 0) desk->wake().ring();
}

void client_page::mark(span_kind kind, std::uint64_t request, time_point at, bool begins) noexcept {
  const auto pushed = sluice_words_push(words.get(), static_cast<std::uint32_t>(kind),
                                        begins ? 1 : 0, request, at.time_since_epoch().count());
  if (desk->listens(kind) || pushed == SLUICE_PUSHED_HALF_FULL) desk->wake().ring();
}

void busy_token::end() noexcept {
  if (const auto page = std::exchange(page_, nullptr)) page->end();
}

void span_token::end() noexcept {
  if (const auto page = std::move(page_)) page->mark(kind_, request_, page->desk->now(), false);
}

online_client& online_client::operator=(online_client&& other) noexcept {
  online_client before(std::move(other));
  std::swap(page_, before.page_);
  return *this;
}

online_client::~online_client() {
  if (!page_) return;
  page_->withdrawn.store(true, std::memory_order_release);
  page_->desk->wake().ring();
}

void online_client::begin() noexcept {
  if (page_) page_->begin();
}

void online_client::end() noexcept {
  if (page_) page_->end();
}

busy_token online_client::busy() noexcept { return begin_on(page_); }

busy_token online_client::begin_on(shared_page page) noexcept {
  if (page) page->begin();
  return busy_token(std::move(page));
}

void online_client::begin_span(span_kind kind, std::uint64_t request) noexcept {
  if (page_) page_->mark(kind, request, page_->desk->now(), true);
}

void online_client::begin_span(span_kind kind, std::uint64_t request, time_point since) noexcept {
  if (page_) page_->mark(kind, request, std::min(since, page_->desk->now()), true);
}

void online_client::end_span(span_kind kind, std::uint64_t request) noexcept {
  if (page_) page_->mark(kind, request, page_->desk->now(), false);
}

span_token online_client::span(span_kind kind, std::uint64_t request) noexcept {
  begin_span(kind, request);
  return {page_, kind, request};
}

client_id online_client::id() const noexcept { return page_ ? page_->id : client_id::none; }

std::uint64_t online_client::wait_until_clear(const shared_page& page,
                                              std::function<void(bool)> done) {
  if (!page) return 0;
  auto& desk = *page->desk;
  return desk.add_wait(page, desk.now() + page->options.acquire_limit, std::move(done));
}

bool online_client::stop_waiting(const shared_page& page, std::uint64_t wait) {
  return page && page->desk->remove_wait(wait);
}

}  // namespace sluice
