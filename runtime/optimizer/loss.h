// Computes the losses of a microbatch: means over it, as in torch.nn.functional.
#pragma once
#include <ATen/core/Tensor.h>

#include <cmath>

#include "formats/job.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

// Throws Error if the loss cannot be computed from an output and a target of these types and sizes;
// `name` is the target's. For a loss that the model computes, the target is ignored.
void CheckLoss(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
               const std::string& name);

// For cross_entropy and nll: returns the number of classes. CheckLoss must accept the arguments.
int64_t CountClasses(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
                     const std::string& name);
// Throws Error if a target that is not ignored is none of `count` classes.
void CheckClasses(const LossJob& job, const at::Tensor& targets, int64_t count,
                  const std::string& name);

// Returns a scalar. cross_entropy and nll take an output with classes along one dimension and int64
// targets of the other sizes; cross_entropy converts logits of less than 32 bits to float32. The
// others take equal shapes. Throws Error, naming the target `name`, for other types or sizes and if
// two dimensions could be that of the classes. If all targets are ignored, the loss is 0. The
// output may be on a device; the target is in host memory, and its classes are checked there.
at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                const std::string& name);

// Returns how many numbers a microbatch's loss averages: targets that are not ignored, elements
// (mse and others), or `samples` if the model computes its loss or "batchmean" divides by them.
int64_t LossCount(const LossJob& job, const at::Tensor& target, int64_t samples);

// For cross_entropy and nll: returns how many targets that are not ignored equal the class with the
// largest logit (the first on a tie), as a tensor where the output is.
at::Tensor LossHits(const LossJob& job, const at::Tensor& output, const at::Tensor& target);

// Returns NaN without a sign, which would be printed as "-nan".
inline double PlainNan(double loss) { return std::isnan(loss) ? std::nan("") : loss; }

}  // namespace pipewright
