#include "runtime/reports/progress.h"

#include <cmath>
#include <cstdio>

#include "base/files/output_path.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
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

static std::string Formatted(const char* format, double number) {
  char text[400];  // a double has up to 309 digits
  std::snprintf(text, sizeof text, format, number);
  return text;
}

// Returns text such as "1:02:03" or "2:03".
static std::string TimeLeft(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  char text[48];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  else
    std::snprintf(text, sizeof text, "%lld:%02lld", whole / 60, whole % 60);
  return text;
}

static std::string StepText(const Job& job, const StepReport& report, double rate,
                            const std::string& unit) {
  char text[64];
  std::snprintf(text, sizeof text, "step %6lld/%lld", static_cast<long long>(report.step + 1),
                static_cast<long long>(job.steps));
  return text + Formatted("  loss %.4f  ", report.loss) + Grouped(rate) + " " + unit + "/s";
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

Progress::Progress(const Job& job, const char* unit, int64_t first_step,
                   std::unique_ptr<EventFile> events)
    : job_(job),
      columns_(IsStream(job.metrics) ? 0 : ProgressColumns()),
      unit_(unit),
      events_(std::move(events)),
      first_(first_step) {
  if (!job.metrics.empty()) metrics_ = std::make_unique<MetricsFile>(job.metrics, first_step);
}

void Progress::Finish() {
  if (rewritten_ < 0) return;
  std::fputs(kClearLine, stdout);
  std::fflush(stdout);
  rewritten_ = -1;
}

using Curves = std::vector<std::pair<std::string, double>>;

// Adds the numbers of a line of the metrics file, as "loss", "validation/loss", "memory/0".
static void AddCurves(const std::string& name, const Json& value, Curves& curves) {
  if (value.is_number()) curves.emplace_back(name, value.get<double>());
  if (value.is_boolean()) curves.emplace_back(name, value.get<bool>());
  if (!value.is_structured()) return;
  for (const auto& item : value.items()) {
    const bool is_curve = !name.empty() || (item.key() != "step" && item.key() != "losses");
    if (is_curve) AddCurves(name + (name.empty() ? "" : "/") + item.key(), item.value(), curves);
  }
}

Json Progress::MetricsOf(const StepReport& report, const std::vector<RankReport>& ranks) const {
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
  if (const double bubble = Bubble(ranks); bubble >= 0) {
    line["bubble"] = bubble;
    for (const RankReport& rank : ranks) line["memory"].push_back(std::llround(rank.memory));
  }
  if (report.validation) line["validation"] = EvaluationJson(job_, *report.validation);
  return line;
}

// Says that a validation was not finite, which does not end the training.
static void WarnOfValidation(const StepReport& report) {
  const double loss = report.validation->mean();
  if (std::isfinite(loss)) return;
  PrintWarning("step " + std::to_string(report.step + 1) + ": the validation loss is " +
               std::to_string(loss) +
               ", and the training goes on; to find the cause, run `pipewright-run eval` with this "
               "data and these weights");
}

void Progress::Step(const StepReport& report, const std::vector<RankReport>& ranks) {
  double bubble = Bubble(ranks);
  counted_ += report.counted;
  elapsed_ += report.elapsed;
  all_elapsed_ += report.elapsed;
  if (metrics_ || events_) {
    const Json line = MetricsOf(report, ranks);
    if (metrics_) metrics_->Add(line.dump(), report.step + 1);
    if (events_) {
      Curves curves;
      AddCurves("", line, curves);
      events_->Add(report.step + 1, curves);
    }
  }
  const int64_t step = report.step;
  const bool last = step + 1 == job_.steps;
  const bool stays =
      step == first_ || (step + 1) % job_.log_every == 0 || last || report.validation;
  if (!stays && columns_ == 0) return;
  std::string line = StepText(job_, report, static_cast<double>(counted_) / elapsed_, unit_);
  if (bubble >= 0) {
    double memory = 0;
    for (const RankReport& rank : ranks) memory = std::max(memory, rank.memory);
    line += Formatted("  bubble %.0f %%  memory ", 100 * bubble) +
            SizeText(static_cast<int64_t>(memory));
  }
  if (!stays) return Rewrite(report, line);
  if (report.outcome.skipped) line += "  skipped: gradients overflowed";
  if (report.validation) {
    line += Formatted("  validation loss %.4f", report.validation->mean());
    if (job_.losses[0].HasClasses() && report.validation->known())
      line += AccuracyText(*report.validation);
  }
  std::printf("%s%s\n", rewritten_ >= 0 ? kClearLine : "", line.c_str());
  std::fflush(stdout);
  rewritten_ = -1;
  if (report.validation && job_.stop_on_nan) WarnOfValidation(report);
  counted_ = 0;
  elapsed_ = 0;
}

void Progress::Rewrite(const StepReport& report, std::string line) {
  constexpr double kSeconds = 0.1;  // between two lines
  if (rewritten_ >= 0 && all_elapsed_ < rewritten_ + kSeconds) return;
  line += Formatted("  lr %.3g", report.learning_rate);
  if (report.outcome.norm >= 0) line += Formatted("  gradient norm %.3g", report.outcome.norm);
  const int64_t done = report.step + 1 - first_;
  line += "  " + TimeLeft(all_elapsed_ / static_cast<double>(done) *
                          static_cast<double>(job_.steps - report.step - 1)) + " left";
  std::printf("%s%s%s%s", kClearLine, kCutLines, line.substr(0, columns_ - 1).c_str(), kWrapLines);
  std::fflush(stdout);
  rewritten_ = all_elapsed_;
}

}  // namespace pipewright
