// Predicts the step time and the memory of one way to run a package.
#pragma once
#include <string>
#include <vector>

#include "plan/simulate/costs.h"
#include "plan/tune/problem.h"

namespace pipewright {

// Returns the module that computes what the loss is of; of several losses, the last such module.
int LossModule(const TuneProblem& problem);

// Returns the profile of a candidate's ranks, threads and microbatches.
const TuneProfile& ProfileOfCandidate(const TuneProblem& problem, const TuneCandidate& candidate);

// Returns the costs of the stages of `conf`, in microseconds and bytes: modules, links, loss and
// optimizer, on the problem's machines.
Costs CostsOfConf(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf);

// Returns the time of the transfers in which the ranks that hold a weight, as replicas of a stage
// or in several stages, exchange its gradient as a ring, in microseconds, on the rank that takes
// longest.
double ExchangeTime(const Conf& conf, const Costs& costs, const Profile& profile);

// Returns the order of a named schedule, of compute actions only. Throws Error if it is not defined
// for these numbers.
Plan OrderOfSchedule(const Conf& conf, const std::string& schedule, int ranks, int microbatches);

// Returns the order of a candidate: its plan, or else that of its schedule.
Plan OrderOfCandidate(const TuneCandidate& candidate);

// Describes a candidate to predict. `order` may have only compute actions, or be a whole plan.
struct Prospect {
  const TuneProblem& problem;
  const TuneProfile& profile;
  const Conf& conf;
  const Costs& costs;  // CostsOfConf
  const Plan& order;
};

// Returns the whole plan that a run of the prospect's order has.
Plan WholePlan(const Prospect& prospect);

// Predicts with these stages (ascending) recomputing. `schedule` is the name in the result. A step
// runs the order once for each of its minibatches, and the optimizer at the end.
TuneCandidate PredictOrder(const Prospect& prospect, const std::string& schedule,
                           const std::vector<int>& recompute, int minibatches = 1);

// Predicts with as few stages recomputing as fit in memory: stages that free the most bytes for
// their time first, then without those that turn out to be needless. None recompute if it does not
// help. Memory is computed first, and only candidates that fit are simulated: others have no times.
// If the step takes `too_slow` or longer, needless stages are not looked for. Inference is always
// simulated.
TuneCandidate PredictWithin(const Prospect& prospect, const std::string& schedule, double too_slow);

// Predicts a named schedule on a given conf. Throws Error if the schedule is not defined for these
// numbers.
TuneCandidate Predict(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                      const std::string& schedule, int microbatches,
                      const std::vector<int>& recompute);

// Returns a lower bound on a step in seconds: what the stages before a rank's first one take for a
// microbatch, and the work of the rank. Each stage's microbatches are shared by its replicas.
double BoundOfConf(const Conf& conf, const Costs& costs, int microbatches, bool splits_backward);

}  // namespace pipewright
