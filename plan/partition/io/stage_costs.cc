#include "plan/partition/io/stage_costs.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plan/partition/io/measured_links.h"

namespace pipewright {

namespace {

struct StageSum {
  ProfileTime forward, backward, input_gradient, weight_gradient;
  double activation = 0, received = 0, kept_for_weight = 0, peak = 0, forward_only_peak = 0;
  double first_peak = 0;     // while the first backward of a step runs, without `trained`
  double most_trained = 0;   // of a node
  bool forward_only = true;  // all nodes have a forward_only_peak
  double made = 0;           // bytes of the outputs of the nodes so far
  double arrives = 0;        // bytes of values from other stages: a recomputed stage holds them all
  double weights = 0, trained = 0, output = 0;
  std::set<int> held, held_for_weight;  // values

  void Add(const ProfileTime& time, ProfileTime& sum) {
    sum.median += time.median;
    sum.spread += time.spread;
  }
  void Add(const ProfileNode& node, double optimizer_state) {
    Add(node.forward, forward);
    Add(node.backward, backward);
    Add(node.input_gradient, input_gradient);
    Add(node.weight_gradient, weight_gradient);
    // In the backward, the nodes before this one still hold their activations.
    const double during = activation + node.peak - node.parameters - node.buffers;
    peak = std::max(peak, during);
    // The gradients that the first backward of a step makes become the sums. Those of the nodes
    // after this one are there by then.
    trained += node.trained;
    first_peak = std::max(first_peak, during - trained);
    most_trained = std::max(most_trained, node.trained);
    forward_only &= node.forward_only_peak > 0;
    activation += node.kept;
    kept_for_weight += node.kept_for_weight;
    weights += node.parameters + node.buffers + node.trained * optimizer_state;
    held.insert(node.held.begin(), node.held.end());
    held_for_weight.insert(node.held_for_weight.begin(), node.held_for_weight.end());
  }
};

// Adds the memory of a node in a run without backward. A stage holds the outputs of its nodes until
// its end.
void AddForwardOnly(const Profile& profile, const std::vector<int>& stage_of, size_t i,
                    StageSum& sum) {
  double inside = 0, made = 0;
  for (const ProfileValue& value : profile.values) {
    const int producer = value.producer;
    if (producer < 0 || stage_of[static_cast<size_t>(producer)] != stage_of[i]) continue;
    if (producer == static_cast<int>(i)) made += value.bytes;
    if (std::count(value.consumers.begin(), value.consumers.end(), static_cast<int>(i)))
      inside += value.bytes;  // the node's peak includes it as an input
  }
  sum.forward_only_peak =
      std::max(sum.forward_only_peak, sum.made - inside + profile.nodes[i].forward_only_peak);
  sum.made += made;
}

// Adds the values that a stage holds, unless one of its nodes has made it and counts it as kept.
void AddHeld(const Profile& profile, const std::vector<int>& stage_of, int stage, StageSum& sum) {
  auto other = [&](int value) {
    const ProfileValue& v = profile.values[static_cast<size_t>(value)];
    return v.producer < 0 || !v.kept || stage_of[static_cast<size_t>(v.producer)] != stage;
  };
  for (int value : sum.held) {
    if (!other(value)) continue;
    const ProfileValue& v = profile.values[static_cast<size_t>(value)];
    sum.activation += v.bytes;
    if (v.producer >= 0 && stage_of[static_cast<size_t>(v.producer)] != stage)
      sum.received += v.bytes;
  }
  for (int value : sum.held_for_weight)
    sum.kept_for_weight += profile.values[static_cast<size_t>(value)].bytes;
  sum.peak = std::max(sum.peak, sum.activation);
}

Json LinkJson(const MeasuredLinks& links, double bandwidth) {
  return {{"latency", links.latency * 1e6}, {"bandwidth", bandwidth / 1e6}};
}

}  // namespace

std::string CostsOfStages(const Profile& profile, const std::vector<int>& stage_of,
                          double optimizer_state) {
  const int count = 1 + *std::max_element(stage_of.begin(), stage_of.end());
  std::vector<StageSum> sums(static_cast<size_t>(count));
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    StageSum& sum = sums[static_cast<size_t>(stage_of[i])];
    sum.Add(profile.nodes[i], optimizer_state);
    AddForwardOnly(profile, stage_of, i, sum);
  }
  std::map<std::pair<int, int>, std::pair<double, double>> edges;  // bytes there and back
  for (const ProfileValue& value : profile.values) {
    if (value.producer < 0) continue;
    const int from = stage_of[static_cast<size_t>(value.producer)];
    std::set<int> to;
    for (int consumer : value.consumers) to.insert(stage_of[static_cast<size_t>(consumer)]);
    to.erase(from);
    for (int stage : to) {
      sums[static_cast<size_t>(stage)].arrives += value.bytes;
      edges[{from, stage}].first += value.bytes;
      edges[{from, stage}].second += value.gradient ? value.bytes : 0;
    }
    if (!to.empty()) sums[static_cast<size_t>(from)].output += value.bytes;
  }
  Json json{{"stages", Json::array()}, {"edges", Json::array()}};
  for (int s = 0; s < count; ++s) {
    StageSum& sum = sums[static_cast<size_t>(s)];
    AddHeld(profile, stage_of, s, sum);
    json["stages"].push_back({{"F", sum.forward.median * 1e6},
                              {"B", sum.backward.median * 1e6},
                              {"I", sum.input_gradient.median * 1e6},
                              {"W", sum.weight_gradient.median * 1e6},
                              {"spread",
                               {{"F", sum.forward.spread * 1e6},
                                {"B", sum.backward.spread * 1e6},
                                {"I", sum.input_gradient.spread * 1e6},
                                {"W", sum.weight_gradient.spread * 1e6}}},
                              {"activation", sum.activation},
                              {"received", sum.received},
                              {"kept_for_W", sum.kept_for_weight},
                              {"peak",
                               {{"B", sum.peak},
                                {"I", sum.peak},
                                {"W", sum.kept_for_weight + sum.most_trained},
                                {"first_B", sum.trained + sum.first_peak},
                                {"first_W", sum.kept_for_weight + sum.trained},
                                {"forward_only", sum.forward_only ? sum.forward_only_peak : 0}}},
                              {"weights", sum.weights},
                              {"gradients", sum.trained},
                              {"output", sum.output},
                              {"recompute",
                               {{"time", sum.forward.median * 1e6},
                                {"activation", sum.arrives},
                                {"peak", {{"B", sum.peak}, {"I", sum.peak}}}}}});
  }
  for (const auto& [ends, bytes] : edges)
    json["edges"].push_back({{"from", ends.first},
                             {"to", ends.second},
                             {"bytes", bytes.first},
                             {"back", bytes.second}});
  if (!profile.links.empty()) {
    const MeasuredLinks links = FiguresOf(profile.links);
    json["link"] = LinkJson(links, links.bandwidth);
    for (size_t a = 0; a < links.pairs.size(); ++a)
      for (size_t b = 0; b < links.pairs.size(); ++b) {
        if (a == b) continue;
        Json link = LinkJson(links, links.pairs[a][b]);
        link["from"] = a, link["to"] = b;
        json["links"].push_back(link);
      }
  }
  return json.dump(1) + "\n";
}

}  // namespace pipewright
