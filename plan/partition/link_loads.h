// Evaluates changes to a partition on devices whose links differ by pair.
#pragma once
#include "plan/partition/problem/problem.h"

namespace pipewright {

// Keeps the loads of a partition with one replica per stage, as EvaluatePartition counts them.
// Evaluating a change takes time proportional to the values that it touches, not to the graph.
class PairLoads {
 public:
  PairLoads(const PartitionProblem& problem, const PartitionResult& result);

  // Returns the largest load with stage s on device `number` and, unless t is -1, stage t on the
  // device of s.
  double WithDevices(int s, int number, int t);
  // Returns the largest load with `nodes` moved from stage `from` to `to`.
  double WithNodes(const std::vector<int>& nodes, int from, int to);
  // Returns the steps that both have taken: one for each value between two stages.
  int64_t steps() const { return steps_; }

 private:
  void Touch(int value, std::vector<int>& stages) const;
  void Add(const PartitionValue& value, const std::vector<int>& stages, int sign);
  double Link(int a, int b) const;
  double Largest() const;

  const PartitionProblem& problem_;
  std::vector<int> stage_of_, class_of_, number_of_;  // the first by node, the others by stage
  std::vector<std::vector<int>> values_of_;           // by node: the values that it touches
  std::vector<double> compute_, transfer_;            // by stage
  std::vector<double> transfer_now_;                  // without a change
  std::vector<std::vector<int>> touched_;             // by value: its stages, ascending
  std::vector<std::vector<int>> crossing_;            // by stage: its values in several stages
  std::vector<char> changed_;                         // by value: touched by the nodes that move
  std::vector<int> stages_;
  int64_t steps_ = 0;
};

}  // namespace pipewright
