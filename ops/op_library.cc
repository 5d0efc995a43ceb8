#include "ops/op_library.h"

#include <dlfcn.h>
#include <link.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace pipewright {

std::string LoadOpLibrary(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, std::string> loaded;
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = loaded.find(path); found != loaded.end()) return found->second;
  void* library = nullptr;
  std::string why;
  try {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) why = dlerror();
  } catch (const std::exception& e) {  // thrown by an initializer: an operator registered twice
    why = e.what();
    why = why.substr(0, why.find('\n'));
  }
  if (!library)
    throw Error(path, "cannot be loaded: " + why,
                "build it against the LibTorch of this program, and compile the model again if the "
                "library has moved");
  const link_map* map = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
  return loaded[path] = known ? map->l_name : path;
}

}  // namespace pipewright
