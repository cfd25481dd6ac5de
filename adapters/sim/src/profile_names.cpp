#include "profile_names.hpp"

#include <set>
#include <system_error>

namespace sluice::sim {

namespace fs = std::filesystem;

std::vector<fs::path> profile_folders() {
  std::error_code error;
  const auto program = fs::read_symlink("/proc/self/exe", error).parent_path();
  return {(program / "profiles").lexically_normal(),
          (program / SLUICE_SIM_PROFILES_FROM_BIN).lexically_normal()};
}

std::string profile_names() {
  std::set<std::string> names;
  for (const auto& folder : profile_folders()) {
    std::error_code error;
    for (fs::directory_iterator each{folder, error}, end; !error && each != end;
         each.increment(error))
      if (each->path().extension() == ".toml") names.insert(each->path().stem().string());
  }
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

}  // namespace sluice::sim
