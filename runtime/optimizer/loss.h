// Computes the losses of a microbatch: means over it, as in torch.nn.functional.
#pragma once
#include <ATen/core/Tensor.h>

#include <cmath>

#include "formats/job.h"
#include "runtime/module/shapes.h"

namespace pipewright {

// Throws Error if the loss cannot be computed from an output and a target of these types and sizes;
// `name` is the target's. For a loss that the model computes, the target is ignored.
void CheckLoss(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
               const std::string& name);

// For cross_entropy and nll, and types and sizes that CheckLoss takes: how many classes there are.
int64_t CountClasses(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
                     const std::string& name);
// Throws Error naming a target that counts and is none of `count` classes.
void CheckClasses(const LossJob& job, const at::Tensor& targets, int64_t count,
                  const std::string& name);

// Returns a scalar. cross_entropy and nll take an output with classes along one dimension and int64
// targets of the other sizes; cross_entropy converts logits of less than 32 bits to float32. The
// others take equal shapes. Throws Error for others, and where two dimensions may be that of the
// classes, naming the target `name`. If all targets are ignored, the loss is 0.
at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                const std::string& name);

// Returns how many numbers a microbatch's loss averages: targets that are not ignored, elements
// (mse and others), or `samples` if the model computes its loss or they divide it.
int64_t LossCount(const LossJob& job, const at::Tensor& target, int64_t samples);

// For cross_entropy and nll: returns how many targets that count equal the class with the largest
// logit (the first of equal ones).
int64_t LossHits(const LossJob& job, const at::Tensor& output, const at::Tensor& target);

// Returns NaN without a sign, which would be printed as "-nan".
inline double PlainNan(double loss) { return std::isnan(loss) ? std::nan("") : loss; }

}  // namespace pipewright
