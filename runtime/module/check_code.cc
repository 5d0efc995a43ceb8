#include "runtime/module/check_code.h"

#include "runtime/module/module_code.h"

namespace pipewright {

void CheckCode(const std::string& package, const Manifest& manifest) {
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    if (IsEdited(package, manifest.modules[m]))
      CompileModule(package, manifest, static_cast<int>(m));
}

}  // namespace pipewright
