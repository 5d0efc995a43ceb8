// Lets a program that starts ranks itself be started by mpirun, as in a batch job.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace pipewright {

// Returns the host of each process that mpirun started, in the first of them, which can then start
// mpirun itself, on the same hosts. Returns none in the others, which are not needed. To be called
// by all. Throws UsageError naming `what` in a program without MPI.
std::optional<std::vector<std::string>> HostsUnderMpirun(const std::string& what);

// Returns the ranks of each host as for --hosts, "a:2,b:2"; "" if all are on one host.
std::string HostList(const std::vector<std::string>& hosts);

}  // namespace pipewright
