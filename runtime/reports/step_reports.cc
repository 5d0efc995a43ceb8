#include "runtime/reports/step_reports.h"

#include <utility>

namespace pipewright {

StepReports::StepReports(const Job& job, int from, Transport& transport)
    : job_(job), from_(from), transport_(transport) {}

// A report as numbers: kNumbers of the step, the losses of the microbatches, those of the terms,
// and kOfTerm sums of a validation for each term.
static constexpr size_t kNumbers = 12, kOfTerm = 4;

size_t StepReports::size() const {
  return kNumbers + static_cast<size_t>(job_.accumulate) * job_.microbatches +
         job_.losses.size() * (1 + kOfTerm);
}

static std::vector<double> Pack(const StepReport& r, const Job& job) {
  std::vector<double> numbers = {static_cast<double>(r.step),
                                 r.loss,
                                 static_cast<double>(r.counted),
                                 r.seconds,
                                 r.elapsed,
                                 r.learning_rate,
                                 r.checkpoint,
                                 r.accuracy,
                                 r.loss_scale,
                                 r.outcome.norm,
                                 static_cast<double>(r.outcome.skipped),
                                 r.validation ? 1.0 : 0.0};
  numbers.insert(numbers.end(), r.losses.begin(), r.losses.end());
  for (size_t k = 0; k < job.losses.size(); ++k)
    numbers.push_back(k < r.terms.size() ? r.terms[k] : 0);
  for (size_t k = 0; k < job.losses.size(); ++k) {
    Evaluation::Sum sum;
    if (r.validation && k < r.validation->losses.size()) sum = r.validation->losses[k];
    numbers.insert(numbers.end(), {sum.weight, sum.loss, static_cast<double>(sum.targets),
                                   static_cast<double>(sum.correct)});
  }
  return numbers;
}

static void Unpack(const std::vector<double>& numbers, const Job& job, StepReport& r,
                   Evaluation& validation) {
  const double* at = numbers.data();
  auto next = [&] { return *at++; };
  auto whole = [&] { return static_cast<int64_t>(*at++); };
  r = {};
  validation = {};
  r.step = whole();
  r.loss = next();
  r.counted = whole();
  r.seconds = next();
  r.elapsed = next();
  r.learning_rate = next();
  r.checkpoint = next();
  r.accuracy = next();
  r.loss_scale = next();
  r.outcome.norm = next();
  r.outcome.skipped = whole() != 0;
  const bool validated = whole() != 0;
  const size_t terms = job.losses.size();
  for (int64_t i = int64_t{job.accumulate} * job.microbatches; i > 0; --i)
    r.losses.push_back(next());
  for (size_t k = 0; k < terms; ++k) r.terms.push_back(next());
  if (terms == 1) r.terms.clear();
  if (!validated) return;
  for (size_t k = 0; k < terms; ++k) {
    Evaluation::Sum sum;
    sum.weight = next();
    sum.loss = next();
    sum.targets = whole();
    sum.correct = whole();
    validation.losses.push_back(sum);
  }
  r.validation = &validation;
}

// Shares the tag of StopAgreement, by which only rank 0 sends.
static int StepTag(const Transport& transport) { return transport.max_tag() - kStopTag; }

static Bundle BundleOf(const std::shared_ptr<std::vector<double>>& numbers) {
  return {{{numbers->data(), numbers->size() * sizeof(double)}}, numbers};
}

void StepReports::Send(const StepReport& report) {
  auto numbers = std::make_shared<std::vector<double>>(Pack(report, job_));
  if (from_ == 0) {
    expected_.emplace_back(std::move(numbers), nullptr);
    return;
  }
  while (!sent_.empty() && transport_.Test(sent_.front().second)) sent_.pop_front();
  Token token = transport_.Send(0, StepTag(transport_), BundleOf(numbers));
  sent_.emplace_back(std::move(numbers), std::move(token));
}

void StepReports::Expect() {
  if (from_ == 0) return;
  auto numbers = std::make_shared<std::vector<double>>(size());
  Token token = transport_.Recv(from_, StepTag(transport_), BundleOf(numbers));
  expected_.emplace_back(std::move(numbers), std::move(token));
}

bool StepReports::Next(bool wait, StepReport& report, Evaluation& validation) {
  if (expected_.empty()) return false;
  const auto& [numbers, token] = expected_.front();
  if (token && wait)
    transport_.WaitFor(token, {Awaited::kLosses, from_});
  else if (token && !transport_.Test(token))
    return false;
  Unpack(*numbers, job_, report, validation);
  expected_.pop_front();
  return true;
}

void StepReports::Finish() {
  for (auto& [numbers, token] : sent_)
    transport_.WaitFor(token, {.kind = Awaited::kLosses, .rank = 0, .sends = 1});
  sent_.clear();
}

}  // namespace pipewright
