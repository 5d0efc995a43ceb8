// Compiles the code of a package's modules and compares it with the manifest.
#pragma once
#include <string>

#include "ops/module_text.h"
#include "runtime/module/module.h"

namespace pipewright {

// Compiles PACKAGE/modules/moduleK.py and checks its interface against the manifest. Throws Error
// with file, line and caret if the code does not compile.
CompiledText CompileModule(const std::string& package, const Manifest& manifest, int index);

// Returns the files of all modules whose code was edited, with their current hashes:
// "modules/module1.py 0123456789abcdef, modules/module2.py ..."; "" if none was.
std::string EditedCode(const std::string& package, const Manifest& manifest);

// Returns "FILE:12", the line of the module's code that a node of its graph comes from.
std::string LineOf(const torch::jit::Node* node, const std::string& file);
// Returns the line that makes the output or, if forward returns a value other than `name`, the line
// of the return.
std::string OutputLine(const LoadedModule& module, size_t output, const std::string& name,
                       const std::string& file);

}  // namespace pipewright
