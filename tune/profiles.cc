#include "tune/profiles.h"

#include <iostream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "tune/runs.h"
#include "tune/temporary_file.h"

namespace pipewright {

namespace {

// Returns 1, the powers of two below `ranks`, and `ranks`, limited to the number of modules.
std::set<int> RankCounts(int ranks, int modules) {
  std::set<int> counts = {std::min(ranks, modules)};
  for (int count = 1; count < *counts.rbegin(); count *= 2) counts.insert(count);
  return counts;
}

}  // namespace

void Say(const TuneRequest& request, const std::string& text) {
  if (!request.quiet) std::cerr << text << "\n";
}

void MeasureProfiles(const TuneRequest& request, const Job& job, const std::set<int64_t>& sizes,
                     TuneProblem& problem, std::vector<std::string>& notes) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const TemporaryFile conf = {request.output + "/profile_conf.json"};
  for (int ranks : RankCounts(request.ranks, modules)) {
    WriteFile(conf.path, WriteConf(GroupModules(modules, ranks)));
    for (int64_t size : sizes) {
      Say(request, "measuring the modules: " + Counted(ranks, "rank") + ", microbatches of " +
                       Counted(size, "sample"));
      try {
        problem.profiles.push_back({ranks, MeasureProfile(request.package, conf.path, ranks, size,
                                                          job.threads, request.repeat)});
      } catch (const Error& error) {
        if (size == job.microbatch_size) throw;
        notes.push_back("no microbatches of " + Counted(size, "sample") + ": " + error.what());
      }
    }
  }
}

}  // namespace pipewright
