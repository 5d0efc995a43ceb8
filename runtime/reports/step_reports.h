// Sends the report of each step from the rank with the losses to rank 0, which prints it, without
// making either wait for the other.
#pragma once
#include <deque>
#include <memory>
#include <vector>

#include "runtime/reports/progress.h"

namespace pipewright {

class StepReports {
 public:
  // `from`: the rank that has the losses.
  StepReports(const Job& job, int from, Transport& transport);

  // On `from`: must be called once per step.
  void Send(const StepReport& report);
  // On rank 0: must be called once per step, before Next.
  void Expect();
  // On rank 0: takes the oldest expected report. Returns false if none is expected, or if it has
  // not arrived and `wait` is false.
  bool Next(bool wait, StepReport& report, Evaluation& validation);
  // Waits until what was sent has left.
  void Finish();

 private:
  using Numbers = std::shared_ptr<std::vector<double>>;
  size_t size() const;

  const Job& job_;
  const int from_;
  Transport& transport_;
  std::deque<std::pair<Numbers, Token>> sent_, expected_;  // no token: it is here already
};

}  // namespace pipewright
