#include "runtime/reports/progress.h"

#include <cmath>
#include <cstdio>

#include "base/size.h"
#include "base/text.h"

namespace pipewright {

std::string Grouped(double number) {
  std::string digits = std::to_string(std::llround(number));
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

double Bubble(const std::vector<RankReport>& ranks) {
  double busy = 0, total = 0;
  for (const RankReport& rank : ranks) busy += rank.busy, total += rank.total;
  return total > 0 ? std::max(0.0, 1 - busy / total) : -1;
}

std::string AccuracyText(const Evaluation& evaluation) {
  const Evaluation::Sum& first = evaluation.losses[0];
  char text[40];
  std::snprintf(text, sizeof text, " accuracy %.2f %%",
                100 * static_cast<double>(first.correct) / static_cast<double>(first.targets));
  return text;
}

static bool HasPerplexity(const Job& job) {
  return job.losses.size() == 1 && job.losses[0].kind == LossJob::kCrossEntropy;
}

Json EvaluationJson(const Job& job, const Evaluation& evaluation) {
  Json json{{"loss", evaluation.mean()}};
  const Evaluation::Sum first =
      evaluation.losses.empty() ? Evaluation::Sum() : evaluation.losses[0];
  if (HasPerplexity(job)) json["perplexity"] = std::exp(evaluation.mean());
  if (job.losses[0].HasClasses() && first.targets)
    json["accuracy"] = static_cast<double>(first.correct) / static_cast<double>(first.targets);
  json["targets"] = first.targets;
  if (evaluation.losses.size() > 1)
    for (const Evaluation::Sum& sum : evaluation.losses) json["terms"].push_back(sum.mean());
  return json;
}

Progress::Progress(const Job& job, const char* unit, int64_t first_step)
    : job_(job), unit_(unit), first_(first_step) {
  if (!job.metrics.empty()) metrics_ = std::make_unique<MetricsFile>(job.metrics, first_step);
}

void Progress::Step(const StepReport& report, const std::vector<RankReport>& ranks) {
  double bubble = Bubble(ranks);
  counted_ += report.counted;
  elapsed_ += report.elapsed;
  if (metrics_) {
    Json line{{"step", report.step + 1},
              {"loss", report.loss},
              {"losses", report.losses},
              {unit_ + "_per_second", static_cast<double>(report.counted) / report.seconds},
              {"seconds", report.seconds},
              {"learning_rate", report.learning_rate}};
    if (!report.terms.empty()) line["terms"] = report.terms;
    if (HasPerplexity(job_)) line["perplexity"] = std::exp(report.loss);
    if (report.checkpoint >= 0) line["checkpoint"] = report.checkpoint;
    if (report.accuracy >= 0) line["accuracy"] = report.accuracy;
    if (report.outcome.norm >= 0 || std::isnan(report.outcome.norm))
      line["gradient_norm"] = report.outcome.norm;
    if (report.loss_scale >= 0) {
      line["loss_scale"] = report.loss_scale;
      line["skipped"] = report.outcome.skipped;
    }
    if (bubble >= 0) {
      line["bubble"] = bubble;
      for (const RankReport& rank : ranks) line["memory"].push_back(std::llround(rank.memory));
    }
    if (report.validation) line["validation"] = EvaluationJson(job_, *report.validation);
    metrics_->Add(line.dump(), report.step + 1);
  }
  int64_t step = report.step;
  bool last = step + 1 == job_.steps;
  if (step != first_ && (step + 1) % job_.log_every != 0 && !last && !report.validation) return;
  double rate = static_cast<double>(counted_) / elapsed_;
  std::printf("step %6lld/%lld  loss %.4f  %s %s/s", static_cast<long long>(step + 1),
              static_cast<long long>(job_.steps), report.loss, Grouped(rate).c_str(),
              unit_.c_str());
  if (bubble >= 0) {
    double memory = 0;
    for (const RankReport& rank : ranks) memory = std::max(memory, rank.memory);
    std::printf("  bubble %.0f %%  memory %s", 100 * bubble,
                SizeText(static_cast<int64_t>(memory)).c_str());
  }
  if (report.outcome.skipped) std::printf("  skipped: gradients overflowed");
  if (report.validation) {
    std::printf("  validation loss %.4f", report.validation->mean());
    if (job_.losses[0].HasClasses() && report.validation->known())
      std::fputs(AccuracyText(*report.validation).c_str(), stdout);
  }
  std::printf("\n");
  std::fflush(stdout);
  counted_ = 0;
  elapsed_ = 0;
}

}  // namespace pipewright
