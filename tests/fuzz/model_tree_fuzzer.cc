// Reads the module trees of model files (torch.jit.save, torch.export): accepted or refused with an
// Error. An accepted one is valid.
#include <cstdlib>

#include "base/error.h"
#include "plan/placement/tree/export_tree.h"
#include "plan/placement/tree/script_tree.h"
#include "tests/fuzz/first_checks.h"

static void Check(const pipewright::ModuleTree& tree) {
  int64_t total = 0;
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    const pipewright::TreeTensor& tensor = tree.tensors[i];
    if (tensor.first < 0 || tensor.first > static_cast<int>(i)) std::abort();
    if (tensor.first == static_cast<int>(i)) total += tensor.bytes;
  }
  if (tree.modules.empty() || tree.modules[0].bytes != total) std::abort();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pipewright;
  std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    if (IsExport(file) && ++g_passed_first_checks) Check(TreeOfExport(file, "file"));
  } catch (const Error&) {
  }
  try {
    if (IsScript(file) && ++g_passed_first_checks) Check(TreeOfScript(file, "file"));
  } catch (const Error&) {
  }
  return 0;
}
