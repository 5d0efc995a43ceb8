// Runs B, I and W of a stage: through its modules in reverse, each by itself.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "base/torch_error.h"
#include "runtime/stage/run_backward.h"
#include "runtime/stage/stage_state.h"

namespace pipewright {

// Unpacks the gradients that later stages sent, by value.
std::map<int, GradientTerms> TorchStages::State::ReadGradientTerms(
    int stage, const std::vector<Bundle>& gradients) const {
  std::map<int, GradientTerms> gradient_terms;
  size_t next = 0;
  for (int edge : edges_out[stage]) {
    if (!graph.edges[edge].gradient) continue;
    const std::vector<Contribution>& contributions = contents[edge].backward;
    const Tensors tensors = ReadMessage(gradients[next++], device);
    for (size_t k = 0; k < contributions.size(); ++k)
      if (tensors[k].defined())
        gradient_terms[contributions[k].value].emplace_back(contributions[k].consumers[0],
                                                            tensors[k]);
  }
  return gradient_terms;
}

// Losses come after all consumers of a value, as they do in one process.
void TorchStages::State::LossGradients(MicrobatchWork& work,
                                       std::map<int, GradientTerms>& gradient_terms) const {
  for (auto& [k, kept] : work.losses) {
    auto [leaf, loss] = std::move(kept);
    gradient_terms[loss_values[k]].emplace_back(
        static_cast<int>(manifest.modules.size()) + k,
        RunBackward(EdgesOf({loss}), {at::ones_like(loss)}, EdgesOf({leaf}))[0]);
  }
  work.losses.clear();
}

// Returns the gradient of each output of a module; undefined if none has arrived.
Tensors TorchStages::State::TakeGradients(int index,
                                          std::map<int, GradientTerms>& gradient_terms) const {
  Tensors gradients;
  for (int id : manifest.modules[index].outputs) {
    gradients.emplace_back();
    auto term = gradient_terms.find(id);
    if (term == gradient_terms.end()) continue;
    gradients.back() = SumInOrder(std::move(term->second));
    gradient_terms.erase(term);
  }
  return gradients;
}

void TorchStages::State::AddGradientTerms(int index, Tensors gradients,
                                          std::map<int, GradientTerms>& gradient_terms) const {
  const ModuleInfo& info = manifest.modules[index];
  for (size_t i = 0; i < info.inputs.size(); ++i) {
    at::Tensor gradient = std::move(gradients[i]);
    if (gradient.defined()) gradient_terms[info.inputs[i]].emplace_back(index, ToTensor(gradient));
  }
}

// Returns what `backward` returns. Throws Error that names the module of an in-place write that
// autograd refuses.
template <class F>
static auto ExplainWrites(const LoadedModule& module, const std::string& file, const F& backward) {
  std::string said;
  try {
    return backward();
  } catch (const c10::Error& e) {
    said = WithoutBacktrace(e.what_without_backtrace());
    if (said.find("modified by an inplace operation") == std::string::npos) throw;
  }
  if (!module.written_parameters.empty())
    throw Error(file,
                "forward writes to the parameter " + module.written_parameters[0] +
                    ", which the backward of an earlier microbatch still needs: " + said,
                "constrain a buffer or the value that is computed from the parameter, or run with "
                "\"microbatches\": 1");
  throw Error(file, "forward writes in place to what its backward needs: " + said,
              "write to a copy, as x.clone().mul_(2), or make a new tensor, as x = x * 2");
}

// Returns the gradients of the module's weights.
Tensors TorchStages::State::BackwardModule(int index, int microbatch,
                                           std::map<int, GradientTerms>& gradient_terms) {
  Kept keep = TakeKept(index, microbatch);
  LoadedModule& module = modules.at(index);
  ModuleGradients found = ExplainWrites(module, manifest.modules[index].code, [&] {
    return BackwardIsland(module, std::move(keep), TakeGradients(index, gradient_terms));
  });
  AddGradientTerms(index, std::move(found.inputs), gradient_terms);
  return std::move(found.weights);
}

// Returns the messages to earlier stages.
std::vector<Bundle> TorchStages::State::WriteGradientTerms(
    int stage, int microbatch, const std::map<int, GradientTerms>& gradient_terms) const {
  std::vector<Bundle> out;
  for (int edge : edges_in[stage]) {
    if (!graph.edges[edge].gradient) continue;
    const std::vector<Contribution>& contributions = contents[edge].backward;
    Tensors tensors;
    std::vector<bool> there;
    for (const Contribution& contribution : contributions) {
      GradientTerms share;
      if (auto found = gradient_terms.find(contribution.value); found != gradient_terms.end())
        for (auto& [consumer, term] : found->second)
          if (std::find(contribution.consumers.begin(), contribution.consumers.end(), consumer) !=
              contribution.consumers.end())
            share.emplace_back(consumer, term);
      there.push_back(!share.empty());
      if (!share.empty()) {
        tensors.push_back(SumInOrder(std::move(share)));
      } else {
        const TensorSpec& spec = specs[microbatch]->at(contribution.value);
        tensors.push_back(at::zeros(spec.sizes, at::device(device).dtype(spec.type)));
      }
    }
    out.push_back(MakeMessage(std::move(tensors), there));
  }
  return out;
}

std::vector<Bundle> TorchStages::Backward(ActionKind kind, int stage, int microbatch,
                                          std::vector<Bundle> gradients) {
  State& s = *state_;
  // I would keep weights for W that are evicted in between, so I does the work of both.
  const bool at_once = s.offloaded && s.offloaded->Offloads(stage);
  MicrobatchWork& mine = s.under_way[{stage, microbatch}];
  std::map<int, GradientTerms> gradient_terms;
  WeightWork work;
  if (kind == ActionKind::kWeightGrad) {
    work = std::move(mine.weights);
    gradient_terms = std::move(work.gradient_terms);
    for (auto found = work.gradients.rbegin(); found != work.gradients.rend(); ++found)
      s.gradients.Add(found->first, s.Within(microbatch), std::move(found->second));
    if (at_once) {
      s.under_way.erase({stage, microbatch});
      return {};
    }
  } else {
    gradient_terms = s.ReadGradientTerms(stage, gradients);
    gradients.clear();
  }
  if (s.offloaded && s.learning[stage]) s.offloaded->Bind(stage);
  const bool input_grad = kind == ActionKind::kInputGrad;
  static const std::vector<int> none;
  const std::vector<int>& modules = s.learning[stage] ? s.modules_of[stage] : none;
  if (!input_grad || at_once ||
      std::any_of(modules.begin(), modules.end(), [&](int m) { return s.feeds_back[m]; })) {
    s.RecomputeStage(stage, microbatch);
    s.LossGradients(mine, gradient_terms);
  }

  for (auto module = modules.rbegin(); module != modules.rend(); ++module) {
    s.running = *module;
    const std::string& code = s.manifest.modules[*module].code;
    if (auto tail = work.tails.find(*module); tail != work.tails.end()) {
      s.gradients.Add(*module, s.Within(microbatch),
                      ExplainWrites(s.modules.at(*module), code, [&] {
                        return WeightGradientsOf(s.modules.at(*module), std::move(tail->second));
                      }));
    } else if (input_grad && at_once) {
      work.gradients[*module] = s.BackwardModule(*module, microbatch, gradient_terms);
    } else if (!input_grad) {
      s.gradients.Add(*module, s.Within(microbatch),
                      s.BackwardModule(*module, microbatch, gradient_terms));
    } else if (s.feeds_back[*module]) {
      Kept keep = s.TakeKept(*module, microbatch);
      s.AddGradientTerms(*module,
                         ExplainWrites(s.modules.at(*module), code,
                                       [&] {
                                         return InputGradientsOf(
                                             s.modules.at(*module), std::move(keep),
                                             s.TakeGradients(*module, gradient_terms),
                                             work.tails[*module]);
                                       }),
                         gradient_terms);
    }
  }
  if (auto at = s.versions.find(stage); at != s.versions.end() && !input_grad)
    --at->second.users[at->second.current];
  if (!input_grad) s.under_way.erase({stage, microbatch});
  if (kind == ActionKind::kWeightGrad) return {};
  std::vector<Bundle> out = s.WriteGradientTerms(stage, microbatch, gradient_terms);
  if (input_grad) {
    // Gradients of values of other stages have been sent.
    std::erase_if(gradient_terms, [&](const auto& term) {
      int producer = s.value(term.first).producer;
      return producer < 0 || s.conf.module_to_stage[producer] != stage;
    });
    work.gradient_terms = std::move(gradient_terms);
    mine.weights = std::move(work);
  }
  return out;
}

}  // namespace pipewright
