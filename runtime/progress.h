// What a run tells while it trains: a JSON line a step, and a line for people now and then.
#pragma once
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/rank_reports.h"
#include "runtime/session.h"

namespace pipewright {

struct StepReport {
  int64_t step = 0;            // from 0
  std::vector<double> losses;  // by microbatch
  double loss = 0;             // mean over all targets that count
  std::vector<double> terms;   // the same of each of several losses
  int64_t counted = 0;         // tokens or samples
  double seconds = 0;
  double learning_rate = 0;
  double checkpoint = -1;  // seconds waited for one to be copied; -1: none was due
  double accuracy = -1;    // -1: not asked for
  double loss_scale = -1;  // -1: none is used
  StepOutcome outcome;
  const Evaluation* validation = nullptr;
};

// On the rank that has the loss.
class Progress {
 public:
  // `unit`: what StepReport::counted counts, tokens or samples. A metrics file of a run that is
  // resumed keeps the lines before `first_step`. Throws Error when it cannot be written.
  Progress(const Job& job, const char* unit, int64_t first_step);

  void Step(const StepReport& report, const std::vector<RankReport>& ranks);

 private:
  const Job& job_;
  int64_t counted_ = 0;  // since the last line
  std::string unit_;
  std::ofstream metrics_;
  double since_;
  int64_t first_;
};

// 12345.6 -> "12,346"
std::string Grouped(double number);
// The part of the ranks' time in which they did not compute; -1 where it is not known.
double Bubble(const std::vector<RankReport>& ranks);

// The loss of a sweep as JSON: loss, perplexity and accuracy (of cross_entropy), targets.
// " accuracy 12.34 %"; of an evaluation that is known.
std::string AccuracyText(const Evaluation& evaluation);

Json EvaluationJson(const Job& job, const Evaluation& evaluation);

}  // namespace pipewright
