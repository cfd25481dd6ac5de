#include "store_choice.hpp"

#include "output.hpp"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace sluice::cli {

void add_store(CLI::App& to, store_choice& chosen) {
  auto* const store = to.add_option("--store", chosen.store, "Role store file")->type_name("FILE");
  to.add_option("--config", chosen.config, "Use the role store of this configuration file")
      ->type_name("FILE")
      ->excludes(store);
}

result<roles::classification_rules> load_rules(const std::string& config, std::string& message) {
  auto rules = roles::load_classification(config, message);
  if (!rules || config.empty()) return rules;
  const toml::parse_result file = toml::parse_file(config);
  if (file && !file.table().contains("roles"))
    complain("warning: " + printable(config) + ": no table [roles]; using the default rules");
  return rules;
}

result<roles::role_store> find_store(const store_choice& chosen) {
  if (!chosen.store.empty()) return roles::role_store{chosen.store};
  std::string message;
  const auto rules = load_rules(chosen.config, message);
  if (!rules) {
    complain(message);
    return rules.error();
  }
  return roles::role_store{rules->role_store};
}

}  // namespace sluice::cli
