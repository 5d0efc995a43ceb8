#include "runtime/stage/spot_check.h"

#include "base/error.h"
#include "ops/generators.h"
#include "runtime/module/saved_buffers.h"
#include "runtime/recorded/bit_compare.h"

namespace pipewright {

namespace {

constexpr uint64_t kOneIn = 1000;

// Throws, unless autograd's body does not agree with itself either.
void End(const LoadedModule& module, const SpotCheck& check, const RecordedBody& body,
         const std::string& difference) {
  std::string operation;
  const RandomKey key = CurrentRandomKey();
  SetRandomKey(check.key);
  if (!IsReproducible(module, body, check.inputs, check.gradients)) {
    SetRandomKey(key);
    return;
  }
  try {
    operation = FirstOther(module, body, check.inputs, check.gradients);
  } catch (const std::exception&) {
  }
  throw Error("module " + std::to_string(module.index),
              "as lists of operations it gives other results than by autograd: " + difference +
                  (operation.empty() ? "; the operation was not found"
                                     : "; first in " + operation),
              "set \"body\": \"autograd\" in the job, or PIPEWRIGHT_BODY=autograd, and train again "
              "from before this run: what it has trained may be wrong");
}

Tensors Buffers(const LoadedModule& module) {
  Tensors buffers;
  for (const at::Tensor& weight : module.weights)
    if (!weight.requires_grad()) buffers.push_back(weight.clone());
  return buffers;
}

}  // namespace

bool IsSpotChecked(const RandomKey& key, int module) {
  return SeedOf(key, -1 - module) % kOneIn == 0;  // ids of operations are not negative
}

std::shared_ptr<SpotCheck> BeginSpotCheck(const LoadedModule& module,
                                          const std::vector<c10::IValue>& inputs,
                                          const RecordedBody& body) {
  auto check = std::make_shared<SpotCheck>();
  check->key = CurrentRandomKey();
  check->inputs = inputs;
  SavedBuffers buffers(module);
  check->outputs = ForwardByAutograd(module, inputs, body.wanted, &check->kept);
  check->buffers = buffers.PutBack();
  return check;
}

void CheckForward(const LoadedModule& module, SpotCheck& check, const RecordedBody& body,
                  const std::vector<c10::IValue>& outputs) {
  std::string other = Difference(TensorsAmong(outputs), TensorsAmong(check.outputs), "output", false);
  for (size_t i = 0; i < outputs.size() && other.empty(); ++i)
    if (!outputs[i].isTensor() && outputs[i] != check.outputs[i])
      other = "another number in output " + std::to_string(i);
  if (other.empty()) other = Difference(Buffers(module), check.buffers, "buffer", false);
  if (!other.empty()) End(module, check, body, other);
  check.outputs.clear();
  check.buffers.clear();
}

ModuleGradients BackwardOfCheck(const LoadedModule& module, SpotCheck& check,
                                const Tensors& gradients) {
  check.gradients = gradients;
  return BackwardIsland(module, std::move(check.kept), gradients);
}

void CheckGradients(const LoadedModule& module, const SpotCheck& check, const RecordedBody& body,
                    const std::string& of, const Tensors& found, const Tensors& expected) {
  const std::string other = Difference(found, expected, "gradient of " + of, false);
  if (!other.empty()) End(module, check, body, other);
}

}  // namespace pipewright
