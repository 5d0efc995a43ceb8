#include "plan/loop_text.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/plan_header.h"
#include "plan/plan_text.h"

namespace pipewright {

namespace {

constexpr std::array<std::string_view, 3> kParts = {"#prologue", "#body", "#epilogue"};

// Returns begin and end of the line `name`; npos if there is none.
std::pair<size_t, size_t> FindLine(std::string_view text, std::string_view name) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line == name) return {begin, std::min(end + 1, text.size())};
    begin = end + 1;
  }
  return {std::string_view::npos, std::string_view::npos};
}

}  // namespace

bool IsLoopText(std::string_view text) {
  return FindLine(text, kParts[1]).first != std::string_view::npos;
}

StepLoop ReadLoop(std::string_view text, const std::string& path, int& steps) {
  std::array<std::pair<size_t, size_t>, 3> at;
  for (size_t i = 0; i < 3; ++i) {
    at[i] = FindLine(text, kParts[i]);
    if (at[i].first == std::string_view::npos || (i && at[i].first < at[i - 1].second))
      throw Error(path, "the line " + std::string(kParts[i]) + " is missing",
                  "a loop has the parts #prologue, #body and #epilogue, in this order");
  }
  StepLoop loop;
  std::array<Plan*, 3> parts = {&loop.prologue, &loop.body, &loop.epilogue};
  for (size_t i = 0; i < 3; ++i) {
    size_t end = i < 2 ? at[i + 1].first : text.size();
    std::string name = path + ", " + std::string(kParts[i]);
    *parts[i] = ReadPlan(text.substr(at[i].second, end - at[i].second), name);
    if (parts[i]->ranks.size() != parts[0]->ranks.size())
      throw Error(name, "it has " + std::to_string(parts[i]->ranks.size()) + " ranks, #prologue " +
                            std::to_string(parts[0]->ranks.size()));
  }
  int forwards = 0, stages = 0;
  bool backward = false;
  for (Plan* part : parts) stages = std::max(stages, part->stages);
  for (const auto& actions : loop.body.ranks)
    for (const Action& a : actions) forwards += HasForward(a), backward |= HasBackward(a);
  if (forwards == 0 || forwards % stages != 0)
    throw Error(path + ", #body", "rule \"once\": " + std::to_string(forwards) + " forwards of " +
                                      std::to_string(stages) +
                                      " stages: every stage needs the same number per step");
  loop.body.layout.header = text.substr(0, at[0].first);
  steps = 0;
  ReadHeader(loop.body.layout.header, path, loop.body, steps);
  for (Plan* part : parts) {
    part->stages = stages;
    part->microbatches = forwards / stages;
    part->forward_only = !backward;
    part->shared = loop.body.shared, part->recompute = loop.body.recompute;
  }
  if (steps == 0) steps = StepsAround(loop) + 1;
  return loop;
}

std::string WriteLoop(const StepLoop& loop, int steps) {
  // Parts are written without the header, which comes once, before all parts.
  auto part = [](const Plan& plan) {
    Plan bare = plan;
    bare.shared.clear(), bare.recompute.clear(), bare.layout.header.clear();
    bare.steps = 1;
    return WritePlan(bare);
  };
  std::string end = loop.body.layout.crlf ? "\r\n" : "\n";
  int once = StepsAround(loop) + 1;
  Plan whole = loop.body;
  whole.steps = once;
  std::string out = WriteHeader(whole, steps == once ? 0 : steps);
  out += "#prologue" + end + part(loop.prologue);
  out += "#body" + end + part(loop.body);
  return out + "#epilogue" + end + part(loop.epilogue);
}

Plan ReadPlanOrLoop(std::string_view text, const std::string& path, int steps) {
  if (!IsLoopText(text)) return ReadPlan(text, path);
  int written = 0;
  StepLoop loop = ReadLoop(text, path, written);
  return Unroll(loop, steps > 0 ? steps : written);
}

}  // namespace pipewright
