#pragma once
/// \file
/// What `sluice accept` needs of a driver beyond sluice/driver.hpp.

#include "acceptance.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/driver.hpp"
#include "sluice/kfd/smi_events.hpp"

namespace sluice::cli::acceptance {

/// Threading: one thread.
class tested_driver {
 public:
  explicit tested_driver(std::unique_ptr<const driver> on) : on_(std::move(on)) {}
  virtual ~tested_driver() = default;
  tested_driver(const tested_driver&) = delete;
  tested_driver& operator=(const tested_driver&) = delete;

  const driver& on() const noexcept { return *on_; }
  /// The program beside this one that is the victim. Empty: the user has to make one.
  virtual std::string_view victim() const = 0;
  /// How to make one: a clause for a complaint.
  virtual std::string_view how_to_make_a_victim() const = 0;
  /// A sentence, if sluice was not tested with the loaded release of the driver. Else empty.
  virtual std::string why_untested() const { return {}; }
  /// What is known of the device under test. \param gpu none: the first one.
  virtual device_facts facts(gpu_id gpu) const = 0;
  /// A stream for each GPU whose resets the driver reports to this process.
  virtual result<std::vector<std::unique_ptr<kfd::smi_stream>>> open_resets() = 0;
  /// Why some GPUs have none: a clause.
  virtual std::string_view why_deaf() const = 0;

 private:
  const std::unique_ptr<const driver> on_;
};

std::unique_ptr<tested_driver> test_kfd();
/// Also releases of the driver that sluice was not tested with: this is how to test them.
std::unique_ptr<tested_driver> test_nvidia();

/// The first line of a file, printable. Empty: it cannot be read.
std::string first_line_of(const std::string& path);
/// In quotes that TOML understands.
std::string quoted(std::string text);

}  // namespace sluice::cli::acceptance
