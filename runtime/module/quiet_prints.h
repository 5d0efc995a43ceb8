// Keeps what trial runs of modules print off the terminal: print in edited code is for the run.
#pragma once

namespace pipewright {

// While it lives, print of TorchScript on this thread shows nothing.
class QuietPrints {
 public:
  QuietPrints();
  ~QuietPrints();
  QuietPrints(const QuietPrints&) = delete;
};

}  // namespace pipewright
