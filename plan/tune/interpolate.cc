#include "plan/tune/interpolate.h"

#include <algorithm>
#include <cmath>

namespace pipewright {

namespace {

// Moves `value` towards `other`.
void Mix(double& value, double other, double share) { value += share * (other - value); }

void Mix(ProfileTime& time, const ProfileTime& other, double share) {
  Mix(time.median, other.median, share);
  Mix(time.spread, other.spread, share);
}

double WholeTime(const Profile& profile) {
  double sum = 0;
  for (const ProfileNode& node : profile.nodes) sum += node.forward.median + node.backward.median;
  return sum;
}

}  // namespace

std::set<int64_t> SizesToMeasure(const std::set<int64_t>& sizes, int64_t own) {
  std::set<int64_t> chosen;
  if (sizes.empty()) return chosen;
  chosen = {*sizes.begin(), *sizes.rbegin(), own};
  bool skipped = false;
  for (int64_t size : sizes) {
    if (chosen.count(size)) {
      skipped = false;
    } else if (skipped) {
      chosen.insert(size);
      skipped = false;
    } else {
      skipped = true;
    }
  }
  return chosen;
}

Profile InterpolateProfile(const Profile& below, const Profile& above, int64_t size) {
  Profile made = below;
  if (below.microbatch == above.microbatch) return made;
  made.microbatch = size;
  const double share = static_cast<double>(size - below.microbatch) /
                       static_cast<double>(above.microbatch - below.microbatch);
  for (size_t i = 0; i < made.nodes.size(); ++i) {
    ProfileNode& node = made.nodes[i];
    const ProfileNode& other = above.nodes[i];
    Mix(node.forward, other.forward, share);
    Mix(node.backward, other.backward, share);
    Mix(node.input_gradient, other.input_gradient, share);
    Mix(node.weight_gradient, other.weight_gradient, share);
    Mix(node.kept, other.kept, share);
    Mix(node.kept_for_weight, other.kept_for_weight, share);
    Mix(node.peak, other.peak, share);
    Mix(node.forward_only_peak, other.forward_only_peak, share);
  }
  for (size_t i = 0; i < made.values.size(); ++i)
    Mix(made.values[i].bytes, above.values[i].bytes, share);
  return made;
}

void CountSmallerMicrobatches(TuneProblem& problem) {
  const std::vector<TuneProfile> whole = problem.profiles;
  for (TuneProfile& each : problem.profiles) {
    const auto size = static_cast<double>(each.profile.microbatch);
    const double mean = static_cast<double>(problem.samples) / MicrobatchesOf(problem, each);
    if (mean >= size) continue;
    const TuneProfile* below = nullptr;
    for (const TuneProfile& other : whole)
      if (other.ranks == each.ranks && other.profile.threads == each.profile.threads &&
          other.profile.microbatch < each.profile.microbatch &&
          (!below || other.profile.microbatch > below->profile.microbatch))
        below = &other;
    const double smaller = below ? static_cast<double>(below->profile.microbatch) : 0,
                 share = std::min(1.0, (size - mean) / (size - smaller));
    for (size_t i = 0; i < each.profile.nodes.size(); ++i)
      for (ProfileTime ProfileNode::* time :
           {&ProfileNode::forward, &ProfileNode::backward, &ProfileNode::input_gradient,
            &ProfileNode::weight_gradient})
        Mix((each.profile.nodes[i].*time).median,
            below ? (below->profile.nodes[i].*time).median : 0, share);
    Mix(each.loss_forward, below ? below->loss_forward : 0, share);
    Mix(each.loss_backward, below ? below->loss_backward : 0, share);
  }
}

std::vector<double> InterpolationErrors(const std::vector<const Profile*>& profiles) {
  std::vector<double> errors;
  for (size_t i = 1; i + 1 < profiles.size(); ++i) {
    const Profile made =
        InterpolateProfile(*profiles[i - 1], *profiles[i + 1], profiles[i]->microbatch);
    const double measured = WholeTime(*profiles[i]);
    if (measured > 0) errors.push_back(std::abs(WholeTime(made) / measured - 1));
  }
  return errors;
}

}  // namespace pipewright
