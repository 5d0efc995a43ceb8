// A TorchScript archive (.pt of torch.jit.save), opened without reading its weights.
#pragma once
#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <string>
#include <vector>

#include "compiler/import/archive.h"
#include "plan/mapped_file.h"

namespace pipewright {

// Tensors lie in the mapped file: they are valid as long as this is, and touching one reads it.
struct ScriptArchive {
  std::unique_ptr<MappedFile> file;
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  std::vector<at::IValue> constants;
  torch::jit::Module module;
};

// What LibTorch's own parsers are given is bounded before: size and nesting of the code, form of
// the pickles. Throws Error: damage, weights longer than their records, objects with code of their
// own to restore them, formats before PyTorch 1.4.
ScriptArchive OpenScript(const Archive& archive);

// Where the bytes of `tensor`'s storage start in the file. Throws Error naming `name` when the
// tensor is not dense or reaches beyond its storage.
uint64_t StorageOffset(const ScriptArchive& archive, const at::Tensor& tensor,
                       const std::string& name);

}  // namespace pipewright
