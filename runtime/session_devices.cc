#include "runtime/session_devices.h"

#include <algorithm>

#include "base/error.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "runtime/exec/phase.h"
#include "runtime/exec/reduce.h"
#include "runtime/links/pairs.h"
#include "runtime/nccl/cuda_environment.h"
#include "runtime/nccl/nccl_library.h"
#include "runtime/rank_device.h"

namespace pipewright {

static AskedDevice AskedOf(const Session& session, size_t rank) {
  const SessionOptions& options = session.options;
  if (!options.device.empty()) return {options.device, "--device"};
  if (const std::vector<std::string>& of_conf = session.run.conf.devices;
      !of_conf.empty() && !of_conf[rank].empty())
    return {
        of_conf[rank],
        ConfOfRun(options.package, options.conf) + ": rank_to_device_map." + std::to_string(rank),
        true};
  return {session.job.device, session.job.path + ": device"};
}

// Says why a run stays on the CPU where that may surprise.
static void ExplainCpu(const AskedDevice& asked, const Accelerators& accelerators) {
  if (asked.name == "auto") PrintNote("this host has no accelerator, and the run stays on the CPU");
  if (asked.name.empty() && accelerators.count > 0)
    PrintNote("this host has " + Counted(accelerators.count, accelerators.type + " device") +
              ", and the run stays on the CPU: --device auto uses " +
              (accelerators.count == 1 ? "it" : "them"));
}

std::vector<std::string> ChooseDevices(const Session& session,
                                       const std::vector<VisibleDevices>& visible) {
  const size_t rank = static_cast<size_t>(session.transport.rank());
  const Job& job = session.job;
  std::string mine;
  Phase(session.transport, "choosing devices", [&] {
    std::vector<AskedDevice> asked;
    for (size_t r = 0; r < visible.size(); ++r) asked.push_back(AskedOf(session, r));
    const Accelerators accelerators = AcceleratorsHere();
    mine = ChooseDevice(asked[rank], PlaceOf(rank, visible, asked), accelerators,
                        session.options.share_devices);
    if (mine == "cpu") {
      if (rank == 0) ExplainCpu(asked[rank], accelerators);
      return;
    }
    const std::string only = " runs on the CPU only, and ranks compute on " +
                             mine.substr(0, mine.find(':')) + " devices";
    if (job.body == BodyChoice::kLists)
      throw Error(job.path + ": body", "\"lists\"" + only, "leave it out, or use --device cpu");
    if (job.matmul == MatMul::kOneDnn || session.options.matmul == MatMul::kOneDnn)
      throw Error(job.matmul == MatMul::kOneDnn ? job.path + ": matmul" : "--matmul",
                  "\"onednn\"" + only, "leave it out, or use --device cpu");
    UseDevice(c10::Device(mine));
    UseTf32(job.tf32);
  });
  const std::vector<std::string> all = session.transport.AllGather(mine);
  // A host without a working driver would slow down all others.
  std::vector<std::string> left;
  for (size_t r = 0; r < all.size(); ++r)
    if (AskedOf(session, r).name == "auto" && all[r] == "cpu") left.push_back(std::to_string(r));
  if (rank == 0 && !left.empty() && left.size() < all.size())
    PrintWarning("no accelerator was found for " +
                 std::string(left.size() == 1 ? "rank " : "ranks ") + Join(left, ", ") +
                 ", which " + (left.size() == 1 ? "stays" : "stay") + " on the CPU: --device " +
                 AcceleratorsHere().type + " makes this an error");
  return all;
}

void CheckCopiesOnDevices(const Session& session) {
  if (!session.options.training) return;
  const std::vector<std::string>& devices = session.devices;
  auto type = [&](int rank) { return c10::Device(devices[static_cast<size_t>(rank)]).type(); };
  for (const SharedGroup& group : session.stages->groups())
    for (const SharedHolder& holder : group) {
      const SharedHolder& first = group[0];
      if (type(holder.rank) == type(first.rank)) continue;
      auto place = [&](const SharedHolder& one) {
        return "stage " + std::to_string(one.stage) + " on rank " + std::to_string(one.rank) +
               " (" + devices[static_cast<size_t>(one.rank)] + ")";
      };
      throw Error("devices",
                  place(first) + " and " + place(holder) +
                      " hold copies of the same weights, which would drift apart: their devices "
                      "round differently",
                  "give these ranks devices of one type (rank_to_device_map of the conf)");
    }
}

static RankPairs AllPairs(const std::vector<int>& ranks) {
  RankPairs pairs;
  for (int a : ranks)
    for (int b : ranks)
      if (a != b) pairs.insert({a, b});
  return pairs;
}

// Returns what the session's values need, with AllReduce where it can be used, or without.
static DevicePeers NeededPeers(const Session& session, const Plan& forward,
                               const std::vector<VisibleDevices>& visible, bool all_reduce) {
  const RunPlan& run = session.run;
  const std::vector<std::string>& devices = session.devices;
  std::vector<std::string> ids;
  for (size_t r = 0; r < devices.size(); ++r) ids.push_back(DeviceId(visible[r], devices[r]));
  auto over_nccl = [&](const RankPairs& pairs) { return PairsOverNccl(pairs, devices, ids); };
  DevicePeers peers;
  RankPairs pairs;
  for (const Plan* plan : {&run.plan, &forward}) pairs.merge(PlanPairs(*plan, run.graph));
  if (session.options.training) {
    for (const SharedGroup& group : session.stages->groups()) {
      const std::vector<int> ranks = AllReduceRanks(group);
      if (all_reduce && !ranks.empty() && over_nccl(AllPairs(ranks)) == AllPairs(ranks))
        peers.sums.insert(ranks);
      else
        pairs.merge(ReducePairs(group));
    }
    if (session.job.merge_buffers)
      for (const std::vector<int>& replicas : run.conf.stage_to_ranks)
        for (int rank : replicas)
          if (rank != replicas[0]) pairs.insert({{rank, replicas[0]}, {replicas[0], rank}});
  }
  peers.pairs = over_nccl(pairs);
  return peers;
}

DevicePeers SessionPeers(const Session& session, const Plan& forward,
                         const std::vector<VisibleDevices>& visible) {
  const std::vector<std::string>& devices = session.devices;
  const bool cuda = std::any_of(devices.begin(), devices.end(),
                                [](const auto& name) { return name.rfind("cuda", 0) == 0; });
  const DeviceLinks links = session.options.links;
  if (links == DeviceLinks::kMpi || (links == DeviceLinks::kAuto && !cuda)) return {};
  int connections = kMostConnections;
  bool blocks = false;
  for (const std::string& of_rank : session.transport.AllGather(
           std::to_string(CudaConnections()) + (LaunchesBlock() ? " blocks" : ""))) {
    connections = std::min(connections, std::stoi(of_rank));
    blocks = blocks || of_rank.ends_with("blocks");
  }
  DevicePeers peers = NeededPeers(session, forward, visible, !session.job.exact_reduce);
  if (cuda && blocks && !(peers == DevicePeers{})) {
    // A rank would wait for a transfer before it can tell the other side.
    if (links != DeviceLinks::kAuto)
      throw Error("CUDA_LAUNCH_BLOCKING", "is set, and ranks over NCCL would wait for each other",
                  "unset it, or use --links mpi");
    if (session.transport.rank() == 0)
      PrintNote(
          "CUDA_LAUNCH_BLOCKING is set: values travel through host memory, as with --links "
          "mpi");
    return {};
  }
  if (cuda && ConnectionsNeeded(peers) > connections)
    peers = NeededPeers(session, forward, visible, false);
  if (links != DeviceLinks::kAuto) {
    if (peers == DevicePeers{} && devices.size() > 1 && session.transport.rank() == 0)
      PrintNote(
          "--links nccl has no effect: no two ranks that exchange values compute on devices "
          "of their own");
    return peers;
  }
  if (ConnectionsNeeded(peers) <= connections) return peers;
  if (session.transport.rank() == 0)
    PrintNote("a rank exchanges values with so many others that NCCL would need more than the " +
              std::to_string(connections) + " connections of a GPU" +
              (connections < kMostConnections ? " (CUDA_DEVICE_MAX_CONNECTIONS)" : "") +
              ": they travel through host memory, as with --links mpi");
  return {};
}

std::unique_ptr<NcclTransport> Connect(const Session& session, const DevicePeers& peers) {
  if (peers == DevicePeers{}) return nullptr;
  const std::string& device = session.devices[static_cast<size_t>(session.transport.rank())];
  Phase(session.transport, "starting", [&] {
    if (device.rfind("cuda", 0) == 0) CheckConnections(peers, CudaConnections());
    const std::string version = NcclVersionText(Nccl().version);
    if (session.transport.rank() != 0) return;
    PrintNote("NCCL " + version + " connects the devices");
    if (const std::string& replaced = ReplacedModuleLoading(); !replaced.empty())
      PrintNote("CUDA_MODULE_LOADING is EAGER in this run, and not " + replaced +
                ": loading a kernel may have to wait for transfers");
  });
  return std::make_unique<NcclTransport>(session.transport, c10::Device(device), peers);
}

}  // namespace pipewright
