// Counts the kernels that code runs, and the outputs that are requested from them.
#pragma once
#include <ATen/record_function.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

struct KernelCounts {
  int64_t flops = 0;                 // for matrix products
  std::map<std::string, int> calls;  // without views and masked kernels
  std::map<std::string, std::vector<int>> masks;  // requests for each output, by kernel

  KernelCounts operator+(const KernelCounts& other) const {
    KernelCounts sum = *this;
    sum.flops += other.flops;
    for (const auto& [name, count] : other.calls) sum.calls[name] += count;
    for (const auto& [name, mask] : other.masks) {
      std::vector<int>& to = sum.masks[name];
      to.resize(mask.size());
      for (size_t i = 0; i < mask.size(); ++i) to[i] += mask[i];
    }
    return sum;
  }
};

struct Counted : at::ObserverContext {};

// Does not count kernels called by other kernels separately, except for matrix products.
inline KernelCounts CountKernels(const std::function<void()>& code) {
  static thread_local KernelCounts* counts = nullptr;
  static thread_local int depth = 0;
  KernelCounts found;
  counts = &found;
  auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
            std::string name = f.name();
            static const std::map<std::string, int> products = {
                {"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}};
            if (auto product = products.find(name); product != products.end()) {
              at::Tensor a = f.inputs()[product->second].toTensor();
              at::Tensor b = f.inputs()[product->second + 1].toTensor();
              counts->flops += 2 * a.numel() * b.size(-1);
            }
            if (name.starts_with("autograd::")) return nullptr;
            if (name == "aten::add_") name = "aten::add";  // the engine adds in place if possible
            auto counted = std::make_unique<Counted>();
            if (depth++ > 0) return counted;
            bool masked = false;
            for (const c10::IValue& input : f.inputs())
              if (input.isBoolList() && name.ends_with("backward")) {
                masked = true;
                std::vector<int>& mask = counts->masks[name];
                c10::List<bool> asked = input.toBoolList();
                mask.resize(asked.size());
                for (size_t i = 0; i < asked.size(); ++i) mask[i] += asked[i];
              }
            static const std::vector<std::string> free_of_cost = {
                "t",       "transpose",      "view",         "reshape",      "expand",
                "permute", "unsqueeze",      "squeeze",      "as_strided",   "detach",
                "alias",   "slice",          "select",       "split",        "chunk",
                "unbind",  "_reshape_alias", "_unsafe_view", "is_same_size", "conj",
                "numpy_T", "narrow"};
            if (!masked && std::none_of(free_of_cost.begin(), free_of_cost.end(),
                                        [&](const std::string& n) { return name == "aten::" + n; }))
              ++counts->calls[name];
            return counted;
          },
          [](const at::RecordFunction&, at::ObserverContext* counted) {
            if (counted) --depth;
          })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  code();
  at::removeCallback(handle);
  counts = nullptr;
  depth = 0;
  return found;
}

}  // namespace pipewright
