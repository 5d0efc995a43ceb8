// Parses the code of a module: the text that the compiler writes, users edit and a run executes. It
// is TorchScript, except that constants of PyTorch have names (torch.float32) and that the class
// need not declare its weights, because the manifest does.
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
  // Its attributes are the weights, `training` and `device`.
  c10::ClassTypePtr type;
  torch::jit::Function* forward = nullptr;
  int return_line = 0;  // line of forward's last return; 0: none at its end
  // Weights that the class declares itself and its list of parameters, as in packages of older
  // builds.
  std::set<std::string> declared;
  std::optional<std::set<std::string>> parameters;
  // Describes an operation that writes in place: "mul_", "+=", "[...] =". LibTorch drops it while
  // parsing the text if it knows of no other use of the memory.
  struct Write {
    int line = 0;
    std::string what;
  };
  std::vector<Write> writes;
};

// Compiles the class `name` ("Module0"), which holds `weights`. Throws Error with file, line and
// caret if the text does not compile.
CompiledText CompileText(const std::string& file, const std::string& text, const std::string& name,
                         const std::vector<std::string>& weights);

// Returns the line of the model that code was made from ("fc  model.py:31: self.fc(x)"): the
// comment above the line of `text` at which LibTorch's message points. Returns "" if the message
// points at no line of `file`, or if there is no comment.
std::string ModelLine(const std::string& text, const std::string& file,
                      const std::string& message);

// Returns the name of a constant that the code writes as a number: a dtype ("torch.float32"), a
// memory format, or a layout. Returns "" if PyTorch has no name for `number`.
std::string ConstantName(c10::TypeKind kind, int64_t number);

}  // namespace pipewright
