// run_package PACKAGE INPUTS.safetensors OUTPUTS.safetensors [train]
// Runs a package's modules one after the other, each an island of autograd, and for tensors
// "gradient.I" in INPUTS runs backward from output I. Writes "output.I", "gradient:NAME" for each
// parameter (summed over its holders, under its first name) and "buffer:NAME" as it is afterwards.
#include <torch/script.h>
#include <torch/torch.h>

#include <iostream>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "formats/manifest.h"
#include "formats/weights/safetensors.h"
#include "ops/module_text.h"
#include "ops/op_library.h"
#include "ops/random_ops.h"
#include "ops/transformers_ops.h"
#include "passes/graph/model.h"

using namespace pipewright;

static at::ScalarType DtypeOf(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {
      {"float32", at::kFloat}, {"float64", at::kDouble},
      {"int64", at::kLong},    {"int32", at::kInt},
      {"bool", at::kBool},     {"bfloat16", at::kBFloat16},
      {"float16", at::kHalf},  {"uint8", at::kByte},
      {"int8", at::kChar},     {"complex64", at::kComplexFloat}};
  return kTypes.at(name);
}

static at::Tensor Read(const SafetensorsFile& file, const TensorInfo& info) {
  at::Tensor tensor = at::empty(info.shape, DtypeOf(FindDtype(info.dtype)->torch));
  if (info.end > info.begin)
    file.Read(info, 0, static_cast<char*>(tensor.data_ptr()), info.end - info.begin);
  return tensor;
}

static torch::jit::Module Load(const std::string& package, const Manifest& manifest, size_t k) {
  const ModuleInfo& info = manifest.modules[k];
  const std::string path = package + "/" + info.code;
  std::vector<std::string> weights;
  for (const WeightInfo& weight : info.held) weights.push_back(weight.name);
  const CompiledText code =
      CompileText(path, ReadFile(path), "Module" + std::to_string(k), weights);
  auto object = c10::ivalue::Object::create(c10::StrongTypePtr(code.unit, code.type),
                                            code.type->numAttributes());
  SafetensorsFile file(package + "/" + info.weights);
  for (const WeightInfo& weight : info.held) {
    at::Tensor tensor = Read(file, file.At(weight.name));
    object->setAttr(weight.name, tensor.set_requires_grad(weight.requires_grad));
  }
  object->setAttr("device", c10::Device(c10::kCPU));
  return torch::jit::Module(object);
}

