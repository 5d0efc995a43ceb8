#include "plan/partition/pipedream/tarnawski.h"

#include <cmath>
#include <map>

#include "base/error.h"
#include "formats/graph_text.h"

namespace pipewright {

bool IsTarnawski(const Json& json) {
  return json.is_object() && json.contains("maxFPGAs") && json.contains("nodes");
}

static double Number(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) throw Error(where, std::string("\"") + key + "\" is missing");
  const Json& value = object[key];
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
    throw Error(where, std::string("\"") + key +
                           "\" is expected to be a number of at least 0, not " + value.dump());
  return value.get<double>();
}

static int64_t Integer(const Json& object, const char* key, const std::string& where) {
  if (!object.contains(key)) throw Error(where, std::string("\"") + key + "\" is missing");
  if (!object[key].is_number_integer())
    throw Error(where, std::string("\"") + key + "\" is expected to be a whole number, not " +
                           object[key].dump());
  return object[key].get<int64_t>();
}

static int Count(const Json& json, const char* key, const std::string& path) {
  double count = Number(json, key, path);
  if (count != std::floor(count) || count > 10000)
    throw Error(path, std::string("\"") + key + "\" is expected to be a number of devices");
  return static_cast<int>(count);
}

PartitionProblem ReadTarnawski(const Json& json, const std::string& path) {
  PartitionProblem problem;
  problem.numeric_names = true;
  DeviceClass gpu, cpu;
  gpu.count = Count(json, "maxFPGAs", path);
  gpu.memory_bytes = Number(json, "maxSizePerFPGA", path);
  cpu.name = "cpu";
  cpu.host = true;
  cpu.count = Count(json, "maxCPUs", path);
  problem.devices = {gpu, cpu};
  if (!json["nodes"].is_array() || !json.contains("edges") || !json["edges"].is_array())
    throw Error(path, "\"nodes\" and \"edges\" are expected to be lists");

  std::map<int64_t, int> ids, groups;
  for (size_t i = 0; i < json["nodes"].size(); ++i) {
    const Json& entry = json["nodes"][i];
    std::string where = path + ": nodes[" + std::to_string(i) + "]";
    if (!entry.is_object()) throw Error(where, "an object is expected");
    PartitionNode node;
    int64_t id = Integer(entry, "id", where);
    node.name = std::to_string(id);
    if (!ids.emplace(id, static_cast<int>(i)).second)
      throw Error(where, "the id " + node.name + " appears twice");
    node.device_time = Number(entry, "fpgaLatency", where);
    node.host_time = Number(entry, "cpuLatency", where);
    node.device_ok = Number(entry, "supportedOnFpga", where) != 0;
    node.backward = entry.contains("isBackwardNode") && Number(entry, "isBackwardNode", where) != 0;
    node.forward_share = node.backward ? 0 : 1;
    if (entry.contains("size")) node.static_bytes = Number(entry, "size", where);
    if (entry.contains("colorClass") && !entry["colorClass"].is_null())
      node.group = groups.emplace(Integer(entry, "colorClass", where), groups.size()).first->second;
    problem.nodes.push_back(node);
  }
  std::vector<int> value_of(problem.nodes.size(), -1);
  std::vector<std::pair<int, int>> edges;
  for (size_t i = 0; i < json["edges"].size(); ++i) {
    const Json& entry = json["edges"][i];
    std::string where = path + ": edges[" + std::to_string(i) + "]";
    if (!entry.is_object()) throw Error(where, "an object is expected");
    int ends[2];
    const char* keys[2] = {"sourceId", "destId"};
    for (int e = 0; e < 2; ++e) {
      auto found = ids.find(Integer(entry, keys[e], where));
      if (found == ids.end()) throw Error(where, "there is no node " + entry[keys[e]].dump());
      ends[e] = found->second;
    }
    if (problem.nodes[ends[0]].backward && !problem.nodes[ends[1]].backward)
      throw Error(where, "an edge from a backward node to a forward node");
    double cost = Number(entry, "cost", where);
    if (value_of[ends[0]] < 0) {
      value_of[ends[0]] = static_cast<int>(problem.values.size());
      problem.values.emplace_back();
      problem.values.back().producer = ends[0];
      problem.values.back().time = cost;
    }
    PartitionValue& value = problem.values[value_of[ends[0]]];
    if (std::abs(value.time - cost) > 1e-6)
      throw Error(where,
                  "another edge from node " + problem.nodes[ends[0]].name + " has the cost " +
                      Json(value.time).dump() + ", this one " + Json(cost).dump(),
                  "the cost is that of sending the node's output: the same for all its edges");
    value.consumers.push_back(ends[1]);
    edges.push_back({ends[0], ends[1]});
  }
  if (problem.nodes.empty()) throw Error(path, "the instance has no nodes");
  if (TopologicalOrder(static_cast<int>(problem.nodes.size()), edges).empty())
    throw Error(path, "the edges form a cycle");
  return problem;
}

}  // namespace pipewright
