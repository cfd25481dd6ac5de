#pragma once
/// \file
/// The words by which a process submits work to its channels, and a GPU tells how far it is.

#include "process_words.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sluice/time.hpp"

namespace sluice::nvidia {

/// A channel has a USERD, where the program writes how much it has submitted (GPPut) and the GPU
/// how much it has fetched (GPGet): indices into a ring. (clc86f.h and its kin in NVIDIA's open
/// kernel modules; the same from Kepler to Hopper.) libcuda has the GPU count in a record of 16
/// bytes what it has begun (of a channel that copies: ended), with the time. (Measured with CUDA 13
/// on driver 580.159.04. At rest the count equals GPPut, modulo the ring's size. Which record is
/// whose is found by that.)
///
/// Threading: one thread. Cost: a look reads each page of records, and the USERDs of channels that
/// were in use in the last second (of busy ones an eighth); the others in turn. One that searches
/// reads some more.
class channel_words {
 public:
  struct channel {
    std::uint64_t at = 0;  ///< Of its USERD.
    gpu_id gpu{};
    std::uint32_t put = 0;
    std::uint32_t get = 0;
    std::uint64_t submitted = 0;  ///< Since it was found.
    std::uint32_t came = 0;       ///< Of these, since the look before.
    time_point moved{};
    std::optional<std::size_t> record{};  ///< Into records().
    std::uint32_t waiting = 0;            ///< Not begun. Without a record: not fetched.
    std::uint32_t ahead = 0;              ///< What its record counts beyond what was submitted...
    unsigned looks_ahead = 0;             ///< ...for so many looks.
    bool begun = false;                   ///< Its record has moved since the look before.
    bool may_run = false;                 ///< Without a record: no candidate is at rest.

    struct candidate {
      std::size_t record = 0;
      std::uint32_t at_count = 0;  ///< When it last could be it.
      std::uint8_t hits = 0;
      std::uint8_t misses = 0;
    };
    std::vector<candidate> candidates{};
    bool listed = false;          ///< The candidates are...
    std::uint64_t listed_at = 0;  ///< ...since so much was submitted.
  };
  struct record {
    std::uint64_t at = 0;
    std::uint64_t mapping = 0;  ///< Its begin.
    std::uint32_t count = 0;
    std::uint32_t moved = 0;  ///< By how much, since the look before.
    bool taken = false;       ///< A channel has it.
  };

  /// Searches what is new, and forgets what is gone.
  void set_mappings(const std::vector<device_mapping>& now);
  /// The first half of a look.
  /// \param share of a search that this look makes, in the least ones that there are.
  void look_at_records(const words_reader& read, std::size_t share);
  /// The second half. Of channels that are busy it reads those of which something has begun, and
  /// the others from time to time.
  void look_at_channels(const words_reader& read, time_point now,
                        const std::function<bool(const channel&)>& is_busy);
  /// Reads again whether the channels' records are as the last look saw them.
  [[nodiscard]] bool unchanged(const words_reader& read) const;
  /// Channels that the last look has read.
  [[nodiscard]] std::size_t channels_read() const noexcept { return channels_read_; }

  [[nodiscard]] const std::vector<channel>& channels() const noexcept { return channels_; }
  [[nodiscard]] const std::vector<record>& records() const noexcept { return records_; }
  /// Pages with records. \return their addresses.
  [[nodiscard]] const std::vector<std::uint64_t>& record_pages() const noexcept {
    return pages_at_;
  }
  [[nodiscard]] bool searches() const noexcept { return !to_search_.empty(); }
  /// A record counted more than was submitted: nothing of it can be relied on.
  [[nodiscard]] bool broken() const noexcept { return broken_; }

 private:
  struct page {
    std::uint64_t at = 0;
    std::uint64_t mapping = 0;
    bool taken = false;  ///< It has a channel's record.
    std::array<std::uint32_t, page_words> words{};
    std::array<std::int32_t, page_words / 4> records{};  ///< -1: none.
  };
  struct search {
    device_mapping in;
    std::uint64_t next = 0;
  };
  static bool is_of_channels(const search& which) { return which.in.gpu != gpu_id::none; }
  void search_in(const device_mapping& which);
  [[nodiscard]] bool rests(const words_reader& read, time_point now);
  void search_again(time_point now);
  void search_unknown_gpus(time_point now);
  void search_on(const words_reader& read, std::size_t share);
  void search_records(search& where, const words_reader& read, std::size_t share);
  void search_channels(search& where, const words_reader& read, std::size_t share);
  void read_records(const words_reader& read);
  void take_record(page& of, std::size_t slot, bool is_new);
  void read_channel(channel& which, const words_reader& read, time_point now);
  void match(channel& which);
  void forget_record(channel& of);
  [[nodiscard]] std::uint32_t behind(const channel& which, const record& of) const noexcept {
    return (which.put - of.count) & (entries_ - 1);
  }

  std::vector<device_mapping> mappings_;
  std::vector<search> to_search_;
  std::vector<channel> channels_;
  std::vector<record> records_;
  std::vector<page> pages_;
  std::vector<std::uint64_t> pages_at_;
  std::uint64_t look_ = 0;
  bool all_matched_ = false;  ///< Each channel that has moved has a record.
  std::size_t channels_read_ = 0;
  std::size_t turn_ = 0;         ///< Of channels that are read in turn.
  std::uint32_t entries_ = 256;  ///< Of a ring, at least: a power of two.
  time_point searched_{};
  time_point searched_unknown_gpus_{};
  duration pause_{};         ///< After that search.
  unsigned mismatches_ = 0;  ///< In a row, each within some seconds of the one before.
  time_point mismatched_{};
  bool broken_ = false;
};

}  // namespace sluice::nvidia
