#include "runtime/reports/rank_reports.h"



namespace pipewright {

RankReports::RankReports(Transport& transport, int root) : transport_(transport), root_(root) {}

static Bundle BundleOf(RankReport& report, std::shared_ptr<void> owner) {
  Bundle bundle;
  bundle.regions.push_back({&report, sizeof report});
  bundle.owner = std::move(owner);
  return bundle;
}

void RankReports::Add(const RankReport& mine) {
  const int tag = transport_.max_tag() - kReportTag;
  if (transport_.rank() != root_) {
    while (!sent_.empty() && transport_.Test(sent_.front().second)) sent_.pop_front();
    auto report = std::make_shared<RankReport>(mine);
    Bundle bundle = BundleOf(*report, report);
    sent_.emplace_back(report, transport_.Send(root_, tag, std::move(bundle)));
    return;
  }
  auto step = std::make_shared<Step>();
  step->ranks.resize(static_cast<size_t>(transport_.size()));
  for (int rank = 0; rank < transport_.size(); ++rank) {
    RankReport& report = step->ranks[static_cast<size_t>(rank)];
    if (rank == root_)
      report = mine;
    else
      step->tokens.push_back(transport_.Recv(rank, tag, BundleOf(report, step)));
  }
  arriving_.push_back(std::move(step));
  Take(false);
}

void RankReports::Take(bool wait) {
  while (!arriving_.empty()) {
    const std::vector<Token>& tokens = arriving_.front()->tokens;
    for (int i = 0; i < static_cast<int>(tokens.size()); ++i)
      if (wait)
        transport_.WaitFor(tokens[i], {Awaited::kReport, i < root_ ? i : i + 1});
      else if (!transport_.Test(tokens[i]))
        return;
    newest_ = arriving_.front()->ranks;
    arriving_.pop_front();
  }
}

const std::vector<RankReport>& RankReports::newest() {
  Take(false);
  return newest_;
}

void RankReports::Finish() {
  Take(true);
  for (auto& [report, token] : sent_)
    transport_.WaitFor(token, {.kind = Awaited::kReport, .rank = root_, .sends = 1});
  sent_.clear();
}

}  // namespace pipewright
