#include "base/torch_error.h"

namespace pipewright {

// Removes every stretch from `begin` to `end`, both included.
static void Remove(std::string& text, const std::string& begin, const std::string& end) {
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at)) {
    size_t last = text.find(end, at + begin.size());
    if (last == std::string::npos) return;
    text.erase(at, last + end.size() - at);
  }
}

bool SaysOutOfMemory(const std::string& what) {
  for (const char* said : {" out of memory", "DefaultCPUAllocator: "})
    if (what.find(said) != std::string::npos) return true;
  return false;
}

std::string WithoutBacktrace(const std::string& what) {
  std::string text = what.substr(0, what.find("\nException raised from"));
  text = text.substr(0, text.find("\nframe #0: "));  // in out-of-memory errors
  // Removes an address, which differs on each rank, and the package prefix of TorchScript's names.
  Remove(text, " (of Python compilation unit at: ", ")");
  Remove(text, "__torch__.", "");
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t start = text.find_first_not_of('\n');
  return start == std::string::npos ? text : text.substr(start);
}

}  // namespace pipewright
