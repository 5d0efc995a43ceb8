// Silences print() in trial runs of modules: edited code should print only in the run itself.
#pragma once

namespace pipewright {

// While it exists, TorchScript's print() shows nothing on this thread.
class QuietPrints {
 public:
  QuietPrints();
  ~QuietPrints();
  QuietPrints(const QuietPrints&) = delete;
};

}  // namespace pipewright
