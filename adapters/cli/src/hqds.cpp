#include "hqds.hpp"

#include "output.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <ctime>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "sluice/duration_text.hpp"
#include "sluice/kfd/driver.hpp"
#include "sluice/kfd/roots.hpp"
#include "sluice/os/whole_file.hpp"

namespace sluice::cli {

namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

volatile std::sig_atomic_t interrupted = 0;

struct hqds_options {
  std::vector<std::string> gpus;
  duration interval{};  ///< 0: once.
  bool json = false;
};

/// The descriptor that is mapped in the slot, or else the only one that has the slot's ring;
/// nullptr: none or several have. Processes that were forked from one often have the same
/// addresses.
const kfd::mqd* owner_of(const kfd::hqd& slot, const kfd::mqds& queues) {
  const kfd::mqd* found = nullptr;
  for (const kfd::mqd& each : queues.queues) {
    if (each.gpu != slot.gpu || each.ring_base != slot.ring_base || each.ring_base == 0) continue;
    if (each.descriptor_address != 0 && each.descriptor_address == slot.descriptor_address)
      return &each;
    if (each.vmid != 0 && each.vmid != slot.vmid && each.active.value_or(false)) continue;
    if (found != nullptr) return nullptr;
    found = &each;
  }
  return found;
}

/// The ring size that all compute queues of the process on the GPU have; 0: they differ.
std::uint32_t common_ring(const process_description& process, gpu_id gpu) {
  std::uint64_t common = 0;
  for (const auto& queue : process.queues) {
    if (queue.gpu != gpu || queue.kind != queue_kind::compute) continue;
    if (common != 0 && queue.ring_bytes != common) return 0;
    common = queue.ring_bytes;
  }
  return static_cast<std::uint32_t>(common);
}

enum class picture { only, first, next };

/// What a picture of several begins with: its local time, on a cleared terminal or below a blank
/// line.
std::string head_of(picture which) {
  if (which == picture::only) return {};
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  const std::string before = terminal ? "\x1b[H\x1b[2J" : which == picture::next ? "\n" : "";
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  std::array<char, 64> date{};
  std::array<char, 16> zone{};
  (void)std::strftime(date.data(), date.size(), "%Y-%m-%d %H:%M:%S", &local);
  (void)std::strftime(zone.data(), zone.size(), "%z", &local);
  const auto part = std::chrono::floor<std::chrono::milliseconds>(now.time_since_epoch()) % 1s;
  return fmt::format("{}{}.{:03} {}\n", before, date.data(), part.count(), zone.data());
}

/// The driver's tables of a large node; far below what it prints.
constexpr std::size_t largest_table = std::size_t{1} << 30U;

/// \return a driver that is present, where kfd is not; nullptr: there is none.
std::shared_ptr<const driver> other_driver(const driver_list& known) {
  if (kfd::make_driver()->present()) return nullptr;
  const drivers present = candidates(make_all(known), any_driver);
  return present.empty() ? nullptr : present.front();
}

int show_once(const hqds_options& chosen, const driver_list& known, picture which) {
  const auto where = kfd::roots::from_environment();
  const std::string path = where.debugfs + "/hqds";
  const auto text = read_whole_file(path, largest_table);
  if (!text) {
    if (const auto other = other_driver(known))
      complain(
          fmt::format("the driver {} has no list of hardware queues; run 'sluice queues' for the "
                      "queues of processes",
                      other->name()));
    else
      complain(
          fmt::format("cannot read {}: {}; run as root with debugfs mounted (see 'sluice doctor')",
                      path, text.error().message()));
    return exit_failed;
  }
  auto slots = kfd::parse_hqds(*text);
  const auto descriptors = read_whole_file(where.debugfs + "/mqds", largest_table);
  const auto queues = kfd::parse_mqds(descriptors ? *descriptors : std::string());
  node_view node;  // names only: slots are shown without them, too
  if (auto seen = kfd::make_driver()->look()) node = std::move(*seen);
  if (!chosen.gpus.empty()) {
    std::vector<gpu_id> wanted;
    for (const auto& word : chosen.gpus) {
      const auto* const gpu = find_gpu(node, word);
      if (gpu == nullptr) {
        complain(
            fmt::format("--gpu {}: no such GPU; 'sluice queues' lists the GPUs", printable(word)));
        return exit_failed;
      }
      wanted.push_back(gpu->id);
    }
    std::erase_if(slots.slots, [&](const auto& slot) {
      return std::ranges::find(wanted, slot.gpu) == wanted.end();
    });
    std::erase_if(slots.stopped,
                  [&](gpu_id each) { return std::ranges::find(wanted, each) == wanted.end(); });
  }
  const auto taken = taken_slots(slots, queues, node);
  const bool printed =
      chosen.json ? print(hqds_json(slots, taken))
                  : print(head_of(which) + hqds_text(slots, taken, node, terminal_width()));
  if (slots.problems)
    complain(fmt::format("{} lines of {} have an unknown format; the first is line {}: {}",
                         slots.problems.count, path, slots.problems.first_line,
                         slots.problems.first_text));
  return printed ? exit_done : exit_failed;
}

int show(const hqds_options& chosen, const driver_list& known) {
  if (chosen.interval <= 0s) return show_once(chosen, known, picture::only);
  // Without SA_RESTART: it interrupts the sleep.
  struct sigaction on_end {};
  on_end.sa_handler = [](int) { interrupted = 1; };
  for (const int each : {SIGINT, SIGTERM}) ::sigaction(each, &on_end, nullptr);
  for (auto which = picture::first; interrupted == 0; which = picture::next) {
    if (const int code = show_once(chosen, known, which); code != exit_done) return code;
    timespec left{};
    left.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(chosen.interval).count();
    left.tv_nsec = (chosen.interval % 1s).count();
    if (interrupted == 0) ::nanosleep(&left, nullptr);
  }
  return exit_done;
}

}  // namespace

