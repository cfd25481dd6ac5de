/// What debugfs shows: `mqds`, the memory image of every queue's descriptor (pqm_debugfs_mqds,
/// struct v9_mqd, struct v9_sdma_mqd); `hqds`, the registers of every queue slot
/// (dqm_debugfs_hqds, seq_reg_dump); `rls`, the runlist as packets (pm_debugfs_runlist).

#include "driver_state.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>

namespace sluice::sim {

namespace {

using words = std::vector<std::uint32_t>;

constexpr std::size_t compute_dwords = 512;   // sizeof(struct v9_mqd) / 4; v11_compute_mqd too.
constexpr std::size_t first_hqd_dword = 128;  // cp_mqd_base_addr: from here on the registers.
constexpr std::size_t hqd_registers = 56;     // CP_MQD_BASE_ADDR to CP_HQD_PQ_WPTR_HI.
constexpr std::size_t words_per_line = 8;
constexpr std::uint32_t dwords_per_packet = 16;
constexpr std::uint64_t mqd_memory = 0x7f00a06000;  // Where GTT memory lies is anybody's guess.
constexpr std::uint64_t runlist_memory = 0x7f00900000;

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32U);
}
constexpr std::uint32_t log2(std::uint64_t value) {
  return value == 0 ? 0 : static_cast<std::uint32_t>(std::bit_width(value) - 1);
}
void put64(std::span<std::uint32_t> into, std::size_t at, std::uint64_t value) {
  into[at] = low(value);
  into[at + 1] = high(value);
}

void hex(std::string& out, std::uint32_t value) {
  for (int shift = 28; shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[value >> static_cast<unsigned>(shift) & 0xfU];
  }
}

template <class... Values>
void print(std::string& out, const char* format, Values... values) {
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(), format, values...);
  out += line.data();
}

/// seq_hex_dump with DUMP_PREFIX_OFFSET, 32 bytes a line in groups of 4.
void dump(std::string& out, const char* indent, std::span<const std::uint32_t> dwords) {
  for (std::size_t i = 0; i < dwords.size(); ++i) {
    if (i % words_per_line == 0) {
      out += indent;
      hex(out, static_cast<std::uint32_t>(i * sizeof(std::uint32_t)));
      out += ':';
    }
    out += ' ';
    hex(out, dwords[i]);
    if (i % words_per_line == words_per_line - 1 || i + 1 == dwords.size()) out += '\n';
  }
}

/// A register's byte address and value.
struct register_value {
  std::uint32_t address;
  std::uint32_t value;
};

/// seq_reg_dump: a line ends after 8 registers or before a gap.
void dump(std::string& out, std::span<const register_value> registers) {
  std::size_t on_line = 0;
  for (std::size_t i = 0; i < registers.size(); ++i) {
    const bool follows = i != 0 && registers[i].address == registers[i - 1].address + 4;
    if (!follows || on_line == words_per_line) {
      out += i == 0 ? "    " : "\n    ";
      hex(out, registers[i].address);
      out += ':';
      on_line = 0;
    }
    out += ' ';
    hex(out, registers[i].value);
    ++on_line;
  }
  out += '\n';
}

constexpr std::uint32_t vmid_register(const gpu_profile& shape, std::uint32_t vmid) {
  return 16 - std::min(shape.vmids, 16U) + vmid;  // KFD has the last ones of 16.
}
constexpr std::uint64_t mqd_address(const kfd_queue& q) { return mqd_memory + q.serial * 0x1000; }
constexpr std::uint32_t doorbell(const kfd_queue& q) { return (q.id * 8) << 2U; }

