#include "sluice/discovery.hpp"

#include "sluice/roles/role_store.hpp"

namespace sluice {

result<void> check_rules(const roles::classification_rules& rules,
                         const roles::classification_rules& before, std::string& message) {
  message = rules.problem();
  if (!message.empty()) return errc::bad_config;
  if (rules.role_store.empty() || rules.role_store == before.role_store) return {};
  const auto read = roles::role_store{rules.role_store}.read(message);
  return read ? result<void>{} : read.error();
}

}  // namespace sluice
