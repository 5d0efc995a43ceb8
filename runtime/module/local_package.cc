#include "runtime/module/local_package.h"

#include <map>

#include "base/error.h"
#include "base/text.h"
#include "formats/call_text.h"
#include "ops/random_ops.h"
#include "runtime/module/module.h"
#include "runtime/module/stored_weights.h"

namespace pipewright {

LocalPackage::LocalPackage(const std::string& package, bool training)
    : manifest_(ReadManifest(package)) {
  std::map<std::string, at::Tensor> first;  // shared weights by the name they are stored under
  for (size_t m = 0; m < manifest_.modules.size(); ++m) {
    modules_.push_back(LoadModuleWith(package, manifest_, static_cast<int>(m), {}));
    LoadedModule& module = modules_.back();
    pipewright::SetTraining(module, training);
    const std::vector<WeightInfo>& held = manifest_.modules[m].held;
    for (size_t w = 0; w < held.size(); ++w) {
      if (held[w].kind == WeightKind::kConstant) continue;
      auto [one, fresh] = first.emplace(KeptName(manifest_, held[w].name), module.weights[w]);
      if (fresh) continue;
      module.weights[w] = one->second;
      module.self->setAttr(held[w].name, one->second);
    }
  }
  SetRandomKey({});
}

std::vector<c10::IValue> LocalPackage::Begin(std::vector<c10::IValue> inputs) const {
  if (inputs.size() != manifest_.inputs.size())
    throw Error("package", "the model takes " + Counted(manifest_.inputs.size(), "input") +
                               ", not " + std::to_string(inputs.size()),
                CallText(manifest_));
  std::vector<c10::IValue> values(manifest_.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) values[manifest_.inputs[i]] = std::move(inputs[i]);
  return values;
}

void LocalPackage::RunModule(int module, std::vector<c10::IValue>& values) const {
  const ModuleInfo& info = manifest_.modules.at(module);
  std::vector<c10::IValue> inputs;
  for (int id : info.inputs) {
    const ValueInfo& value = manifest_.values[id];
    if (values[id].isNone())
      throw Error(
          "module" + std::to_string(module), "its input \"" + value.name + "\" is not computed yet",
          value.producer < 0 ? "" : "run module " + std::to_string(value.producer) + " first");
    inputs.push_back(values[id]);
  }
  std::vector<c10::IValue> outputs = Run(modules_[module], std::move(inputs));
  for (size_t i = 0; i < outputs.size(); ++i) values[info.outputs[i]] = std::move(outputs[i]);
}

void LocalPackage::RunStage(const Conf& conf, int stage, std::vector<c10::IValue>& values) const {
  for (size_t m = 0; m < modules_.size(); ++m)
    if (conf.module_to_stage.at(m) == stage) RunModule(static_cast<int>(m), values);
}

std::vector<c10::IValue> LocalPackage::End(const std::vector<c10::IValue>& values) const {
  std::vector<c10::IValue> outputs;
  for (int id : manifest_.outputs) outputs.push_back(values.at(id));
  return outputs;
}

std::vector<c10::IValue> LocalPackage::Call(std::vector<c10::IValue> inputs) const {
  std::vector<c10::IValue> values = Begin(std::move(inputs));
  for (size_t m = 0; m < modules_.size(); ++m) RunModule(static_cast<int>(m), values);
  return End(values);
}

at::Tensor LocalPackage::Weight(const std::string& name) const {
  const std::string kept = KeptName(manifest_, name);
  std::vector<std::string> names;
  for (size_t m = 0; m < modules_.size(); ++m) {
    const std::vector<WeightInfo>& held = manifest_.modules[m].held;
    for (size_t w = 0; w < held.size(); ++w) {
      if (held[w].kind == WeightKind::kConstant) continue;
      if (KeptName(manifest_, held[w].name) == kept) return modules_[m].weights[w];
      names.push_back(held[w].name);
    }
  }
  throw Error("package", "the model has no weight \"" + name + "\"" + Suggest(name, names));
}

}  // namespace pipewright
