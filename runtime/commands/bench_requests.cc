#include "runtime/commands/bench_requests.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/process/process_memory.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "runtime/commands/bench_report.h"
#include "runtime/exec/clock.h"
#include "runtime/module/messages.h"

namespace pipewright {

namespace {

// Returns the line that rank 0 reads, on every rank; "" at the end of its input. The other ranks
// poll 50 times a second, so that other programs can measure meanwhile with the cores to
// themselves.
std::string NextRequest(Transport& transport) {
  constexpr int64_t kLongest = 64;
  at::Tensor text = at::zeros({kLongest}, at::kByte);
  char* bytes = reinterpret_cast<char*>(text.mutable_data_ptr<uint8_t>());
  const Bundle bundle = MakeBundle({text});
  const int tag = transport.max_tag() - kReportTag;
  if (transport.rank() == 0) {
    std::string line;
    if (!std::getline(std::cin, line)) line.clear();
    if (line.size() >= kLongest) throw Error("request", "\"" + line + "\" is too long");
    line.copy(bytes, line.size());
    for (int peer = 1; peer < transport.size(); ++peer)
      transport.WaitFor(transport.Send(peer, tag, bundle),
                        {.kind = Awaited::kRequest, .rank = peer, .sends = 1});
  } else {
    const Token token = transport.Recv(0, tag, bundle);
    transport.WaitUntil(
        [&] { return transport.Test(token) ? Awaited{} : Awaited{Awaited::kRequest, 0}; },
        std::chrono::milliseconds(20));
  }
  return bytes;
}

Json Microseconds(const std::vector<double>& seconds) {
  Json list = Json::array();
  for (double s : seconds) list.push_back(s * 1e6);
  return list;
}

// Returns the timed actions of a step, [["0F0", microseconds], ...], as in a trace of the run.
Json ActionTimes(const std::vector<TraceEvent>& events) {
  Json list = Json::array();
  for (const TraceEvent& e : events)
    if (IsCompute(e.action.kind) || e.action.kind == ActionKind::kStep)
      list.push_back({ToText(e.action), (e.end - e.start - e.waited) * 1e6});
  return list;
}

Json MeasureSteps(Session& session, Microbatches& source, int64_t& step, int64_t count,
                  bool each) {
  RankMeasurements measured;
  Json actions = Json::array();
  std::vector<double> ends;
  session.transport.AllGather("");
  const double begin = Now();
  const int64_t first = step;
  for (int64_t last = step + count; step < last; ++step) {
    session.Step(source, step);
    ends.push_back(Now());
    // The first step begins with all ranks asleep, so its times mean little.
    if (step > first || count == 1) AddMeasurements(session.trace(), measured);
    if (each) actions.push_back(ActionTimes(session.trace()));
  }
  Json answer{{"begin", begin * 1e6},
              {"ends", Microseconds(ends)},
              {"measured", WriteMeasurements(measured)},
              {"memory", ResidentBytes()},
              {"losses", session.losses}};
  if (each) answer["actions"] = std::move(actions);
  return answer;
}

using Samples = std::map<std::string, std::vector<double>>;  // seconds by action

// Runs the stages of one rank without the other ranks.
class Alone {
 public:
  explicit Alone(Session& session, int rank)
      : session_(session), body_(*session.stages), rank_(rank) {
    body_.OnReady([](int) {});  // would send gradients in the last step
    const Conf& conf = session.run.conf;
    for (int s = 0; s < session.run.graph.stages; ++s)
      if (conf.stage_to_ranks[s][0] == rank) stages_.push_back(s);
    for (size_t m = 0; m < conf.module_to_stage.size(); ++m)
      for (const WeightInfo& info : session.run.manifest.modules[m].held)
        if (at::Tensor weight = body_.Weight(static_cast<int>(m), info.name); weight.defined())
          weights_.emplace_back(weight, weight.clone());
  }
  ~Alone() {
    at::NoGradGuard no_grad;
    for (auto& [weight, before] : weights_) weight.copy_(before);
  }

  // Runs one minibatch in the order of the plan.
  void Minibatch() {
    for (const Action& a : session_.run.plan.ranks[rank_]) {
      if (a.kind == ActionKind::kStep)
        Time(a.stage, "step", [&] { body_.Step(a.stage); });
      else if (a.kind == ActionKind::kForward || a.kind == ActionKind::kOverlap)
        Forward(a.stage, a.microbatch);
      else if (IsCompute(a.kind))
        Backward(a.stage, a.microbatch, {a.kind});
      if (a.kind == ActionKind::kOverlap)
        Backward(a.overlap_stage, a.overlap_microbatch, {ActionKind::kBackward});
    }
  }

  // Runs one minibatch: for each microbatch forward and then backward, whole or split.
  void Minibatch(bool split) {
    for (int m = 0; m < session_.job.microbatches; ++m) {
      for (int stage : stages_) Forward(stage, m);
      for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage)
        if (split)
          Backward(*stage, m, {ActionKind::kInputGrad, ActionKind::kWeightGrad});
        else
          Backward(*stage, m, {ActionKind::kBackward});
    }
    for (int stage : stages_) body_.Step(stage);
  }

  // Takes the times of the last minibatch from the device, if one computes.
  void ReadMarks() {
    for (const Marked& one : marks_)
      samples[one.stage][one.action].push_back(body_.Moment(one.end) - body_.Moment(one.begin));
    marks_.clear();
  }

  std::map<int, Samples> samples;  // by stage

 private:
  struct Marked {
    int stage = -1;
    std::string action;
    int begin = -1, end = -1;
  };
  Session& session_;
  TorchStages& body_;
  const int rank_;
  std::vector<int> stages_;
  std::vector<Marked> marks_;
  std::vector<std::pair<at::Tensor, at::Tensor>> weights_;            // and originals
  std::map<std::pair<int, bool>, Bundle> sent_;                       // by edge and direction