/// As of the last save.
words compute_mqd(const kfd_queue& q) {
  words m(compute_dwords);
  // init_mqd and update_mqd write the constants, the CP the state of the last save.
  m[0] = 0xc0310800;
  m[11] = 1;                                                          // compute_pipelinestat_enable
  for (const auto mask : {23U, 24U, 26U, 27U}) m[mask] = 0xffffffff;  // static_thread_mgmt_seN
  put64(m, 128, mqd_address(q));  // cp_mqd_base_addr: one page each
  m[130] = q.mqd.saved ? 1 : 0;   // cp_hqd_active
  m[131] = q.mqd.saved ? vmid_register(q.gpu->shape, q.mqd.vmid) : 0;  // cp_hqd_vmid
  m[132] = 0x00005301;                                                 // cp_hqd_persistent_state
  m[133] = q.priority < 7 ? 0 : q.priority < 11 ? 1 : 2;
  m[134] = q.priority;
  m[135] = 0x111;  // cp_hqd_quantum: enabled, scale 1, duration 1
  put64(m, 136, q.ring_base >> 8U);
  m[138] = low(q.mqd.read * dwords_per_packet);
  put64(m, 139, q.read_pointer);
  put64(m, 141, q.write_pointer);
  m[143] = 0x40000000 | doorbell(q);  // doorbell enable, offset
  m[145] = 0x18084500 | (log2(q.ring_size / sizeof(std::uint32_t)) - 1);
  put64(m, 165, q.eop_address >> 8U);
  m[167] = q.eop_size == 0 ? 0 : log2(q.eop_size / sizeof(std::uint32_t)) - 1;
  put64(m, 171, q.save_area);
  m[174] = q.control_stack_size;
  m[175] = q.control_stack_size;
  m[176] = q.control_stack_size;
  m[177] = q.save_area_size;
  m[181] = q.is_aql() ? 1 : 0;
  put64(m, 182, q.mqd.write * dwords_per_packet);
  return m;
}

/// Nothing in it ever runs, so its pointers stay 0.
words sdma_mqd(const kfd_queue& q) {
  // struct v9_sdma_mqd, and alike in later generations: the ids are the last two.
  words m(128);
  // sdmax_rlcx_rb_cntl: size, write-back of the read pointer, enable.
  m[0] = 0x00801800 | log2(q.ring_size / sizeof(std::uint32_t)) << 1U | 1U;
  put64(m, 1, q.ring_base >> 8U);
  m[8] = high(q.read_pointer);
  m[9] = low(q.read_pointer);
  m[18] = 0x10000000;  // doorbell enable
  m[m.size() - 2] = q.sdma_engine;
  m[m.size() - 1] = q.sdma_rlc;
  return m;
}

// --- mqds of a patched driver --------------------------------------------------------------------

/// One block for each queue, blocks being separated by an empty line. Known from one sample only,
/// so these meanings are inferred: the address is the ring's; "is active" is what decides whether
/// KFD maps the queue (not suspended, not evicted, percentage above 0); "queue count" is how many
/// queues the process has on that GPU, since both processes of the sample show one queue and 1.
void describe(std::string& out, const kfd_process& process, const kfd_queue& q) {
  if (!out.empty()) out += '\n';
  const auto& shape = q.gpu->shape;
  const auto place = shape.location(q.gpu->index);
  print(out, "%s queue on device %04x:%02x:%02x.%x\n", q.is_compute() ? "Compute" : "SDMA",
        shape.domain, place >> 8U & 0xffU, place >> 3U & 0x1fU, place & 7U);
  print(out, "    Queue ID: %u (0x%x)\n", q.id, q.id);
  print(out, "    Address: 0x%llx\n", static_cast<unsigned long long>(q.ring_base));
  print(out, "    Process: pid %d pasid 0x%x\n", process.pid, process.pasid);
  print(out, "    is active: %s\n", q.active ? "yes" : "no");
  print(out, "    priority: %u\n", q.priority);
  const auto count = std::count_if(process.queues.begin(), process.queues.end(),
                                   [&q](const auto& each) { return each->gpu == q.gpu; });
  print(out, "    queue count: %d\n", static_cast<int>(count));
}

}  // namespace

