// One microbatch in a thousand runs by both bodies of a module: lists that were compared before they
// are used (choice.h), and whose every operand is known (recording.h), are still looked at while they
// are used. Which microbatch it is depends on nothing but seed, step, microbatch and module.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/random_ops.h"
#include "runtime/stage/island.h"

namespace pipewright {

// A microbatch that autograd's body has run forward, too.
struct SpotCheck {
  RandomKey key;
  std::vector<c10::IValue> inputs, outputs;
  Tensors buffers;  // after forward
  Kept kept;
  Tensors gradients;   // of the outputs
  Tensors of_weights;  // from I to W
};

bool IsSpotChecked(const RandomKey& key, int module);

// Forward by autograd's body; buffers are as before it.
std::shared_ptr<SpotCheck> BeginSpotCheck(const LoadedModule& module,
                                          const std::vector<c10::IValue>& inputs,
                                          const RecordedBody& body);
// Compare what the lists gave. Throw Error if autograd's body gives other bits.
void CheckForward(const LoadedModule& module, SpotCheck& check, const RecordedBody& body,
                  const std::vector<c10::IValue>& outputs);
// Backward by autograd's body, before the lists'.
ModuleGradients BackwardOfCheck(const LoadedModule& module, SpotCheck& check,
                                const Tensors& gradients);
void CheckGradients(const LoadedModule& module, const SpotCheck& check, const RecordedBody& body,
                    const std::string& of, const Tensors& found, const Tensors& expected);

}  // namespace pipewright
