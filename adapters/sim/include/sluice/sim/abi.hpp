#pragma once
/// \file
/// What the simulated device understands beyond the driver's ABI. A real driver refuses it, and
/// a client then goes without (the device reads its write indices by itself).

#include <linux/ioctl.h>

#include <cstdint>

namespace sluice::sim {

struct set_doorbell_args {
  std::uint32_t queue_id;
  std::int32_t
      eventfd;  ///< Of the calling process; the device keeps a duplicate. -1: none any more.
};
static_assert(sizeof(set_doorbell_args) == 8);

/// Registers an eventfd as a queue's doorbell. Why: a doorbell page mapped through FUSE notifies
/// nobody. 0xE0 is far above every number the driver uses.
inline constexpr std::uint32_t SLUICE_SIM_IOC_SET_DOORBELL = _IOW('K', 0xE0, set_doorbell_args);
static_assert(SLUICE_SIM_IOC_SET_DOORBELL == 0x40084BE0);

}  // namespace sluice::sim
