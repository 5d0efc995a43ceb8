#include "runtime/measure/samples.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/data/data.h"
#include "runtime/module/messages.h"
#include "runtime/trial/shapes.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

bool IsNumber(const std::string& size) {
  return !size.empty() && size.find_first_not_of("0123456789") == std::string::npos;
}

at::Tensor Read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.At(name);
  at::Tensor tensor = at::empty(info.shape, DtypeOfSafetensors(info.dtype));
  if (info.end > info.begin)
    file.Read(info, 0, static_cast<char*>(tensor.data_ptr()), info.end - info.begin);
  return tensor;
}

// Dynamic sizes, except the first, are known only from samples.
at::Tensor Random(const ValueInfo& value, int64_t microbatch) {
  const std::string cure =
      "write one, in Python: safetensors.torch.save_file({" + Quote(value.name) +
      ": ...}, \"in.safetensors\"), with a tensor for each input, and give it by --input FILE";
  if (value.dtype.empty())
    throw Error("input \"" + value.name + "\"",
                "has sizes that neither the model file nor a sample gives", cure);
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < value.shape.size(); ++d) {
    if (IsNumber(value.shape[d])) {
      sizes.push_back(std::stoll(value.shape[d]));
    } else if (d == 0) {
      sizes.push_back(std::max<int64_t>(microbatch, 1));
    } else {
      throw Error("input \"" + value.name + "\"",
                  "has the size [" + Join(value.shape, ", ") + "], and the package has no sample",
                  cure);
    }
  }
  at::ScalarType type = DtypeOf(value.dtype);
  return at::isFloatingType(type) ? at::randn(sizes, at::kFloat).to(type) : at::zeros(sizes, type);
}

}  // namespace

std::vector<c10::IValue> SampleInputs(const std::string& package, const Manifest& manifest,
                                      const std::string& path, int64_t& microbatch,
                                      std::string& source) {
  std::string own = package + "/samples.safetensors";
  source = !path.empty() ? path : std::filesystem::exists(own) ? own : "";
  std::unique_ptr<SafetensorsFile> file;
  if (!source.empty()) file = std::make_unique<SafetensorsFile>(source);
  if (!file) source = "random numbers";
  std::vector<c10::IValue> inputs;
  std::vector<TensorSpec> specs;
  int64_t wanted = microbatch;
  bool fitted = false;  // if the batch size is fixed, the first input's counts
  std::string batch;    // symbol of the first dimension; inputs may have different ones
  for (int id : manifest.inputs)
    if (const ValueInfo& value = manifest.values[id];
        batch.empty() && !value.shape.empty() && !IsNumber(value.shape[0]))
      batch = value.shape[0];
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[id];
    if (!file && value.kind != ValueKind::kTensor) {
      inputs.push_back(FromTensor(at::ones({}, at::kLong), value));
      specs.push_back({at::kLong, {}, true});
      continue;
    }
    at::Tensor tensor = file ? Read(*file, value.name) : Random(value, wanted);
    bool open = value.dtype.empty();  // its sizes are not recorded
    bool rows = value.kind == ValueKind::kTensor && tensor.dim() > 0 &&
                (open || (!value.shape.empty() && (value.shape[0] == batch || batch.empty())));
    if (rows && wanted > 0 && tensor.size(0) > 0 && tensor.size(0) != wanted) {
      // A file may have the rows of several microbatches of a fixed size.
      const bool cut = open || !batch.empty() || value.shape[0] == std::to_string(wanted);
      if (!cut && !fitted)
        throw Error("--microbatch-size " + std::to_string(wanted),
                    "the model was exported for " + value.shape[0] + " samples at once (input \"" +
                        value.name + "\")",
                    "--microbatch-size " + value.shape[0] +
                        ", or export it with a dynamic first dimension");
      if (cut) tensor = tensor.index_select(0, at::arange(wanted).remainder(tensor.size(0)));
    }
    fitted = fitted || rows;
    if (rows && microbatch == 0) microbatch = tensor.size(0);
    specs.push_back({tensor.scalar_type(), tensor.sizes().vec(), true});
    inputs.push_back(FromTensor(tensor, value));
  }
  InferShapes(package, manifest, specs);  // reports mismatches
  return inputs;
}

std::vector<c10::IValue> SamplesOfJob(const std::string& package, const Manifest& manifest,
                                      const Job& job, int64_t& microbatch, std::string& source) {
  const std::unique_ptr<Data> data = OpenData(job.data, manifest, job.path + ": data");
  if (data->samples() < 1) throw Error(job.path + ": data", "has no samples");
  if (microbatch == 0) microbatch = job.microbatch_size;
  source = "the data of " + job.path;
  std::vector<int64_t> rows(static_cast<size_t>(microbatch));
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<int64_t>(r) % data->samples();
  const int64_t length = data->Longest(rows.data(), microbatch);
  std::vector<c10::IValue> inputs;
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < manifest.inputs.size(); ++i) {
    const int input = static_cast<int>(i);
    specs.push_back(data->Spec(input, microbatch, length));
    inputs.push_back(FromTensor(data->Rows(input, rows.data(), microbatch, length),
                                manifest.values[static_cast<size_t>(manifest.inputs[i])]));
  }
  InferShapes(package, manifest, specs);  // reports mismatches
  return inputs;
}

}  // namespace pipewright
