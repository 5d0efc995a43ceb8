// The code of a module: the text that the compiler writes, people edit and a run executes.
// TorchScript, but that constants of PyTorch have their names (torch.float32), and that the class
// need not declare its weights: the manifest does.
#pragma once
#include <torch/csrc/jit/api/compilation_unit.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pipewright {

struct CompiledText {
  std::shared_ptr<torch::jit::CompilationUnit> unit;
  // Its attributes: the weights, `training` and `device`.
  c10::ClassTypePtr type;
  torch::jit::Function* forward = nullptr;
  int return_line = 0;  // of forward's last return; 0: there is none at its end
  // What the class declares itself, and its list of parameters, as packages of older builds do.
  std::set<std::string> declared;
  std::optional<std::set<std::string>> parameters;
};

// Compiles the class `name` ("Module0"), which holds `weights`. Throws Error with file, line and
// caret for a text that does not compile.
CompiledText CompileText(const std::string& file, const std::string& text, const std::string& name,
                         const std::vector<std::string>& weights);

// The name of a constant of a kind that code writes as a number: of a dtype ("torch.float32"), a
// memory format, a layout; "" where PyTorch has no name for `number`.
std::string ConstantName(c10::TypeKind kind, int64_t number);

}  // namespace pipewright
