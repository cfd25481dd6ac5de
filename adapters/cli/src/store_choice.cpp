#include "store_choice.hpp"

#include "output.hpp"

#include "sluice/kfd/classification.hpp"

namespace sluice::cli {

void add_store(CLI::App& to, store_choice& chosen) {
  auto* const store =
      to.add_option("--store", chosen.store, "The role store's file")->type_name("FILE");
  to.add_option("--config", chosen.config, "Take the store from this configuration")
      ->type_name("FILE")
      ->excludes(store);
}

result<kfd::role_store> find_store(const store_choice& chosen) {
  if (!chosen.store.empty()) return kfd::role_store{chosen.store};
  std::string message;
  const auto rules = kfd::load_classification(chosen.config, message);
  if (!rules) {
    complain(message);
    return rules.error();
  }
  return kfd::role_store{rules->role_store};
}

}  // namespace sluice::cli
