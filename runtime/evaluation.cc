#include "runtime/evaluation.h"

#include "runtime/optimizer/loss.h"

namespace pipewright {

double Evaluation::mean() const {
  double total = 0;
  for (const Sum& sum : losses) total += sum.weight * sum.mean();
  return PlainNan(total);
}

double TotalLoss(const Job& job, const LossTerms& terms, size_t microbatch) {
  double total = 0;
  for (size_t k = 0; k < terms.size(); ++k)
    total += job.losses[k].weight * terms[k][microbatch].loss;
  return PlainNan(total);
}

}  // namespace pipewright
