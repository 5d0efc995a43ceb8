#include "formats/profile/from_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/simulate/compare.h"

namespace pipewright {

namespace {

using Field = ProfileTime ProfileNode::*;

Field FieldOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return &ProfileNode::forward;
    case ActionKind::kBackward:
      return &ProfileNode::backward;
    case ActionKind::kInputGrad:
      return &ProfileNode::input_gradient;
    default:
      return &ProfileNode::weight_gradient;
  }
}

ProfileTime TimeOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  auto at = [&](double share) {  // interpolates between the two neighbors
    double place = share * static_cast<double>(seconds.size() - 1);
    size_t below = static_cast<size_t>(place), above = std::min(below + 1, seconds.size() - 1);
    return seconds[below] + (place - std::floor(place)) * (seconds[above] - seconds[below]);
  };
  return {at(0.5), at(0.75) - at(0.25)};
}

// Divides the stage's time among `nodes` in proportion to their times, or evenly if all are zero.
void Scale(std::vector<ProfileNode*>& nodes, Field field, const ProfileTime& stage) {
  double total = 0;
  for (const ProfileNode* node : nodes) total += (node->*field).median;
  for (ProfileNode* node : nodes) {
    double share =
        total > 0 ? (node->*field).median / total : 1.0 / static_cast<double>(nodes.size());
    node->*field = {stage.median * share, stage.spread * share};
  }
}

}  // namespace

void ApplyTrace(Profile& profile, const Conf& conf, const std::string& text,
                const std::string& path) {
  std::map<std::pair<int, ActionKind>, std::vector<TraceAction>> samples;
  int first_step = std::numeric_limits<int>::max(), last_step = 0, stages = 0;
  for (const TraceAction& event : ReadChromeTrace(text, path)) {
    const Action& action = event.action;
    stages = std::max(stages, action.stage + 1);
    if (!IsCompute(action.kind) || action.kind == ActionKind::kOverlap) continue;
    if (action.stage >= static_cast<int>(conf.stage_to_ranks.size()))
      throw Error(path,
                  "stage " + std::to_string(action.stage) + " is not in the conf, which has " +
                      std::to_string(conf.stage_to_ranks.size()) + " stages",
                  "give the conf of the run: --conf FILE");
    first_step = std::min(first_step, event.step);
    last_step = std::max(last_step, event.step);
    samples[{action.stage, action.kind}].push_back(event);
  }
  if (samples.empty()) throw Error(path, "shows no forward or backward of any stage");
  if (stages < static_cast<int>(conf.stage_to_ranks.size()))
    throw Error(path,
                "shows " + Counted(stages, "stage") + ", the conf has " +
                    std::to_string(conf.stage_to_ranks.size()),
                "give the conf of the run: --conf FILE");
  std::map<std::pair<int, ActionKind>, ProfileTime> times;
  for (const auto& [key, list] : samples) {
    std::vector<double> seconds;
    for (const TraceAction& event : list)
      if (first_step == last_step || event.step > first_step)
        seconds.push_back((event.end - event.start) / 1e6);
    if (!seconds.empty()) times[key] = TimeOf(seconds);
  }
  for (ProfileNode& node : profile.nodes) node.body.clear();  // a trace does not name the run's
  for (int stage = 0; stage < static_cast<int>(conf.stage_to_ranks.size()); ++stage) {
    std::vector<ProfileNode*> nodes;
    for (ProfileNode& node : profile.nodes)
      if (conf.module_to_stage[node.module] == stage) nodes.push_back(&node);
    auto found = [&](ActionKind kind) {
      auto at = times.find({stage, kind});
      return at == times.end() ? nullptr : &at->second;
    };
    for (ActionKind kind : {ActionKind::kForward, ActionKind::kBackward, ActionKind::kInputGrad,
                            ActionKind::kWeightGrad})
      if (const ProfileTime* timing = found(kind)) Scale(nodes, FieldOf(kind), *timing);
    const ProfileTime* both = found(ActionKind::kBackward);
    const ProfileTime* input = found(ActionKind::kInputGrad);
    const ProfileTime* weight = found(ActionKind::kWeightGrad);
    if (!both && input && weight)
      Scale(nodes, &ProfileNode::backward,
            {input->median + weight->median, input->spread + weight->spread});
    if (both && !input && !weight)
      for (ProfileNode* node : nodes) {
        double parts = node->input_gradient.median + node->weight_gradient.median;
        double factor = parts > 0 ? node->backward.median / parts : 0;
        for (Field field : {&ProfileNode::input_gradient, &ProfileNode::weight_gradient}) {
          (node->*field).median *= factor;
          (node->*field).spread *= factor;
        }
      }
  }
}

}  // namespace pipewright
