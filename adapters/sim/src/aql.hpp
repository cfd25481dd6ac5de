#pragma once
/// \file
/// The structures in a client's memory that a GPU reads and writes, as ROCr lays them out
/// (hsa.h, amd_hsa_queue.h, amd_hsa_signal.h).

#include <cstddef>
#include <cstdint>

namespace sluice::sim::aql {

/// Packet types: the low 8 bits of the header.
inline constexpr std::uint16_t packet_invalid = 1;
inline constexpr std::uint16_t packet_kernel_dispatch = 2;
/// HSA_PACKET_HEADER_BARRIER, and fences of system scope on both sides.
inline constexpr std::uint16_t header_bits = 1U << 8U | 2U << 9U | 2U << 11U;
inline constexpr std::uint16_t wave_lanes = 64;

struct kernel_dispatch_packet {
  std::uint16_t header;
  std::uint16_t setup;  ///< Number of dimensions.
  std::uint16_t workgroup_size_x;
  std::uint16_t workgroup_size_y;
  std::uint16_t workgroup_size_z;
  std::uint16_t reserved0;
  std::uint32_t grid_size_x;
  std::uint32_t grid_size_y;
  std::uint32_t grid_size_z;
  std::uint32_t private_segment_size;
  std::uint32_t group_segment_size;
  std::uint64_t kernel_object;  ///< The simulated code object is a duration in nanoseconds.
  std::uint64_t kernarg_address;
  std::uint64_t reserved2;
  std::uint64_t completion_signal;  ///< Address of a signal, 0 for none.
};
static_assert(sizeof(kernel_dispatch_packet) == 64);
static_assert(offsetof(kernel_dispatch_packet, grid_size_x) == 12);
static_assert(offsetof(kernel_dispatch_packet, kernel_object) == 32);
static_assert(offsetof(kernel_dispatch_packet, completion_signal) == 56);

struct signal {
  std::int64_t kind;  ///< 1: a user signal.
  std::int64_t value;
  std::uint64_t event_mailbox_ptr;
  std::uint32_t event_id;
  std::uint32_t reserved1;
  std::uint64_t start_ts;
  std::uint64_t end_ts;
  std::uint64_t queue_ptr;
  std::uint32_t reserved3[2];
};
static_assert(sizeof(signal) == 64);
static_assert(offsetof(signal, value) == 8);
static_assert(offsetof(signal, event_mailbox_ptr) == 16);
static_assert(offsetof(signal, event_id) == 24);
static_assert(offsetof(signal, start_ts) == 32);
static_assert(offsetof(signal, end_ts) == 40);

struct queue {
  std::uint32_t type;  ///< HSA_QUEUE_TYPE_*: 1 single producer.
  std::uint32_t features;
  std::uint64_t base_address;
  std::uint64_t doorbell_signal;
  std::uint32_t size;  ///< In packets.
  std::uint32_t reserved1;
  std::uint64_t id;
  std::uint32_t caps;
  std::uint32_t reserved2[3];
  std::uint64_t write_dispatch_id;
  std::uint64_t group_segment_aperture_base_hi_and_private;
  std::uint32_t max_cu_id;
  std::uint32_t max_wave_id;
  std::uint64_t max_legacy_doorbell_dispatch_id_plus_1;
  std::uint32_t legacy_doorbell_lock;
  std::uint32_t reserved3[9];
  std::uint64_t read_dispatch_id;
  std::uint32_t read_dispatch_id_field_base_byte_offset;
  std::uint32_t compute_tmpring_size;
  std::uint32_t scratch_resource_descriptor[4];
  std::uint64_t scratch_backing_memory_location;
  std::uint64_t scratch_backing_memory_byte_size;
  std::uint32_t scratch_wave64_lane_byte_size;
  std::uint32_t queue_properties;
  std::uint32_t reserved4[2];
  std::uint64_t queue_inactive_signal;
  std::uint32_t reserved5[14];
};
static_assert(sizeof(queue) == 256);
static_assert(offsetof(queue, base_address) == 0x08);
static_assert(offsetof(queue, size) == 0x18);
static_assert(offsetof(queue, write_dispatch_id) == 0x38);
static_assert(offsetof(queue, max_cu_id) == 0x48);
static_assert(offsetof(queue, max_legacy_doorbell_dispatch_id_plus_1) == 0x50);
static_assert(offsetof(queue, read_dispatch_id) == 0x80);
static_assert(offsetof(queue, compute_tmpring_size) == 0x8c);
static_assert(offsetof(queue, scratch_backing_memory_location) == 0xa0);
static_assert(offsetof(queue, queue_properties) == 0xb4);
static_assert(offsetof(queue, queue_inactive_signal) == 0xc0);

}  // namespace sluice::sim::aql