  void Forward(int stage, int microbatch) {
    std::vector<Bundle> inputs = Messages(stage, microbatch, false);
    Time(stage, "F", [&] { body_.Forward(stage, microbatch, std::move(inputs)); });
  }

  void Backward(int stage, int microbatch, std::initializer_list<ActionKind> kinds) {
    std::vector<Bundle> gradients;
    for (ActionKind kind : kinds) {
      // W uses what I has kept.
      if (kind != ActionKind::kWeightGrad) gradients = Messages(stage, microbatch, true);
      Time(stage, KindName(kind),
           [&] { body_.Backward(kind, stage, microbatch, std::move(gradients)); });
      gradients.clear();
    }
  }

  template <typename F>
  void Time(int stage, const std::string& action, F run) {
    const double start = Now();
    const int begin = body_.Mark();
    run();
    if (begin < 0)
      samples[stage][action].push_back(Now() - start);
    else
      marks_.push_back({stage, action, begin, body_.Mark()});
  }

  static at::Tensor SomeNumbers(const at::Tensor& like) {
    if (like.scalar_type() == at::kBool) return at::ones_like(like);
    if (!at::isFloatingType(like.scalar_type())) return at::zeros_like(like);
    return at::linspace(-1, 1, like.numel()).sin_().view(like.sizes()).to(like.scalar_type());
  }

  // Copies the incoming messages on this core, as a receive would, with the same numbers each time.
  std::vector<Bundle> Messages(int stage, int microbatch, bool backward) {
    std::vector<Bundle> messages;
    const std::vector<StageEdge>& edges = session_.run.graph.edges;
    for (size_t e = 0; e < edges.size(); ++e) {
      if ((backward ? edges[e].from : edges[e].to) != stage || (backward && !edges[e].gradient))
        continue;
      messages.push_back(body_.Allocate(static_cast<int>(e), microbatch, backward, 0, false));
      const Bundle& received = messages.back();
      Bundle& sent = sent_[{static_cast<int>(e), backward}];
      if (!HaveSameSizes(sent, received)) {  // sizes may differ between microbatches
        Tensors tensors;
        for (const at::Tensor& tensor : TensorsOf(received)) tensors.push_back(SomeNumbers(tensor));
        sent = MakeMessage(std::move(tensors));
      }
      for (size_t r = 0; r < sent.regions.size(); ++r)
        std::memcpy(received.regions[r].data, sent.regions[r].data, sent.regions[r].bytes);
    }
    return messages;
  }

  static bool HaveSameSizes(const Bundle& sent, const Bundle& received) {
    return sent.owner &&
           std::ranges::equal(TensorsOf(sent), TensorsOf(received),
                              [](const auto& a, const auto& b) { return a.sizes() == b.sizes(); });
  }
};

// Measures each stage: minibatches in the plan's order, or (`halves`) each microbatch's backward
// right after its forward, whole and split in turn.
Json MeasureStages(Session& session, Microbatches& source, int64_t step, bool halves,
                   double seconds) {
  session.stages->updater().Begin(step, session.job.microbatches);
  Alone alone(session, session.transport.rank());
  auto minibatch = [&](auto... split) {
    session.stages->SetStep(source, step);  // forgets what devices have marked
    alone.Minibatch(split...);
    alone.ReadMarks();
  };
  auto minibatches = [&] {
    if (!halves) return minibatch();
    minibatch(false);
    minibatch(true);
  };
  minibatches();
  alone.samples.clear();
  session.transport.AllGather("");
  const double begin = Now();
  do minibatches();
  while (Now() - begin < seconds);
  Json stages = Json::object();
  for (const auto& [stage, samples] : alone.samples)
    for (const auto& [action, times] : samples)
      stages[std::to_string(stage)][action] = Microseconds(times);
  return stages;
}

}  // namespace

int64_t AnswerRequests(Session& session, Microbatches& source) {
  Transport& transport = session.transport;
  int64_t step = 0;
  for (std::string line; !(line = NextRequest(transport)).empty();) {
    std::istringstream words(line);
    std::string what, more;
    double amount = 0;
    words >> what >> amount >> more;
    const bool steps = what == "steps" && amount >= 1, halves = what == "halves";
    const bool stages = session.options.training && (what == "stages" || halves) && amount > 0;
    const bool each = steps && more == "each";
    if ((!steps && !stages) || (!more.empty() && !each))
      throw Error("request",
                  "\"" + line + "\" is not \"steps N [each]\"" +
                      (session.options.training
                           ? ", \"stages SECONDS\" or \"halves SECONDS\""
                           : ""));
    const auto count = static_cast<int64_t>(amount);
    const Json mine = steps ? MeasureSteps(session, source, step, count, each)
                            : MeasureStages(session, source, step, halves, amount);
    const std::vector<std::string> all = transport.AllGather(mine.dump());
    Json answer = Json::object();
    if (halves) {
      const auto rank = static_cast<size_t>(transport.rank());
      answer["link"] = LinkCostsJson(session.Values(), c10::Device(session.devices[rank]));
    }
    if (transport.rank() != 0) continue;
    for (const std::string& text : all) {
      Json rank = Json::parse(text);
      if (!steps) {
        for (auto& [stage, times] : rank.items())
          answer["stages"][static_cast<size_t>(std::stoi(stage))] = times;
        continue;
      }
      if (!rank["losses"].empty()) answer["losses"] = rank["losses"];
      rank.erase("losses");
      answer["ranks"].push_back(rank);
    }
    std::printf("%s\n", answer.dump().c_str());
    std::fflush(stdout);
  }
  return step;
}

}  // namespace pipewright
