#include "runtime/transport/hosts.h"

#include <algorithm>

#include "base/error.h"
#include "base/process/launched_rank.h"
#include "base/text.h"
#ifdef PIPEWRIGHT_MPI
#include <unistd.h>

#include "runtime/transport/mpi_transport.h"
#endif

namespace pipewright {

#ifdef PIPEWRIGHT_MPI
std::optional<std::vector<std::string>> HostsUnderMpirun(const std::string&) {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  std::vector<std::string> hosts;
  {
    MpiOptions options;
    options.background_progress = options.inbox = false;
    MpiTransport processes(nullptr, nullptr, options);
    hosts = processes.AllGather(name);
    if (processes.rank() > 0) return std::nullopt;
  }
  ForgetMpirun();
  return hosts;
}
#else
std::optional<std::vector<std::string>> HostsUnderMpirun(const std::string& what) {
  throw UsageError(what, "was built without MPI, and mpirun started it",
                   "start it without mpirun, with --in-process");
}
#endif

std::string HostList(const std::vector<std::string>& hosts) {
  if (std::count(hosts.begin(), hosts.end(), hosts[0]) == std::ssize(hosts)) return "";
  std::vector<std::string> words;
  for (size_t first = 0, end = 0; first < hosts.size(); first = end) {
    while (end < hosts.size() && hosts[end] == hosts[first]) ++end;
    words.push_back(hosts[first] + ":" + std::to_string(end - first));
  }
  return Join(words, ",");
}

}  // namespace pipewright
