#include "plan/simulate/costs.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/json_comments.h"
#include "base/text.h"

namespace pipewright {

static double Number(const Json& value, const std::string& where) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
    throw Error(where, "a number >= 0 is expected, not " + value.dump());
  return value.get<double>();
}

static void Read(const Json& object, const char* key, const std::string& where, double& out) {
  if (object.contains(key)) out = Number(object[key], where + "." + key);
}

static int Index(const Json& object, const char* key, const std::string& where,
                 const char* what = "rank") {
  if (!object.contains(key) || !object[key].is_number_integer() || object[key].get<int64_t>() < 0 ||
      object[key].get<int64_t>() > std::numeric_limits<int>::max())
    throw Error(where, std::string("\"") + key + "\" must be a " + what + "'s number");
  return object[key].get<int>();
}

// Reads the values of `keys`.
static void ReadPeak(const Json& object, const std::vector<std::string>& keys,
                     const std::string& where, PeakBytes& peak) {
  CheckKeys(object, keys, where);
  Read(object, "F", where, peak.F);
  Read(object, "I", where, peak.I);
  Read(object, "B", where, peak.B);
  Read(object, "W", where, peak.W);
  Read(object, "step", where, peak.step);
  if (object.contains("B")) peak.first_B = peak.B;
  if (object.contains("W")) peak.first_W = peak.W;
  Read(object, "first_B", where, peak.first_B);
  Read(object, "first_W", where, peak.first_W);
  Read(object, "forward_only", where, peak.forward_only);
}

// `base` has the values of absent keys; null if F, I and W are required.
static StageCosts ReadStage(const Json& object, const std::string& where, const StageCosts* base) {
  std::vector<std::string> known = {"F",       "I",         "W",          "B",    "activation",
                                    "weights", "output",    "step",       "peak", "gradients",
                                    "overlap", "recompute", "kept_for_W", "spread", "received"};
  if (!base) known.push_back("ranks");
  CheckKeys(object, known, where);
  StageCosts costs = base ? *base : StageCosts{};
  for (const char* key : {"F", "I", "W"})
    if (!base && !object.contains(key)) throw Error(where, std::string("needs \"") + key + "\"");
  Read(object, "F", where, costs.F);
  Read(object, "I", where, costs.I);
  Read(object, "W", where, costs.W);
  if (!base || object.contains("I") || object.contains("W")) costs.B = costs.I + costs.W;
  Read(object, "B", where, costs.B);
  Read(object, "activation", where, costs.activation);
  Read(object, "kept_for_W", where, costs.kept_for_W);
  Read(object, "weights", where, costs.weights);
  Read(object, "gradients", where, costs.gradients);
  Read(object, "received", where, costs.received);
  Read(object, "output", where, costs.output);
  Read(object, "step", where, costs.step);
  Read(object, "overlap", where, costs.overlap);
  if (object.contains("recompute")) {
    const Json& option = object["recompute"];
    std::string inner = where + ".recompute";
    CheckKeys(option, {"time", "activation", "peak"}, inner);
    costs.recompute = costs.F;
    Read(option, "time", inner, costs.recompute);
    Read(option, "activation", inner, costs.checkpoint);
    if (option.contains("peak") && option["peak"].is_number()) {  // earlier versions wrote a number
      double peak = 0;
      Read(option, "peak", inner, peak);
      costs.recompute_peak.I = costs.recompute_peak.B = costs.recompute_peak.first_B = peak;
    } else if (option.contains("peak")) {
      ReadPeak(option["peak"], {"I", "B", "first_B"}, inner + ".peak", costs.recompute_peak);
    }
  }
  if (object.contains("peak"))
    ReadPeak(object["peak"],
             {"F", "I", "B", "W", "first_B", "first_W", "step", "forward_only"}, where + ".peak",
             costs.peak);
  if (object.contains("spread")) {
    const Json& spread = object["spread"];
    std::string inner = where + ".spread";
    CheckKeys(spread, {"F", "I", "B", "W"}, inner);
    Read(spread, "F", inner, costs.spread.F);
    Read(spread, "I", inner, costs.spread.I);
    Read(spread, "B", inner, costs.spread.B);
    Read(spread, "W", inner, costs.spread.W);
  }
  return costs;
}

static LinkCosts ReadLink(const Json& object, const std::string& where, LinkCosts base,
                          bool ends = false) {
  std::vector<std::string> known = {"latency", "bandwidth"};
  if (ends) known.insert(known.end(), {"from", "to"});
  CheckKeys(object, known, where);
  Read(object, "latency", where, base.latency);
  if (object.contains("bandwidth")) {
    if (object["bandwidth"].is_null())
      base.bandwidth = std::numeric_limits<double>::infinity();
    else if (Read(object, "bandwidth", where, base.bandwidth); base.bandwidth == 0)
      throw Error(where + ".bandwidth", "must be > 0, or null for no limit");
  }
  return base;
}