std::string driver::impl::mqds() const {
  std::string out;
  for (const auto& [pid, process] : live_) {
    if (profile_.format == mqds_format::labelled) {
      for (const auto& q : process->queues) describe(out, *process, *q);
      continue;
    }
    if (profile_.header == mqds_header::pasid) {
      print(out, "Process %d PASID 0x%x:\n", pid, process->pasid);
    } else {
      print(out, "Process %d PASID %d:\n", pid, pid);
    }
    // The driver's quirk: once a compute queue has set it, it stays for the SDMA queues behind it,
    // whose dump then runs on into what lies behind the descriptor. Here that is zeros.
    std::uint32_t xccs = 1;
    for (const auto& q : process->queues) {
      words mqd;
      if (q->is_compute()) {
        print(out, "  Compute queue on device %x\n", q->gpu->shape.gpu_id);
        mqd = compute_mqd(*q);
        xccs = q->gpu->shape.num_xcc;
      } else {
        print(out, "  SDMA queue on device %x\n", q->gpu->shape.gpu_id);
        mqd = sdma_mqd(*q);
      }
      for (std::uint32_t xcc = 0; xcc < xccs; ++xcc) {
        dump(out, "    ", mqd);
        if (!q->is_compute()) std::fill(mqd.begin(), mqd.end(), 0);
      }
    }
  }
  return out;
}

// --- hqds ----------------------------------------------------------------------------------------

namespace {

struct cp_slot {
  std::uint32_t pipe;
  std::uint32_t queue;
};

/// KFD's slots of MEC 1, in the order of printing and (assumption) of use. Four pipes of eight
/// queues (gfx_v9_4_3_mec_init), or of four (gfx_v11_0_sw_init); amdgpu's own rings have the first
/// queues of each pipe. A profile with more slots than that has longer pipes.
std::vector<cp_slot> cp_slots(const gpu_profile& shape) {
  constexpr std::uint32_t pipes = 4;
  const std::uint32_t count = shape.hqd_slots;
  const std::uint32_t depth =
      std::max(shape.gfx_target_version >= 110000 ? 4U : 8U, (count + pipes - 1) / pipes);
  const std::uint32_t rings = pipes * depth - count;
  std::vector<cp_slot> out;
  for (std::uint32_t pipe = 0; pipe < pipes; ++pipe) {
    const auto taken = rings / pipes + (pipe < rings % pipes ? 1 : 0);
    for (std::uint32_t queue = taken; queue < depth; ++queue) out.push_back({pipe, queue});
  }
  return out;
}

/// The 56 registers of a slot are the words of a descriptor from cp_mqd_base_addr on. The address
/// is that of gfx9 (documented), else that of gfx11 (inferred); the same on every XCC (assumption).
void dump_hqd(std::string& out, const gpu_profile& shape, std::span<const std::uint32_t> mqd) {
  const std::uint32_t base = shape.gfx_target_version < 100000 ? 0xc914 : 0xc824;
  std::array<register_value, hqd_registers> registers{};
  for (std::uint32_t i = 0; i < hqd_registers; ++i) {
    registers[i] = {base + i * 4, mqd[first_hqd_dword + i]};
  }
  dump(out, registers);
}

/// The HIQ: KFD's own queue to the scheduling firmware of a runlist GPU. Under MES it is unused
/// (inferred), and its slot reads as an empty one.
words hiq_mqd(const gpu_node& node) {
  words m(compute_dwords);
  if (node.shape.scheduler == queue_scheduler::mes) return m;
  constexpr std::uint32_t ring_dwords = 0x400;
  constexpr std::uint32_t dwords_per_cycle = 0x40;  // Packets of an unmap and a map; assumption.
  const auto written = low(node.model.cycles() * dwords_per_cycle);
  put64(m, 128, mqd_memory);
  m[130] = 1;
  m[132] = 0x00005301;
  m[135] = 0x111;
  put64(m, 136, (mqd_memory + 0x800000) >> 8U);
  m[138] = written % ring_dwords;  // Read as soon as they are written.
  m[143] = 0x40000000;
  m[145] = 0x00000500 | (log2(ring_dwords) - 1);
  m[182] = written % ring_dwords;
  return m;
}

/// hqd_sdma_dump of gfx9: 19, 6, 7 and 10 registers with gaps between them, which are the first
/// words of a descriptor. The first address is a documented sample's; the distances are inferred.
void dump_sdma(std::string& out, const gpu_profile& shape, std::uint32_t engine, std::uint32_t rlc,
               std::span<const std::uint32_t> mqd) {
  constexpr std::uint32_t first = 0x4e00;
  constexpr std::uint32_t engine_bytes = 0x1800;
  constexpr std::uint32_t rlc_bytes = 0x180;
  struct range {
    std::uint32_t at, count;  // Registers.
  };
  std::vector<register_value> registers;
  std::size_t word = 0;
  // hqd_sdma_dump_v11(), kgd_gfx_v9_4_3_hqd_sdma_dump(), kgd_hqd_sdma_dump() of gfx9.
  const std::vector<range> parts =
      shape.gfx_target_version >= 110000
          ? std::vector<range>{{0, 7}, {8, 11}, {0x29, 1}, {0x2b, 12}, {0x40, 12}}
          : std::vector<range>{{0, 19},
                               {0x28, 6},
                               {0x2f, 7},
                               {0x40, shape.gfx_target_version >= 90400 ? 12U : 10U}};
  for (const auto& part : parts) {
    for (std::uint32_t i = 0; i < part.count; ++i) {
      registers.push_back({first + engine * engine_bytes + rlc * rlc_bytes + (part.at + i) * 4,
                           mqd.empty() ? 0 : mqd[word]});
      ++word;
    }
  }
  dump(out, registers);
}

}  // namespace

