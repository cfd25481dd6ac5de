// sluice breaker: which GPUs the scheduler leaves alone, and the word that one works again.

#include "breakers.hpp"
#include "driver_choice.hpp"
#include "output.hpp"
#include "subcommand.hpp"
#include "table.hpp"

#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

namespace sluice::cli {

namespace {

namespace json = boost::json;

struct breaker_options {
  std::string store;
  std::string driver;
  std::vector<std::string> gpus;
  bool all = false;
  bool json = false;
};

breaker_store store_of(const breaker_options& chosen, const driver& of) {
  return chosen.store.empty() ? default_breaker_store(of) : breaker_store{chosen.store};
}

/// The names of GPUs; none where the driver cannot be looked at, which a store does not need.
node_view node_now(const driver& of) {
  auto node = of.look();
  return node ? std::move(*node) : node_view{};
}

std::optional<stored_breakers> read(const breaker_store& store) {
  std::string message;
  auto all = store.read(message);
  if (!all) {
    complain(message);
    return {};
  }
  drop_over(*all);
  return std::move(*all);
}

int list(const breaker_options& chosen, const driver& of) {
  const auto store = store_of(chosen, of);
  const auto all = read(store);
  if (!all) return exit_failed;
  if (chosen.json)
    return print(json::value(json::object{
               {"version", 1}, {"store", store.path()}, {"breakers", breakers_json(*all)}}))
               ? exit_done
               : exit_failed;
  if (all->empty()) {
    const bool there = ::access(store.path().c_str(), F_OK) == 0;
    return print(fmt::format("{}: no breaker is open{}\n", store.path(),
                             there ? "" : "; the file does not exist"))
               ? exit_done
               : exit_failed;
  }
  const auto node = node_now(of);
  using enum table::align;
  table rows{{{"GPU", right}, {"GPU_ID", right}, {"SINCE"}, {"UNTIL"}, {"CAUSE"}, {"OF", right}}};
  for (const auto& [gpu, each] : *all) {
    const auto* const known = node.find(gpu);
    rows.add({known != nullptr ? std::to_string(known->ordinal) : "?", std::to_string(number(gpu)),
              wall_text(each.since), each.until ? wall_text(*each.until) : "re-armed",
              std::string{to_string(each.why)}, std::to_string(number(each.first))});
  }
  return print(rows.text(terminal_width())) ? exit_done : exit_failed;
}

int rearm(const breaker_options& chosen, const driver& of) {
  const auto store = store_of(chosen, of);
  const auto all = read(store);
  if (!all) return exit_failed;
  const auto node = node_now(of);
  std::vector<gpu_id> ids;
  if (chosen.all)
    for (const auto& [gpu, each] : *all) ids.push_back(gpu);
  for (const auto& word : chosen.gpus) {
    const auto* const known = find_gpu(node, word);
    // One that is not shown any more has a breaker, perhaps.
    const auto id = known != nullptr ? number(known->id) : whole_number<std::uint32_t>(word);
    if (!id) {
      complain(
          fmt::format("{}: no such GPU, so no breaker was re-armed; 'sluice queues' lists the GPUs",
                      printable(word)));
      return exit_failed;
    }
    if (!all->contains(gpu_id{*id})) {
      complain(
          fmt::format("{} has no open breaker in {}, so no breaker was re-armed; "
                      "'sluice breaker list' shows the open breakers",
                      gpu_name(node, gpu_id{*id}), store.path()));
      return exit_failed;
    }
    ids.push_back(gpu_id{*id});
  }
  std::string message;
  if (!store.change({}, ids, message)) {
    complain(message);
    return exit_failed;
  }
  stored_breakers left = *all;
  stored_breakers gone;
  for (const gpu_id id : ids)
    if (auto node_of = left.extract(id)) gone.insert(std::move(node_of));
  if (chosen.json)
    return print(json::value(json::object{{"version", 1},
                                          {"store", store.path()},
                                          {"rearmed", breakers_json(gone)},
                                          {"breakers", breakers_json(left)}}))
               ? exit_done
               : exit_failed;
  std::string text;
  for (const auto& [gpu, each] : gone)
    text += fmt::format(
        "the breaker of {} is re-armed; running schedulers suspend queues on this GPU again\n",
        gpu_name(node, gpu));
  if (gone.empty()) text = "no breaker is open\n";
  for (const auto& [gpu, each] : left)
    text += fmt::format("{} still has an open breaker\n", gpu_name(node, gpu));
  return print(text) ? exit_done : exit_failed;
}

}  // namespace

subcommand add_breaker(CLI::App& program, const driver_list& known) {
  const auto chosen = std::make_shared<breaker_options>();
  auto* const command =
      program.add_subcommand("breaker", "List and re-arm breakers, which stop suspends on a GPU");
  command->require_subcommand(1);
  command->footer(
      "A failed preemption, a reset or a stuck driver call opens the breaker of a GPU\n"
      "and its hive. Then sluice suspends no queue on these GPUs. Run 'rearm' when the\n"
      "GPU works again; otherwise the breaker closes after the time breaker_rearm.\n"
      "Breakers stay open when the daemon restarts. A reboot closes them.\n" +
      std::string{exit_codes});
  const auto add_common = [chosen, known](CLI::App& to) {
    add_driver(to, known, chosen->driver);
    to.add_flag("--json", chosen->json, "Print one line of JSON");
    to.add_option("--store", chosen->store,
                  "Breaker file [$SLUICE_BREAKERS or /run/sluice/breakers]")
        ->type_name("FILE");
  };
  auto* const list_command = command->add_subcommand("list", "List open breakers");
  add_common(*list_command);
  auto* const rearm_command =
      command->add_subcommand("rearm", "Re-arm breakers of GPUs that work again");
  auto* const gpus =
      rearm_command->add_option("GPU", chosen->gpus, "gpu_id, ordinal, PCI address or unique id")
          ->type_name("");
  rearm_command->add_flag("--all", chosen->all, "Re-arm all open breakers")->excludes(gpus);
  add_common(*rearm_command);
  return {command, [chosen, known, list_command] {
            const auto of = find_driver(known, chosen->driver);
            if (!of) return exit_failed;
            if (list_command->parsed()) return list(*chosen, *of);
            if (chosen->gpus.empty() && !chosen->all) {
              complain("GPU is missing: name one or more GPUs, or use --all (see --help)");
              return exit_usage;
            }
            return rearm(*chosen, *of);
          }};
}

}  // namespace sluice::cli
