#include "formats/optimizer_state.h"

namespace pipewright {

int StateTensorsPerParameter(const OptimizerJob& job) {
  switch (job.kind) {
    case OptimizerJob::kSgd:
      return job.momentum > 0 ? 1 : 0;
    case OptimizerJob::kAdam:
    case OptimizerJob::kAdamW:
      return job.amsgrad ? 3 : 2;
    case OptimizerJob::kRmsprop:
      return 1 + (job.momentum > 0) + job.centered;
    case OptimizerJob::kAdagrad:
    case OptimizerJob::kMuon:
      break;
  }
  return 1;
}

}  // namespace pipewright