std::string driver::impl::hqds() const {
  std::string out;
  for (const auto& node : gpus_) {
    const auto& shape = node->shape;
    print(out, "Node %u, gpu_id %x:\n", static_cast<unsigned>(node->index + 1), shape.gpu_id);
    if (node->resetting) {
      out += " Device is stopped\n";
      continue;
    }
    const auto slots = cp_slots(shape);
    std::vector<words> seated(slots.size());
    for (const auto& [id, q] : node->queues) {
      const auto seat = node->model.seat_of(id);
      if (!seat) continue;
      // The registers: as the descriptor was loaded, with the pointers as they are now.
      auto& m = seated[seat->slot] = compute_mqd(*q);
      m[130] = 1;
      m[131] = vmid_register(shape, seat->vmid);
      m[138] = low(q->consumed * dwords_per_packet);
      put64(m, 182, q->write_seen * dwords_per_packet);
    }
    const words empty(compute_dwords);
    for (std::uint32_t xcc = 0; xcc < shape.num_xcc; ++xcc) {
      print(out, "   Inst %u, HIQ on MEC 2 Pipe 0 Queue 0\n", xcc);
      dump_hqd(out, shape, hiq_mqd(*node));
      for (std::size_t i = 0; i < slots.size(); ++i) {
        print(out, " Inst %u,  CP Pipe %u, Queue %u\n", xcc, slots[i].pipe, slots[i].queue);
        dump_hqd(out, shape, seated[i].empty() ? empty : seated[i]);
      }
    }
    for (std::uint32_t engine = 0; engine < shape.sdma_engines + shape.sdma_xgmi_engines;
         ++engine) {
      // Of gfx11 and later the driver keeps two of each engine for itself, and shows them here.
      const std::uint32_t reserved = shape.gfx_target_version >= 110000 ? 2 : 0;
      for (std::uint32_t rlc = 0; rlc < shape.sdma_queues_per_engine + reserved; ++rlc) {
        print(out, "  SDMA Engine %u, RLC %u\n", engine, rlc);
        const auto found = node->sdma.find({rlc, engine});
        const bool mapped =
            found != node->sdma.end() && found->second->active && !node->model.in_cycle();
        dump_sdma(out, shape, engine, rlc, mapped ? sdma_mqd(*found->second) : words{});
      }
    }
  }
  return out;
}

// --- rls -----------------------------------------------------------------------------------------

