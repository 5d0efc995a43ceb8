#include "runtime/exec/phase.h"

#include "base/torch_error.h"

namespace pipewright {

void Phase(Transport& transport, const std::string& name, const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const Aborted&) {
    throw;  // another rank says why
  } catch (const std::exception& e) {
    error = WithoutBacktrace(e.what());
    if (error.empty()) error = "failed";
  }
  Vote(transport, name, error);
}

}  // namespace pipewright
