// Sets variables of the environment for a test, and restores them at its end.
#pragma once
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace pipewright {

// Sets or removes (null) variables of the environment while it lives.
class Environment {
 public:
  using Variables = std::map<std::string, const char*>;
  explicit Environment(const Variables& variables) {
    for (const auto& [name, value] : variables) {
      const char* old = std::getenv(name.c_str());
      if (old)
        old_[name] = old;
      else
        old_[name] = std::nullopt;
      Set(name, value);
    }
  }
  Environment(const Environment&) = delete;
  ~Environment() {
    for (const auto& [name, old] : old_) Set(name, old ? old->c_str() : nullptr);
  }

 private:
  static void Set(const std::string& name, const char* value) {
    value ? setenv(name.c_str(), value, 1) : unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> old_;
};

// Variables by which launchers tell a process its rank (base/process/launched_rank.h). Tests run
// under mpirun have them too.
inline const Environment::Variables kNoLauncher = {{"OMPI_COMM_WORLD_RANK", nullptr},
                                                   {"PMIX_RANK", nullptr},
                                                   {"PMI_RANK", nullptr},
                                                   {"SLURM_PROCID", nullptr}};

}  // namespace pipewright
