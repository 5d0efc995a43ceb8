#include "tune/measure/profiles.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/median.h"
#include "base/process/host_resources.h"
#include "base/text.h"
#include "formats/profile/profile.h"
#include "plan/tune/interpolate.h"
#include "tune/measure/runs.h"

namespace pipewright {

namespace {

struct Point {
  int ranks = 1, threads = 1;
  int64_t size = 1;
  auto operator<=>(const Point&) const = default;
};

constexpr double kUnsteady = 1;  // of a time: more than its size can explain
// Times with fewer threads, divided by those with more, above which fewer are not tried.
constexpr double kFarSlower = 1.5;
constexpr double kLong = 10e-3;  // seconds of the modules, from which measuring takes long

using Profiles = std::map<Point, Profile>;

double Seconds(const Profile& profile) {
  double seconds = 0;
  for (const ProfileNode& node : profile.nodes)
    seconds += node.forward.median + node.backward.median;
  return seconds;
}

// The state of measuring one profile after the other.
struct Measuring {
  const TuneRequest& request;
  const Job& job;
  const TuneBudget& budget;
  TuneProblem& problem;
  std::vector<std::string>& notes;
  KeptMeasurements kept;
  std::string prefix;     // of the names of kept measurements
  bool has_data = false;  // of the job
  Profiles profiles = {};
  std::map<Point, std::string> failed = {};  // what does not run, and why
  std::set<std::pair<int, int>> slower = {};  // ranks and threads that are not tried
  int reused = 0, measured = 0;
  double busiest = 0;  // most cores that others used during a measurement that counts
};

// Modules are on as many ranks as there are modules at most; the others hold replicas.
int RanksWithModules(const TuneProblem& problem, int ranks) {
  return std::min(ranks, static_cast<int>(problem.manifest.modules.size()));
}

std::string PointText(const Point& point) {
  return Counted(point.ranks, "rank") + " of " + Counted(point.threads, "thread") +
         ", microbatches of " + Counted(point.size, "sample");
}

// Throws Error if what a module keeps for its backward, going by smaller microbatches, does not fit
// on this host: the system might end other programs. Copies of weights do not grow with the size.
void CheckHostMemory(const Measuring& state, const Point& point) {
  double most = 0;
  for (const auto& [measured, profile] : state.profiles)
    for (const ProfileNode& node : profile.nodes)
      most = std::max(
          most, (node.kept - node.parameters - node.buffers) / static_cast<double>(measured.size));
  const std::string why =
      WhyTooLarge(state.request, most * static_cast<double>(point.size), MemoryHere());
  if (!why.empty()) throw Error(state.request.package, why);
}

// Measures once more, later, if other programs disturb. Returns none if the budget is over.
// `others` gets the number of cores that those used.
std::optional<Profile> MeasurePoint(Measuring& state, const Point& point, double& others) {
  const std::string conf = state.request.scratch + "/profile_conf.json";
  const int modules = static_cast<int>(state.problem.manifest.modules.size());
  WriteFile(conf, WriteConf(GroupModules(modules, point.ranks)));
  ProfileRun run;
  run.package = state.request.package, run.conf = conf, run.input = state.request.input;
  if (state.has_data) run.job = state.job.path;
  run.ranks = point.ranks, run.threads = point.threads, run.microbatch = point.size;
  run.repeat = state.request.repeat, run.start = state.request.start;
  run.in_process = RunsInProcess(state.request, point.ranks);
  std::optional<std::string> text = MeasureProfile(run, state.budget, others);
  if (text && others > kDisturbing) {
    SayDisturbed(state.request, others);
    double again = 0;
    const std::optional<std::string> second = MeasureProfile(run, state.budget, again);
    if (second && again < others) text = second, others = again;
  }
  if (!text) return std::nullopt;
  return ParseProfile(*text, "pipewright profile");
}

// Gets a profile that an earlier tune measured, or measures it. Returns false if the budget is
// over.
bool GetPoint(Measuring& state, const Point& point) {
  const std::string name = state.prefix + "profile-" + std::to_string(point.ranks) +
                           (RunsInProcess(state.request, point.ranks) ? "-ranks-" : "-processes-") +
                           std::to_string(point.threads) + "-threads-" +
                           std::to_string(point.size) + "-samples";
  if (const auto kept = ReadKept(state.kept, name, state.request.repeat)) {
    try {
      const double others = kept->at("others").get<double>();
      state.profiles[point] = ParseProfile(kept->at("profile").dump(), name);
      state.busiest = std::max(state.busiest, others);
      ++state.reused;
      return true;
    } catch (const std::exception&) {
      // It is damaged, and is measured again.
    }
  }
  if (state.budget.IsOver()) return false;
  CheckHostMemory(state, point);
  double others = 0;
  const std::optional<Profile> profile = MeasurePoint(state, point, others);
  if (!profile) return false;
  ++state.measured;
  state.profiles[point] = *profile;
  state.busiest = std::max(state.busiest, others);
  WriteKept(state.kept, name, state.request.repeat,
            {{"profile", ParseJson(WriteProfile(*profile), name)}, {"others", others}});
  return true;
}

// Returns the points in the order of measuring: the job's own first, so that it is there however
// short the budget is. Then the largest size (under a memory limit, the smallest), since those
// between can be interpolated, and those closest to its own, each on all numbers of ranks: the most
// first, which most candidates have. What does not use all cores comes last, the smallest size
// first: it may show that the others need not be measured.
std::vector<Point> PointsOf(const Measuring& state, const std::set<int64_t>& sizes, int own_ranks) {
  const int64_t own = state.job.microbatch_size;
  const std::set<int64_t> measured = SizesToMeasure(sizes, own);
  std::vector<int64_t> ordered(measured.begin(), measured.end());
  const bool limited = state.problem.memory < kNoLimit;
  const int64_t second = limited ? *measured.begin() : *measured.rbegin();
  auto distance = [&](int64_t size) {
    if (size != own && size == second) return 1.0;
    return static_cast<double>(std::max(size, own)) / static_cast<double>(std::min(size, own));
  };
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  std::set<int> counts = RankCounts(state.request, state.problem);
  counts.insert(own_ranks);
  if (!state.problem.machines.speeds.empty()) counts = {1};
  std::vector<Point> points, others;  // others do not have one thread for each core
  for (int64_t size : ordered)
    for (int ranks : std::vector<int>(counts.rbegin(), counts.rend())) {
      const int share = ShareOfCores(state.request, ranks, CoresHere());
      const std::set<int> threads = ThreadCounts(state.request, state.job, ranks, CoresHere());
      for (int count : threads)
        (count == share || threads.size() == 1 ? points : others)
            .push_back({RanksWithModules(state.problem, ranks), count, size});
    }
  std::stable_partition(others.begin(), others.end(),
                        [&](const Point& point) { return point.size == *measured.begin(); });
  points.insert(points.end(), others.begin(), others.end());
  for (size_t i = 0; i < points.size(); ++i)
    points.erase(
        std::remove(points.begin() + static_cast<std::ptrdiff_t>(i) + 1, points.end(), points[i]),
        points.end());
  std::stable_partition(points.begin(), points.end(), [&](const Point& point) {
    return point.size == own && point.threads == state.job.threads &&
           point.ranks == RanksWithModules(state.problem, own_ranks);
  });
  return points;
}

// Called after points[done] was measured. If it has the smallest microbatches, and takes far longer
// than with a rank's share of the cores, its number of threads is not tried: larger microbatches
// gain even more from threads. Removes the points that are not needed then.
void LeaveOutSlower(Measuring& state, const WantedProfiles& wanted, size_t done,
                    std::vector<Point>& points) {
  const Point point = points[done];
  std::set<int> counts = RankCounts(state.request, state.problem);
  counts.insert(wanted.own_ranks);
  int share = CoresHere();  // the least of the numbers of ranks that have these profiles
  bool own = false;
  for (int ranks : counts) {
    if (RanksWithModules(state.problem, ranks) != point.ranks) continue;
    share = std::min(share, ShareOfCores(state.request, ranks, CoresHere()));
    own = own || (ranks == wanted.own_ranks && point.threads == state.job.threads);
  }
  const auto other = state.profiles.find({point.ranks, share, point.size});
  const double seconds = Seconds(state.profiles.at(point));
  if (own || point.threads >= share || point.size != *wanted.sizes.begin() || seconds < kLong ||
      other == state.profiles.end() || seconds < kFarSlower * Seconds(other->second))
    return;
  char factor[40];
  std::snprintf(factor, sizeof factor, "%.1f", seconds / Seconds(other->second));
  state.notes.push_back("not tried: " + Counted(point.ranks, "rank") + " with " +
                        Counted(point.threads, "thread") + ", where modules take " + factor +
                        " times as long as with " + Counted(share, "thread"));
  state.slower.insert({point.ranks, point.threads});
  points.erase(std::remove_if(points.begin() + static_cast<std::ptrdiff_t>(done) + 1, points.end(),
                              [&](const Point& each) {
                                return each.ranks == point.ranks && each.threads == point.threads;
                              }),
               points.end());
}

// Adds the profiles of one number of ranks and threads to the problem: `sizes` between those there.
void AddProfiles(Measuring& state, int ranks, int threads, const std::set<int64_t>& sizes) {
  // Profiles for other machines are of one rank.
  const int measured_on =
      state.problem.machines.speeds.empty() ? RanksWithModules(state.problem, ranks) : 1;
  if (state.slower.count({measured_on, threads})) return;
  std::vector<const Profile*> known;
  for (const auto& [point, profile] : state.profiles)
    if (point.ranks == measured_on && point.threads == threads) known.push_back(&profile);
  for (int64_t size : sizes) {
    const Profile *below = nullptr, *above = nullptr;
    for (const Profile* each : known) {
      if (each->microbatch <= size) below = each;
      if (each->microbatch >= size && !above) above = each;
    }
    if (below && above && !state.failed.count({measured_on, threads, size}))
      state.problem.profiles.push_back({ranks, InterpolateProfile(*below, *above, size)});
  }
}

bool AllFailed(const Measuring& state, const std::vector<Point>& points, int64_t size) {
  return std::all_of(points.begin(), points.end(), [&](const Point& point) {
    return point.size != size || state.failed.count(point);
  });
}

// Notes what does not run, once for each size and reason.
void NoteFailures(Measuring& state, const std::vector<Point>& points) {
  std::map<std::pair<int64_t, std::string>, std::vector<std::string>> where;
  for (const auto& [point, why] : state.failed) {
    std::vector<std::string>& of_reason = where[{point.size, why}];
    if (!AllFailed(state, points, point.size))
      of_reason.push_back(Counted(point.ranks, "rank") + " with " +
                          Counted(point.threads, "thread"));
  }
  for (const auto& [what, of_reason] : where)
    state.notes.push_back("no microbatches of " + Counted(what.first, "sample") +
                          (of_reason.empty() ? "" : " on " + Join(of_reason, ", ")) + ": " +
                          what.second);
}

void NoteInterpolation(Measuring& state, size_t sizes) {
  std::vector<double> errors;
  std::map<std::pair<int, int>, std::vector<const Profile*>> curves;
  for (const auto& [point, profile] : state.profiles)
    curves[{point.ranks, point.threads}].push_back(&profile);
  size_t measured = 0;
  for (const auto& [where, curve] : curves) {
    measured = std::max(measured, curve.size());
    for (double error : InterpolationErrors(curve)) errors.push_back(error);
  }
  if (measured >= sizes) return;
  const double most = errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
  char text[300];
  if (errors.empty())
    std::snprintf(
        text, sizeof text,
        "%zu of %zu sizes of microbatches were measured, the others are interpolated; how "
        "far that is off is not known",
        measured, sizes);
  else
    std::snprintf(text, sizeof text,
                  "%zu of %zu sizes of microbatches were measured, the others are interpolated; "
                  "measured sizes differ from their interpolation by %.1f %% (the median), and by "
                  "%.1f %% at most%s",
                  measured, sizes, 100 * Median(errors), 100 * most,
                  most > kUnsteady ? ", where times are unsteady or too short to measure" : "");
  state.notes.push_back(text);
}

}  // namespace

void Say(const TuneRequest& request, const std::string& text) {
  if (!request.quiet) std::cerr << text << "\n";
}

void SayDisturbed(const TuneRequest& request, double others) {
  char line[120];
  std::snprintf(line, sizeof line, "warning: other programs use %.1f cores; measuring again",
                others);
  Say(request, line);
}

std::string DisturbedText(double others, const std::string& meanwhile) {
  char cores[40];
  std::snprintf(cores, sizeof cores, "%.1f", others);
  return "other programs used up to " + std::string(cores) + " cores while " + meanwhile +
         ": their times may be too long";
}

std::set<int> RankCounts(const TuneRequest& request, const TuneProblem& problem) {
  std::set<int> counts = {request.ranks, RanksWithModules(problem, request.ranks)};
  for (int count = 1; count < request.ranks; count *= 2) counts.insert(count);
  return counts;
}

int ShareOfCores(const TuneRequest& request, int ranks, int cores) {
  return std::max(1, cores / RanksOnOneHost(request.start.hosts, ranks));
}

std::set<int> ThreadCounts(const TuneRequest& request, const Job& job, int ranks, int cores) {
  const bool open = !job.text.empty() && !ParseJson(job.text, job.path).contains("threads");
  const int share = ShareOfCores(request, ranks, cores);
  if (request.infers()) return {1, job.threads, share};
  if (request.exact || !open || !request.machines.empty()) return {job.threads};
  return {job.threads, share};
}

bool MeasureProfiles(const TuneRequest& request, const Job& job, const WantedProfiles& wanted,
                     const TuneBudget& budget, TuneProblem& problem,
                     std::vector<std::string>& notes) {
  Measuring state = {request,
                     job,
                     budget,
                     problem,
                     notes,
                     KeptFor(request, problem.manifest),
                     KeptPrefix(request, job)};
  if (const std::string why = request.infers() ? "" : WhyNoData(job); why.empty())
    state.has_data = !request.infers();
  else
    notes.push_back(
        "the job's data cannot be read, so modules are measured with the package's sample, and no "
        "parameters are frozen: " +
        why);
  std::vector<Point> points = PointsOf(state, wanted.sizes, wanted.own_ranks);
  const TuneBudget clock;
  size_t done = 0;
  for (; done < points.size(); ++done) {
    const Point point = points[done];
    std::string left;
    if (state.measured > 0)
      left = ", about " +
             DurationText(std::min(budget.Left(), clock.Passed() / state.measured *
                                                      static_cast<double>(points.size() - done))) +
             " left";
    Say(request, "profile " + std::to_string(done + 1) + " of " + std::to_string(points.size()) +
                     ": " + PointText(point) + left);
    try {
      if (!GetPoint(state, point)) break;
      LeaveOutSlower(state, wanted, done, points);
    } catch (const Error& error) {
      // Not every size need fit into the memory of few ranks, nor all rows of inference at once.
      state.failed[point] = error.what();
      const bool needed =
          point.size == job.microbatch_size && (!request.infers() || wanted.sizes.size() == 1);
      if (needed && AllFailed(state, points, point.size)) throw;
      Say(request, std::string("it does not run: ") + error.what());
      const bool runs =
          std::any_of(state.profiles.begin(), state.profiles.end(),
                      [&](const auto& each) { return each.first.size == point.size; });
      if (needed && !runs)  // others of this size next, so that a job that never runs ends soon
        std::stable_partition(points.begin() + static_cast<std::ptrdiff_t>(done) + 1, points.end(),
                              [&](const Point& each) { return each.size == job.microbatch_size; });
    }
  }
  NoteFailures(state, points);
  if (state.profiles.empty() && done == points.size())
    throw Error(request.package, "no size of microbatches can be measured: " + notes.back());
  if (state.profiles.empty())
    throw Error(request.model.empty() ? request.package : request.model,
                budget.Ended() + " ended tune before anything was measured" +
                    (state.failed.empty() ? "" : "; " + notes.back()),
                state.failed.empty() && !budget.Interrupted() ? "give it more time" : "");
  if (done < points.size())
    notes.push_back(budget.Ended() +
                    " ended the profiles: " + std::to_string(points.size() - done) + " of " +
                    std::to_string(points.size()) + " were not measured");
  if (state.reused > 0)
    Say(request, Counted(state.reused, "profile") + " of " + state.kept.machine +
                     " from an earlier tune; delete " + state.kept.ToDelete() +
                     " to measure again");
  if (state.busiest > kDisturbing)
    notes.push_back(DisturbedText(state.busiest, "modules were measured") + "; delete " +
                    state.kept.ToDelete() + " to measure again");
  std::set<int> counts = RankCounts(request, problem);
  if (wanted.own_ranks <= request.ranks) counts.insert(wanted.own_ranks);
  for (int ranks : counts)
    for (int threads : ThreadCounts(request, job, ranks, CoresHere()))
      AddProfiles(state, ranks, threads, wanted.sizes);
  NoteInterpolation(state, wanted.sizes.size());
  // Larger microbatches take more memory.
  return std::none_of(points.begin() + static_cast<std::ptrdiff_t>(done), points.end(),
                      [&](const Point& point) { return point.size == *wanted.sizes.begin(); });
}

}  // namespace pipewright