std::vector<slot_view> taken_slots(const kfd::hqds& slots, const kfd::mqds& queues,
                                   const node_view& node) {
  std::vector<slot_view> taken;
  for (const kfd::hqd& slot : slots.slots) {
    if (slot.hiq || !slot.active) continue;
    slot_view view{.slot = slot};
    if (const auto* const owner = owner_of(slot, queues)) {
      view.pid = owner->pid;
      const auto process = std::ranges::find(node.processes, owner->pid, &process_description::pid);
      if (process != node.processes.end()) {
        view.command = process->command;
        view.ring_bytes = common_ring(*process, slot.gpu);
      }
    }
    view.backlog = kfd::backlog(slot, view.ring_bytes);
    taken.push_back(std::move(view));
  }
  return taken;
}

std::string hqds_text(const kfd::hqds& slots, const std::vector<slot_view>& taken,
                      const node_view& node, std::size_t width) {
  const auto gpu_text = [&](gpu_id id) {
    const auto* const gpu = node.find(id);
    return gpu != nullptr ? std::to_string(gpu->ordinal) : fmt::format("id {}", number(id));
  };
  std::string out;
  for (const auto& use : kfd::occupancy(slots))
    out += fmt::format("GPU {}: {} of {} compute slots in use\n", gpu_text(use.gpu), use.active,
                       use.slots);
  for (const auto id : slots.stopped)
    out +=
        fmt::format("GPU {}: stopped by the driver, perhaps for a reset; its slots are unknown\n",
                    gpu_text(id));
  if (out.empty()) out = "the driver reports no slots\n";
  using enum table::align;
  table rows{{{"GPU", right},
              {"XCC", right},
              {"PIPE", right},
              {"SLOT", right},
              {"VMID", right},
              {"PRIO", right},
              {"BACKLOG", right},
              {"PID", right},
              {"COMMAND", left, true}}};
  for (const auto& each : taken)
    rows.add({gpu_text(each.slot.gpu), std::to_string(each.slot.xcc),
              std::to_string(each.slot.pipe), std::to_string(each.slot.slot),
              std::to_string(each.slot.vmid), std::to_string(each.slot.priority),
              std::to_string(each.backlog), each.pid != 0 ? std::to_string(each.pid) : "-",
              each.pid != 0 ? printable(each.command) : "-"});
  return rows.empty() ? out : out + "\n" + rows.text(width);
}

json::value hqds_json(const kfd::hqds& slots, const std::vector<slot_view>& taken) {
  json::array gpus;
  for (const auto& use : kfd::occupancy(slots))
    gpus.push_back(
        json::object{{"gpu_id", number(use.gpu)}, {"slots", use.slots}, {"taken", use.active}});
  for (const auto id : slots.stopped)
    gpus.push_back(json::object{{"gpu_id", number(id)}, {"slots", nullptr}, {"taken", nullptr}});
  json::array shown;
  for (const auto& each : taken)
    shown.push_back(
        json::object{{"gpu_id", number(each.slot.gpu)},
                     {"xcc", each.slot.xcc},
                     {"pipe", each.slot.pipe},
                     {"slot", each.slot.slot},
                     {"vmid", each.slot.vmid},
                     {"priority", each.slot.priority},
                     {"backlog", each.backlog},
                     {"pid", each.pid != 0 ? json::value(each.pid) : json::value(nullptr)}});
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  return json::object{{"version", 1},
                      {"time_unix_ms", now.time_since_epoch().count()},
                      {"gpus", std::move(gpus)},
                      {"taken", std::move(shown)}};
}

subcommand add_hqds(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<hqds_options>();
  auto* const command =
      program.add_subcommand("hqds", "Show hardware queue slots and their backlog");
  command->footer(
      "Works only with the driver kfd.\n"
      "BACKLOG: 64-byte packets that the GPU has not read yet (write pointer minus read\n"
      "pointer). PID and COMMAND: owner of the queue (file mqds); '-' if unknown. Needs\n"
      "root. Reads registers through debugfs, which wakes the GPU.\n" +
      std::string{exit_codes});
  command->add_option("--gpu", chosen->gpus, "Only these GPUs: gpu_id, ordinal, PCI or unique id")
      ->type_name("GPU");
  command
      ->add_option_function<std::string>(
          "--watch",
          [chosen](const std::string& text) {
            const auto value = parse_duration(text.empty() ? "1s" : text);
            if (!value || *value < 10ms || *value > 1h)
              throw CLI::ValidationError("--watch",
                                         "invalid duration '" + text + "': expected 10ms to 1h");
            chosen->interval = *value;
          },
          "Repeat at this interval until Ctrl-C [1s]")
      ->expected(0, 1)
      ->type_name("TIME");
  command->add_flag("--json", chosen->json, "Print one line of JSON each time");
  return {command, [chosen, known] { return show(*chosen, known); }};
}

}  // namespace sluice::cli