static void ReadEdges(const Json& edges, const std::string& path, Costs& costs) {
  if (!edges.is_array()) throw Error(path + ": edges", "a list is expected");
  const int stages = static_cast<int>(costs.stages.size());
  for (size_t i = 0; i < edges.size(); ++i) {
    const std::string where = path + ": edges[" + std::to_string(i) + "]";
    CheckKeys(edges[i], {"from", "to", "bytes", "back"}, where);
    const int from = Index(edges[i], "from", where, "stage");
    const int to = Index(edges[i], "to", where, "stage");
    if (from >= to || to >= stages)
      throw Error(where, "an earlier and a later one of the " + Counted(stages, "stage") +
                             " are expected, not " + std::to_string(from) + " and " +
                             std::to_string(to));
    EdgeCosts edge;
    Read(edges[i], "bytes", where, edge.bytes);
    edge.back = edge.bytes;
    Read(edges[i], "back", where, edge.back);
    costs.edges[{from, to}] = edge;
  }
}

Costs ParseCosts(std::string_view text, const std::string& path) {
  Json json = ParseJson(text, path);
  CheckKeys(json, {"stages", "link", "links", "disk", "edges"}, path);
  if (!json.contains("stages") || !json["stages"].is_array() || json["stages"].empty())
    throw Error(path, "\"stages\" must be a list with at least one entry",
                "{\"stages\": [{\"F\": 1, \"I\": 1, \"W\": 1}]}");
  Costs costs;
  costs.source = path;
  for (const Json& entry : json["stages"]) {
    int stage = static_cast<int>(costs.stages.size());
    std::string where = path + ": stages[" + std::to_string(stage) + "]";
    costs.stages.push_back(ReadStage(entry, where, nullptr));
    if (!entry.contains("ranks")) continue;
    if (json["stages"].size() == 1)
      throw Error(where + ".ranks", "needs one entry for each stage in \"stages\"");
    if (!entry["ranks"].is_object()) throw Error(where + ".ranks", "an object is expected");
    for (const auto& item : entry["ranks"].items()) {
      const std::string& key = item.key();
      int rank = -1;
      auto [end, bad] = std::from_chars(key.data(), key.data() + key.size(), rank);
      if (bad != std::errc() || end != key.data() + key.size() || rank < 0)
        throw Error(where + ".ranks", "\"" + key + "\" is not a rank's number");
      costs.stage_on_rank[{stage, rank}] =
          ReadStage(item.value(), where + ".ranks." + key, &costs.stages.back());
    }
  }
  if (json.contains("link")) costs.link = ReadLink(json["link"], path + ": link", {});
  if (json.contains("disk")) costs.disk = ReadLink(json["disk"], path + ": disk", {});
  if (json.contains("links")) {
    if (!json["links"].is_array()) throw Error(path + ": links", "a list is expected");
    for (size_t i = 0; i < json["links"].size(); ++i) {
      const Json& entry = json["links"][i];
      std::string where = path + ": links[" + std::to_string(i) + "]";
      LinkCosts link = ReadLink(entry, where, costs.link, true);
      costs.links[{Index(entry, "from", where), Index(entry, "to", where)}] = link;
    }
  }
  if (json.contains("edges")) ReadEdges(json["edges"], path, costs);
  return costs;
}

Costs ReadCosts(const std::string& path) {
  return ParseCosts(WithoutComments(ReadFile(path)), path);
}

Costs UnitCosts() {
  Costs costs;
  costs.stages.resize(1);
  costs.stages[0].F = costs.stages[0].I = costs.stages[0].W = 1, costs.stages[0].B = 2;
  return costs;
}

void CheckStages(const Costs& costs, int stages) {
  if (costs.stages.size() == 1 || costs.stages.size() == static_cast<size_t>(stages)) return;
  throw Error(costs.source + ": stages",
              Counted(static_cast<int64_t>(costs.stages.size()), "entry") + ", but the plan has " +
                  Counted(stages, "stage"),
              "give one entry, which stands for all stages, or one for each");
}

const StageCosts& CostsOf(const Costs& costs, int stage, int rank) {
  if (!costs.stage_on_rank.empty()) {
    auto found = costs.stage_on_rank.find({stage, rank});
    if (found != costs.stage_on_rank.end()) return found->second;
  }
  return costs.stages[costs.stages.size() == 1 ? 0 : static_cast<size_t>(stage)];
}

EdgeCosts EdgeCostsOf(const Costs& costs, int from_stage, int to_stage, int from_rank) {
  if (!costs.edges.empty()) {
    auto found = costs.edges.find({from_stage, to_stage});
    if (found != costs.edges.end()) return found->second;
  }
  const double bytes = CostsOf(costs, from_stage, from_rank).output;
  return {bytes, bytes};
}

const LinkCosts& LinkOf(const Costs& costs, int from_rank, int to_rank) {
  if (!costs.links.empty()) {
    auto found = costs.links.find({from_rank, to_rank});
    if (found != costs.links.end()) return found->second;
  }
  if (!costs.machine.empty()) {
    const int machine = costs.machine[static_cast<size_t>(from_rank)];
    if (machine == costs.machine[static_cast<size_t>(to_rank)])
      return costs.within[static_cast<size_t>(machine)];
  }
  return costs.link;
}

std::string Plain(double number) {
  char out[32];
  std::snprintf(out, sizeof out, "%.10g", number);
  return out;
}

double TransferTime(const Costs& costs, int from_rank, int to_rank, double bytes) {
  if (from_rank == to_rank) return 0;
  const LinkCosts& link = LinkOf(costs, from_rank, to_rank);
  return link.latency + (bytes > 0 ? bytes / link.bandwidth : 0);
}

}  // namespace pipewright
