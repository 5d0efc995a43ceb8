#include "tensors/model_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

void CheckStorable(const std::string& name, const at::Tensor& tensor, bool force_contiguous) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(Quote(name), "is not a dense tensor of plain numbers");
  if (tensor.is_meta()) throw Error(Quote(name), "is on the meta device: it has no values");
  if (!tensor.is_contiguous() && !force_contiguous)
    throw Error(Quote(name), "is not contiguous",
                "save with force_contiguous, which writes it in another order of memory");
}

// Describes a tensor for the file. For 4-bit types, the file counts numbers, and torch counts
// pairs.
TensorToWrite ToWrite(const std::string& name, at::ScalarType dtype, at::IntArrayRef sizes) {
  TensorToWrite write{name, SafetensorsDtype(dtype), sizes.vec()};
  if (write.dtype == "F4" && !write.shape.empty()) write.shape.back() *= 2;
  return write;
}

void Save(NamedTensors tensors, const std::string& path, const SaveOptions& options,
          const std::map<std::string, OffloadedTensor>& on_disk) {
  std::vector<std::pair<at::Tensor, at::Tensor>> resolved;
  for (auto& [name, tensor] : tensors) {
    if (!tensor.defined()) throw Error(Quote(name), "is not defined: it has no values");
    if (!tensor.is_conj() && !tensor.is_neg()) continue;
    // Shares memory with another tensor but has other values; two of these may be one.
    auto known = std::find_if(resolved.begin(), resolved.end(), [&tensor = tensor](auto& one) {
      const at::Tensor& other = one.first;
      return other.is_alias_of(tensor) && other.storage_offset() == tensor.storage_offset() &&
             other.sizes() == tensor.sizes() && other.strides() == tensor.strides() &&
             other.is_conj() == tensor.is_conj() && other.is_neg() == tensor.is_neg() &&
             other.scalar_type() == tensor.scalar_type();
    });
    if (known == resolved.end())
      known = resolved.emplace(known, tensor, tensor.resolve_conj().resolve_neg());
    tensor = known->second;
  }
  std::map<std::string, std::string> metadata = options.metadata;
  const auto kept = NamesToKeep(Extents(tensors), options.preferred, options.discard);
  RecordDropped(kept, metadata);
  std::set<std::string> dropped;
  for (const auto& [name, others] : kept) dropped.insert(others.begin(), others.end());
  std::vector<TensorToWrite> writes;
  for (const auto& [name, tensor] : tensors) {
    if (dropped.count(name)) continue;
    auto offloaded = on_disk.find(name);
    if (offloaded != on_disk.end()) {
      const OffloadedTensor& from = offloaded->second;
      writes.push_back(ToWrite(name, from.dtype(), from.sizes()));
      writes.back().produce = [&from](const ByteSink& sink) { from.Stream(sink); };
      continue;
    }
    CheckStorable(name, tensor, options.force_contiguous);
    writes.push_back(ToWrite(name, tensor.scalar_type(), tensor.sizes()));
    const at::Tensor& from = tensor;
    writes.back().produce = [&from](const ByteSink& sink) {
      const at::Tensor whole = from.detach().to(at::kCPU).contiguous();
      sink({static_cast<const char*>(whole.data_ptr()), whole.nbytes()});
    };
  }
  WriteSafetensors(path, std::move(writes), metadata);
}

std::string NameList(const char* what, const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(Quote(name));
  return names.empty() ? "" : what + Join(quoted, ", ");
}

}  // namespace

void SaveModel(const NamedTensors& tensors, const std::string& path, const SaveOptions& options) {
  Save(tensors, path, options, {});
}

void SaveModel(const torch::nn::Module& module, const std::string& path, const SaveOptions& options,
               const std::map<std::string, OffloadedTensor>& on_disk) {
  Save(StateDictOf(module), path, options, on_disk);
}

std::string ReportText(const LoadReport& report) {
  const std::string missing = NameList("missing: ", report.missing);
  const std::string unexpected = NameList("unexpected: ", report.unexpected);
  return missing + (missing.empty() || unexpected.empty() ? "" : "; ") + unexpected;
}

LoadReport LoadModel(const NamedTensors& tensors, const std::string& path, bool strict) {
  const TensorFile file(path);
  LoadReport report = MatchNames(Extents(tensors), file.Names());
  if (strict && !ReportText(report).empty())
    throw Error(path, ReportText(report), "pass strict = false, or give weights of this model");
  for (const auto& [name, tensor] : tensors)
    if (file.Has(name)) CheckShape(name, tensor.sizes(), file.At(name).shape);
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors)
    if (file.Has(name) && !tensor.is_meta()) at::Tensor(tensor).copy_(file.Get(name));
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const OwnedTensor& owned : OwnersOf(tensors)) {
    if (!owned.owner.is_meta()) continue;
    for (const std::string& name : owned.names) {
      const at::Tensor& tensor = by_name.at(name);
      if (!file.Has(name) || !CoversOwner(owned, tensor)) continue;
      Replace(owned, OwnersValue(owned, tensor, file.Get(name)).to(owned.owner.scalar_type()));
      break;
    }
  }
  return report;
}

LoadReport LoadModel(torch::nn::Module& module, const std::string& path, bool strict) {
  return LoadModel(StateDictOf(module), path, strict);
}

}  // namespace pipewright
