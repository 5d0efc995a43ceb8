#include "runtime/optimizer/loss.h"

#include <ATen/ATen.h>

#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

static int64_t Count(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

void CheckClasses(const LossJob& job, const at::Tensor& classes, int64_t count,
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

// Returns the sizes without one dimension.
static std::vector<int64_t> Without(std::vector<int64_t> sizes, int64_t dim) {
  sizes.erase(sizes.begin() + dim);
  return sizes;
}

// Returns true if a target is one number for each row of classes although sizes differ, because one
// of them is flattened or has extra dimensions of size 1.
static bool FitsFlat(const std::vector<int64_t>& output, const std::vector<int64_t>& target) {
  if (Count(output) != Count(target) * output.back()) return false;
  std::vector<int64_t> rows = output, numbers = target;
  rows.pop_back();
  std::erase(rows, 1);
  std::erase(numbers, 1);
  return output.size() == 2 || target.size() == 1 || rows == numbers;
}

static std::string Shapes(const TensorSpec& output, const TensorSpec& target) {
  auto shown = [](const TensorSpec& spec) {
    return DtypeName(spec.type) + " " + ShapeText(spec.sizes);
  };
  return "output " + shown(output) + ", target " + shown(target);
}

static const char* NameOf(LossJob::Kind kind) {
  switch (kind) {
    case LossJob::kCrossEntropy:
      return "cross_entropy";
    case LossJob::kNll:
      return "nll";
    case LossJob::kMse:
      return "mse";
    case LossJob::kL1:
      return "l1";
    case LossJob::kSmoothL1:
      return "smooth_l1";
    case LossJob::kBceWithLogits:
      return "bce_with_logits";
    case LossJob::kKlDiv:
      return "kl_div";
    case LossJob::kOutput:
      break;
  }
  return "output";
}

// Returns the dimension of the output that holds the classes: the one that the job names, else 1 or
// the last, whichever fits the target.
static int64_t ClassDim(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
                        const std::string& name) {
  const std::string type = NameOf(job.kind), shapes = Shapes(output, target);
  if (target.type != at::kLong)
    throw Error(name, type + " needs an int64 target: " + shapes, "save the targets as int64");
  const int64_t dims = static_cast<int64_t>(output.sizes.size()), last = dims - 1;
  auto fits = [&](int64_t dim) { return Without(output.sizes, dim) == target.sizes; };
  const std::string cure =
      "a target has the output's sizes without that of the classes, which is the last dimension, "
      "or 1 as in PyTorch (\"class_dim\": 1)";
  if (job.class_dim) {
    const int64_t dim = *job.class_dim < 0 ? *job.class_dim + dims : *job.class_dim;
    if (dim >= 1 && dim <= last &&
        (fits(dim) || (dim == last && FitsFlat(output.sizes, target.sizes))))
      return dim;
    throw Error(name,
                "with \"class_dim\": " + std::to_string(*job.class_dim) + ", " + type +
                    " cannot take " + shapes,
                cure);
  }
  const bool fits_last = dims > 1 && fits(last), fits_one = dims > 2 && fits(1);
  if (fits_last && fits_one && dims > 2 && !job.fixed_dim)
    throw Error(
        name,
        "the classes may be dimension 1 of the output or " + std::to_string(last) + ": " + shapes,
        "say which: \"loss\": {\"type\": \"" + type +
            "\", \"class_dim\": 1}, as PyTorch reads it, or -1 for the last");
  if (fits_last && fits_one) return job.fixed_dim;
  if (fits_one) return 1;
  if (fits_last || (dims > 1 && FitsFlat(output.sizes, target.sizes))) return last;
  throw Error(name, type + " needs an output [..., C] and an int64 target [...]: " + shapes, cure);
}

int64_t CountClasses(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
                     const std::string& name) {
  return output.sizes[static_cast<size_t>(ClassDim(job, output, target, name))];
}

void CheckLoss(const LossJob& job, const TensorSpec& output, const TensorSpec& target,
               const std::string& name) {
  if (job.kind == LossJob::kOutput) {
    if (Count(output.sizes) != 1)
      throw Error("loss", "output " + std::to_string(job.output) + " of the model has sizes " +
                              ShapeText(output.sizes) + "; a loss is one number");
    return;
  }
  if (job.HasClasses()) {
    ClassDim(job, output, target, name);
    return;
  }
  const std::string type = NameOf(job.kind);
  if (output.sizes != target.sizes)
    throw Error(name, type + " needs equal sizes: " + Shapes(output, target));
  if ((job.kind == LossJob::kBceWithLogits || job.kind == LossJob::kKlDiv) &&
      !at::isFloatingType(target.type))
    throw Error(name, type + " needs a target of probabilities: " + Shapes(output, target),
                "save the targets as float32");
}

// Both of PyTorch's losses take [rows, C] or [samples, C, ...].
static at::Tensor ClassLoss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                            int64_t dim, const std::string& name) {
  // A device would fail as a whole.
  if (!output.is_cpu()) CheckClasses(job, target, output.size(dim), name);
  at::Tensor logits = output, classes = OnDeviceLater(target, output.device());
  if (dim != 1 || output.dim() == 2) {
    logits = output.movedim(dim, -1).reshape({-1, output.size(dim)});
    classes = classes.reshape({-1});
  }
  // The mean of no elements is NaN but still has a gradient: zeros.
  const auto reduction = LossCount(job, target, 0) == 0 ? at::Reduction::Sum : at::Reduction::Mean;
  try {
    if (job.kind == LossJob::kNll)
      return at::nll_loss_nd(logits, classes, {}, reduction, job.ignore_index);
    if (c10::elementSize(logits.scalar_type()) < 4) logits = logits.to(at::kFloat);
    return at::cross_entropy_loss(logits, classes, {}, reduction, job.ignore_index,
                                  job.label_smoothing);
  } catch (const std::exception&) {
    CheckClasses(job, target, output.size(dim), name);
    throw;
  }
}

static TensorSpec SpecOf(const at::Tensor& tensor) {
  return tensor.defined() ? TensorSpec{tensor.scalar_type(), tensor.sizes().vec(), true}
                          : TensorSpec{};
}

static at::Tensor DenseLoss(const LossJob& job, const at::Tensor& output,
                            const at::Tensor& target) {
  if (job.kind == LossJob::kMse) return at::mse_loss(output, target);
  if (job.kind == LossJob::kL1) return at::l1_loss(output, target);
  if (job.kind == LossJob::kSmoothL1)
    return at::smooth_l1_loss(output, target, at::Reduction::Mean, job.beta);
  if (job.kind == LossJob::kBceWithLogits)
    return at::binary_cross_entropy_with_logits(output, target);
  // As torch.nn.functional divides for "batchmean".
  return job.batch_mean
             ? at::kl_div(output, target, at::Reduction::Sum, job.log_target) / target.size(0)
             : at::kl_div(output, target, at::Reduction::Mean, job.log_target);
}

at::Tensor Loss(const LossJob& job, const at::Tensor& output, const at::Tensor& target,
                const std::string& name) {
  CheckLoss(job, SpecOf(output), SpecOf(target), name);
  if (job.HasClasses())
    return ClassLoss(job, output, target, ClassDim(job, SpecOf(output), SpecOf(target), name),
                     name);
  if (job.kind == LossJob::kOutput) return output.reshape({});
  return DenseLoss(job, output, OnDeviceLater(target, output.device()));
}

int64_t LossCount(const LossJob& job, const at::Tensor& target, int64_t samples) {
  if (job.HasClasses()) return target.ne(job.ignore_index).sum().item<int64_t>();
  return job.kind == LossJob::kOutput || job.batch_mean ? samples : target.numel();
}

at::Tensor LossHits(const LossJob& job, const at::Tensor& output, const at::Tensor& target) {
  const int64_t dim = ClassDim(job, SpecOf(output), SpecOf(target), "target");
  const at::Tensor classes = OnDeviceLater(target, output.device()).reshape({-1});
  at::Tensor right = output.argmax(dim).reshape({-1}).eq(classes);
  return right.logical_and_(classes.ne(job.ignore_index)).sum();
}

}  // namespace pipewright
