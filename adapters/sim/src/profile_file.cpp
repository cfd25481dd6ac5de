#include "profile_file.hpp"

#include "profile_names.hpp"

#include <concepts>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <toml++/toml.h>

#include "sluice/duration_text.hpp"

namespace sluice::sim {

namespace {

[[noreturn]] void complain(const std::string& file, const toml::source_region& where,
                           const std::string& what) {
  throw profile_error{file + ":" + std::to_string(where.begin.line) + ": " + what};
}

/// One table of the file. Every key that is asked for is struck out; what remains is unknown.
class table_reader {
 public:
  table_reader(const std::string& file, const toml::table& table, std::string prefix)
      : file_{file}, table_{table}, prefix_{std::move(prefix)} {}

  const toml::node* take(std::string_view key) {
    known_.push_back(key);
    return table_.get(key);
  }

  template <std::unsigned_integral Number>
  void read(std::string_view key, Number& into, std::uint64_t least,
            std::uint64_t most) requires(!std::same_as<Number, bool>) {
    const auto* node = take(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < 0 || static_cast<std::uint64_t>(*value) < least ||
        static_cast<std::uint64_t>(*value) > most) {
      bad(*node, key,
          "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    into = static_cast<Number>(*value);
  }

  void read(std::string_view key, bool& into) {
    const auto* node = take(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<bool>();
    if (!value) bad(*node, key, "true or false");
    into = *value;
  }

  void read(std::string_view key, std::string& into) {
    const auto* node = take(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<std::string>();
    if (!value || value->empty()) bad(*node, key, "a non-empty string");
    into = *value;
  }

  void read(std::string_view key, duration& into, duration least, duration most) {
    const auto* node = take(key);
    if (node == nullptr) return;
    const auto text = node->value_exact<std::string_view>();
    const auto value = text ? parse_whole_duration(*text) : std::nullopt;
    if (!value || *value < least || *value > most) {
      bad(*node, key,
          "a duration from " + to_text(least) + " to " + to_text(most) +
              ", such as \"5ms\" (ns, us, ms, s, min, h)");
    }
    into = *value;
  }

  /// Of a quantity with that median.
  void read_p99(std::string_view key, duration& into, duration median, duration most) {
    read(key, into, duration{0}, most);
    if (const auto* node = table_.get(key); node != nullptr && into != duration{0} && into < median)
      bad(*node, key, "at least the median of " + to_text(median));
  }

  template <class Enum>
  void read(std::string_view key, Enum& into,
            std::initializer_list<std::pair<std::string_view, Enum>> names) {
    const auto* node = take(key);
    if (node == nullptr) return;
    const auto text = node->value_exact<std::string_view>();
    std::string all;
    for (const auto& [name, value] : names) {
      if (text == name) {
        into = value;
        return;
      }
      all += (all.empty() ? "\"" : " or \"") + std::string{name} + "\"";
    }
    bad(*node, key, all);
  }

  const toml::table* read_table(std::string_view key) {
    const auto* node = take(key);
    if (node == nullptr) return nullptr;
    if (!node->is_table()) bad(*node, key, "a table");
    return node->as_table();
  }

  void finish() const {
    for (const auto& [key, node] : table_) {
      bool known = false;
      for (const auto& each : known_) known |= key.str() == each;
      if (!known) complain(file_, key.source(), prefix_ + std::string{key.str()} + ": unknown key");
    }
  }

  [[noreturn]] void bad(const toml::node& node, std::string_view key,
                        const std::string& expected) const {
    complain(file_, node.source(), prefix_ + std::string{key} + ": expected " + expected);
  }

 private:
  /// A duration in plain digits: neither a sign nor a fraction nor an exponent.
  static std::optional<duration> parse_whole_duration(std::string_view text) {
    if (text.find_first_of("-.eE") != std::string_view::npos) return std::nullopt;
    return parse_duration(text);
  }

  const std::string& file_;
  const toml::table& table_;
  std::string prefix_;
  std::vector<std::string_view> known_;
};

gpu_profile read_gpu(const std::string& file, const toml::table& table) {
  using std::chrono::microseconds;
  using std::chrono::seconds;
  gpu_profile gpu;
  table_reader in{file, table, "gpu."};
  constexpr std::uint64_t any = std::numeric_limits<std::int32_t>::max();
  in.read("gpu_id", gpu.gpu_id, 1, any);
  in.read("model", gpu.model);
  in.read("scheduler", gpu.scheduler,
          {{"runlist", queue_scheduler::runlist},
           {"mes", queue_scheduler::mes},
           {"channels", queue_scheduler::channels}});
  in.read("gfx_target_version", gpu.gfx_target_version, 80000, 999999);
  in.read("compute_units", gpu.compute_units, 1, 4096);
  in.read("num_xcc", gpu.num_xcc, 1, 64);
  in.read("simd_per_cu", gpu.simd_per_cu, 1, 16);
  in.read("waves_per_simd", gpu.waves_per_simd, 1, 64);
  in.read("hqd_slots", gpu.hqd_slots, 1, 4096);
  in.read("max_queues_per_process", gpu.max_queues_per_process, 1, 1024);
  in.read("vmids", gpu.vmids, 1, 4096);
  in.read("per_vmid_debug", gpu.per_vmid_debug);
  in.read("gpu_clock_mhz", gpu.gpu_clock_mhz, 1, 100000);
  in.read("device_id", gpu.device_id, 1, 0xffff);
  in.read("domain", gpu.domain, 0, 0xffff);
  in.read("location_id", gpu.location_id, 0, 0xffff);
  constexpr std::uint64_t any64 = std::numeric_limits<std::int64_t>::max();
  in.read("unique_id", gpu.unique_id, 0, any64);
  in.read("hive_id", gpu.hive_id, 0, any64);
  in.read("memory_mib", gpu.memory_mib, 1, 1U << 24U);
  in.read("memory_width", gpu.memory_width, 1, 65536);
  in.read("l1_kib", gpu.l1_kib, 0, 1U << 30U);
  in.read("l2_kib", gpu.l2_kib, 0, 1U << 30U);
  in.read("l3_kib", gpu.l3_kib, 0, 1U << 30U);
  in.read("shader_arrays", gpu.shader_arrays, 1, 1024);
  in.read("arrays_per_engine", gpu.arrays_per_engine, 1, 64);
  in.read("wave_front_size", gpu.wave_front_size, 32, 64);
  in.read("sdma_engines", gpu.sdma_engines, 1, 64);
  in.read("sdma_xgmi_engines", gpu.sdma_xgmi_engines, 0, 64);
  in.read("sdma_queues_per_engine", gpu.sdma_queues_per_engine, 1, 64);
  in.read("fw_version", gpu.fw_version, 0, any);
  in.read("sdma_fw_version", gpu.sdma_fw_version, 0, any);
  in.read("suspend_cost", gpu.suspend_cost, duration{0}, seconds{9});
  in.read("resume_cost", gpu.resume_cost, duration{0}, seconds{9});
  in.read_p99("suspend_cost_p99", gpu.suspend_cost_p99, gpu.suspend_cost, seconds{60});
  in.read_p99("resume_cost_p99", gpu.resume_cost_p99, gpu.resume_cost, seconds{60});
  in.read("cycle_cost", gpu.cycle_cost, duration{0}, seconds{9});
  in.read("quantum", gpu.quantum, microseconds{100}, seconds{10});
  in.read("switch_cost", gpu.switch_cost, duration{0}, seconds{1});
  in.read("time_sliced", gpu.time_sliced);
  in.read("time_slice", gpu.time_slice, microseconds{1}, seconds{1});
  in.read("copy_time_slice", gpu.copy_time_slice, microseconds{1}, seconds{1});
  in.read("slice_switch_cost", gpu.slice_switch_cost, duration{0}, seconds{1});
  in.read("batch_unmap_cost", gpu.batch_unmap_cost, duration{0}, seconds{9});
  in.read("batch_remap_cost", gpu.batch_remap_cost, duration{0}, seconds{9});
  in.read("reset_time", gpu.reset_time, duration{0}, seconds{60});
  in.finish();
  return gpu;
}

/// What `sluice accept` says of its measurement beside what is simulated: checked, and not used.
void check_measured(const std::string& file, const toml::table& table) {
  table_reader in{file, table, "measured."};
  bool simulated = false, accepted = false;
  in.read("simulated", simulated);
  in.read("accepted", accepted);
  for (const char* const key : {"at", "driver", "firmware"}) {
    std::string text;
    in.read(key, text);
  }
  using text_pair = std::pair<const char*, const char*>;
  for (const auto& [median_key, p99_key] :
       {text_pair{"attach_p50", "attach_p99"}, text_pair{"attach_stall_p50", "attach_stall_p99"},
        text_pair{"suspend_stall_p50", "suspend_stall_p99"},
        text_pair{"resume_stall_p50", "resume_stall_p99"},
        text_pair{"request_alone_p50", "request_alone_p99"},
        text_pair{"request_beside_p50", "request_beside_p99"},
        text_pair{"request_with_quantum_p50", "request_with_quantum_p99"}}) {
    duration median{}, p99{};
    in.read(median_key, median, duration{0}, std::chrono::seconds{60});
    in.read_p99(p99_key, p99, median, std::chrono::seconds{60});
  }
  in.finish();
}

}  // namespace

std::string find_profile(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".toml")) {
    return name_or_path;
  }
  std::error_code error;
  std::string looked;
  for (const auto& folder : profile_folders()) {
    const auto file = folder / (name_or_path + ".toml");
    if (std::filesystem::exists(file, error)) return file.string();
    looked += (looked.empty() ? "" : ", ") + file.string();
  }
  const std::string names = profile_names();
  throw profile_error{"unknown profile '" + name_or_path + "'; " +
                      (names.empty() ? "expected" : "available: " + names + ", or") +
                      " the path of a TOML file (searched: " + looked + ")"};
}

profile load_profile(const std::string& path) {
  using std::chrono::microseconds;
  using std::chrono::seconds;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw profile_error{path + ": is a directory; expected a TOML file"};
  }
  toml::table file;
  try {
    file = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    throw profile_error{path + (line > 0 ? ":" + std::to_string(line) : "") + ": " +
                        std::string{error.description()}};
  }
  profile node;
  table_reader in{path, file, ""};
  node.name = std::filesystem::path{path}.stem().string();
  in.read("name", node.name);
  if (const auto* table = in.read_table("driver")) {
    table_reader driver{path, *table, "driver."};
    driver.read("kind", node.driver, {{"kfd", driver_kind::kfd}, {"nvidia", driver_kind::nvidia}});
    driver.read("version", node.driver_version);
    driver.read("abi_minor", node.abi_minor, 13, 99);
    driver.read("authority", node.authority,
                {{"tracer_thread", trap_authority::tracer_thread},
                 {"debugger_process", trap_authority::debugger_process}});
    driver.read("mqds_header", node.header,
                {{"pasid", mqds_header::pasid}, {"lead_pid", mqds_header::lead_pid}});
    driver.read("mqds_format", node.format,
                {{"mainline", mqds_format::mainline}, {"labelled", mqds_format::labelled}});
    driver.read("einval_for_unknown_commands", node.einval_for_unknown_commands);
    driver.read("debugfs_proc_dirs", node.debugfs_proc_dirs);
    driver.read("smi_fifo_bytes", node.smi_fifo_bytes, 96, 1U << 20U);
    driver.read("smi_process_events", node.smi_process_events);
    driver.read("smi_restore_flag", node.smi_restore_flag);
    driver.read("smi_reset_cause", node.smi_reset_cause);
    driver.read("diq_type_exists", node.diq_type_exists);
    driver.read("sched_policy", node.sched_policy, 0, 2);
    driver.read("batch_commands", node.batch_commands);
    driver.read("preemption_timeout", node.preemption_timeout, microseconds{1}, seconds{60});
    driver.finish();
  }
  if (const auto* table = in.read_table("device")) {
    table_reader device{path, *table, "device."};
    device.read("poll_busy", node.poll_busy, microseconds{10}, seconds{1});
    device.read("poll_idle", node.poll_idle, microseconds{10}, seconds{1});
    device.finish();
  }
  if (const auto* table = in.read_table("measured")) check_measured(path, *table);
  const auto* gpus = in.take("gpu");
  in.finish();  // Before a missing [[gpu]] is: a misspelt one is an unknown key.
  if (gpus == nullptr) throw profile_error{path + ": no [[gpu]] table; add at least one"};
  if (const auto* array = gpus->as_array();
      array != nullptr && array->is_homogeneous<toml::table>()) {
    for (const auto& each : *array) node.gpus.push_back(read_gpu(path, *each.as_table()));
  } else {
    in.bad(*gpus, "gpu", "[[gpu]] tables");
  }
  for (std::size_t i = 0; i < node.gpus.size(); ++i) {
    auto& gpu = node.gpus[i];
    if (gpu.gpu_id == 0)
      throw profile_error{path + ": gpu.gpu_id is missing; add it to each [[gpu]] table"};
    constexpr std::uint32_t most_devices = 32;
    if (node.driver == driver_kind::nvidia && (gpu.gpu_id & 0xffU) >= most_devices) {
      throw profile_error{path + ": gpu.gpu_id " + std::to_string(gpu.gpu_id) +
                          " is no PCI address; expected domain << 16 | bus << 8 | device, with a "
                          "device up to 31"};
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (node.gpus[j].gpu_id == gpu.gpu_id) {
        throw profile_error{path + ": gpu.gpu_id " + std::to_string(gpu.gpu_id) +
                            " is in two [[gpu]] tables; use a different gpu_id in each table"};
      }
    }
  }
  return node;
}

void set_gpu_count(profile& node, std::uint32_t count) {
  const auto model = node.gpus.front();
  node.gpus.resize(count, model);
  for (std::uint32_t i = 0; i < count; ++i) {
    node.gpus[i] = model;
    // Real ids are hashes; what matters is that they are distinct and look like nothing else.
    // NVIDIA's contain the PCI bus.
    node.gpus[i].gpu_id = model.gpu_id + i * (node.driver == driver_kind::nvidia ? 256 : 257);
    if (model.unique_id != 0) node.gpus[i].unique_id = model.unique_id + i;
    // The next bus for each; those of one machine wrap around within their domain.
    if (model.location_id != 0)
      node.gpus[i].location_id = (model.location_id + (i << 8U)) & 0xffffU;
  }
}

}  // namespace sluice::sim
