#include "ops/op_library.h"

#include <dlfcn.h>

#include <mutex>
#include <set>

#include "base/error.h"

namespace pipewright {

void LoadOpLibrary(const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> loaded;
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded.count(path)) return;
  void* library = nullptr;
  std::string why;
  try {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) why = dlerror();
  } catch (const std::exception& e) {  // of an initialiser: an operator registered twice
    why = e.what();
    why = why.substr(0, why.find('\n'));
  }
  if (!library)
    throw Error(path, "cannot be loaded: " + why,
                "build it against the LibTorch of this program, and compile the model again if the "
                "library has moved");
  loaded.insert(path);
}

}  // namespace pipewright
