#include "slice_book.hpp"

namespace sluice::nvidia {

rm_status group_slice::own(const rm_client& client, std::uint64_t& microseconds) {
  const std::scoped_lock held{mutex_};
  if (!own_) {
    std::uint64_t read = 0;
    if (const rm_status done = client.timeslice(group_, read); !done) return done;
    own_ = read;
  }
  microseconds = *own_;
  return {};
}

rm_status group_slice::set(const rm_client& client, const void* by, std::uint64_t microseconds) {
  const std::scoped_lock held{mutex_};
  // Also if the driver refuses: it may have set it.
  wanted_[by] = microseconds;
  return client.set_timeslice(group_, microseconds);
}

rm_status group_slice::restore(const rm_client& client, const void* by) {
  const std::scoped_lock held{mutex_};
  const auto mine = wanted_.extract(by);
  if (mine.empty() || !own_) return {};
  const rm_status done =
      client.set_timeslice(group_, wanted_.empty() ? *own_ : wanted_.begin()->second);
  if (!done) wanted_.insert({by, mine.mapped()});
  return done;
}

slice_book::entry slice_book::of(uapi::NvHandle client, uapi::NvHandle group) {
  const std::scoped_lock held{mutex_};
  std::erase_if(entries_, [](const auto& each) { return each.second.expired(); });
  auto& known = entries_[{client, group}];
  entry made = known.lock();
  if (!made) known = made = std::make_shared<group_slice>(group);
  return made;
}

}  // namespace sluice::nvidia
