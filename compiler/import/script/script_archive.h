// Opens a TorchScript archive (.pt of torch.jit.save) without reading its weights.
#pragma once
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "formats/torch/archive.h"

namespace pipewright {

// Tensors lie in the mapped file: they are valid while this object lives, and touching one reads
// it.
struct ScriptArchive {
  std::unique_ptr<MappedFile> file;
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  std::vector<at::IValue> constants;
  torch::jit::Module module;
};

// Limits the input of LibTorch's parsers first: size and nesting of the code, form of the pickles.
// Throws Error for damage, weights longer than their records, objects with their own code to
// restore them, and formats before PyTorch 1.4.
ScriptArchive OpenScript(const Archive& archive);

// Returns the start of the storage of `tensor` in the file. Throws Error naming `name` if the
// tensor is not dense or extends beyond its storage.
uint64_t StorageOffset(const ScriptArchive& archive, const at::Tensor& tensor,
                       const std::string& name);

}  // namespace pipewright
