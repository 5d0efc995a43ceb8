// Brings numbers from a device to the host without stopping the host for each.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace pipewright {

class LateNumbers {
 public:
  // Stores a tensor of one element in `to`: at once if it is on the CPU; otherwise its copy begins
  // in the order of the current stream, and `to`, which must stay, gets it in Read.
  void Add(const at::Tensor& number, double* to) { Copy(number, {to, nullptr}); }
  void Add(const at::Tensor& number, int64_t* to) { Copy(number, {nullptr, to}); }

  // Returns true if Read would not wait.
  bool Ready();
  // Waits for all copies, if there are any: on one event.
  void Read();

 private:
  struct Target {
    double* real = nullptr;
    int64_t* whole = nullptr;  // below 2^53, since it travels as a double
  };
  static void Store(double number, const Target& target);
  void Copy(const at::Tensor& number, const Target& target);
  c10::Event& AfterCopies();

  std::vector<at::Tensor> pages_;  // pinned memory, reused after Read
  std::vector<Target> targets_;    // of the numbers in `pages_`, in order
  at::Device device_ = at::kCPU;
  std::optional<c10::Event> copied_;  // after all copies; Add makes it void
};

}  // namespace pipewright
