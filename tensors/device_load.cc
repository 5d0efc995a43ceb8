#include "tensors/device_load.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "tensors/model_file.h"

namespace pipewright {

namespace {

// Returns nullopt for "disk".
std::optional<at::Device> DeviceNamed(const std::string& name) {
  if (name == "disk") return std::nullopt;
  if (name == "cpu") return at::Device(at::kCPU);
  if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != std::string::npos)
    throw Error("device map", "unknown device " + Quote(name),
                "devices are 0, 1, ..., cpu and disk");
  const auto accelerator = at::getAccelerator(false);
  // A LibTorch for CUDA has an accelerator even on a host without GPUs.
  if (!accelerator || at::accelerator::deviceCount() == 0) return at::Device(at::kCPU);
  const int number = std::stoi(name);
  if (number >= at::accelerator::deviceCount())
    throw Error("device map", "there is no device " + name);
  return at::Device(*accelerator, static_cast<at::DeviceIndex>(number));
}

void CheckMap(const DeviceMap& map) {
  for (const auto& [outer, device] : map) {
    DeviceNamed(device);
    for (const auto& [inner, other] : map)
      if (inner != outer && Covers(outer, inner))
        throw Error("device map", Quote(inner) + " lies within " + Quote(outer));
  }
}

}  // namespace

DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const std::string& path, const DeviceMap& map,
                           const DeviceLoadOptions& options) {
  const auto file = std::make_shared<const TensorFile>(path);
  AnyTensors values;
  for (const std::string& name : file->Names())
    values.emplace(name, OffloadedTensor::In(file, name));
  return LoadByDeviceMap(module, values, map, options);
}

DeviceLoad LoadByDeviceMap(torch::nn::Module& module, const AnyTensors& values,
                           const DeviceMap& map, const DeviceLoadOptions& options) {
  const NamedTensors tensors = StateDictOf(module);
  DeviceLoad load;
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  load.report = MatchNames(Extents(tensors), names);
  if (options.strict && !ReportText(load.report).empty())
    throw Error("state dict", ReportText(load.report),
                "pass strict = false, or give weights of this model");
  CheckMap(map);
  std::vector<std::string> uncovered;
  for (const auto& [name, tensor] : tensors) {
    if (DeviceOf(map, name).empty()) uncovered.push_back(name);
    if (auto value = values.find(name); value != values.end())
      CheckShape(name, tensor.sizes(), SizesOf(value->second));
  }
  if (!uncovered.empty() && !OffloadScope::Active())
    throw Error("device map", "no device for " + Join(uncovered, ", "));

  at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const OwnedTensor& owned : OwnersOf(tensors)) {
    const AnyTensor* value = nullptr;
    at::Tensor of;  // the tensor that has the value: the owner, or a view of all of it
    for (size_t i = 0; i < owned.names.size() && !value; ++i) {
      auto found = values.find(owned.names[i]);
      of = by_name.at(owned.names[i]);
      if (found != values.end() && CoversOwner(owned, of)) value = &found->second;
    }
    std::string first;  // first name in the model
    for (const auto& [name, tensor] : tensors) {
      if (!first.empty()) break;
      for (const std::string& own : owned.names)
        if (own == name) first = name;
    }
    const std::optional<at::Device> device =
        OffloadScope::Active() ? std::nullopt : DeviceNamed(DeviceOf(map, first));
    const at::Tensor& owner = owned.owner;
    if (!value && owner.is_meta()) continue;  // stays without values
    const auto* offloaded = value ? std::get_if<OffloadedTensor>(value) : nullptr;
    const at::ScalarType from = !value      ? owner.scalar_type()
                                : offloaded ? offloaded->dtype()
                                            : std::get<at::Tensor>(*value).scalar_type();
    const at::ScalarType type =
        options.dtype && at::isFloatingType(from) ? *options.dtype : owner.scalar_type();
    if (!device) {
      const OffloadedTensor kept =
          offloaded && of.is_same(owner)
              ? offloaded->To(at::Device(at::kCPU)).To(type)
              : OffloadedTensor::From(
                    (value ? OwnersValue(owned, of, Loaded(*value)) : owner).to(type), first,
                    options.folder);
      for (const std::string& name : owned.names) load.on_disk.emplace(name, kept);
      Replace(owned,
              at::empty_strided(owner.sizes(), owner.strides(), at::dtype(type).device(at::kMeta)));
    } else {
      const at::Tensor given = value ? OwnersValue(owned, of, Loaded(*value)) : owner.detach();
      // The module must not share a tensor with the caller.
      const bool copy = value && !offloaded;
      Replace(owned, given.to(at::dtype(type).device(*device), /*non_blocking=*/false, copy));
    }
  }
  return load;
}

