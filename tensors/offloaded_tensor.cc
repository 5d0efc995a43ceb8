#include "tensors/offloaded_tensor.h"

#include <ATen/ATen.h>

#include <filesystem>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/json.h"
#include "tensors/dtype.h"
#include "tensors/offload_folder.h"
#include "tensors/page_memory.h"

namespace pipewright {

struct OffloadedTensor::State {
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  // The values are a weight of a checkpoint, or plain bytes in a separate file.
  std::shared_ptr<const TensorFile> checkpoint;
  std::vector<at::ScalarType> conversions;  // for a checkpoint's weight: applied in order on load
  std::string parent, path;
  std::shared_ptr<OffloadFolder> folder;

  ~State() {
    std::error_code ignored;
    if (folder) std::filesystem::remove(path, ignored);
  }
};

static void WriteValues(const std::string& path, const std::string& name,
                        const at::Tensor& tensor) {
  if (tensor.is_meta()) throw Error(Quote(name), "is on the meta device and has no values");
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(Quote(name), "is not a dense tensor of plain numbers");
  const at::Tensor whole = tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  WriteBytes(path, {static_cast<const char*>(whole.data_ptr()), whole.nbytes()});
}

OffloadedTensor OffloadedTensor::From(const at::Tensor& tensor, const std::string& name,
                                      const std::string& folder) {
  auto state = std::make_shared<State>();
  state->name = name;
  state->sizes = tensor.sizes().vec();
  state->dtype = tensor.scalar_type();
  state->parent = folder;
  state->folder = OffloadFolder::In(folder);
  state->path = state->folder->NewPath();
  WriteValues(state->path, name, tensor);
  return {std::move(state), tensor.device()};
}

OffloadedTensor OffloadedTensor::In(std::shared_ptr<const TensorFile> file,
                                    const std::string& name) {
  auto state = std::make_shared<State>();
  state->name = name;
  state->sizes = file->At(name).shape;
  state->dtype = file->DtypeAt(name);
  state->checkpoint = std::move(file);
  return {std::move(state), at::kCPU};
}

OffloadedTensor OffloadedTensor::In(const std::string& path, const std::string& name) {
  return In(std::make_shared<const TensorFile>(path), name);
}

const std::string& OffloadedTensor::name() const { return state_->name; }
at::IntArrayRef OffloadedTensor::sizes() const { return state_->sizes; }
at::ScalarType OffloadedTensor::dtype() const { return state_->dtype; }
int64_t OffloadedTensor::numel() const { return c10::multiply_integers(state_->sizes); }
std::string OffloadedTensor::file() const {
  return state_->checkpoint ? state_->checkpoint->path() : state_->path;
}

at::Tensor OffloadedTensor::Load() const {
  const State& state = *state_;
  at::Tensor value;
  if (state.checkpoint) {
    value = state.checkpoint->Get(state.name);
    for (at::ScalarType type : state.conversions) value = value.to(type);
  } else {
    value = EmptyInPages(state.sizes, state.dtype);
    MappedFile(state.path).Read(0, static_cast<char*>(value.data_ptr()), value.nbytes());
  }
  return device_.is_cpu() ? value : value.to(device_);
}

void OffloadedTensor::Stream(const ByteSink& sink) const {
  if (numel() == 0) return;
  if (!state_->conversions.empty()) {
    const at::Tensor value = To(at::Device(at::kCPU)).Load();
    return sink({static_cast<const char*>(value.data_ptr()), value.nbytes()});
  }
  if (state_->checkpoint) return state_->checkpoint->Stream(state_->name, sink);
  const MappedFile file(state_->path);
  std::string piece;
  for (uint64_t at = 0; at < file.bytes().size(); at += piece.size()) {
    piece.resize(std::min<uint64_t>(1 << 20, file.bytes().size() - at));
    file.Read(at, piece.data(), piece.size());
    sink(piece);
  }
}

OffloadedTensor OffloadedTensor::To(at::Device device) const { return {state_, device}; }

OffloadedTensor OffloadedTensor::To(at::ScalarType dtype) const {
  if (dtype == state_->dtype) return *this;
  if (state_->checkpoint) {
    auto state = std::make_shared<State>();
    state->name = state_->name, state->sizes = state_->sizes, state->dtype = dtype;
    state->checkpoint = state_->checkpoint, state->conversions = state_->conversions;
    state->conversions.push_back(dtype);
    return {std::move(state), device_};
  }
  return From(To(at::Device(at::kCPU)).Load().to(dtype), state_->name, state_->parent).To(device_);
}

void OffloadedTensor::UpdateValues(const at::Tensor& values, bool strict_shape, bool strict_dtype) {
  State& state = *state_;
  if (state.checkpoint)
    throw Error(Quote(state.name), "lies in " + file() + ", which is not written to",
                "offload a copy: OffloadedTensor::From");
  if (strict_shape && values.sizes() != sizes())
    throw Error(Quote(state.name), "has shape " + ShapeText(state.sizes) + ", the values have " +
                                       ShapeText(values.sizes().vec()));
  if (strict_dtype && values.scalar_type() != state.dtype)
    throw Error(Quote(state.name), "is " + DtypeName(state.dtype) + ", the values are " +
                                       DtypeName(values.scalar_type()));
  WriteValues(state.path, state.name, values);
  state.sizes = values.sizes().vec();
  state.dtype = values.scalar_type();
}

at::Tensor Loaded(const AnyTensor& tensor) {
  return std::visit([](const auto& value) -> at::Tensor { return value; }, tensor);
}
at::IntArrayRef SizesOf(const AnyTensor& tensor) {
  return std::visit([](const auto& value) -> at::IntArrayRef { return value.sizes(); }, tensor);
}

static thread_local int offload_scopes = 0;
OffloadScope::OffloadScope() { ++offload_scopes; }
OffloadScope::~OffloadScope() { --offload_scopes; }
bool OffloadScope::Active() { return offload_scopes > 0; }

AnyTensors LoadStateDict(const std::string& path) {
  AnyTensors tensors;
  const auto file = std::make_shared<const TensorFile>(path);
  for (const std::string& name : file->Names()) {
    if (OffloadScope::Active())
      tensors.emplace(name, OffloadedTensor::In(file, name));
    else
      tensors.emplace(name, file->Get(name));
  }
  return tensors;
}

}  // namespace pipewright
