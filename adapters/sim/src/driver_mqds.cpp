/// debugfs `mqds`: the memory image of every queue's descriptor (pqm_debugfs_mqds,
/// seq_hex_dump, struct v9_mqd, struct v9_sdma_mqd).

#include "driver_state.hpp"

#include <array>
#include <bit>
#include <cstdio>

namespace sluice::sim {

namespace {

constexpr std::size_t compute_dwords = 512;  // sizeof(struct v9_mqd) / 4
constexpr std::size_t sdma_dwords = 130;     // sizeof(struct v9_sdma_mqd) / 4
constexpr std::uint32_t dwords_per_packet = 16;

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32U);
}
constexpr std::uint32_t log2(std::uint64_t value) {
  return value == 0 ? 0 : static_cast<std::uint32_t>(std::bit_width(value) - 1);
}

void hex(std::string& out, std::uint32_t value) {
  for (int shift = 28; shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[value >> static_cast<unsigned>(shift) & 0xfU];
  }
}

void dump(std::string& out, std::span<const std::uint32_t> dwords) {
  for (std::size_t i = 0; i < dwords.size(); ++i) {
    if (i % 8 == 0) {
      out += "    ";
      hex(out, static_cast<std::uint32_t>(i * sizeof(std::uint32_t)));
      out += ':';
    }
    out += ' ';
    hex(out, dwords[i]);
    if (i % 8 == 7 || i + 1 == dwords.size()) out += '\n';
  }
}

std::array<std::uint32_t, compute_dwords> compute_mqd(const kfd_queue& q) {
  std::array<std::uint32_t, compute_dwords> m{};
  const auto put64 = [&m](std::size_t at, std::uint64_t value) {
    m[at] = low(value);
    m[at + 1] = high(value);
  };
  // init_mqd and update_mqd write the constants, the CP the state of the last save.
  m[0] = 0xc0310800;
  m[11] = 1;                                                          // compute_pipelinestat_enable
  for (const auto mask : {23U, 24U, 26U, 27U}) m[mask] = 0xffffffff;  // static_thread_mgmt_seN
  put64(128, 0x7f00a06000 + q.serial * 0x1000);       // cp_mqd_base_addr: one page each
  m[130] = q.mqd.saved ? 1 : 0;                       // cp_hqd_active
  m[131] = q.mqd.saved ? 8 + q.owner->pasid % 8 : 0;  // cp_hqd_vmid: KFD's are 8..15
  m[132] = 0x00005301;                                // cp_hqd_persistent_state
  m[133] = q.priority < 7 ? 0 : q.priority < 11 ? 1 : 2;
  m[134] = q.priority;
  m[135] = 0x111;  // cp_hqd_quantum: enabled, scale 1, duration 1
  put64(136, q.ring_base >> 8U);
  m[138] = low(q.mqd.read * dwords_per_packet);
  put64(139, q.read_pointer);
  put64(141, q.write_pointer);
  m[143] = 0x40000000 | (q.id * 8) << 2U;  // doorbell enable, offset
  m[145] = 0x18084500 | (log2(q.ring_size / sizeof(std::uint32_t)) - 1);
  put64(165, q.eop_address >> 8U);
  m[167] = q.eop_size == 0 ? 0 : log2(q.eop_size / sizeof(std::uint32_t)) - 1;
  put64(171, q.save_area);
  m[174] = q.control_stack_size;
  m[175] = q.control_stack_size;
  m[176] = q.control_stack_size;
  m[177] = q.save_area_size;
  m[181] = q.is_aql() ? 1 : 0;
  put64(182, q.mqd.write * dwords_per_packet);
  return m;
}

std::array<std::uint32_t, sdma_dwords> sdma_mqd(const kfd_queue& q) {
  std::array<std::uint32_t, sdma_dwords> m{};
  // sdmax_rlcx_rb_cntl: size, write-back of the read pointer, enable.
  m[0] = 0x00801800 | log2(q.ring_size / sizeof(std::uint32_t)) << 1U | 1U;
  m[1] = low(q.ring_base >> 8U);
  m[2] = high(q.ring_base >> 8U);
  m[8] = high(q.read_pointer);
  m[9] = low(q.read_pointer);
  m[18] = 0x10000000;  // doorbell enable
  m[129] = q.id;       // sdma_queue_id; all on engine 0
  return m;
}

}  // namespace

std::string driver::impl::mqds() const {
  std::string out;
  std::array<char, 80> line{};
  const auto print = [&out, &line](const char* format, auto... values) {
    std::snprintf(line.data(), line.size(), format, values...);
    out += line.data();
  };
  for (const auto& [pid, process] : live_) {
    if (profile_.header == mqds_header::pasid) {
      print("Process %d PASID 0x%x:\n", pid, process->pasid);
    } else {
      print("Process %d PASID %d:\n", pid, pid);
    }
    for (const auto& q : process->queues) {
      if (q->is_compute()) {
        print("  Compute queue on device %x\n", q->gpu->shape.gpu_id);
        const auto mqd = compute_mqd(*q);
        for (std::uint32_t xcc = 0; xcc < q->gpu->shape.num_xcc; ++xcc) dump(out, mqd);
      } else {
        print("  SDMA queue on device %x\n", q->gpu->shape.gpu_id);
        dump(out, sdma_mqd(*q));
      }
    }
  }
  return out;
}

}  // namespace sluice::sim