namespace {

// Packets as pm_map_process_v9, pm_map_process_aldebaran, pm_map_queues_v9 and pm_runlist_v9 write
// them (struct pm4_mes_map_process, pm4_mes_map_queues, pm4_mes_runlist; generations differ in
// details).
constexpr std::uint32_t it_map_process = 0xa1;
constexpr std::uint32_t it_map_queues = 0xa2;
constexpr std::uint32_t it_run_list = 0xa5;
/// MI200 and MI300 also get watch points.
constexpr std::size_t map_process_dwords(const gpu_profile& shape) {
  const auto version = shape.gfx_target_version;
  return version == 90010 || (version >= 90400 && version < 100000) ? 21 : 16;
}
constexpr std::size_t map_queues_dwords = 7;
constexpr std::size_t run_list_dwords = 4;

constexpr std::uint32_t header(std::uint32_t opcode, std::size_t dwords) {
  return 3U << 30U | static_cast<std::uint32_t>(dwords - 2) << 16U | opcode << 8U;
}

void add_map_process(words& out, const gpu_node& node, const kfd_process& process,
                     std::size_t queues) {
  words p(map_process_dwords(node.shape));
  p[0] = header(it_map_process, p.size());
  const auto quantum = std::clamp<std::int64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(node.shape.quantum).count(), 1, 127);
  p[1] = (process.pasid & 0xffffU) | static_cast<std::uint32_t>(quantum) << 25U;
  put64(p, 2, 0x2000000000 + process.serial * 0x1000 + 1);       // Page tables; anybody's guess.
  p[13] = 1U << 7U | static_cast<std::uint32_t>(queues) << 22U;  // sdma_enable, num_queues
  out.insert(out.end(), p.begin(), p.end());
}

void add_map_queues(words& out, const kfd_queue& q) {
  std::array<std::uint32_t, map_queues_dwords> p{};
  p[0] = header(it_map_queues, p.size());
  // Slot determined by the firmware; one queue; on the compute engine or an SDMA engine.
  const std::uint32_t engine = q.is_compute() ? 0 : 2 + q.sdma_engine % 2;
  p[1] = 1U << 4U | engine << 26U | 1U << 29U;
  p[2] = doorbell(q);
  put64(p, 3, mqd_address(q));
  put64(p, 5, q.write_pointer);
  out.insert(out.end(), p.begin(), p.end());
}

}  // namespace

std::string driver::impl::rls() const {
  std::string out;
  for (const auto& node : gpus_) {
    print(out, "Node %u, gpu_id %x:\n", static_cast<unsigned>(node->index + 1), node->shape.gpu_id);
    // Every process with a queue is in it, the youngest first, with the queues that are active.
    std::vector<const kfd_process*> processes;
    std::size_t active = 0, compute = 0;
    for (const auto& [pid, process] : live_) {
      bool registered = false;
      for (const auto& q : process->queues) {
        if (q->gpu != node.get()) continue;
        registered = true;
        if (!q->active) continue;
        ++active;
        if (q->is_compute()) ++compute;
      }
      if (registered) processes.push_back(process.get());
    }
    // Between unmap and map the driver has given the old list back.
    if (node->shape.scheduler == queue_scheduler::mes || active == 0 || node->model.in_cycle()) {
      out += "  No active runlist\n";
      continue;
    }
    std::sort(processes.begin(), processes.end(),
              [](const auto* a, const auto* b) { return a->serial > b->serial; });
    words ib;
    for (const auto* process : processes) {
      const auto count = std::count_if(process->queues.begin(), process->queues.end(),
                                       [&node](const auto& q) { return q->gpu == node.get(); });
      add_map_process(ib, *node, *process, static_cast<std::size_t>(count));
      for (const auto& q : process->queues) {
        if (q->gpu == node.get() && q->active) add_map_queues(ib, *q);
      }
    }
    // Oversubscribed: the list goes on at its own beginning.
    if (processes.size() > node->shape.vmids || compute > node->shape.hqd_slots) {
      const auto size = static_cast<std::uint32_t>(ib.size() + run_list_dwords);
      const auto count = std::min<std::uint32_t>(node->shape.vmids, 15);
      ib.push_back(header(it_run_list, run_list_dwords));
      ib.push_back(low(runlist_memory));
      ib.push_back(high(runlist_memory));
      ib.push_back(size | 1U << 20U | 1U << 23U | count << 24U);  // chain, valid, process_cnt
    }
    dump(out, "  ", ib);
  }
  return out;
}

}  // namespace sluice::sim