Resident::Resident(torch::nn::Module& module, const std::map<std::string, OffloadedTensor>& on_disk,
                   const std::string& prefix) {
  for (OwnedTensor& owned : OwnersOf(StateDictOf(module))) {
    if (!owned.owner.is_meta()) continue;
    for (const std::string& name : owned.names) {
      auto found = on_disk.find(name);
      if (found == on_disk.end() || !Covers(prefix, name)) continue;
      Replace(owned, found->second.Load());
      loaded_.push_back(std::move(owned));
      break;
    }
  }
}

Resident::~Resident() {
  for (const OwnedTensor& owned : loaded_) Empty(owned);
}

ModelsInTurn::ModelsInTurn(at::Device device, bool files, const std::string& folder)
    : device_(device), files_(files), folder_(folder) {
  if (!files && device.is_cpu())
    throw Error("models in turn", "on the CPU, unused models can only be in files", "set `files`");
}

size_t ModelsInTurn::Add(const NamedTensors& tensors,
                         const std::map<std::string, OffloadedTensor>& on_disk) {
  models_.emplace_back();
  for (OwnedTensor& owned : OwnersOf(tensors)) {
    Part part{std::move(owned), std::nullopt, 0};
    for (const std::string& name : part.tensor.names)
      if (auto found = on_disk.find(name); found != on_disk.end() && !part.file)
        part.file = found->second;
    if (!part.file && part.tensor.owner.is_meta())
      throw Error(Quote(part.tensor.names[0]), "is on the meta device and has no values",
                  "load the model first");
    part.version = part.tensor.owner._version();
    SendAway(part);
    models_.back().push_back(std::move(part));
  }
  return models_.size() - 1;
}

void ModelsInTurn::SendAway(Part& part) {
  const at::Tensor& owner = part.tensor.owner;
  if (owner.is_meta()) return;
  if (!files_ && !part.file) return Replace(part.tensor, owner.detach().to(at::kCPU));
  if (!part.file || owner._version() != part.version)
    part.file = OffloadedTensor::From(owner, part.tensor.names[0], folder_);
  Empty(part.tensor);
}

void ModelsInTurn::Bring(size_t model, at::Device device) {
  for (Part& part : models_[model]) {
    at::NoGradGuard no_grad;
    const at::Tensor& owner = part.tensor.owner;
    Replace(part.tensor,
            owner.is_meta() ? part.file->To(device).Load() : owner.detach().to(device));
    part.version = owner._version();
  }
}

void ModelsInTurn::Check(size_t model) const {
  if (model >= models_.size())
    throw Error("models in turn", "there is no model " + std::to_string(model));
}

void ModelsInTurn::Use(size_t model) {
  Check(model);
  if (there_ == model) return;
  Evict();
  there_ = model;
  Bring(model, device_);
}

void ModelsInTurn::Remove(size_t model, at::Device device) {
  Check(model);
  Bring(model, device);
  models_[model].clear();
  if (there_ == model) there_ = static_cast<size_t>(-1);
}

void ModelsInTurn::Evict() {
  if (there_ == static_cast<size_t>(-1)) return;
  for (Part& part : models_[there_]) SendAway(part);
  there_ = static_cast<size_t>(-1);
}

}  // namespace pipewright
