// The code of a package's modules, compiled and compared with the manifest.
#pragma once
#include <string>

#include "passes/module_text.h"
#include "runtime/module.h"

namespace pipewright {

// Compiles PACKAGE/modules/moduleK.py and checks that its interface is the manifest's. Throws Error
// with file, line and caret for code that does not compile.
CompiledText CompileModule(const std::string& package, const Manifest& manifest, int index);

// Whether somebody has edited the module's code.
bool IsEdited(const std::string& package, const ModuleInfo& module);

// "FILE:12": the line of the module's code that a node of its graph, or that an output, comes from.
std::string LineOf(const torch::jit::Node* node, const std::string& file);
std::string OutputLine(const LoadedModule& module, size_t output, const std::string& file);

}  // namespace pipewright
