#include "driver_choice.hpp"

#include "output.hpp"

#include <algorithm>
#include <utility>

namespace sluice::cli {

void add_driver(CLI::App& to, const driver_list& known, std::string& chosen) {
  chosen = any_driver;
  auto names = driver_names(make_all(known));
  names.insert(names.begin(), chosen);
  to.add_option("--driver", chosen, "Driver; auto: the only one that is present [auto]")
      ->check(CLI::IsMember(std::move(names)));
}

std::shared_ptr<const driver> find_driver(const driver_list& known, const std::string& chosen) {
  std::string message;
  const auto found = choose_driver(make_all(known), chosen, message);
  if (found) return *found;
  complain(message);
  return nullptr;
}

std::shared_ptr<const driver> find_driver_of(const driver_list& known, const std::string& chosen,
                                             pid_t pid) {
  const drivers present = candidates(make_all(known), chosen);
  if (present.size() < 2) return find_driver(known, chosen);
  for (const auto& each : present) {
    const auto seen = each->look();
    if (seen &&
        std::ranges::find(seen->processes, pid, &process_description::pid) != seen->processes.end())
      return each;
  }
  for (const auto& each : present) complain(each->why_not_listed(pid));
  return nullptr;
}

}  // namespace sluice::cli
