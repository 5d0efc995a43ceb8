#include "formats/conf.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/json_comments.h"
#include "base/size.h"
#include "base/text.h"

namespace pipewright {

static const char kModules[] = "module_to_stage_map";
static const char kRanks[] = "stage_to_rank_map";
static const char kDepths[] = "stage_to_depth_map";
static const char kOffload[] = "offload";
static const char kDevices[] = "rank_to_device_map";

namespace {

// The text of a conf, to locate mistakes. A mistake is thrown if `mistakes` is null; otherwise it
// is added to it, and reading continues with whatever does not depend on the mistake.
struct Source {
  const std::string& text;
  const std::string& path;
  std::vector<Error>* mistakes = nullptr;

  void Fail(const std::vector<std::string>& at, const std::string& what,
            const std::string& cure = "") const {
    const Error error(text.empty() ? path : path + ":" + JsonPosition(text, at), what, cure);
    if (!mistakes) throw error;
    mistakes->push_back(error);
  }
};

constexpr int kInvalid = -1;  // stands for an invalid number

}  // namespace

static int Number(const Json& value, const Source& source, const std::vector<std::string>& at,
                  const char* what) {
  if (value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() <= 1e6)
    return value.get<int>();
  source.Fail(at, std::string("a ") + what + " is expected (0, 1, 2, ...), not " + value.dump());
  return kInvalid;
}

// Returns the entries of {"0": ..., "1": ...}, by stage or rank, in the order of their keys, which
// must be 0 to n-1; empty if a key is invalid.
static std::vector<const Json*> ByNumber(const Json& map, const char* name, const Source& source,
                                         const std::string& of = "stage") {
  if (!map.is_object()) {
    source.Fail({name}, std::string(name) + " is expected to be {\"0\": ..., \"1\": ...}");
    return {};
  }
  std::vector<const Json*> entries(map.size());
  bool valid = true;
  for (const auto& [key, value] : map.items()) {
    bool digits = !key.empty() && key.size() < 7 &&
                  key.find_first_not_of("0123456789") == std::string::npos &&
                  (key == "0" || key[0] != '0');
    if (!digits) {
      source.Fail({name, key}, "\"" + key + "\" is not the number of a " + of);
      valid = false;
      continue;
    }
    size_t stage = std::stoul(key);
    if (stage >= entries.size()) {
      size_t missing = 0;
      while (map.contains(std::to_string(missing))) ++missing;
      // A key that is not a number may stand for the missing stage.
      if (valid)
        source.Fail({name, key},
                    std::string(name) + " has " + of + " " + key + " but no " + of + " " +
                        std::to_string(missing),
                    of + "s are numbered 0, 1, 2, ... without gaps");
      valid = false;
      continue;
    }
    entries[stage] = &value;
  }
  if (!valid) entries.clear();
  return entries;
}

// Fails because stage_to_rank_map has no ranks for a module's stage.
static void FailWithoutRanks(const Conf& conf, size_t module, const Source& source) {
  source.Fail({kModules, std::to_string(module)},
              "module " + std::to_string(module) + " is in stage " +
                  std::to_string(conf.module_to_stage[module]) +
                  ", which has no ranks in stage_to_rank_map",
              "its stages are 0 to " + std::to_string(conf.stage_to_ranks.size() - 1));
}

static std::vector<int> ReadRanks(const Json& list, int stage, const Source& source) {
  std::string s = std::to_string(stage);
  if (!list.is_array()) {
    source.Fail({kRanks, s}, "a list of ranks is expected, [0, 1]");
    return {};
  }
  if (list.empty())
    source.Fail({kRanks, s}, "stage " + s + " has no ranks", "give it at least one");
  std::vector<int> ranks;
  for (size_t i = 0; i < list.size(); ++i) {
    std::vector<std::string> at = {kRanks, s, std::to_string(i)};
    int rank = Number(list[i], source, at, "rank");
    if (rank != kInvalid && std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
      source.Fail(at, "rank " + std::to_string(rank) + " appears twice in stage " + s,
                  "each replica of a stage needs a rank of its own");
    ranks.push_back(rank);
  }
  return ranks;
}

// Returns true if only the last module has stage `stage`.
static bool OnlyLast(const Json& modules, size_t stage) {
  if (!modules.is_array() || modules.size() < 2 || modules.back() != stage) return false;
  return std::count(modules.begin(), modules.end(), Json(stage)) == 1;
}

int CountRanks(const Conf& conf) {
  int count = 0;
  for (const std::vector<int>& ranks : conf.stage_to_ranks)
    for (const int rank : ranks) count = std::max(count, rank + 1);
  return count;
}

static void CheckRanksComplete(const Conf& conf, const Source& source) {
  std::set<int> used;
  for (const auto& ranks : conf.stage_to_ranks) used.insert(ranks.begin(), ranks.end());
  if (static_cast<int>(used.size()) == CountRanks(conf)) return;
  int missing = 0;
  while (used.count(missing)) ++missing;
  source.Fail({kRanks},
              "ranks go up to " + std::to_string(*used.rbegin()) + " but rank " +
                  std::to_string(missing) + " has no stage",
              "number the ranks 0, 1, 2, ... without gaps");
}

static void CheckStagesUsed(const Conf& conf, size_t modules, const Source& source) {
  std::vector<char> used(conf.stage_to_ranks.size(), 0);
  for (size_t m = 0; m < modules; ++m)
    if (size_t stage = static_cast<size_t>(conf.module_to_stage[m]); stage < used.size())
      used[stage] = 1;
  size_t empty = static_cast<size_t>(std::find(used.begin(), used.end(), 0) - used.begin());
  if (empty == used.size()) return;
  std::string s = std::to_string(empty);
  bool only_loss = modules < conf.module_to_stage.size() &&
                   conf.module_to_stage.back() == static_cast<int>(empty);
  source.Fail({kRanks, s},
              "stage " + s + (only_loss ? " has no module besides the loss" : " has no module"),
              "give it one in module_to_stage_map, or remove it");
}

static void ReadOffload(const Json& json, const Source& source, Conf& conf) {
  std::vector<std::string> known = {"stages", "memory"};
  if (!json.is_object() || !json.contains("stages") || !json["stages"].is_array())
    return source.Fail({kOffload}, "{\"stages\": [1, 2], \"memory\": \"1GiB\"} is expected");
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      source.Fail({kOffload, key}, "unknown key \"" + key + "\"" + Suggest(key, known));
  for (size_t i = 0; i < json["stages"].size(); ++i) {
    std::vector<std::string> at = {kOffload, "stages", std::to_string(i)};
    int stage = Number(json["stages"][i], source, at, "stage");
    if (stage == kInvalid) continue;
    if (!conf.stage_to_ranks.empty() && stage >= static_cast<int>(conf.stage_to_ranks.size()))
      source.Fail(at, "there is no stage " + std::to_string(stage));
    if (!conf.offloaded_stages.empty() && stage <= conf.offloaded_stages.back())
      source.Fail(at, "list the stages in ascending order, each only once");
    conf.offloaded_stages.push_back(stage);
  }
  if (!json.contains("memory")) return;
  const Json& memory = json["memory"];
  if (!memory.is_string() && !memory.is_number_integer())
    return source.Fail({kOffload, "memory"}, "a size is expected, \"1GiB\" or bytes");
  try {
    conf.offload_memory = ParseSize(memory.is_string() ? memory.get<std::string>() : memory.dump(),
                                    source.path + ": " + kOffload + ".memory");
  } catch (const Error& e) {
    if (!source.mistakes) throw;
    source.mistakes->push_back(e);
  }
}

// Adds the stage of each module to `conf`. Its stages were read before, unless they are invalid.
static void ReadModules(const Json& modules, const Source& source, Conf& conf) {
  if (!modules.is_array() || modules.empty())
    return source.Fail({kModules}, "a list with the stage of each module is expected, [0, 1, 1]");
  const int stages = static_cast<int>(conf.stage_to_ranks.size());
  for (size_t m = 0; m < modules.size(); ++m) {
    const int stage = Number(modules[m], source, {kModules, std::to_string(m)}, "stage");
    conf.module_to_stage.push_back(stage);
    // The last entry may be the loss's, which CheckConf drops.
    const bool last = m > 0 && m + 1 == modules.size();
    if (stages > 0 && stage >= stages && !last) FailWithoutRanks(conf, m, source);
  }
}

static void ReadDepths(const Json& depths, const Source& source, Conf& conf) {
  conf.stage_to_depth.emplace();
  for (const Json* depth : ByNumber(depths, kDepths, source))
    conf.stage_to_depth->push_back(
        Number(*depth, source, {kDepths, std::to_string(conf.stage_to_depth->size())}, "depth"));
  const size_t entries = conf.stage_to_depth->size(), stages = conf.stage_to_ranks.size();
  if (entries > 0 && stages > 0 && entries != stages)
    source.Fail({kDepths}, "stage_to_depth_map has " +
                               Counted(static_cast<int64_t>(entries), "stage") +
                               ", but stage_to_rank_map has " + std::to_string(stages));
}

// Reads the ranks of each stage; none if a stage's number is invalid.
static void ReadStages(const Json& json, const Source& source, Conf& conf) {
  std::vector<const Json*> lists = ByNumber(json[kRanks], kRanks, source);
  // A stage that only computes the loss needs no ranks.
  if (lists.size() > 1 && lists.back()->is_array() && lists.back()->empty() &&
      OnlyLast(json[kModules], lists.size() - 1))
    lists.pop_back();
  if (json[kRanks].is_object() && json[kRanks].empty())
    source.Fail({kRanks}, "stage_to_rank_map is empty");
  for (const Json* list : lists)
    conf.stage_to_ranks.push_back(
        ReadRanks(*list, static_cast<int>(conf.stage_to_ranks.size()), source));
}

// The runtime checks the names, because they depend on the host.
static void ReadDevices(const Json& devices, const Source& source, Conf& conf) {
  for (const Json* device : ByNumber(devices, kDevices, source, "rank")) {
    const std::string rank = std::to_string(conf.devices.size());
    if (!device->is_string() || device->get<std::string>().empty())
      source.Fail({kDevices, rank},
                  "a device is expected, \"cpu\" or \"cuda:0\", not " + device->dump());
    conf.devices.push_back(device->is_string() ? device->get<std::string>() : "");
  }
  const int ranks = CountRanks(conf), named = static_cast<int>(conf.devices.size());
  if (named > 0 && ranks > 0 && named != ranks)
    source.Fail({kDevices}, std::string(kDevices) + " has " + Counted(named, "rank") +
                                ", but stage_to_rank_map has " + std::to_string(ranks));
}

static Conf ParseConf(const Source& source) {
  Conf conf;
  Json json = ParseJson(source.text, source.path);
  if (!json.is_object()) {
    source.Fail({}, "an object with module_to_stage_map is expected");
    return conf;
  }
  if (json.contains("data") && !json.contains(kModules)) {
    source.Fail({}, "is a job, not a conf", "`pipewright conf PACKAGE` writes one");
    return conf;
  }
  std::vector<std::string> known = {kModules, kRanks, kDepths, kOffload, kDevices};
  for (const auto& [key, value] : json.items())
    if (key != "$schema" && std::find(known.begin(), known.end(), key) == known.end())
      source.Fail({key}, "unknown key \"" + key + "\"" + Suggest(key, known),
                  "known here: " + Join(known, ", "));
  for (const char* key : {kModules, kRanks})
    if (!json.contains(key)) source.Fail({}, std::string(key) + " is missing");
  auto valid = [&] { return !source.mistakes || source.mistakes->empty(); };
  if (json.contains(kRanks)) ReadStages(json, source, conf);
  if (valid()) CheckRanksComplete(conf, source);
  if (json.contains(kModules)) ReadModules(json[kModules], source, conf);
  if (valid()) CheckStagesUsed(conf, conf.module_to_stage.size(), source);
  if (json.contains(kDepths)) ReadDepths(json[kDepths], source, conf);
  if (json.contains(kOffload)) ReadOffload(json[kOffload], source, conf);
  if (json.contains(kDevices)) ReadDevices(json[kDevices], source, conf);
  return conf;
}

Conf ParseConf(const std::string& text, const std::string& path) {
  return ParseConf(Source{text, path});
}

Conf ReadConf(const std::string& path) {
  return ParseConf(WithoutComments(ReadFile(path)), path);
}

std::string ConfOfRun(const std::string& package, const std::string& given, int ranks) {
  if (!given.empty()) return given;
  const std::string path = package + "/conf/mp_conf.json";
  std::error_code none;
  if (std::filesystem::exists(package + "/manifest.json", none) &&
      !std::filesystem::exists(path, none))
    throw Error(path, "is missing: it says which rank runs which modules",
                "make one, and run with --conf conf.json:\n    pipewright conf " + package +
                    " --ranks " + (ranks > 0 ? std::to_string(ranks) : "N") + " -o conf.json");
  return path;
}

// Returns true if the graph of stages has a cycle. Then no stage order exists, and some stage is
// not convex.
static bool HasCycle(int stages, const std::set<std::pair<int, int>>& edges) {
  std::vector<int> waiting(static_cast<size_t>(stages), 0), ready;
  for (auto [from, to] : edges) ++waiting[static_cast<size_t>(to)];
  for (int s = 0; s < stages; ++s)
    if (!waiting[static_cast<size_t>(s)]) ready.push_back(s);
  for (size_t i = 0; i < ready.size(); ++i)
    for (auto edge = edges.lower_bound({ready[i], 0});
         edge != edges.end() && edge->first == ready[i]; ++edge)
      if (--waiting[static_cast<size_t>(edge->second)] == 0) ready.push_back(edge->second);
  return static_cast<int>(ready.size()) < stages;
}

static void CheckConvex(const Conf& conf, const std::vector<std::pair<int, int>>& module_edges,
                        const Source& source) {
  auto stage_of = [&](int module) { return conf.module_to_stage.at(static_cast<size_t>(module)); };
  std::set<std::pair<int, int>> stage_edges;
  for (const auto& [from, to] : module_edges)
    if (stage_of(from) != stage_of(to)) stage_edges.insert({stage_of(from), stage_of(to)});
  const bool cycle = HasCycle(static_cast<int>(conf.stage_to_ranks.size()), stage_edges);
  for (const auto& [from, to] : module_edges) {
    if (stage_of(from) <= stage_of(to)) continue;
    const std::string what = "module " + std::to_string(from) + " (stage " +
                             std::to_string(stage_of(from)) + ") feeds module " +
                             std::to_string(to) + " (stage " + std::to_string(stage_of(to)) + "): ";
    const std::vector<std::string> at = {kModules, std::to_string(to)};
    if (cycle)
      source.Fail(at, what + "values would leave a stage and come back to it (it is not convex)",
                  "a stage may only use values of its own modules and of earlier stages");
    else
      source.Fail(at, what + "stages are numbered against the flow of values",
                  "number the stages in the order in which they run");
  }
}

// Reads the text of a conf again, to locate an error.
static std::string TextAt(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) ? WithoutComments(ReadFile(path)) : "";
}

static void CheckLaunchedRanks(const Conf& conf, int launched_ranks, const Source& source) {
  int ranks = CountRanks(conf);
  if (ranks == launched_ranks) return;
  source.Fail({kRanks},
              "the conf needs " + Counted(ranks, "rank") + ", but " +
                  std::to_string(launched_ranks) +
                  (launched_ranks == 1 ? " was launched" : " were launched"),
              "run it with mpirun -n " + std::to_string(ranks) + ", or choose another conf");
}

void CheckLaunchedRanks(const Conf& conf, int launched_ranks, const std::string& path) {
  const std::string text = TextAt(path);
  CheckLaunchedRanks(conf, launched_ranks, Source{text, path});
}

static void CheckConf(Conf& conf, int modules, int launched_ranks,
                      const std::vector<std::pair<int, int>>& module_edges, const Source& source) {
  if (launched_ranks >= 0) CheckLaunchedRanks(conf, launched_ranks, source);
  size_t count = static_cast<size_t>(modules), entries = conf.module_to_stage.size();
  if (entries != count && (entries != count + 1 || conf.has_loss_entry))
    return source.Fail(
        {kModules},
        "module_to_stage_map has " + Counted(entries, "entry") + ", but the model has " +
            Counted(modules, "module"),
        "give one entry per module, and optionally one more at the end for the loss");
  CheckStagesUsed(conf, count, source);
  if (entries == count &&
      conf.module_to_stage.back() >= static_cast<int>(conf.stage_to_ranks.size()))
    return FailWithoutRanks(conf, count - 1, source);
  if (entries == count + 1) {
    conf.module_to_stage.pop_back();
    conf.has_loss_entry = true;
  }
  CheckConvex(conf, module_edges, source);
}

void CheckConf(Conf& conf, int modules, int launched_ranks,
               const std::vector<std::pair<int, int>>& module_edges, const std::string& path) {
  const std::string text = TextAt(path);
  CheckConf(conf, modules, launched_ranks, module_edges, Source{text, path});
}

Conf ReadConf(const std::string& path, int modules, int launched_ranks,
              const std::vector<std::pair<int, int>>& module_edges, std::vector<Error>& mistakes) {
  const std::string text = WithoutComments(ReadFile(path));
  const Source source{text, path, &mistakes};
  Conf conf = ParseConf(source);
  if (mistakes.empty()) CheckConf(conf, modules, launched_ranks, module_edges, source);
  return conf;
}

static std::string List(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (int n : numbers) parts.push_back(std::to_string(n));
  return "[" + Join(parts, ", ") + "]";
}

static std::string MapText(const std::vector<std::string>& values) {
  std::vector<std::string> parts;
  for (size_t s = 0; s < values.size(); ++s)
    parts.push_back("\"" + std::to_string(s) + "\": " + values[s]);
  std::string line = "{" + Join(parts, ", ") + "}";
  return line.size() <= 70 ? line : "{\n        " + Join(parts, ",\n        ") + "\n    }";
}

std::string WriteConf(const Conf& conf) {
  std::vector<int> modules = conf.module_to_stage;
  if (conf.has_loss_entry && !modules.empty()) modules.push_back(modules.back());
  std::vector<std::string> ranks;
  for (const auto& list : conf.stage_to_ranks) ranks.push_back(List(list));
  std::string out = std::string("{\n    \"") + kModules + "\": " + List(modules) + ",\n    \"" +
                    kRanks + "\": " + MapText(ranks);
  if (conf.stage_to_depth) {
    std::vector<std::string> depths;
    for (int depth : *conf.stage_to_depth) depths.push_back(std::to_string(depth));
    out += std::string(",\n    \"") + kDepths + "\": " + MapText(depths);
  }
  if (!conf.offloaded_stages.empty()) {
    out += std::string(",\n    \"") + kOffload + "\": {\"stages\": " + List(conf.offloaded_stages);
    if (conf.offload_memory > 0) out += ", \"memory\": " + std::to_string(conf.offload_memory);
    out += "}";
  }
  if (!conf.devices.empty()) {
    std::vector<std::string> devices;
    for (const std::string& device : conf.devices) devices.push_back(Quote(device));
    out += std::string(",\n    \"") + kDevices + "\": " + MapText(devices);
  }
  return out + "\n}\n";
}

Conf GroupModules(int modules, int ranks) {
  if (ranks < 1 || modules < ranks)
    throw Error("conf",
                Counted(modules, "module") + " cannot be grouped into " + Counted(ranks, "stage"),
                "run on " + (modules > 1 ? "1 to " : std::string()) + Counted(modules, "rank") +
                    ", or compile the model with more cuts (--split)");
  Conf conf;
  for (int64_t m = 0; m < modules; ++m)
    conf.module_to_stage.push_back(static_cast<int>(m * ranks / modules));
  for (int r = 0; r < ranks; ++r) conf.stage_to_ranks.push_back({r});
  return conf;
}

}  // namespace pipewright
