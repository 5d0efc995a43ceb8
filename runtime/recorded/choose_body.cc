#include "runtime/recorded/choose_body.h"

#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/process/terminal.h"
#include "base/text.h"
#include "runtime/module/module.h"
#include "runtime/recorded/bit_compare.h"
#include "runtime/recorded/operators.h"
#include "runtime/recorded/perturbed_inputs.h"

namespace pipewright {

namespace {

// Mean duration of an operation, in seconds, above which autograd's share is too small to measure.
constexpr double kLongOperation = 500e-6;
constexpr int kWatched = 4;  // forwards, of which the shortest counts
constexpr int kChecks = 2;
// Comparisons if lists seem slower, because other programs may disturb a few of them.
constexpr int kMostChecks = 12;
static_assert(kMostRunsToChoose == kWatched + kMostChecks);
// Forwards from one recording to the next: a recording costs as much as ten of them.
constexpr int64_t kApart = 128;
// Forwards until one is recorded even if other microbatches are in flight.
constexpr int64_t kPatience = 64;
// Limit in bytes on untrained weights, which recording and comparing copy.
constexpr size_t kMostUntrained = size_t{64} << 20;

std::string RefusalOf(const torch::jit::Graph& graph, const std::vector<at::Tensor>& weights) {
  for (const torch::jit::Node* node : graph.nodes()) {
    if (!node->blocks().empty()) return "control flow";
    if (!IsRecordable(*node))
      return std::string(node->kind().toQualString()) + " cannot be recorded";
  }
  size_t untrained = 0;
  for (const at::Tensor& weight : weights)
    if (!weight.requires_grad()) untrained += weight.nbytes();
  return untrained > kMostUntrained ? "large weights that are not trained" : "";
}

void Tell(int module, const std::string& refusal) {
  const std::string text = BeforeMessage() + ("pipewright-run: module " + std::to_string(module)) +
                           (refusal.empty() ? " runs as lists of operations\n"
                                            : " stays with autograd: " + refusal + "\n");
  std::fputs(text.c_str(), stderr);
}

// Returns true if now is the time to record or compare: not too often, and when it takes no more
// memory than the rest of a step.
bool IsTime(RecordedBodies& bodies, bool first_of_step, bool recorded) {
  if (bodies.now) return true;
  if (!recorded && bodies.forwards < kApart * bodies.recorded) return false;
  int64_t under_way = -1;  // besides this one
  for (const auto& body : bodies.bodies) under_way += body.use_count() - 1;
  return first_of_step && (under_way <= 0 || bodies.forwards >= kPatience);
}

// Chooses lists if they are faster, and autograd after `most` comparisons that did not show it.
void Choose(RecordedBody& body, bool always, int most) {
  if (always || body.list_seconds <= body.eager_seconds)
    body.state = RecordedBody::State::kUsed;
  else if (body.checks >= most)
    RefuseLists(body, "lists are no faster");
}

// Drops the lists of a body that `owners` hold, unless they are still in use elsewhere.
void Drop(const std::shared_ptr<RecordedBody>& body, long owners) {
  body->recorded.clear();
  if (body.use_count() <= owners) body->graph.reset();
}

// If an integer input has had one value only, lists may hold for that value only. They are compared
// again when there are several.
void LookAtValues(RecordedBody& body, const std::vector<c10::IValue>& inputs) {
  try {
    if (!NoteValues(inputs, body.seen)) return;
  } catch (const std::exception&) {
    return RefuseLists(body, "whole numbers of a rare type");
  }
  body.checks = 0;
  if (body.state == RecordedBody::State::kUsed) body.state = RecordedBody::State::kChecked;
}

std::string CompareOnOthers(const LoadedModule& module,
                            const std::shared_ptr<RecordedBody>& body) {
  try {
    // The owner of the memory of the recorded inputs may reuse it.
    if (body->checks == 0) body->recorded = CopyInForm(body->recorded);
    return CompareBodies(module, body, PerturbedInputs(body->recorded, body->seen, body->checks));
  } catch (const std::exception&) {
    return "no other inputs can be made";
  }
}

}  // namespace

std::optional<BodyChoice> BodyAskedFor(std::optional<BodyChoice> of_job) {
  const char* text = std::getenv("PIPEWRIGHT_BODY");
  if (!text || !*text) return of_job;
  for (const auto& [name, body] : BodyNames())
    if (name == text) return body;
  throw Error("PIPEWRIGHT_BODY", "unknown body " + Quote(text), "choose auto, autograd or lists");
}

void UseBody(LoadedModule& module, BodyChoice asked, const std::string& against) {
  module.recorded = nullptr;
  if (asked == BodyChoice::kAutograd) return;
  auto bodies = std::make_shared<RecordedBodies>();
  bodies->always = bodies->now = asked == BodyChoice::kLists;
  const char* text = std::getenv("PIPEWRIGHT_BODY");
  bodies->tells = text && *text;
  bodies->nodes = 0;
  for (const torch::jit::Node* node : module.graph->nodes()) bodies->nodes += node->kind().is_aten();
  const std::vector<std::string>& written = module.written_parameters;
  bodies->refusal = !against.empty()   ? against
                    : !written.empty() ? "forward writes to the parameter " + written[0]
                                       : RefusalOf(*module.graph, module.weights);
  if (bodies->tells && !bodies->refusal.empty()) Tell(module.index, bodies->refusal);
  module.recorded = std::move(bodies);
}

void NoteForward(RecordedBody& body, double seconds) {
  if (body.forwards++ == 0 || seconds < body.forward_seconds) body.forward_seconds = seconds;
}

void NoteGradients(RecordedBody& body, const Tensors& outputs, const Tensors& gradients) {
  if (body.gradients_known || body.state != RecordedBody::State::kWatched) return;
  body.graph = std::make_unique<RecordedGraph>();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool arrives = outputs[i].defined() && gradients[i].defined();
    body.graph->arrives.push_back(arrives);
    body.graph->gradient.push_back(arrives ? Geometry::Of(gradients[i]) : Geometry());
    body.gradients_known = body.gradients_known || arrives;
  }
}

