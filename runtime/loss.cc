#include "runtime/loss.h"

#include <ATen/ATen.h>

#include "plan/dtype.h"
#include "plan/error.h"

namespace pipewright {

at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target) {
  std::string shapes = "output " + ShapeText(output.sizes().vec()) + ", target " +
                       (target.defined() ? ShapeText(target.sizes().vec()) : "none");
  switch (job.kind) {
    case LossJob::kOutput:
      if (output.numel() != 1)
        throw Error("loss", "output " + std::to_string(job.output) + " of the model has sizes " +
                                ShapeText(output.sizes().vec()) + "; a loss is one number");
      return output.reshape({});
    case LossJob::kMse:
      if (output.sizes() != target.sizes()) throw Error("loss", "mse needs equal sizes: " + shapes);
      return at::mse_loss(output, target);
    case LossJob::kCrossEntropy:
      break;
  }
  if (output.dim() < 2 || target.scalar_type() != at::kLong ||
      output.numel() != target.numel() * output.size(-1))
    throw Error("loss",
                "cross_entropy needs an output [..., C] and an int64 target [...]: " + shapes);
  at::Tensor logits = output.reshape({-1, output.size(-1)});
  if (c10::elementSize(logits.scalar_type()) < 4) logits = logits.to(at::kFloat);
  return at::cross_entropy_loss(logits, target.reshape({-1}));
}

}  // namespace pipewright