static void Run(const std::string& package, const std::string& in, const std::string& out,
                bool train) {
  at::set_num_threads(1);
  torch::jit::getProfilingMode() = false;
  Manifest manifest = ReadManifest(package);
  for (const std::string& library : manifest.op_libraries) LoadOpLibrary(library);
  RegisterTransformersOperators();
  SafetensorsFile inputs(in);
  std::map<int, c10::IValue> values;                // as the modules return them
  std::vector<std::map<int, at::Tensor>> received;  // by module, leaves of autograd
  std::map<std::pair<size_t, int>, at::Tensor> taken;  // by module and value: gradients as computed
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    at::Tensor tensor = Read(inputs, inputs.At(value.name));
    values[id] = value.kind == ValueKind::kInt ? c10::IValue(tensor.item<int64_t>())
                                               : c10::IValue(tensor);
  }
  std::vector<torch::jit::Module> modules;
  SetRandomKey({7, 0, 0});
  for (size_t k = 0; k < manifest.modules.size(); ++k) {
    modules.push_back(Load(package, manifest, k));
    modules[k].setattr("training", train);
    received.emplace_back();
    std::vector<c10::IValue> arguments;
    for (int id : manifest.modules[k].inputs) {
      c10::IValue argument = values.at(id);
      const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
      if (argument.isTensor() && value.producer >= 0) {
        at::Tensor leaf = argument.toTensor().detach().clone();
        bool real = leaf.is_floating_point() || leaf.is_complex();
        received[k][id] = leaf.set_requires_grad(value.gradient && real);
        // leaf.grad() would have the leaf's layout in memory.
        if (leaf.requires_grad())
          leaf.register_hook([&taken, k, id](at::Tensor gradient) { taken[{k, id}] = gradient; });
        argument = leaf;
      }
      arguments.push_back(argument);
    }
    c10::IValue result = modules[k].forward(arguments);
    const std::vector<int>& outputs = manifest.modules[k].outputs;
    if (outputs.size() == 1) {
      values[outputs[0]] = result;
    } else {
      for (size_t i = 0; i < outputs.size(); ++i)
        values[outputs[i]] = result.toTupleRef().elements()[i];
    }
    for (int id : outputs) {
      const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
      if (!values[id].isTensor()) continue;
      at::Tensor tensor = values[id].toTensor();
      if (tensor.requires_grad() && !value.gradient)
        throw Error(value.name, "has a gradient that the manifest denies");
      if (!value.dtype.empty() && value.dtype != DtypeText(tensor.scalar_type()))
        throw Error(value.name, "is not of the dtype that the manifest says");
      for (size_t d = 0; d < value.shape.size(); ++d)
        if (std::isdigit(value.shape[d][0]) &&
            value.shape[d].find_first_not_of("0123456789") == std::string::npos &&
            std::stoll(value.shape[d]) != tensor.size(static_cast<int64_t>(d)))
          throw Error(value.name, "is not of the shape that the manifest says");
    }
  }
  std::map<std::string, at::Tensor> results;
  std::map<int, at::Tensor> gradients;  // by value
  for (size_t i = 0; i < manifest.outputs.size(); ++i) {
    const c10::IValue& value = values.at(manifest.outputs[i]);
    const std::string number = std::to_string(i);
    if (value.isNone()) continue;
    at::Tensor tensor = value.isTensor() ? value.toTensor()
                        : value.isInt()  ? at::scalar_tensor(value.toInt(), at::kLong)
                                         : at::scalar_tensor(value.toScalar());
    results["output." + number] = tensor.detach().contiguous().clone();
    if (!inputs.Find("gradient." + number)) continue;
    at::Tensor gradient = at::empty_like(tensor).copy_(Read(inputs, inputs.At("gradient." + number)));
    at::Tensor& sum = gradients[manifest.outputs[i]];
    sum = sum.defined() ? sum + gradient : gradient;
  }
  for (size_t k = manifest.modules.size(); k-- > 0;) {
    std::vector<at::Tensor> roots, seeds;
    for (int id : manifest.modules[k].outputs) {
      if (!gradients.count(id) || !values[id].toTensor().requires_grad()) continue;
      roots.push_back(values[id].toTensor());
      seeds.push_back(gradients[id]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    for (auto& [id, leaf] : received[k]) {
      auto found = taken.find({k, id});
      if (found == taken.end()) continue;
      at::Tensor& sum = gradients[id];
      sum = sum.defined() ? sum + found->second : found->second;
    }
  }
  std::map<std::string, std::string> first;  // first of the tied names, by name
  for (const auto& group : manifest.tied)
    for (const std::string& name : group) first[name] = group[0];
  for (size_t k = 0; k < manifest.modules.size(); ++k) {
    for (const WeightInfo& weight : manifest.modules[k].held) {
      at::Tensor tensor = modules[k].attr(weight.name).toTensor();
      std::string name = first.count(weight.name) ? first[weight.name] : weight.name;
      if (weight.kind == WeightKind::kBuffer) results["buffer:" + name] = tensor;
      if (weight.kind != WeightKind::kParameter || !tensor.grad().defined()) continue;
      at::Tensor& sum = results["gradient:" + name];
      sum = sum.defined() ? sum + tensor.grad() : tensor.grad();
    }
  }
  std::vector<TensorToWrite> tensors;
  for (auto& [name, tensor] : results) {
    tensor = tensor.contiguous();
    TensorToWrite write;
    write.name = name;
    write.dtype = FindDtype(DtypeText(tensor.scalar_type()))->name;
    write.shape = tensor.sizes().vec();
    write.bytes = std::string_view(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    tensors.push_back(write);
  }
  WriteSafetensors(out, tensors);
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    Run(argv[1], argv[2], argv[3], argc > 4 && std::string(argv[4]) == "train");
  } catch (const std::exception& e) {
    std::cerr << std::string(e.what()).substr(0, 4000) << "\n";
    return 1;
  }
  return 0;
}