void RefuseLists(RecordedBody& body, const std::string& why) {
  body.state = RecordedBody::State::kRefused;
  body.refusal = why;
}

bool IsReady(const LoadedModule& module, const std::shared_ptr<RecordedBody>& watched,
             const std::vector<c10::IValue>& inputs) {
  using State = RecordedBody::State;
  RecordedBody& body = *watched;
  RecordedBodies& bodies = *module.recorded;
  const uint64_t step = CurrentRandomKey().step;
  const bool first_of_step = step != bodies.step;
  bodies.step = step;
  ++bodies.forwards;
  if (body.state != State::kRefused) LookAtValues(body, inputs);
  if (body.state == State::kUsed) return true;
  if (body.state == State::kRefused || !body.gradients_known) return false;
  if (body.forwards < (bodies.always ? 1 : kWatched)) return false;
  if (body.state == State::kWatched && !bodies.always &&
      body.forward_seconds > kLongOperation * bodies.nodes)
    RefuseLists(body, "its operations are long");
  if (body.state != State::kRefused &&
      !IsTime(bodies, first_of_step, body.state != State::kWatched))
    return false;
  if (body.state == State::kWatched) {
    ++bodies.recorded;
    const std::string why = Record(module, body, inputs);
    body.state = State::kChecked;
    body.recorded = inputs;
    if (!why.empty()) RefuseLists(body, why);
  }
  if (body.state == State::kChecked) {
    const std::string why = CompareOnOthers(module, watched);
    if (!why.empty())
      RefuseLists(body, why);
    else if (++body.checks >= kChecks)
      Choose(body, bodies.always, kMostChecks);
    // Three more comparisons cost about as much as a recording.
    if (body.checks > kChecks && (body.checks - kChecks) % 3 == 0) ++bodies.recorded;
  }
  if (body.state == State::kRefused) Drop(watched, 2);  // held by the module and the caller
  if (body.state == State::kUsed && !HasOneValue(body.seen)) body.recorded.clear();
  // Only the choice for the first signature is printed.
  if (body.state != State::kChecked && bodies.tells) {
    bodies.tells = false;
    Tell(module.index, body.refusal);
  }
  return body.state == State::kUsed;
}

bool IsPlainlyLong(const RecordedBodies& bodies) {
  constexpr double kFarAbove = 4;  // other programs may slow a forward down by 3 times
  return !bodies.always && !bodies.bodies.empty() &&
         bodies.bodies.back()->forward_seconds > kFarAbove * kLongOperation * bodies.nodes;
}

void ChooseNow(RecordedBodies& bodies) {
  for (const auto& body : bodies.bodies) {
    if (body->state != RecordedBody::State::kChecked) continue;
    if (body->checks >= kChecks)
      Choose(*body, bodies.always, body->checks);
    else
      RefuseLists(*body, "too few microbatches");
    if (body->state == RecordedBody::State::kRefused) Drop(body, 1);
  }
}

BodyState StateOf(const LoadedModule& module) {
  if (!module.recorded) return {.refusal = "asked for", .asked = true};
  const RecordedBodies& bodies = *module.recorded;
  if (!bodies.refusal.empty()) return {false, true, bodies.refusal};
  if (bodies.bodies.empty()) return {false, false, "never trained"};
  const RecordedBody& body = *bodies.bodies.back();
  if (body.state == RecordedBody::State::kUsed) return {true, true, ""};
  if (body.state == RecordedBody::State::kRefused) return {false, true, body.refusal};
  return {false, false, "too few microbatches"};
}

}  // namespace pipewright
