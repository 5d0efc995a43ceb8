#include "plan/placement/process_bytes.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/text.h"
#include "plan/placement/tensor_ids.h"

namespace pipewright {

namespace {

constexpr int64_t kSlots = 2;

bool IsNumbered(const std::string& device) { return device != "cpu" && device != "disk"; }

// The number of parts that are loaded into slots, and the bytes of the largest.
struct Visitors {
  int64_t largest = 0, count = 0;
  void Add(int64_t bytes) {
    if (bytes == 0) return;
    largest = std::max(largest, bytes);
    ++count;
  }
  int64_t Slots() const { return std::min(count, kSlots) * largest; }
};

// Groups parts on disk by the device that computes with them, which is that of the part before.
std::map<std::string, Visitors> VisitorsOfParts(const Placement& placement,
                                                const std::string& first) {
  std::map<std::string, Visitors> travels;
  std::string device = first;
  for (const PlacedPart& part : placement.parts) {
    if (IsNumbered(part.device)) device = part.device;
    if (part.device == "disk") travels[device].Add(part.bytes);
  }
  return travels;
}

}  // namespace

std::vector<RankWeights> WeightsOfRanks(const Manifest& manifest, const Residence& residence,
                                        bool training) {
  const std::vector<std::vector<int>> ids = TensorIds(manifest, training);
  size_t ranks = 0;
  for (const std::vector<int>& of : residence.conf.stage_to_ranks)
    ranks = std::max(ranks, static_cast<size_t>(of[0]) + 1);
  std::vector<RankWeights> weights(ranks);
  std::vector<Visitors> travels(ranks);
  std::vector<std::set<int>> counted(ranks);
  for (size_t m = 0; m < ids.size(); ++m) {
    const int stage = residence.conf.module_to_stage[m];
    const auto rank = static_cast<size_t>(residence.conf.stage_to_ranks[stage][0]);
    int64_t on_disk = 0;
    for (size_t w = 0; w < ids[m].size(); ++w) {
      const int64_t bytes = BytesOf(manifest.modules[m].held[w]);
      const bool travelling = residence.on_disk[m][w];
      if (travelling)
        on_disk += bytes;
      else if (counted[rank].insert(ids[m][w]).second)
        weights[rank].resident += bytes;
    }
    travels[rank].Add(on_disk);
  }
  for (size_t r = 0; r < ranks; ++r) weights[r].slots = travels[r].Slots();
  return weights;
}

void CountProcesses(Placement& placement, const Manifest* manifest) {
  std::vector<BudgetUse*> processes;
  for (BudgetUse& budget : placement.budgets)
    if (IsNumbered(budget.device) && budget.used > 0) processes.push_back(&budget);
  for (BudgetUse& budget : placement.budgets)
    if (processes.empty() && budget.device == "cpu") processes.push_back(&budget);
  if (processes.empty()) return;
  std::map<std::string, Visitors> travels = VisitorsOfParts(placement, processes[0]->device);
  std::vector<RankWeights> ranks;
  if (manifest && placement.uncovered.empty()) try {
      ranks = WeightsOfRanks(*manifest, ReadResidence(*manifest, placement.map, "", 0), false);
    } catch (const Error&) {  // a map that does not run this package
    }
  for (size_t i = 0; i < processes.size(); ++i) {
    BudgetUse& budget = *processes[i];
    budget.process = kProcessBytes;
    budget.slots =
        ranks.size() == processes.size() ? ranks[i].slots : travels[budget.device].Slots();
  }
}

Placement PlaceProcesses(const ModuleTree& tree, const PlaceOptions& options,
                         const Manifest* manifest) {
  PlaceOptions asked = options;
  std::vector<int64_t> used(options.budgets.size(), -1);  // in the last placement
  while (true) {
    Placement placement = Place(tree, asked);
    CountProcesses(placement, manifest);
    bool fits = true;
    for (size_t i = 0; i < options.budgets.size(); ++i) {
      const Budget& budget = options.budgets[i];
      BudgetUse& use = placement.budgets[i];
      if (budget.device == "disk" || budget.unlimited()) continue;
      const int64_t excess = use.Peak() - budget.limit;
      if (excess <= 0) continue;
      if (asked.budgets[i].limit == 0)
        throw Error("--max-memory",
                    "device " + budget.device + " has " + SizeText(budget.limit) +
                        ", and slots of " + SizeText(use.slots) + " and the process, " +
                        SizeText(use.process) + ", take more",
                    "raise it, or cut the model finer: the largest layer that travels sets the "
                    "slots");
      // Lowers the budget below what was placed, so that the next placement takes less. Buffers
      // that stay in memory are not limited, so that it may take as much: then lowers it by more.
      int64_t& limit = asked.budgets[i].limit;
      const int64_t least = use.used == used[i] ? limit / 64 : 0;
      used[i] = use.used;
      limit =
          std::max<int64_t>(0, std::min(limit, use.used + use.reserved) - std::max(excess, least));
      fits = false;
    }
    if (!fits) continue;
    for (size_t i = 0; i < options.budgets.size(); ++i)
      placement.budgets[i].limit = options.budgets[i].limit;
    return placement;
  }
}

std::string BudgetsPath(const std::string& map) { return map + ".budgets"; }

std::string WriteBudgets(const std::string& map_text, const std::vector<Budget>& budgets) {
  Json json{{"map", HexHash(map_text)}, {"budgets", Json::object()}};
  for (const Budget& budget : budgets)
    if (!budget.unlimited() && budget.device != "disk")
      json["budgets"][budget.device] = budget.limit;
  return json.dump(1) + "\n";
}

std::vector<std::string> ExceededBudgets(const Manifest& manifest, const DeviceMap& map,
                                         const Residence& residence, const std::string& path,
                                         bool training) {
  const std::string file = BudgetsPath(path);
  if (!std::filesystem::exists(file)) return {};
  const Json json = ReadJson(file);
  // The budgets are of an earlier map if the map was edited or made again.
  if (!json.is_object() || !json.contains("budgets") ||
      json.value("map", "") != HexHash(ReadFile(path)))
    return {};
  std::set<int> numbers;
  bool cpu = false;
  for (const auto& [key, device] : map) {
    if (IsNumbered(device)) numbers.insert(std::stoi(device));
    cpu = cpu || device == "cpu";
  }
  const std::vector<RankWeights> ranks = WeightsOfRanks(manifest, residence, training);
  std::vector<std::string> warnings;
  for (size_t r = 0; r < ranks.size(); ++r) {
    // A single rank has all the devices.
    std::set<std::string> devices;
    size_t place = 0;
    for (int number : numbers)
      if (ranks.size() == 1 || place++ == r) devices.insert(std::to_string(number));
    if (cpu || numbers.empty()) devices.insert("cpu");
    int64_t budget = 0;
    bool limited = true;
    for (const std::string& device : devices) {
      limited = limited && json["budgets"].contains(device);
      if (limited) budget += json["budgets"][device].get<int64_t>();
    }
    const int64_t most = ranks[r].resident + ranks[r].slots + kProcessBytes;
    if (!limited || most <= budget) continue;
    warnings.push_back(path + ": rank " + std::to_string(r) + " will take " + SizeText(most) +
                       " without activations (weights " + SizeText(ranks[r].resident) + ", slots " +
                       SizeText(ranks[r].slots) + ", the process " + SizeText(kProcessBytes) +
                       "), more than the " + SizeText(budget) +
                       " that the map was made for: pipewright place --whole-process counts "
                       "them in");
  }
  return warnings;
}

}  // namespace pipewright
