#include "runtime/torch_error.h"

namespace pipewright {

std::string WithoutBacktrace(const std::string& what) {
  std::string text = what.substr(0, what.find("\nException raised from"));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t start = text.find_first_not_of('\n');
  return start == std::string::npos ? text : text.substr(start);
}

}  // namespace pipewright
