// Tensors whose values stay in a file until they are used. Modeled on torch-to-nnef's
// OffloadedTensor.
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

// A handle: copies refer to one tensor. Its file is deleted with the last of them, unless it
// belongs to a checkpoint. Shape, type and device are known without I/O; every use of the value
// reads it, and only the caller keeps the result. Several threads may read different handles of one
// tensor at once; updates need exclusive access.
class OffloadedTensor {
 public:
  // Writes the values to a file of their own, in a folder of this process in `folder` ("": the
  // default for temporary files). Names are for messages and need not be unique. Throws Error for
  // tensors without values (meta) or without plain memory (sparse, quantized).
  static OffloadedTensor From(const at::Tensor& tensor, const std::string& name,
                              const std::string& folder = "");
  // Refers to a weight in a checkpoint, without a copy; the checkpoint stays open.
  static OffloadedTensor In(const std::string& path, const std::string& name);
  static OffloadedTensor In(std::shared_ptr<const TensorFile> file, const std::string& name);

  const std::string& name() const;
  at::IntArrayRef sizes() const;
  at::ScalarType dtype() const;
  at::Device device() const { return device_; }  // the device of Load's result
  int64_t numel() const;
  std::string file() const;  // the file with the bytes

  at::Tensor Load() const;
  operator at::Tensor() const { return Load(); }
  // Passes the payload to `sink` in row-major order, piece by piece, without holding all of it.
  void Stream(const ByteSink& sink) const;

  // Returns the same tensor with another device for loading, without I/O.
  OffloadedTensor To(at::Device device) const;
  // Returns a tensor of another type: stored in a file of its own, or converted from the checkpoint
  // on each load.
  OffloadedTensor To(at::ScalarType dtype) const;
  // Changes the values for all handles of this tensor. Throws Error for another shape or type if
  // the respective flag is strict (otherwise the tensor takes them on), and for a weight of a
  // checkpoint, which is never written to.
  void UpdateValues(const at::Tensor& values, bool strict_shape = true, bool strict_dtype = true);

  // Returns true if both refer to one tensor.
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
// Tensors in memory or on disk, by name.
using AnyTensors = std::map<std::string, AnyTensor>;

at::Tensor Loaded(const AnyTensor& tensor);
at::IntArrayRef SizesOf(const AnyTensor& tensor);

// While it exists, loads of this thread that support it return offloaded tensors: LoadStateDict,
// and LoadByDeviceMap regardless of the map.
class OffloadScope {
 public:
  OffloadScope();
  ~OffloadScope();
  OffloadScope(const OffloadScope&) = delete;
  OffloadScope& operator=(const OffloadScope&) = delete;
  static bool Active();
};

// Returns all weights of a checkpoint of any kind that OpenCheckpoint accepts: in memory, or within
// an OffloadScope as references to the file.
AnyTensors LoadStateDict(const std::string& path);

}  // namespace pipewright
