#include "base/process/host_resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace pipewright {

double GroupLimit(const std::string& file, const std::string& groups, const std::string& root) {
  double least = std::numeric_limits<double>::infinity();
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("0::/")) continue;  // version 1
    std::filesystem::path group = line.substr(3);
    for (bool is_root = false; !is_root; group = group.parent_path()) {
      is_root = group == group.root_path();
      std::ifstream in(root + group.string() + "/" + file);
      double limit = 0, period = 1;
      if (!(in >> limit)) continue;  // it is missing, or "max"
      in >> period;                  // only cpu.max has one
      if (in.fail()) period = 1;
      least = std::min(least, limit / period);
    }
  }
  return least;
}

int CoresHere() {
  cpu_set_t mine;
  const int cores = sched_getaffinity(0, sizeof mine, &mine) == 0
                        ? CPU_COUNT(&mine)
                        : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, static_cast<int>(std::min<double>(cores, GroupLimit("cpu.max"))));
}

int64_t MemoryHere() {
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>(std::min(memory, GroupLimit("memory.max")));
}

double BusyTicks(const std::string& stat, const std::set<int>& cores) {
  double all = 0, own = 0;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0;
    fields >> name >> user >> nice >> system >> idle >> wait >> irq >> softirq >> steal;
    const double busy = user + nice + system + irq + softirq + steal;
    if (name == "cpu")
      all = busy;
    else if (name.starts_with("cpu") && cores.count(std::atoi(name.c_str() + 3)))
      own += busy;
  }
  return own > 0 ? own : all;
}

double BusySeconds() {
  std::set<int> cores;
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &mine)) cores.insert(core);
  std::ifstream file("/proc/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), {});
  return BusyTicks(stat, cores) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace pipewright
