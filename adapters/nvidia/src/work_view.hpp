#pragma once
/// \file
/// What a process has submitted to GPUs, and whether it runs or has ended, seen from outside.

#include "channel_words.hpp"
#include "kernel_states.hpp"
#include "process_words.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/ids.hpp"
#include "sluice/online_work.hpp"
#include "sluice/time.hpp"

namespace sluice::nvidia {

/// Of one process. Work is `waiting` until the GPU begins it, `running` until its kernels have
/// ended (copies are `waiting` until then), and `finished` once its words, read twice, show
/// neither. It is `consumed` where the words that tell the end are not found yet, cannot be found
/// or are not reliable; then why_unsure() has the reason.
///
/// What it finds it compares with each other all the time. A process that writes into these words
/// itself can hide its own work or make itself look busy: as it could with the marks of a client.
///
/// Threading: one thread.
class work_view {
 public:
  struct place {
    gpu_id gpu{};
    online_work work = online_work::unknown;
    std::uint32_t came = 0;     ///< Submissions since the look before.
    std::uint32_t waiting = 0;  ///< Submissions that have not begun.
  };

  /// What is in mappings that stay remains known.
  void set_mappings(const std::vector<device_mapping>& now);
  void look(const words_reader& read, time_point now);

  /// GPUs in use, as of the last look.
  [[nodiscard]] const std::vector<place>& places() const noexcept { return places_; }
  /// Why the end of work is not seen although there has been enough of it: the end of a sentence.
  /// Empty: it is seen, or too little has been.
  [[nodiscard]] std::string why_unsure() const;

 private:
  /// The words of a CUDA context.
  struct context {
    kernel_states states;
    std::uint64_t moved_at = 0;  ///< The look at which its states last moved.
    bool unreadable = false;     ///< At the last look.
    std::uint64_t begun = 0;     ///< Submissions that its records have counted...
    std::uint64_t begun_at = 0;  ///< ...the last one at this look.
    time_point searched{};
  };
  /// Of a channel with a record.
  struct behaviour {
    std::uint64_t channel = 0;   ///< Its address.
    std::uint64_t begun_at = 0;  ///< The look at which a submission of it last began.
    bool unexplained = false;    ///< Nothing has moved with it: a search is under way.
    std::uint8_t fruitless = 0;  ///< Searches that found nothing then.
  };
  context* context_of(const channel_words::channel& of);
  behaviour& behaviour_of(const channel_words::channel& of);
  void follow_states(const words_reader& read, time_point now, std::size_t share);
  [[nodiscard]] bool unchanged(const words_reader& read) const;
  void explain(const channel_words::channel& of, time_point now);
  online_work work_on(gpu_id gpu, std::uint32_t waiting);
  place& place_of(gpu_id gpu);

  channel_words channels_;
  std::vector<context> contexts_;
  std::vector<behaviour> behaviours_;
  std::vector<device_mapping> mappings_;
  std::vector<place> places_;
  std::vector<bool> calm_;  ///< By place: nothing waited or ran at the look before.
  std::uint64_t look_ = 2;
  time_point looked_{};
};

}  // namespace sluice::nvidia
