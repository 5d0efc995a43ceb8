#include "runtime/trial/traced_sizes.h"

#include <ATen/record_function.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>

#include "base/text.h"

namespace pipewright {

std::string LineOfCode() {
  for (const torch::jit::StackEntry& entry : torch::jit::currentCallstack())
    if (auto place = entry.range.file_line_col())
      return std::get<0>(*place) + ":" + std::to_string(std::get<1>(*place));
  return "";
}

namespace {

struct Reshape {
  std::string operation, place;
  std::vector<int64_t> from, to;
};

thread_local std::vector<Reshape> t_reshapes;

std::unique_ptr<at::ObserverContext> Record(const at::RecordFunction& call) {
  const std::string name = call.name();
  if (name != "aten::view" && name != "aten::reshape") return nullptr;
  const auto inputs = call.inputs();
  if (inputs.size() != 2 || !inputs[0].isTensor() || !inputs[1].isIntList()) return nullptr;
  t_reshapes.push_back(
      {name.substr(6), LineOfCode(), inputs[0].toTensor().sizes().vec(), inputs[1].toIntVector()});
  return nullptr;
}

std::vector<Reshape> ReshapesOf(const std::string& package, const Manifest& manifest,
                                const std::vector<TensorSpec>& inputs) {
  t_reshapes.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(Record).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  try {
    InferShapes(package, manifest, inputs);
  } catch (...) {
    at::removeCallback(handle);
    throw;
  }
  at::removeCallback(handle);
  return std::move(t_reshapes);
}

bool Mixes(const Reshape& once, const Reshape& twice, int64_t samples) {
  if (once.operation != twice.operation || once.to != twice.to || once.to.size() < 2) return false;
  if (once.from.empty() || twice.from.size() != once.from.size()) return false;
  const int64_t first = once.to[0];
  return first > 1 && first != samples && once.from[0] == samples && twice.from[0] == 2 * samples &&
         std::find(once.to.begin(), once.to.end(), -1) != once.to.end();
}

}  // namespace

std::string FindTracedSizes(const std::string& package, const Manifest& manifest,
                            const std::vector<TensorSpec>& inputs) {
  const bool recorded = std::none_of(
      manifest.values.begin(), manifest.values.end(),
      [](const ValueInfo& value) {
        return value.kind == ValueKind::kTensor && value.dtype.empty();
      });
  if (recorded || inputs.empty() || inputs[0].sizes.empty()) return "";
  const int64_t samples = inputs[0].sizes[0];
  std::vector<TensorSpec> more = inputs;
  for (TensorSpec& input : more)
    if (!input.sizes.empty() && input.sizes[0] == samples) input.sizes[0] *= 2;
  std::vector<Reshape> once, twice;
  try {
    once = ReshapesOf(package, manifest, inputs);
    twice = ReshapesOf(package, manifest, more);
  } catch (const std::exception&) {
    return "";  // takes only one batch size
  }
  for (size_t i = 0; once.size() == twice.size() && i < once.size(); ++i) {
    if (!Mixes(once[i], twice[i], samples)) continue;
    std::vector<std::string> sizes;
    for (int64_t size : once[i].to) sizes.push_back(std::to_string(size));
    return once[i].place + ": " + once[i].operation + " to [" + Join(sizes, ", ") + "] mixes the " +
           std::to_string(samples) + " samples of a microbatch: if " + sizes[0] +
           " is the batch size that the model was traced with, feed that one, or trace it again "
           "with x.size(0) left as it is";
  }
  return "";
}

}  // namespace pipewright
