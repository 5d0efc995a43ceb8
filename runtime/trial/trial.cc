#include "runtime/trial/trial.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <filesystem>
#include <memory>

#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/module/messages.h"
#include "runtime/module/module_code.h"
#include "runtime/trial/quiet_prints.h"
#include "runtime/trial/shapes.h"
#include "tensors/dtype.h"

namespace pipewright {

static const char kSamples[] = "/samples.safetensors";

at::Tensor MadeUp(const TensorSpec& spec, at::Generator generator) {
  at::Tensor tensor = at::rand(spec.sizes, generator, at::kFloat);
  if (tensor.dim() >= 2 && tensor.size(-1) == tensor.size(-2) && tensor.numel() > 0) {
    tensor = (tensor + tensor.mT()) / (2 * tensor.size(-1));
    tensor.diagonal(0, -2, -1).fill_(1);
  }
  return tensor.to(spec.type);
}

// Returns a sample in the sizes of a run; rows are repeated or dropped. Undefined if it is another
// kind of tensor.
static at::Tensor Sample(const SafetensorsFile& file, const std::string& name,
                         const TensorSpec& spec) {
  const TensorInfo* info = file.Find(name);
  if (!info || DtypeOfSafetensors(info->dtype) != spec.type ||
      info->shape.size() != spec.sizes.size() || info->begin == info->end)
    return {};
  at::Tensor tensor = at::empty(info->shape, spec.type);
  file.Read(*info, 0, static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) != spec.sizes[static_cast<size_t>(d)])
      tensor = tensor.index_select(
          d, at::arange(spec.sizes[static_cast<size_t>(d)]).remainder(tensor.size(d)));
  return tensor;
}

Trial RealTrial(const std::string& package, const Manifest& manifest,
                const std::vector<TensorSpec>& specs) {
  Trial trial{package, manifest, true};
  trial.on = "made-up numbers";
  std::unique_ptr<SafetensorsFile> file;
  if (std::filesystem::exists(package + kSamples)) {
    file = std::make_unique<SafetensorsFile>(package + kSamples);
    trial.samples = true;
    trial.on = "the samples in " + package + kSamples;
  }
  at::Generator generator = at::detail::createCPUGenerator(0);
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[id];
    const TensorSpec& spec = specs[id];
    at::Tensor tensor;
    if (file) tensor = Sample(*file, value.name, spec);
    if (!tensor.defined() && (at::isFloatingType(spec.type) || at::isComplexType(spec.type)))
      tensor = MadeUp(spec, generator);
    // Ones are a valid length, row of a table, or mask.
    if (!tensor.defined()) tensor = at::ones(spec.sizes, spec.type);
    trial.values[id] = FromTensor(tensor, value);
  }
  return trial;
}

static std::string Cure(const Trial& trial) {
  std::string cure;
  if (!trial.samples) {
    std::vector<std::string> names;
    for (int id : trial.manifest.inputs) names.push_back(trial.manifest.values[id].name);
    cure = "where it is the values that it refuses, write some that it takes to " + trial.package +
           kSamples + ", a tensor for each input (" + Join(names, ", ") + ")";
  }
  // Only tracing records sizes as constants; torch.export keeps them symbolic or reports that it
  // does not.
  if (!trial.manifest.source.ends_with(".pt2"))
    cure += std::string(cure.empty() ? "" : "; or compile a .pt2, which records sizes\n  ") +
            "a size that tracing recorded as a constant holds for one batch size: feed "
            "that one, or trace the model again without it";
  return cure;
}

// Returns how often each input was written to in place.
static std::vector<uint32_t> InPlaceWrites(const std::vector<c10::IValue>& inputs) {
  std::vector<uint32_t> writes;
  for (const c10::IValue& input : inputs)
    writes.push_back(input.isTensor() ? input.toTensor()._version() : 0);
  return writes;
}

void Try(Trial& trial, int index, std::vector<TensorSpec>& specs, bool set_specs, bool edited,
         const std::string& blame) {
  const QuietPrints quiet;
  at::NoGradGuard no_grad;
  const Manifest& manifest = trial.manifest;
  const ModuleInfo& info = manifest.modules[index];
  const std::string code = trial.package + "/" + info.code;
  LoadedModule module = LoadModule(trial.package, manifest, index,
                                   trial.real ? WeightSource::kFile : WeightSource::kZeros);
  SetTraining(module, false);
  std::vector<c10::IValue> inputs;
  for (int id : info.inputs) {
    const ValueInfo& value = manifest.values[id];
    const bool scalar = value.kind != ValueKind::kTensor;
    if (set_specs && scalar && (value.producer < 0 || !trial.values.count(id)))
      throw Error(code, "its sizes depend on the value of \"" + value.name +
                            "\", which is not known before the run");
    if (set_specs && !scalar && !specs[id].known)
      throw Error(code, "the sizes of its input \"" + value.name + "\" depend on the data");
    if (scalar || trial.real)
      inputs.push_back(trial.values.at(id));
    else
      inputs.push_back(at::zeros(specs[id].sizes, specs[id].type));
    if (!scalar && !value.consumers.empty() && value.consumers.back() == index)
      trial.values.erase(id);
  }
  std::vector<c10::IValue> outputs;
  const std::vector<uint32_t> before = InPlaceWrites(inputs);
  try {
    outputs = Run(module, inputs);
  } catch (const std::exception& e) {
    std::vector<std::string> sizes;
    for (int id : info.inputs)
      sizes.push_back(manifest.values[id].name + " " +
                      c10::str(at::IntArrayRef(specs[id].sizes)));
    throw TrialError(
        index, (blame.empty() ? "" : blame + "\n") + code,
        "fails on " + trial.on + " of the sizes " + Join(sizes, ", ") + "\n" + e.what(),
        Cure(trial));
  }
  const std::vector<uint32_t> after = InPlaceWrites(inputs);
  for (size_t i = 0; edited && i < inputs.size(); ++i)
    if (after[i] != before[i])
      throw Error(code,
                  "it writes into its input " + manifest.values[info.inputs[i]].name +
                      ", which other modules may see",
                  "write into a copy: torch.clone(" + manifest.values[info.inputs[i]].name + ")");
  if (edited && trial.observe) trial.observe(module, inputs);
  for (size_t i = 0; i < info.outputs.size(); ++i) {
    const int id = info.outputs[i];
    if (edited) trial.made_at[id] = OutputLine(module, i, manifest.values[id].name, code);
    const bool scalar = manifest.values[id].kind != ValueKind::kTensor;
    if (set_specs && !scalar)
      specs[id] = {outputs[i].toTensor().scalar_type(), outputs[i].toTensor().sizes().vec(), true};
    if (scalar || trial.real) trial.values[id] = std::move(outputs[i]);
  }
}

}  // namespace pipewright
