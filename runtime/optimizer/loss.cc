#include "runtime/optimizer/loss.h"

#include <ATen/ATen.h>

#include "base/dtype.h"
#include "base/error.h"
#include "tensors/dtype.h"

namespace pipewright {

static int64_t Count(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

// Throws the reason why the kernel failed: the smallest or largest target that counts.
static void CheckClasses(const LossJob& job, const at::Tensor& classes, int64_t count,
                         const std::string& name) {
  at::Tensor counted = classes.masked_select(classes.ne(job.ignore_index));
  if (counted.numel() == 0) return;
  const int64_t least = counted.min().item<int64_t>(), most = counted.max().item<int64_t>();
  if (least >= 0 && most < count) return;
  const std::string found = std::to_string(least < 0 ? least : most);
  throw Error(name,
              "target " + found + " is out of bounds: the output has " + std::to_string(count) +
                  " classes, 0 to " + std::to_string(count - 1),
              "if " + found +
                  " marks what does not count, say so: \"loss\": {\"type\": \"cross_entropy\", "
                  "\"ignore_index\": " +
                  found + "}");
}

void CheckLoss(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
               const std::string& name) {
  if (job.kind == LossJob::kOutput) {
    if (Count(output.sizes) != 1)
      throw Error("loss", "output " + std::to_string(job.output) + " of the model has sizes " +
                              ShapeText(output.sizes) + "; a loss is one number");
    return;
  }
  auto shown = [](const TensorSpec& spec) {
    return DtypeName(spec.type) + " " + ShapeText(spec.sizes);
  };
  const std::string shapes = "output " + shown(output) + ", target " + shown(target);
  if (job.kind == LossJob::kMse) {
    if (output.sizes != target.sizes) throw Error(name, "mse needs equal sizes: " + shapes);
    return;
  }
  if (output.sizes.size() < 2 || target.type != at::kLong ||
      Count(output.sizes) != Count(target.sizes) * output.sizes.back())
    throw Error(name, "cross_entropy needs an output [..., C] and an int64 target [...]: " + shapes,
                target.type != at::kLong
                    ? "save the targets as int64"
                    : "a target has the output's sizes without its last, the classes");
}

at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                const std::string& name) {
  auto spec = [](const at::Tensor& tensor) {
    return tensor.defined() ? TensorSpec{tensor.scalar_type(), tensor.sizes().vec(), true}
                            : TensorSpec{};
  };
  CheckLoss(job, spec(output), spec(target), name);
  if (job.kind == LossJob::kOutput) return output.reshape({});
  if (job.kind == LossJob::kMse) return at::mse_loss(output, target);
  at::Tensor logits = output.reshape({-1, output.size(-1)});
  if (c10::elementSize(logits.scalar_type()) < 4) logits = logits.to(at::kFloat);
  at::Tensor classes = target.reshape({-1});
  // The mean of no elements is NaN but still has a gradient: zeros.
  bool nothing = LossCount(job, target, 0) == 0;
  try {
    return at::cross_entropy_loss(logits, classes, {},
                                  nothing ? at::Reduction::Sum : at::Reduction::Mean,
                                  job.ignore_index, job.label_smoothing);
  } catch (const std::exception&) {
    CheckClasses(job, classes, logits.size(1), name);
    throw;
  }
}

int64_t LossCount(const LossJob& job, const at::Tensor& target, int64_t samples) {
  if (job.kind == LossJob::kMse) return target.numel();
  if (job.kind == LossJob::kCrossEntropy) return target.ne(job.ignore_index).sum().item<int64_t>();
  return samples;
}

int64_t LossHits(const LossJob& job, const at::Tensor& output, const at::Tensor& target) {
  at::Tensor right = output.argmax(-1).reshape({-1}).eq(target.reshape({-1}));
  return right.logical_and_(target.reshape({-1}).ne(job.ignore_index)).sum().item<int64_t>();
}

}  // namespace pipewright
