#include "runtime/reports/offload_report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/placement/residence.h"
#include "plan/placement/tensor_ids.h"
#include "runtime/stage/offload.h"

namespace pipewright {

void CheckOffload(const std::string& folder, const std::string& report, Transport& transport) {
  if (transport.rank() == 0 && !report.empty()) try {
      CheckWritable(report);
    } catch (const Error& e) {
      throw Error("--offload-report", e.what());
    }
  if (folder.empty()) return;
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    throw Error(folder, "is not a folder",
                "leave out --offload-dir: weights are read from the package's files");
  if (transport.rank() == 0 && fs::is_directory(folder, error) && !fs::is_empty(folder, error))
    std::fprintf(
        stderr,
        "pipewright-run: %s is not empty, but is not used: weights are read from the package's "
        "files\n",
        folder.c_str());
}

std::string ReportOffload(const Session& session, int64_t sweeps, const std::string& file) {
  Transport& transport = session.transport;
  const RunPlan& run = session.run;
  const OffloadedWeights* weights = session.stages->offloaded();
  const std::vector<std::vector<int>> ids = TensorIds(run.manifest, session.options.training);
  std::set<int> counted;
  int64_t total = 0, on_disk = 0;
  for (size_t m = 0; m < run.manifest.modules.size(); ++m) {
    bool here = false;
    for (int rank : run.conf.stage_to_ranks[run.conf.module_to_stage[m]])
      here = here || rank == transport.rank();
    for (size_t w = 0; here && w < run.on_disk[m].size(); ++w) {
      if (!counted.insert(ids[m][w]).second) continue;
      const int64_t bytes = BytesOf(run.manifest.modules[m].held[w]);
      total += bytes;
      on_disk += run.on_disk[m][w] ? bytes : 0;
    }
  }
  Json mine{{"rank", transport.rank()}, {"total", total}, {"resident", total - on_disk}};
  mine["sweeps"] = sweeps;
  mine["payload"] = 0;
  if (session.job.optimizer.state_on_disk)
    mine["optimizer_state"] = session.stages->updater().StateBytesOnDisk();
  if (weights) {
    const StreamStats stats = weights->stream().stats();
    mine["payload"] = stats.payload;
    mine["direct"] = stats.direct;
    mine["cached"] = stats.cached;
    mine["mapped"] = stats.mapped;
    mine["counted"] = {{"reads", stats.counted_reads}, {"disk", stats.counted_disk}};
    mine["buffers"] = weights->stream().buffers();
    mine["seconds"] = {{"reading", stats.reading}, {"waited", stats.waited}};
  }
  std::vector<std::string> all = transport.AllGather(mine.dump());
  if (transport.rank() != 0) return "";
  std::string text;
  Json ranks = Json::array();
  for (const std::string& entry : all) {
    Json rank = ParseJson(entry, "report");
    if (rank["payload"].get<uint64_t>() > 0)
      text += (all.size() > 1 ? "rank " + rank["rank"].dump() + ": " : "") +
              rank["resident"].dump() + " of " + rank["total"].dump() +
              " bytes of weights resident, " +
              std::to_string(rank["payload"].get<int64_t>() / std::max<int64_t>(1, sweeps)) +
              " read from disk in each sweep\n";
    ranks.push_back(std::move(rank));
  }
  if (!file.empty()) WriteFile(file, FormatJson({{"ranks", ranks}}));
  return text;
}

}  // namespace pipewright
