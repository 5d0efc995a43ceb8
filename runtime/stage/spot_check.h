// Runs one microbatch in a thousand by both bodies of a module: lists were compared before use
// (choose_body.h), and each of their operands is known (recording.h), but they are still checked while
// in use. The choice depends only on seed, step, microbatch and module.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/random_ops.h"
#include "runtime/stage/island.h"

namespace pipewright {

// A microbatch whose forward autograd's body has run, too.
struct SpotCheck {
  RandomKey key;
  std::vector<c10::IValue> inputs, outputs;
  Tensors buffers;  // after forward
  Kept kept;
  Tensors gradients;   // the outputs' gradients
  Tensors of_weights;  // from I to W
};

bool IsSpotChecked(const RandomKey& key, int module);

// Runs forward by autograd's body and restores the buffers.
std::shared_ptr<SpotCheck> BeginSpotCheck(const LoadedModule& module,
                                          const std::vector<c10::IValue>& inputs,
                                          const RecordedBody& body);
// Compares the outputs of the lists. Throws Error if autograd's body gives other bits.
void CheckForward(const LoadedModule& module, SpotCheck& check, const RecordedBody& body,
                  const std::vector<c10::IValue>& outputs);
// Runs backward by autograd's body; must be called before that of the lists.
ModuleGradients BackwardOfCheck(const LoadedModule& module, SpotCheck& check,
                                const Tensors& gradients);
// Does the same as CheckForward for gradients.
void CheckGradients(const LoadedModule& module, const SpotCheck& check, const RecordedBody& body,
                    const std::string& of, const Tensors& found, const Tensors& expected);

}  // namespace pipewright
