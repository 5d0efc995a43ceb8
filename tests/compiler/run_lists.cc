// run_lists PACKAGE INPUTS.safetensors: runs every module of a package with both of its bodies
// (runtime/recorded), on the inputs and on others of the same sizes with their elements in other
// orders. Fails if outputs, gradients (by B, or by I and W) or buffers differ in a bit or in their
// layout. Prints "lists", or why not, for each module.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <iostream>
#include <map>

#include "base/error.h"
#include "formats/weights/safetensors.h"
#include "ops/random_ops.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/island.h"
#include "tensors/dtype.h"

using namespace pipewright;

static at::Tensor Read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& info = file.At(name);
  at::Tensor tensor = at::empty(info.shape, DtypeOfSafetensors(info.dtype));
  if (info.end > info.begin)
    file.Read(info, 0, static_cast<char*>(tensor.data_ptr()), info.end - info.begin);
  return tensor;
}

static bool Same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes() || a.strides() != b.strides())
    return false;
  at::NoGradGuard no_grad;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// The results of one microbatch.
struct Results {
  std::vector<c10::IValue> outputs;
  Tensors tensors;  // outputs, gradients, buffers
};

static Results RunOne(const LoadedModule& module, const std::vector<c10::IValue>& inputs,
                      const std::vector<bool>& wanted, int round) {
  SetRandomKey({7, static_cast<uint64_t>(round / 2), static_cast<uint64_t>(round % 2)});
  Kept kept;
  Results results;
  results.outputs = ForwardIsland(module, inputs, wanted, &kept);
  for (const c10::IValue& output : results.outputs)
    results.tensors.push_back(output.isTensor() ? output.toTensor() : at::Tensor());
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(round));
  Tensors gradients, weights;
  for (const at::Tensor& output : kept.outputs)
    gradients.push_back(output.defined() ? at::empty_like(output).normal_(0, 1, generator)
                                         : at::Tensor());
  if (round % 2) {
    WeightTail tail;
    Tensors found = InputGradientsOf(module, std::move(kept), std::move(gradients), tail);
    results.tensors.insert(results.tensors.end(), found.begin(), found.end());
    weights = WeightGradientsOf(module, std::move(tail));
  } else {
    ModuleGradients found = BackwardIsland(module, std::move(kept), std::move(gradients));
    results.tensors.insert(results.tensors.end(), found.inputs.begin(), found.inputs.end());
    weights = std::move(found.weights);
  }
  results.tensors.insert(results.tensors.end(), weights.begin(), weights.end());
  for (const at::Tensor& weight : module.weights)
    if (!weight.requires_grad()) results.tensors.push_back(weight.clone());
  return results;
}

static c10::IValue Shuffled(const at::Tensor& tensor, at::Generator& generator) {
  if (tensor.numel() < 2) return tensor;
  return tensor.flatten()
      .index_select(0, at::randperm(tensor.numel(), generator, at::kLong))
      .view(tensor.sizes());
}

static void Run(const std::string& package, const std::string& in) {
  constexpr int kRounds = 10;
  at::set_num_threads(1);
  torch::jit::getProfilingMode() = false;
  const Manifest manifest = ReadManifest(package);
  const SafetensorsFile file(in);
  std::vector<LoadedModule> eager, lists;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    eager.push_back(LoadModule(package, manifest, static_cast<int>(m)));
    lists.push_back(LoadModule(package, manifest, static_cast<int>(m)));
    UseBody(lists.back(), BodyChoice::kLists);
  }
  at::Generator generator = at::detail::createCPUGenerator(3);
  for (int round = 0; round < kRounds; ++round) {
    std::map<int, c10::IValue> values;
    for (int id : manifest.inputs) {
      const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
      const at::Tensor tensor = Read(file, value.name);
      values[id] = value.kind == ValueKind::kTensor && round > 1 ? Shuffled(tensor, generator)
                                                       : FromTensor(tensor, value);
    }
    for (size_t m = 0; m < eager.size(); ++m) {
      const ModuleInfo& info = manifest.modules[m];
      std::vector<c10::IValue> inputs;
      std::vector<bool> wanted;
      for (int id : info.inputs) {
        inputs.push_back(values.at(id));
        wanted.push_back(manifest.values[static_cast<size_t>(id)].gradient &&
                         inputs.back().isTensor() &&
                         (inputs.back().toTensor().is_floating_point() ||
                          inputs.back().toTensor().is_complex()));
      }
      Results a, b;
      std::string failed;
      try {
        a = RunOne(eager[m], inputs, wanted, round);
      } catch (const std::exception& e) {
        failed = e.what();
      }
      bool both = false;
      try {
        b = RunOne(lists[m], inputs, wanted, round);
      } catch (const std::exception&) {
        if (failed.empty()) throw;
        both = true;
      }
      if (both) break;  // shuffled inputs out of range; a functionalized batch norm
      if (!failed.empty()) throw Error(info.name, "only autograd's fails: " + failed);
      for (size_t i = 0; i < a.tensors.size(); ++i)
        if (!Same(a.tensors[i], b.tensors[i]))
          throw Error(info.name, "round " + std::to_string(round) + ", tensor " +
                                     std::to_string(i) + " of " + std::to_string(a.tensors.size()) +
                                     " differs");
      for (size_t i = 0; i < info.outputs.size(); ++i) values[info.outputs[i]] = a.outputs[i];
    }
  }
  for (const LoadedModule& module : lists) {
    const BodyState state = StateOf(module);
    std::cout << "module " << module.index << ": " << (state.lists ? "lists" : state.refusal)
              << "\n";
  }
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    Run(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::cerr << std::string(e.what()).substr(0, 4000) << "\n";
    return 1;
  }
  return 0;
}
