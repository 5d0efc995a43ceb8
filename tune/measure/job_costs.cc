#include "tune/measure/job_costs.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/process/host_resources.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/schedules/table.h"
#include "plan/tune/predict.h"
#include "tune/job/allowed.h"
#include "tune/job/changed_job.h"
#include "tune/measure/kept.h"
#include "tune/measure/profiles.h"
#include "tune/measure/runs.h"

namespace pipewright {

namespace {

constexpr int kSteps = 5;
constexpr double kMicroseconds = 1e-6;

bool Is(const TuneProfile& profile, const TuneShape& shape) {
  return profile.profile.threads == shape.threads && profile.ranks == shape.ranks;
}

// Puts all modules in one stage.
Conf OneStage(int modules, int replicas) {
  Conf conf = GroupModules(modules, 1);
  conf.stage_to_ranks[0].clear();
  for (int rank = 0; rank < replicas; ++rank) conf.stage_to_ranks[0].push_back(rank);
  return conf;
}

const TuneProfile* ProfileOf(const std::vector<TuneProfile>& profiles, const TuneShape& shape,
                             int64_t size) {
  for (const TuneProfile& each : profiles)
    if (Is(each, shape) && each.profile.microbatch == size) return &each;
  return nullptr;
}

// Returns the bytes that each rank takes in a run of `bench` with the whole model on every rank,
// which measures memory with two microbatches a rank.
double PeakOfRun(const TuneProblem& problem, TuneProfile profile, int ranks) {
  profile.ranks = ranks;  // it may be of others, whose modules take as much
  const Conf conf = OneStage(static_cast<int>(problem.manifest.modules.size()), ranks);
  return LargestPeak(Predict(problem, profile, conf, kForwardSchedule, 2 * ranks, {}));
}

// Returns all ranks if each can run the whole model with microbatches of this size, and otherwise
// 1: a step has no more samples than the job's, and half of the host's memory must be enough.
int Replicas(const TuneRequest& request, const Job& job, const TuneProblem& problem,
             const TuneShape& shape, int64_t size) {
  const TuneProfile* profile = ProfileOf(problem.profiles, shape, size);
  const bool here = problem.machines.speeds.empty();
  if (!here || !profile || shape.ranks * size > SamplesOf(job)) return 1;
  const int on_host = RanksOnOneHost(request.start.hosts, shape.ranks);
  const double peak = PeakOfRun(problem, *profile, shape.ranks);
  return on_host * peak < static_cast<double>(MemoryHere()) / 2 ? shape.ranks : 1;
}

// Throws Error if such a run would not fit on this host: the system might end other programs.
void CheckHostMemory(const TuneRequest& request, const TuneProblem& problem, const TuneShape& run,
                     int64_t size) {
  const auto profile =
      std::find_if(problem.profiles.begin(), problem.profiles.end(),
                   [&](const TuneProfile& each) { return each.profile.microbatch == size; });
  if (profile == problem.profiles.end()) return;
  const double bytes = run.ranks * PeakOfRun(problem, *profile, run.ranks);
  if (const std::string why = WhyTooLarge(request, bytes, MemoryHere()); !why.empty())
    throw Error(request.package, why);
}

// Returns how many cores other programs used during a run.
double OthersIn(const Json& figures) { return figures.value("others", 0.0); }

// Returns the figures of a run with microbatches of this size, the less disturbed of two if other
// programs use the cores; none if the budget is over.
std::optional<Json> FiguresOfJob(const TuneRequest& request, const Job& job,
                                 const TuneBudget& budget, const TuneShape& run, int64_t size,
                                 int modules) {
  const std::string job_file = request.scratch + "/own_job.json",
                    conf_file = request.scratch + "/own_conf.json";
  constexpr int64_t kEnough = 16;  // microbatches of a rank
  const auto of_rank = std::min(kEnough, SamplesOf(job) / (size * run.ranks));
  const int microbatches = static_cast<int>(of_rank) * run.ranks;
  JobChanges changes = {kDefaultSchedule, microbatches, microbatches * size};
  changes.threads = run.threads;
  Json text = ParseJson(job.text, job.path);
  KeepOnlySteps(text);
  WriteFile(job_file, ChangedJob(text, job.path, job_file, changes));
  WriteFile(conf_file, WriteConf(OneStage(modules, run.ranks)));
  const TuneRun steps = {
      request.package, job_file,     conf_file, run.ranks, RunsInProcess(request, run.ranks),
      kSteps,          request.start};
  std::optional<Json> figures = BenchRun(steps, budget);
  if (!figures || OthersIn(*figures) <= kDisturbing) return figures;
  SayDisturbed(request, OthersIn(*figures));
  try {
    const std::optional<Json> again = BenchRun(steps, budget);
    return again && OthersIn(*again) < OthersIn(*figures) ? again : figures;
  } catch (const Error&) {
    return figures;  // it ran before
  }
}

// Returns the name for the measurements of jobs with these losses, optimizer and sizes.
std::string NameOf(const TuneRequest& request, const Job& job, const TuneShape& run, int64_t size) {
  Json text = ParseJson(job.text, job.path);
  for (const char* key :
       {"data", "validation", "steps", "save", "metrics", "checkpoint", "report", "tensorboard",
        "device", "schedule", "plan", "costs", "memory", "recompute", "seed", "log_every"})
    text.erase(key);
  std::string name = KeptPrefix(request, job) + "job-" + HexHash(text.dump()) + "-" +
                     std::to_string(run.threads) + "-threads";
  if (run.ranks > 1)
    name +=
        (RunsInProcess(request, run.ranks) ? "-ranks-" : "-processes-") + std::to_string(run.ranks);
  if (size != job.microbatch_size) name += "-" + std::to_string(size) + "-samples";
  return name;
}

// Holds what steps of the job take, as in TuneProfile.
struct JobCosts {
  int64_t size = 1;  // samples of a microbatch
  double loss_forward = 0, loss_backward = 0, step_per_byte = 0;
  double loss_kept = 0, loss_peak = 0;
};

JobCosts CostsIn(const Json& figures, int64_t size, double trained) {
  const Json& stage = figures.at("stages").at(0);
  const Json& loss = stage.at("loss");
  JobCosts costs = {size};
  costs.loss_forward = kMicroseconds * loss.at("F").get<double>();
  costs.loss_backward = kMicroseconds * loss.at("B").get<double>();
  costs.loss_kept = loss.at("kept"), costs.loss_peak = loss.at("peak");
  costs.step_per_byte = kMicroseconds * stage.at("costs").at("step").get<double>() / trained;
  return costs;
}

// Tells how much longer a run takes than its profile says: times in the run divided by those in the
// profile.
struct Slowdown {
  const TuneProfile* profile = nullptr;
  double forward = 1, backward = 1, exchange = 1;
};

// Returns the seconds of the modules in a run, whose loss takes a part of them, divided by those in
// their profile; at least 1.
double Ratio(double whole, double loss, double profiled) {
  // Modules by themselves take no longer: if they did, other programs disturbed the profile.
  return profiled > 0 ? std::max(1.0, (whole - loss) / profiled) : 1;
}

double ForwardTime(const Profile& profile) {
  double seconds = 0;
  for (const ProfileNode& node : profile.nodes) seconds += node.forward.median;
  return seconds;
}

// Returns how much longer the slowest rank computes than the first, whose times the figures of the
// stage are: all others wait for it.
double SlowestOf(const Json& figures) {
  double most = 0;
  for (const Json& rank : figures.at("ranks")) most = std::max(most, rank.at("busy").get<double>());
  const double first = figures.at("ranks").at(0).at("busy");
  return first > 0 ? most / first : 1;
}

Slowdown SlowdownIn(const Json& figures, const TuneProfile& profile, const TuneProblem& problem) {
  double backward = 0;
  for (const ProfileNode& node : profile.profile.nodes) backward += node.backward.median;
  const Json& stage = figures.at("stages").at(0);
  const Json &costs = stage.at("costs"), &loss = stage.at("loss");
  auto seconds = [](const Json& time) { return kMicroseconds * time.get<double>(); };
  const double slowest = SlowestOf(figures);
  Slowdown slowdown = {&profile};
  slowdown.forward =
      Ratio(slowest * seconds(costs.at("F")), seconds(loss.at("F")), ForwardTime(profile.profile));
  slowdown.backward = Ratio(slowest * seconds(costs.at("B")), seconds(loss.at("B")), backward);
  const auto ranks = static_cast<int>(figures.at("ranks").size());
  if (ranks == 1 || !stage.at("actions").contains("REDUCE_GRAD")) return slowdown;
  const Conf conf = OneStage(static_cast<int>(problem.manifest.modules.size()), ranks);
  const double links = ExchangeTime(conf, CostsOfConf(problem, profile, conf), profile.profile);
  // The rank that is last waits only for the exchange.
  double waited = kNoLimit;
  for (const Json& rank : figures.at("ranks"))
    waited = std::min(waited, rank.at("waited").get<double>());
  const double reduce = stage["actions"]["REDUCE_GRAD"].at("typical");
  if (links > 0) slowdown.exchange = (reduce + waited) / links;
  return slowdown;
}

// Returns how much longer the modules of a profile take than those of another.
double ScaleOf(const Profile& profile, const Profile& other) {
  const double seconds = ForwardTime(other);
  return seconds > 0 ? ForwardTime(profile) / seconds : 1;
}

// Adds what the modules took longer in runs with microbatches of the sizes next to that of `each`.
// A module that others have driven out of the caches reads its weights anew for every microbatch:
// so larger microbatches than those that ran do not take more. Smaller ones take proportionally
// less, lest noise counts as much as they take.
// `scale` is for runs of another shape: how much longer modules by themselves take in this one.
void SlowDown(const std::map<int64_t, Slowdown>& runs, double scale, TuneProfile& each) {
  const int64_t size = each.profile.microbatch;
  const auto next = runs.lower_bound(size);
  const auto& [above, slower] = next == runs.end() ? *runs.rbegin() : *next;
  const auto& [below, slow] = next == runs.begin() ? *next : *std::prev(next);
  const double share = above > below && size < above
                           ? static_cast<double>(size - below) / static_cast<double>(above - below)
                           : std::min(1.0, static_cast<double>(size) / static_cast<double>(above));
  auto add = [&](const Slowdown& run, double share_of_run) {
    const double part = scale * share_of_run;
    for (size_t i = 0; i < each.profile.nodes.size(); ++i) {
      const ProfileNode& by_itself = run.profile->profile.nodes[i];
      ProfileNode& node = each.profile.nodes[i];
      node.forward.median += part * (run.forward - 1) * by_itself.forward.median;
      for (ProfileTime ProfileNode::* time :
           {&ProfileNode::backward, &ProfileNode::input_gradient, &ProfileNode::weight_gradient})
        (node.*time).median += part * (run.backward - 1) * (by_itself.*time).median;
    }
  };
  if (below < size) add(slow, 1 - share);
  add(slower, share);
  each.exchange = slower.exchange;
}

// Returns the value for `size` samples on the line through those of two sizes, or through zero and
// one.
double OnLine(const std::vector<JobCosts>& known, double JobCosts::* value, int64_t size) {
  const JobCosts &first = known.front(), &last = known.back();
  if (known.size() == 1)
    return first.*value * static_cast<double>(size) / static_cast<double>(first.size);
  const double share =
      static_cast<double>(size - first.size) / static_cast<double>(last.size - first.size);
  return std::max(0.0, first.*value + share * (last.*value - first.*value));
}

}  // namespace

std::vector<int64_t> SizesOfCosts(const Job& job, const TuneProblem& problem,
                                  const TuneShape& shape) {
  std::vector<int64_t> sizes = {job.microbatch_size, 0, 0};
  for (const TuneProfile& each : problem.profiles) {
    if (!Is(each, shape)) continue;
    const int64_t size = each.profile.microbatch;
    if (size * shape.ranks <= SamplesOf(job)) sizes[1] = std::max(sizes[1], size);
    sizes[2] = std::max(sizes[2], size);
  }
  if (sizes[1] == 0 || !problem.machines.speeds.empty()) sizes[1] = sizes[2];
  constexpr int64_t kShort = 3;  // distances of the two, to which errors of a line stay small
  if (sizes[2] - sizes[0] <= kShort * (sizes[1] - sizes[0])) sizes[2] = sizes[1];
  return sizes;
}

bool SetJobCosts(const std::map<int64_t, Json>& figures, const TuneShape& shape,
                 const std::vector<TuneProfile>& measured, TuneProblem& problem,
                 const std::optional<TuneShape>& other) {
  const TuneShape& ran = other ? *other : shape;
  if (measured.empty()) return false;
  double trained = 0;
  for (const ProfileNode& node : measured.front().profile.nodes) trained += node.trained;
  if (trained <= 0 || figures.empty()) return false;
  std::vector<JobCosts> known;
  std::map<int64_t, Slowdown> runs;  // on all ranks, by size
  for (const auto& [size, of_size] : figures) {
    known.push_back(CostsIn(of_size, size, trained));
    const TuneProfile* profile = ProfileOf(measured, ran, size);
    // Fewer ranks leave more of the memory's bandwidth and of caches to each than it had in the
    // profile. Profiles for other machines are of one rank.
    if (profile && (static_cast<int>(of_size.at("ranks").size()) == ran.ranks ||
                    !problem.machines.speeds.empty()))
      runs[size] = SlowdownIn(of_size, *profile, problem);
  }
  for (size_t i = 0; i < measured.size(); ++i) {
    if (!Is(measured[i], shape)) continue;
    TuneProfile& each = problem.profiles[i] = measured[i];
    const int64_t size = each.profile.microbatch;
    const TuneProfile* lender = other ? ProfileOf(measured, ran, size) : nullptr;
    const double scale = lender ? ScaleOf(each.profile, lender->profile) : 1;
    each.loss_forward = scale * OnLine(known, &JobCosts::loss_forward, size);
    each.loss_backward = scale * OnLine(known, &JobCosts::loss_backward, size);
    each.loss_kept = OnLine(known, &JobCosts::loss_kept, size);
    each.loss_peak = OnLine(known, &JobCosts::loss_peak, size);
    // After a single microbatch, the gradients are where its backward left them.
    each.step_per_byte =
        scale * (size >= known.back().size ? known.back() : known.front()).step_per_byte;
    if (!runs.empty()) SlowDown(runs, scale, each);
  }
  return !runs.empty();
}

namespace {

// Holds what was measured.
struct Measured {
  std::map<TuneShape, std::map<int64_t, Json>> figures;  // by samples of a microbatch
  // Why shapes do not run, and why only one of their ranks runs.
  std::map<TuneShape, std::string> failures, alone;
  std::set<TuneShape> cut;  // the budget ended before every size was measured
};

std::string Ranks(const TuneShape& shape) {
  return Counted(shape.ranks, "rank") + " with " + Counted(shape.threads, "thread") +
         (shape.ranks > 1 ? " each" : "");
}

// Gives shapes that were not measured the costs of others with as many threads, and says what is
// missing.
void CompleteJobCosts(const std::vector<TuneProfile>& profiles, const Measured& measured,
                      const TuneBudget& budget, TuneProblem& problem,
                      std::vector<std::string>& notes) {
  if (std::any_of(measured.cut.begin(), measured.cut.end(),
                  [&](const TuneShape& shape) { return !measured.figures.at(shape).empty(); }))
    notes.push_back(budget.Ended() +
                    " ended the steps of the job before they ran with every size of microbatches: "
                    "predictions extrapolate from those that did");
  for (const auto& [shape, figures] : measured.figures) {
    const bool failed = measured.failures.count(shape) > 0;
    if (measured.alone.count(shape))
      notes.push_back(
          "predictions for " + Ranks(shape) +
          " do not include how much longer modules take in steps, since the whole model "
          "does not run on each: " +
          measured.alone.at(shape));
    if (!figures.empty()) {
      if (failed)
        notes.push_back("predictions for " + Ranks(shape) +
                        " extrapolate the loss from the microbatches that run as one stage: " +
                        measured.failures.at(shape));
      continue;
    }
    const TuneShape* like = nullptr;
    for (const auto& [other, of_other] : measured.figures)
      if (!of_other.empty() &&
          (!like || (other.threads == shape.threads && like->threads != shape.threads)))
        like = &other;
    const bool slowed =
        like && SetJobCosts(measured.figures.at(*like), shape, profiles, problem, *like);
    const std::string result =
        "predictions for " + Ranks(shape) +
        (like ? (slowed ? " use the loss, the optimizer, and the slowdown of modules in steps of "
                        : " use the loss and the optimizer of ") +
                    Ranks(*like)
              : std::string(" are without the loss, the optimizer, and the slowdown in steps"));
    notes.push_back(failed ? result + ", since the job does not run as one stage: " +
                                 measured.failures.at(shape)
                           : budget.Ended() + " ended the measurements: " + result);
  }
}

}  // namespace

void MeasureJobCosts(const TuneRequest& request, const Job& job, const TuneBudget& budget,
                     TuneProblem& problem, std::vector<std::string>& notes) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const KeptMeasurements kept = KeptFor(request, problem.manifest);
  const std::vector<TuneProfile> profiles = problem.profiles;
  std::vector<TuneShape> shapes;
  for (const TuneProfile& each : profiles) {
    const TuneShape shape = {each.profile.threads, each.ranks};
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  }
  std::stable_sort(shapes.begin(), shapes.end(), [](const TuneShape& a, const TuneShape& b) {
    return a.threads * a.ranks > b.threads * b.ranks;  // those that use most cores first
  });
  double busiest = 0;
  size_t most = 0;  // runs
  Measured measured;
  for (const TuneShape& shape : shapes) {
    measured.figures[shape];
    const std::vector<int64_t> sizes = SizesOfCosts(job, problem, shape);
    most += std::set<int64_t>(sizes.begin(), sizes.end()).size();
  }
  std::map<std::string, Json> known;  // by name: shapes may share a run
  auto figures_of = [&](const TuneShape& run, int64_t size, std::string& error) {
    std::optional<Json> found;
    error.clear();
    try {
      const std::string name = NameOf(request, job, run, size);
      found = known.count(name) ? known[name] : ReadKept(kept, name, kSteps);
      // Earlier versions did not measure the loss by itself.
      if (found && !found->at("stages").at(0).value("loss", Json()).contains("F")) found.reset();
      if (!found && !budget.IsOver()) {
        CheckHostMemory(request, problem, run, size);
        Say(request, "steps of the job, run " + std::to_string(known.size() + 1) + " of at most " +
                         std::to_string(most) + ": " + Ranks(run) + ", microbatches of " +
                         Counted(size, "sample"));
        found = FiguresOfJob(request, job, budget, run, size, modules);
        if (found) WriteKept(kept, name, kSteps, *found);
      }
      if (found) known[name] = *found;
    } catch (const std::exception& e) {
      error = e.what();
    }
    return found;
  };
  for (const size_t at : {0, 1, 2})
    for (const TuneShape& shape : shapes) {
      const int64_t size = SizesOfCosts(job, problem, shape)[at];
      std::map<int64_t, Json>& by_size = measured.figures[shape];
      if (by_size.count(size) || measured.failures.count(shape)) continue;
      const bool alone = measured.alone.count(shape) > 0;
      const int replicas = alone ? 1 : Replicas(request, job, problem, shape, size);
      std::string error;
      std::optional<Json> found = figures_of({shape.threads, replicas}, size, error);
      if (!error.empty() && replicas > 1) {  // they take more memory than one rank
        measured.alone[shape] = error;
        found = figures_of({shape.threads, 1}, size, error);
      }
      if (!error.empty()) measured.failures[shape] = error;
      if (!found && error.empty()) measured.cut.insert(shape);
      if (!found) continue;
      by_size[size] = *found;
      busiest = std::max(busiest, OthersIn(*found));
      SetJobCosts(by_size, shape, profiles, problem);
    }
  CompleteJobCosts(profiles, measured, budget, problem, notes);
  if (busiest > kDisturbing)
    notes.push_back(DisturbedText(busiest, "steps of the job ran") + "; delete " + kept.ToDelete() +
                    " to measure again");
}

}  // namespace pipewright
