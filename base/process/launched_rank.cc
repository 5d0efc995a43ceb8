#include "base/process/launched_rank.h"

#include <sched.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace pipewright {

static bool IsOfMpirun(const std::string& name) {
  auto begins = [&](const char* prefix) { return name.starts_with(prefix); };
  if (begins("OMPI_MCA_"))
    return begins("OMPI_MCA_orte_") || begins("OMPI_MCA_prte_") || begins("OMPI_MCA_ess") ||
           begins("OMPI_MCA_pmix") || begins("OMPI_MCA_initial_wdir") ||
           begins("OMPI_MCA_PREFIXES") || begins("OMPI_MCA_num_procs");
  return (begins("OMPI_") && !begins("OMPI_ALLOW_")) || begins("PMI_") ||
         (begins("PMIX_") && !begins("PMIX_MCA_")) || (begins("PRTE_") && !begins("PRTE_MCA_"));
}

void ForgetMpirun() {
  const bool bound = std::getenv("OMPI_MCA_orte_bound_at_launch") != nullptr;
  std::vector<std::string> names;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    names.push_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names)
    if (IsOfMpirun(name)) unsetenv(name.c_str());
  if (!bound) return;
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &all);
  sched_setaffinity(0, sizeof all, &all);  // the system leaves out cores that it does not allow
}

}  // namespace pipewright
