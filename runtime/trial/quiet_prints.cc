#include "runtime/trial/quiet_prints.h"

#include <torch/csrc/jit/runtime/print_handler.h>

#include <string>

namespace pipewright {

static thread_local int t_quiet = 0;

static void PrintUnlessQuiet(const std::string& text) {
  if (t_quiet == 0) torch::jit::getDefaultPrintHandler()(text);
}

QuietPrints::QuietPrints() {
  // The handler is the process's, so it is set once; threads differ in t_quiet.
  [[maybe_unused]] static const bool set = (torch::jit::setPrintHandler(PrintUnlessQuiet), true);
  ++t_quiet;
}

QuietPrints::~QuietPrints() { --t_quiet; }

}  // namespace pipewright
