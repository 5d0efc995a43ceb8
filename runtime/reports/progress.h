// Reports the progress of training: one JSON line per step, occasional lines for the user and, on a
// terminal (base/process/terminal.h), the line of the newest step below them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/reports/event_file.h"
#include "runtime/reports/metrics_file.h"
#include "runtime/reports/rank_reports.h"
#include "runtime/session.h"

namespace pipewright {

struct StepReport {
  int64_t step = 0;            // from 0
  std::vector<double> losses;  // by microbatch
  double loss = 0;             // mean over all targets that are not ignored
  std::vector<double> terms;   // the same for each of several losses
  int64_t counted = 0;         // tokens or samples
  double seconds = 0;
  double elapsed = 0;  // seconds since the previous report, or since the first step began
  double learning_rate = 0;
  double checkpoint = -1;  // seconds waited for its copy; -1: no checkpoint was due
  double accuracy = -1;    // -1: not requested
  double loss_scale = -1;  // -1: not used
  StepOutcome outcome;
  const Evaluation* validation = nullptr;
};

// Exists on rank 0, which prints what the rank with the losses reports (step_reports.h).
class Progress {
 public:
  // `unit` is what StepReport::counted counts: tokens or samples. In a resumed run, the metrics
  // file keeps the lines before `first_step`. `events` also gets the numbers; null if the job has
  // no event file. Throws Error if the metrics file cannot be opened.
  Progress(const Job& job, const char* unit, int64_t first_step, std::unique_ptr<EventFile> events);
  ~Progress() { Finish(); }

  void Step(const StepReport& report, const std::vector<RankReport>& ranks);
  void Finish();  // removes the line that is rewritten

 private:
  Json MetricsOf(const StepReport& report, const std::vector<RankReport>& ranks) const;
  void Rewrite(const StepReport& report, std::string line);

  const Job& job_;
  const size_t columns_;   // the width of the line that is rewritten; 0: none
  double rewritten_ = -1;  // all_elapsed_ when it was last written; -1: not shown
  double all_elapsed_ = 0;  // seconds since the first step began
  int64_t counted_ = 0;  // counted_ and elapsed_: since the last line
  double elapsed_ = 0;
  std::string unit_;
  std::unique_ptr<MetricsFile> metrics_;  // null: the job asks for none
  std::unique_ptr<EventFile> events_;     // null: the same
  int64_t first_;
};

// Formats 12345.6 as "12,346".
std::string Grouped(double number);
// Returns the share of the ranks' time spent without computation, or -1 if unknown.
double Bubble(const std::vector<RankReport>& ranks);

// Returns " accuracy 12.34 %"; evaluation.known() must be true.
std::string AccuracyText(const Evaluation& evaluation);

// Returns an evaluation as JSON: loss, perplexity and accuracy (cross_entropy), and targets.
Json EvaluationJson(const Job& job, const Evaluation& evaluation);

}  // namespace pipewright
