#include "work_view.hpp"

#include <algorithm>
#include <chrono>

namespace sluice::nvidia {

namespace {

using namespace std::chrono_literals;

/// Submissions by which the words of a process have to be found.
constexpr std::uint64_t enough_submissions = 256;
/// Searches in vain after which a channel is taken for one without kernels of its own.
constexpr std::uint8_t enough_fruitless = 4;
/// Every which look compares the words of a context that does nothing.
constexpr std::uint64_t looks_at_idle = 16;
/// Where looks are so far apart, one may take longer.
constexpr duration rare = 1ms;
constexpr std::size_t more_of_a_search = 8;
/// Channels read in one look, which takes some 20 us then.
constexpr std::size_t long_look = 4;
/// Between two searches for the kernels of such a channel: some of a new graph may be elsewhere.
constexpr duration search_pause = 100ms;

}  // namespace

void work_view::set_mappings(const std::vector<device_mapping>& now) {
  if (now == mappings_) return;
  mappings_ = now;
  channels_.set_mappings(now);
  std::erase_if(contexts_, [&](const context& each) {
    return std::ranges::find(now, each.states.in()) == now.end();
  });
  for (std::size_t index = places_.size(); index-- > 0;) {
    if (std::ranges::find(channels_.channels(), places_[index].gpu, &channel_words::channel::gpu) !=
        channels_.channels().end())
      continue;
    places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(index));
    calm_.erase(calm_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  std::erase_if(behaviours_, [&](const behaviour& each) {
    return std::ranges::none_of(now, [&](const device_mapping& in) {
      return each.channel >= in.begin && each.channel < in.end;
    });
  });
}

work_view::context* work_view::context_of(const channel_words::channel& of) {
  if (!of.record) return nullptr;
  const std::uint64_t begin = channels_.records()[*of.record].mapping;
  const auto found = std::ranges::find_if(
      contexts_, [begin](const context& each) { return each.states.in().begin == begin; });
  return found == contexts_.end() ? nullptr : &*found;
}

work_view::behaviour& work_view::behaviour_of(const channel_words::channel& of) {
  const auto found = std::ranges::find(behaviours_, of.at, &behaviour::channel);
  return found != behaviours_.end() ? *found
                                    : behaviours_.emplace_back(behaviour{.channel = of.at});
}

work_view::place& work_view::place_of(gpu_id gpu) {
  const auto found = std::ranges::find(places_, gpu, &place::gpu);
  if (found != places_.end()) return *found;
  calm_.push_back(false);
  return places_.emplace_back(place{.gpu = gpu});
}

void work_view::follow_states(const words_reader& read, time_point now, std::size_t share) {
  for (const auto& each : channels_.records()) {
    if (each.moved == 0) continue;
    const auto is_in = [&](const device_mapping& in) { return in.begin == each.mapping; };
    const auto known =
        std::ranges::find_if(contexts_, [&](const context& one) { return is_in(one.states.in()); });
    if (known != contexts_.end()) {
      known->begun += each.moved;
      known->begun_at = look_;
      // Those that it has not found change now.
      if (!known->states.known() && !known->states.searches()) known->states.search();
      continue;
    }
    // What looks like a record and belongs to no channel is none.
    const auto in = std::ranges::find_if(mappings_, is_in);
    if (in == mappings_.end() || !each.taken) continue;
    context& made = contexts_.emplace_back(context{.states = kernel_states{*in}});
    made.searched = now;
    made.begun_at = look_;
  }
  for (context& each : contexts_) {
    // Only what has begun changes them, at that look or the next one, and the end of what runs.
    const bool idle = !each.unreadable && each.begun_at + 2 < look_ && !each.states.kernels_run();
    if (idle && !each.states.searches() && look_ % looks_at_idle != 0) {
      each.states.skip();
      continue;
    }
    for (const std::uint64_t page : channels_.record_pages()) each.states.leave_out(page);
    each.unreadable = !each.states.look(read, share);
    if (each.states.moved()) each.moved_at = look_;
  }
}

/// A submission that begins on a channel with kernels changes a state word, at this look or one
/// beside it.
void work_view::explain(const channel_words::channel& of, time_point now) {
  context* const in = context_of(of);
  if (in == nullptr || !in->states.known()) return;
  behaviour& its = behaviour_of(of);
  if (its.unexplained && !in->states.searches()) {
    its.unexplained = false;
    if (!in->states.found() && its.fruitless < enough_fruitless) ++its.fruitless;
  }
  if (its.begun_at + 1 == look_ && in->moved_at + 2 < look_ && !in->states.kernels_run()) {
    const bool plain = its.fruitless >= enough_fruitless;
    if (!plain || now - in->searched > search_pause) {
      in->searched = now;
      in->states.search();
      its.unexplained = !plain;
    }
  }
  if (of.begun) its.begun_at = look_;
}

online_work work_view::work_on(gpu_id gpu, std::uint32_t waiting) {
  if (waiting != 0) return online_work::waiting;
  bool runs = false;
  bool any = false;
  bool sure = true;
  for (const auto& each : channels_.channels()) {
    if (each.gpu != gpu) continue;
    context* const in = context_of(each);
    if (in == nullptr) {
      sure = sure && (each.submitted == 0 || !each.may_run);
      continue;
    }
    any = true;
    runs = runs || in->states.kernels_run();
    sure = sure && !in->unreadable && in->states.known() && !behaviour_of(each).unexplained;
  }
  if (runs) return online_work::running;
  return any && sure && !channels_.broken() ? online_work::finished : online_work::consumed;
}

bool work_view::unchanged(const words_reader& read) const {
  return channels_.unchanged(read) && std::ranges::all_of(contexts_, [&](const context& each) {
           return each.states.unchanged(read);
         });
}

void work_view::look(const words_reader& read, time_point now) {
  ++look_;
  const std::size_t share = now - looked_ >= rare ? more_of_a_search : 1;
  looked_ = now;
  channels_.look_at_records(read, share);
  // After the records: what has begun shows there.
  follow_states(read, now, share);
  channels_.look_at_channels(read, now, [this](const channel_words::channel& each) {
    const context* const in = context_of(each);
    return in != nullptr && in->states.known() && in->states.kernels_run();
  });
  for (place& each : places_) each.came = each.waiting = 0;
  for (const auto& each : channels_.channels()) {
    place& where = place_of(each.gpu);
    where.came += each.came;
    // One without a record is no channel before it moves.
    if (each.record || each.submitted != 0) where.waiting += each.waiting;
    explain(each, now);
  }
  for (std::size_t index = 0; index < places_.size(); ++index) {
    place& where = places_[index];
    const online_work work = work_on(where.gpu, where.waiting);
    const bool calm = work == online_work::finished;
    // What has begun may not show yet as running. If this look took long enough for that, it need
    // not wait for the next one.
    if (!calm || calm_[index] || where.work == online_work::unknown ||
        (channels_.channels_read() >= long_look && unchanged(read)))
      where.work = work;
    calm_[index] = calm;
  }
}

std::string work_view::why_unsure() const {
  if (channels_.broken())
    return "the words that count what the GPU has begun do not agree with what was submitted";
  bool any = false;
  std::uint64_t without = 0;
  for (const auto& each : channels_.channels()) {
    any = any || each.record.has_value();
    if (!each.record) without += each.submitted;
  }
  if (!any && without >= enough_submissions && !channels_.searches())
    return "no words were found that count what the GPU has begun";
  for (const context& each : contexts_) {
    if (each.states.broken())
      return "the words that show whether kernels run changed in another way";
    if (!each.states.known() && each.begun >= enough_submissions && !each.states.searches())
      return "no words were found that show whether kernels run";
  }
  return {};
}

}  // namespace sluice::nvidia
