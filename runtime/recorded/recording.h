// Records a thread's operations below autograd: which kernels run, on which tensors, in forward and
// in backward.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/recorded/graph.h"

namespace pipewright {

// Returns true if `value` may be a constant of a recording: it holds no tensor and no reference to
// other data.
bool HoldsNoTensor(const c10::IValue& value);

// Memory that the trace knows.
struct TracedStorage {
  c10::weak_intrusive_ptr<c10::StorageImpl> alive;  // keeps the address from being reused
  bool given = false;  // an input, a trained weight or a constant: nothing may write to it
  bool blank = false;  // nothing recorded has written to it
  int weight = -1;     // the weight whose memory it is
};

class Recording {
 public:
  Recording() = default;
  // Records the calling thread until the end of `code`. Throws what it throws.
  template <typename Code>
  void Record(bool backward, Code code) {
    backward_ = backward;
    Begin();
    try {
      code();
    } catch (...) {
      End();
      throw;
    }
    End();
  }

  // Tensors from outside; the n-th input gets slot n. Refuses those that share memory with others.
  Operand Input(const at::Tensor& tensor);
  void Weight(int index, const at::Tensor& tensor);
  void Constant(const at::Tensor& tensor);
  // Returns where a tensor comes from; undefined ones are constants. Refuses unknown ones.
  Operand Find(const at::Tensor& tensor);
  // Does the same for an output of the module. Refuses memory that no recorded operation has
  // filled: some of PyTorch's functions fill their results outside of operations.
  Operand FindResult(const at::Tensor& tensor);

  // Returns why there can be no lists; empty if there can.
  const std::string& refusal() const { return refusal_; }
  void Refuse(const std::string& why) {
    if (refusal_.empty()) refusal_ = why;
  }
  int slots() const { return slots_; }
  // Weights that were written to, in order.
  std::vector<int> written() const { return {written_.begin(), written_.end()}; }
  InstructionList forward, backward;

  // By number of the call: copies of the tensors that it returned or wrote, if keeps_results.
  struct CallResult {
    std::vector<at::Tensor> tensors;
    std::string place;  // in the module's code: FILE:LINE; of forward
  };
  bool keeps_results = false;
  std::vector<CallResult> results;

  // Called for each operation.
  void Call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

 private:
  using Key = std::tuple<const c10::StorageImpl*, int64_t, at::ScalarType, std::vector<int64_t>,
                         std::vector<int64_t>, bool>;
  void Begin();
  void End();
  static Key KeyOf(const at::Tensor& tensor);
  void Add(const at::Tensor& tensor, bool given, Operand operand);
  Operand NewSlot();
  bool IsPlainTensor(const at::Tensor& tensor);
  Operand OperandOf(const c10::IValue& value);

  bool backward_ = false;
  int slots_ = 0, calls_ = 0;
  std::string refusal_;
  std::map<Key, Operand> known_;
  std::map<const c10::StorageImpl*, TracedStorage> storages_;
  std::vector<c10::Storage> held_;  // keeps the engine from adding in place in backward
  std::map<uint64_t, int64_t> generators_;  // ids by seed
  std::set<int> written_;
  Recording* outer_ = nullptr;
};

}  // namespace pipewright
