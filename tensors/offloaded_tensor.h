// Tensors whose values lie in a file until they are used. After torch-to-nnef's OffloadedTensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "tensors/tensor_file.h"

namespace pipewright {

// A handle: copies are one tensor. Its file goes away with the last of them, unless it is a
// checkpoint's. Shape, type and device are known without I/O; every use of the value reads it, and
// what is read stays with the user alone. Different handles of one tensor may be read by several
// threads at once; updating one needs them to wait.
class OffloadedTensor {
 public:
  // Writes the values to a file of its own, in a folder of this process in `folder` ("": where
  // temporary files go). Names are for messages and need not differ. Throws Error for tensors
  // without values (meta) or without plain memory (sparse, quantized).
  static OffloadedTensor From(const at::Tensor& tensor, const std::string& name,
                              const std::string& folder = "");
  // A weight where it lies in a checkpoint, without a copy; the checkpoint stays open.
  static OffloadedTensor In(const std::string& path, const std::string& name);
  static OffloadedTensor In(std::shared_ptr<const TensorFile> file, const std::string& name);

  const std::string& name() const;
  at::IntArrayRef sizes() const;
  at::ScalarType dtype() const;
  at::Device device() const { return device_; }  // of what Load returns
  int64_t numel() const;
  std::string file() const;  // where the bytes are

  at::Tensor Load() const;
  operator at::Tensor() const { return Load(); }
  // The payload in row-major order, in pieces, without ever holding all of it.
  void Stream(const ByteSink& sink) const;

  // The same tensor, loaded to another device: without I/O.
  OffloadedTensor To(at::Device device) const;
  // A tensor of another type: in a file of its own, or converted out of the checkpoint whenever it
  // is loaded.
  OffloadedTensor To(at::ScalarType dtype) const;
  // Other values for all handles of this tensor. Throws Error for another shape or type where these
  // are strict (else the tensor takes them on), and for a weight of a checkpoint, which is not
  // written to.
  void UpdateValues(const at::Tensor& values, bool strict_shape = true, bool strict_dtype = true);

  // Of one tensor.
  friend bool operator==(const OffloadedTensor& a, const OffloadedTensor& b) {
    return a.state_ == b.state_;
  }

 private:
  struct State;
  OffloadedTensor(std::shared_ptr<State> state, at::Device device)
      : state_(std::move(state)), device_(device) {}
  std::shared_ptr<State> state_;
  at::Device device_;
};

using AnyTensor = std::variant<at::Tensor, OffloadedTensor>;
// By name.
using AnyTensors = std::map<std::string, AnyTensor>;

at::Tensor Loaded(const AnyTensor& tensor);
at::IntArrayRef SizesOf(const AnyTensor& tensor);

// While one lives, every load of this thread that has a say in it gives offloaded tensors:
// LoadStateDict, and LoadByDeviceMap whatever the map says.
class OffloadScope {
 public:
  OffloadScope();
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;
  static bool Active();
};

// All weights of a checkpoint, of any kind that OpenCheckpoint takes: in memory, or in an
// OffloadScope where they lie.
AnyTensors LoadStateDict(const std::string& path);

}  // namespace pipewright
