#include "tune/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_folder.h"
#include "base/files/read_file.h"
#include "base/files/temporary_folder.h"
#include "base/process/host_resources.h"
#include "base/shell_word.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/job.h"
#include "formats/package/package_files.h"
#include "plan/plan_text.h"
#include "plan/schedules/table.h"
#include "plan/tune/help.h"
#include "plan/tune/interpolate.h"
#include "plan/tune/job_memory.h"
#include "plan/tune/needs.h"
#include "plan/tune/predict.h"
#include "tune/job/allowed.h"
#include "tune/job/input_job.h"
#include "tune/job/machines.h"
#include "tune/job/minibatches.h"
#include "tune/job/own_run.h"
#include "tune/measure/job_costs.h"
#include "tune/measure/kept.h"
#include "tune/measure/mixed_rows.h"
#include "tune/measure/profiles.h"
#include "tune/measure/runs.h"
#include "tune/page.h"
#include "tune/regroup.h"
#include "tune/rounds.h"

namespace pipewright {

namespace {

constexpr char kRecord[] = "report.json", kPage[] = "report.html";
constexpr char kLooking[] = "looking for the least memory and the fewest ranks that are enough";

// Returns the module that computes what a loss is of; -1 if there is no such output.
int ModuleOf(const LossJob& loss, const Manifest& manifest) {
  for (size_t i = 0; i < manifest.outputs.size(); ++i) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(manifest.outputs[i])];
    if (loss.output_name.empty() ? static_cast<int>(i) == loss.output
                                 : value.name == loss.output_name)
      return value.producer;
  }
  return -1;
}

TuneProblem ProblemOf(const TuneRequest& request, const Job& job) {
  TuneProblem problem;
  problem.manifest = ReadManifest(request.package);
  problem.samples = SamplesOf(job);
  problem.microbatch_size = job.microbatch_size, problem.microbatches = job.microbatches;
  problem.forward_only = request.infers();
  problem.merges = !request.cut_package.empty();
  if (!request.memory.empty())
    problem.memory = static_cast<double>(ParseSize(request.memory, request.options + "memory"));
  problem.alike = std::max<size_t>(2, static_cast<size_t>(request.candidates) / 2);
  for (const LossJob& loss : job.losses)
    problem.loss_module = std::max(problem.loss_module, ModuleOf(loss, problem.manifest));
  if (!request.machines.empty()) problem.machines = ReadMachines(request.machines, request.ranks);
  if (!job.freeze.empty()) Freeze(problem.manifest, job.freeze, job.path + ": freeze");
  return problem;
}

// Returns the job as it is as a candidate, with the minibatches of its step; none, with a note, if
// its steps cannot be predicted.
std::optional<TuneRow> AsGiven(const Job& job, int minibatches, const RunPlan& run,
                               const TuneProblem& problem, std::vector<std::string>& notes) {
  const auto profile =
      std::find_if(problem.profiles.begin(), problem.profiles.end(), [&](const TuneProfile& each) {
        return each.ranks == CountRanks(run.conf) && each.profile.threads == job.threads &&
               each.profile.microbatch == job.microbatch_size;
      });
  if (profile == problem.profiles.end()) {
    notes.push_back(std::string(problem.forward_only ? "the plain run" : "the run as given") +
                    " is not among the candidates: its modules were not measured");
    return std::nullopt;
  }
  TuneRow row;
  row.as_given = true;
  row.own_recompute =
      std::any_of(job.recompute.modules.begin(), job.recompute.modules.end(), [&](int module) {
        const int stage = run.conf.module_to_stage[static_cast<size_t>(module)];
        return !std::count(run.plan.recompute.begin(), run.plan.recompute.end(), stage);
      });
  if (row.own_recompute)
    notes.push_back("the run as given is predicted without its recomputation of parts of stages");
  const Costs costs = CostsOfConf(problem, *profile, run.conf);
  row.candidate = PredictOrder({problem, *profile, run.conf, costs, run.plan},
                               problem.forward_only ? kForwardOnly : job.schedule,
                               run.plan.recompute, minibatches);
  if (const ScheduleKind* kind = FindSchedule(job.schedule);
      !job.plan.empty() || (kind && kind->searched))
    row.candidate.plan = run.plan;
  return row;
}

bool Same(const TuneCandidate& a, const TuneCandidate& b) {
  return a.ranks == b.ranks && a.threads == b.threads && a.minibatches == b.minibatches &&
         a.microbatches == b.microbatches && a.microbatch == b.microbatch &&
         a.schedule == b.schedule && a.recompute == b.recompute && a.body == b.body &&
         a.conf == b.conf && a.plan.ranks == b.plan.ranks;
}

// Adds a note if the results of the winner may differ from those of the job as given.
void NoteResults(const TuneRequest& request, const Job& given, const TuneRow& winner,
                 std::vector<std::string>& notes) {
  if (request.infers() || request.exact || winner.as_given) return;
  const bool same = given.accumulate == 1 && winner.candidate.microbatches == given.microbatches;
  const std::string how = same                        ? " by rounding"
                          : request.change_microbatch ? ""
                                                      : " by rounding, and in what dropout draws";
  notes.push_back("results may differ from those of the run as given" + how +
                  " (`pipewright tune --exact` keeps them bitwise identical)");
}

// Moves the job as given to the front, so that the result is not slower, however short the time. In
// inference, that with the fewest microbatches follows: outputs are compared with those of the
// first that runs.
void OrderRows(const TuneRequest& request, std::vector<TuneRow>& rows) {
  auto first =
      std::find_if(rows.begin(), rows.end(), [](const TuneRow& row) { return row.as_given; });
  auto next = rows.begin();
  if (first != rows.end()) std::rotate(next++, first, first + 1);
  if (!request.infers() || next == rows.end()) return;
  first = std::min_element(next, rows.end(), [](const TuneRow& a, const TuneRow& b) {
    return a.candidate.microbatches < b.candidate.microbatches;
  });
  std::rotate(next, first, first + 1);
}

// Returns true if a candidate takes so little more than its limit that a measurement may show that
// it fits: predictions of memory err by a few percent.
bool MayFit(const TuneProblem& problem, const TuneRow& row) {
  TuneCandidate less = row.candidate;
  for (double& bytes : less.peak_bytes) bytes /= 1.05;
  return Fits(problem, less);
}

// Returns what limits the memory of ranks, as the user gave it.
std::string LimitName(const TuneRequest& request, const TuneProblem& problem) {
  const std::vector<double>& memory = problem.machines.memory;
  const auto by_device = memory.empty()
                             ? 0
                             : std::count_if(memory.begin(), memory.begin() + request.ranks,
                                             [&](double bytes) { return bytes < problem.memory; });
  std::vector<std::string> names;
  if (!request.memory.empty() && by_device < request.ranks)
    names.push_back(request.options + "memory " + request.memory);
  if (by_device > 0) names.push_back(request.machines);
  return Join(names, " and ");
}

// Returns "10.2 MiB on rank 1, more than its limit of 10 MiB", for the rank that is most over it.
std::string ExcessText(const TuneProblem& problem, const TuneCandidate& candidate) {
  const std::vector<double>& peaks = candidate.peak_bytes;
  int worst = 0;
  double most = -kNoLimit;
  for (int rank = 0; rank < static_cast<int>(peaks.size()); ++rank)
    if (const double excess = peaks[static_cast<size_t>(rank)] - RankLimit(problem, rank);
        excess > most)
      most = excess, worst = rank;
  return SizeText(static_cast<int64_t>(peaks[static_cast<size_t>(worst)])) + " on rank " +
         std::to_string(worst) + ", more than its limit of " +
         SizeText(static_cast<int64_t>(RankLimit(problem, worst)));
}

// Adds up to `most` candidates of another search, if they are shorter than the best, behind it.
void AddShorter(const TuneResult& other, size_t most, size_t keep, TuneResult& found) {
  std::vector<TuneCandidate> best = {found.best.front()};
  for (const TuneCandidate& candidate : other.best)
    if (candidate.step < best.front().step && best.size() <= most) best.push_back(candidate);
  for (size_t i = 1; i < found.best.size() && best.size() < keep; ++i)
    best.push_back(found.best[i]);
  found.best = std::move(best);
  for (const auto& [kind, candidate] : other.by_kind) found.by_kind.try_emplace(kind, candidate);
  found.simulated += other.simulated, found.pruned += other.pruned, found.over += other.over;
  found.unfit += other.unfit, found.searched += other.searched, found.too_long += other.too_long;
}

// Searches. Under a limit of memory, also for modules that compute with autograd, without checks of
// lists of operations: they take less memory, but perhaps more time than was predicted. If nothing
// else fits, these are the candidates; if candidates run, up to half are, if they seem faster.
TuneResult Search(const TuneRequest& request, const Job& job, TuneProblem& problem) {
  Say(request, "searching");
  const auto keep = static_cast<size_t>(request.candidates);
  TuneResult found = SearchTune(problem, keep);
  const bool runs = !request.no_measure && request.machines.empty();
  TuneProblem autograd = problem;
  if (request.infers() || (!found.best.empty() && !runs) || !UseAutograd(job, autograd))
    return found;
  if (found.best.empty()) {
    problem = std::move(autograd);
    return SearchTune(problem, keep);
  }
  AddShorter(SearchTune(autograd, keep, found.best.front().step), keep / 2, keep, found);
  return found;
}

// Returns the rows to measure: the best of the search, and the job as given, if it is one.
std::vector<TuneRow> RowsOf(const TuneRequest& request, const std::optional<TuneRow>& given,
                            const TuneProblem& problem, TuneOutcome& outcome) {
  std::vector<TuneRow> rows;
  auto add = [&](const TuneCandidate& candidate) {
    rows.emplace_back();
    rows.back().candidate = candidate;
    rows.back().in_process = RunsInProcess(request, candidate.ranks);
  };
  for (const TuneCandidate& candidate : outcome.found.best) add(candidate);
  // Predictions of one kind may all be too short.
  for (const auto& [kind, candidate] : outcome.found.by_kind)
    if (candidate.step < kClearlySlower * rows.front().candidate.step &&
        std::none_of(
            rows.begin(), rows.end(),
            [&, own = kind](const TuneRow& row) {
              return TuneKindOf(row.candidate) == own && row.candidate.body == candidate.body;
            }))
      add(candidate);
  if (!given) return rows;
  const auto same = std::find_if(rows.begin(), rows.end(), [&](const TuneRow& row) {
    return !given->own_recompute && Same(row.candidate, given->candidate);
  });
  if (same != rows.end()) {
    same->as_given = true;
  } else if (Fits(problem, given->candidate) ||
             (!rows.empty() && MeasuresMemory(request) && MayFit(problem, *given))) {
    rows.push_back(*given);
    rows.back().in_process = RunsInProcess(request, given->candidate.ranks);
  } else {
    outcome.notes.push_back(std::string(request.infers() ? "the plain run" : "the run as given") +
                            " would take " + ExcessText(problem, given->candidate));
  }
  return rows;
}

// Returns what to do where nothing fits.
std::string CureOf(const TuneRequest& request, const TuneProblem& problem, const TuneNeeds& needs) {
  const std::string option = request.options + "memory";
  const auto bytes = static_cast<int64_t>(needs.memory);
  const std::string enough = std::to_string(bytes) + " (" + SizeText(bytes) + ") or more";
  std::string text = "give " + option + " " + enough;
  if (needs.of_devices)
    text = "describe devices with a memory of " + enough +
           (problem.memory < needs.memory ? ", and give as much with " + option : "");
  if (needs.ranks > 0)
    return text + ", or " + request.ranks_option + " " + std::to_string(needs.ranks) +
           ": the search finds a way with each";
  const bool all = MostRanks(problem) < static_cast<int>(problem.manifest.modules.size());
  return text + "; more ranks are not enough, since " +
         (all ? request.machines + " has no more devices" : "modules are not cut") +
         ": the search finds a way with it";
}

// `complete`: the smallest microbatches, which take the least memory, were measured.
[[noreturn]] void RefuseMemory(const TuneRequest& request, const TuneProblem& problem,
                               const TuneOutcome& outcome, bool complete) {
  const TuneResult& found = outcome.found;
  const std::string where = LimitName(request, problem);
  // They say why no smaller microbatches were tried, for example.
  for (const std::string& note : outcome.notes) Say(request, "note: " + note);
  if (found.large.empty())
    throw Error(request.package,
                "no schedule is defined for these ranks and microbatches" +
                    std::string(request.exact ? ", and has the results of the job" : ""));
  const TuneCandidate& least = found.large.front();
  const auto bytes = static_cast<int64_t>(std::ceil(LargestPeak(least)));
  if (!complete)
    throw Error(where,
                "nothing that was measured before the time was over fits: the smallest of " +
                    Counted(found.over, "candidate") + " takes " + SizeText(bytes) +
                    " on a rank (" + Counted(least.microbatches, "microbatch") + " of " +
                    Counted(least.microbatch, "sample") + ")",
                "give it more time, to measure smaller microbatches, or more memory");
  Say(request, kLooking);
  const TuneNeeds needs = FindNeeds(problem);
  throw Error(where,
              "nothing fits: the smallest of " + Counted(found.over, "candidate") +
                  (needs.memory < static_cast<double>(bytes) ? " for this limit" : "") +
                  (request.machines.empty() ? " takes " : " is estimated to take ") +
                  SizeText(bytes) + " on a rank (" + Counted(least.ranks, "rank") + ", " +
                  least.schedule +
                  (!least.conf.offloaded_stages.empty() ? " with weights on disk, "
                   : least.recompute.empty()            ? ", "
                                                        : " with recomputation, ") +
                  Counted(least.microbatches, "microbatch") + ")",
              CureOf(request, problem, needs));
}

// Sets the rate of the problem's disk from a pass of one rank with all weights on it.
void MeasureDiskRate(const TuneRequest& request, const Job& job, const std::set<int64_t>& sizes,
                     const TuneBudget& budget, TuneProblem& problem,
                     std::vector<std::string>& notes) {
  const KeptMeasurements kept = KeptFor(request, problem.manifest);
  // A copy of the package may be on another disk.
  const std::string name = KeptPrefix(request, job) + "disk-" +
                           HexHash(std::filesystem::weakly_canonical(request.package).string());
  std::optional<Json> rate = ReadKept(kept, name, 1);
  try {
    if (!rate && !budget.IsOver()) {
      Say(request, "disk: one pass with all weights on it");
      const std::string file = request.scratch + "/disk_conf.json",
                        output = request.scratch + "/disk_output.safetensors";
      const int modules = static_cast<int>(problem.manifest.modules.size());
      Conf conf = GroupModules(modules, modules);
      for (int m = 0; m < modules; ++m) {
        conf.stage_to_ranks[static_cast<size_t>(m)] = {0};
        conf.offloaded_stages.push_back(m);
      }
      WriteFile(file, WriteConf(conf));
      const TuneRun run = {request.package,           "", file,         1,
                           RunsInProcess(request, 1), 1,  request.start};
      const auto count = static_cast<int>((problem.samples + *sizes.begin() - 1) / *sizes.begin());
      if (const auto found =
              MeasureDisk({run, request.input, count, 1, request.scratch, output}, budget)) {
        rate = *found;
        // The page cache may not hold the next time what it holds now.
        if (*found > 0) WriteKept(kept, name, 1, *rate);
      }
      std::filesystem::remove(output);  // it may be large
    }
  } catch (const Error& error) {
    notes.push_back("the disk is not measured: " + std::string(error.what()));
  }
  if (!rate)
    notes.push_back((budget.IsOver() ? budget.Ended() + " ended tune before the disk was measured: "
                                     : std::string()) +
                    "predictions are without the time to read weights from disk");
  else if (rate->get<double>() > 0)
    problem.disk = rate->get<double>();
}

// Returns the job of a request for inference, and adds its sizes of microbatches.
Job InferenceJob(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                 std::set<int64_t>& sizes, std::vector<std::string>& notes) {
  const Manifest manifest = ReadManifest(request.package);
  sizes = SizesOfInput(request, manifest, written, notes);
  Job job = JobOfInput(request, manifest, sizes);
  const int ranks = CountRanks(OwnRun(request, job, manifest).conf);
  job.threads = ShareOfCores(request, ranks, CoresHere());
  return job;
}

// Returns how a job saves memory; "" if it does not.
std::string WayToSaveMemory(const Job& job) {
  if (job.memory > 0) return "\"memory\"";
  const RecomputeJob& recompute = job.recompute;
  const bool any = recompute.all || !recompute.stages.empty() || !recompute.modules.empty();
  return any ? "\"recompute\"" : "";
}

// Returns the job to tune: with one minibatch, if it can have the results of those it accumulates.
// Throws Error if its runs cannot be measured, because they are not on CPUs.
Job JobToTune(TuneRequest& request, const Job& given, std::vector<std::string>& notes) {
  if (!given.device.empty() && given.device != "cpu" && request.machines.empty())
    throw Error(given.path + ": device",
                "tune measures on CPUs, and the job runs on " + given.device,
                "leave it out to tune for CPUs, or describe the devices for an estimate "
                "(pipewright tune --machines FILE)");
  if (!request.infers()) RefuseBodyOverride();
  Job job = given;
  request.most_samples = SamplesOf(given);  // larger microbatches may not fit
  if (job.accumulate > 1) notes.push_back(MergeMinibatches(request, job));
  if (const std::string way = WayToSaveMemory(given);
      request.memory.empty() && request.machines.empty() && !way.empty())
    notes.push_back("the job has " + way + ", and candidates save memory only as far as " +
                    request.options + "memory asks for it: give it if memory is short");
  return job;
}

// Returns the run as given, on CPUs. Throws Error if its conf has ranks elsewhere, which tune does
// not measure. Adds notes on what candidates do not have of its conf.
RunPlan MeasuredOwnRun(const TuneRequest& request, const Job& given, const Manifest& manifest,
                       std::vector<std::string>& notes) {
  std::string why;
  RunPlan own = OwnRun(request, given, manifest, &why);
  if (!why.empty() && request.cut_package.empty()) notes.push_back(why);
  for (const std::string& device : own.conf.devices) {
    if (device == "cpu") continue;
    const std::string path = ConfOfRun(request.package, "");
    if (request.machines.empty())
      throw Error(path + ": rank_to_device_map",
                  "tune measures on CPUs, and a rank is on " + device,
                  "leave the key out to tune for CPUs" +
                      std::string(request.infers()
                                      ? ""
                                      : ", or describe the devices for an estimate (pipewright "
                                        "tune --machines FILE)"));
    notes.push_back("conf.json has no rank_to_device_map, although " + path +
                    " does: set \"device\" in the job, or add the map");
    break;
  }
  own.conf.devices.clear();
  if (!request.infers() && !own.conf.offloaded_stages.empty())
    notes.push_back(
        "the package's conf reads weights from disk (\"offload\"), and candidates keep "
        "all of them in memory");
  return own;
}

// Returns the sizes of microbatches that candidates of training may have.
std::set<int64_t> SizesOfTraining(const TuneRequest& request,
                                  const std::vector<WrittenBuffer>& written, const Job& job,
                                  const TuneBudget& budget, TuneProblem& problem,
                                  std::vector<std::string>& notes) {
  const std::set<int64_t> sizes = MicrobatchSizes(request, problem.manifest, written, job, notes);
  if (sizes.size() == 1 || request.change_microbatch) return sizes;
  const std::string why = WhyRowsMix(request, job, problem.manifest, sizes, budget.Share(0.2));
  if (why.empty()) return sizes;
  notes.push_back(MicrobatchStays(job, why));
  return {job.microbatch_size};
}

// Measures what predictions need. Returns what MeasureProfiles does.
bool MeasureCosts(const TuneRequest& request, const Job& job, const WantedProfiles& wanted,
                  const TuneBudget& budget, TuneProblem& problem, std::vector<std::string>& notes) {
  if (std::isfinite(budget.Left()))
    Say(request, "measuring takes at most " + DurationText(budget.Left()) + " (" + request.options +
                     "budget)");
  // Rounds afterwards need as much time as the costs, of which a part is for the steps of the job.
  const TuneBudget for_costs =
                       request.no_measure || !request.machines.empty() ? budget : budget.Share(0.5),
                   for_profiles = request.infers() && request.memory.empty() ? for_costs
                                                                             : for_costs.Share(0.8);
  const bool complete = MeasureProfiles(request, job, wanted, for_profiles, problem, notes);
  if (!request.infers()) {
    CountOptimizer(job, problem);
    MeasureJobCosts(request, job, for_costs, problem, notes);
    for (TuneProfile& each : problem.profiles)  // times are per minibatch
      each.step_per_byte /= job.accumulate, each.exchange /= job.accumulate;
  } else if (!request.memory.empty()) {
    MeasureDiskRate(request, job, wanted.sizes, for_costs, problem, notes);
  }
  CountSmallerMicrobatches(problem);
  return complete;
}

// Returns where ranks are, if that is not the order of the file.
std::string OrderText(const TuneMachines& machines) {
  if (std::is_sorted(machines.order.begin(), machines.order.end())) return "";
  std::vector<std::string> words;
  for (size_t entry : machines.order) words.push_back(std::to_string(entry));
  return "; ranks are on the fastest devices first, so on those of machines[" +
         Join(words, "], [") + "]";
}

// Returns the bytes that the smallest candidate of a body takes beyond its prediction; 0 if no
// candidate takes more than its limit.
double UnforeseenBytes(const std::vector<TuneRow>& rows) {
  double more = 0;
  for (const std::string& body : {std::string(), std::string("autograd")}) {
    double predicted = kNoLimit, error = 0;
    for (const TuneRow& row : rows)
      if (row.unforeseen > 0 && !row.variant && row.candidate.body == body &&
          LargestPeak(row.candidate) < predicted) {
        predicted = LargestPeak(row.candidate);
        error = row.unforeseen;
      }
    more = std::max(more, error);
  }
  return more;
}

// Throws Error with what would be enough, if candidates ran, and all take more than their limit.
// `ended`: what ended tune before it searched again; "" if it has, and predictions know by now.
void RefuseMeasured(const TuneRequest& request, const TuneProblem& problem,
                    const std::string& ended, const std::vector<TuneRow>& rows) {
  int64_t least = 0;
  for (const TuneRow& row : rows)
    if (row.needed_bytes > 0 && (least == 0 || row.needed_bytes < least)) least = row.needed_bytes;
  if (least == 0) return;
  std::string cure = "give " + request.options + "memory " + std::to_string(least) + " or more" +
                     (ended.empty() ? "" : ", or more time");
  if (ended.empty() && !AnyFits(problem)) {
    Say(request, kLooking);
    cure = CureOf(request, problem, FindNeeds(problem));
  }
  throw Error(request.options + "memory " + request.memory,
              "every candidate that ran takes more than was predicted: the smallest needs " +
                  SizeText(least) + " on a rank" +
                  (ended.empty() ? "" : "; " + ended + " ended tune before it searched again"),
              cure);
}

// Measures the candidates and their memory. If all are over the limit, searches again, with the
// bytes that the smallest takes beyond its prediction added to every prediction, until one fits or
// the search finds no others. What is added at least doubles, so that few searches are enough.
void RunWithinLimit(const TuneRequest& request, const Job& job, TuneProblem& problem,
                    const TuneBudget& budget, TuneOutcome& outcome) {
  std::vector<TuneRow>& rows = outcome.rows;
  auto one_fits = [&] {
    MeasureRows(request, job, problem, budget.Share(0.7), rows, outcome.notes);
    return DropOverLimit(request, job, problem, budget, rows, outcome.notes);
  };
  double added = 0;
  std::string ended;
  while (!one_fits()) {
    double more = UnforeseenBytes(rows);
    if (more > 0 && budget.IsOver()) ended = budget.Ended();
    if (more == 0 || !ended.empty()) break;
    more = std::max(more, added);
    added += more;
    outcome.notes.push_back(
        "every candidate takes more than was predicted: tune searched again, with " +
        SizeText(static_cast<int64_t>(added)) + " added to every prediction");
    Say(request, outcome.notes.back());
    for (TuneProfile& each : problem.profiles) {
      each.loss_peak += more;
      for (ProfileNode& node : each.profile.nodes) node.peak += more;
    }
    for (TuneRow& row : rows) row.unforeseen = 0;  // predictions have it now
    outcome.found = Search(request, job, problem);
    const std::vector<TuneRow> ran = rows;
    for (const TuneRow& row : RowsOf(request, std::nullopt, problem, outcome))
      if (std::none_of(ran.begin(), ran.end(),
                       [&](const TuneRow& other) { return Same(row.candidate, other.candidate); }))
        rows.push_back(row);
    if (rows.size() == ran.size()) break;
  }
  if (!rows.front().failure.empty()) RefuseMeasured(request, problem, ended, rows);
}

// Measures the candidates, unless they are for other machines or the user wants predictions only.
void RunCandidates(const TuneRequest& request, const Job& job, TuneProblem& problem,
                   const TuneBudget& budget, TuneOutcome& outcome) {
  if (!request.machines.empty())
    outcome.notes.push_back("every figure is an estimate for " + request.machines +
                            ", from times on " + MachineName() + OrderText(problem.machines));
  else if (!request.no_measure && (request.memory.empty() || request.infers()))  // a cut runs later
    MeasureRows(request, job, problem, budget.Share(request.cut_package.empty() ? 1 : 0.9),
                outcome.rows, outcome.notes);
  else if (!request.no_measure)
    RunWithinLimit(request, job, problem, budget, outcome);
  double busiest = 0;
  for (const TuneRow& row : outcome.rows) busiest = std::max(busiest, row.others);
  if (busiest > kDisturbing) outcome.notes.push_back(DisturbedText(busiest, "candidates ran"));
}

// Returns the step of the best candidate found whose modules compute like the winner's.
double BestStepOf(const TuneResult& found, const TuneCandidate& winner) {
  for (const TuneCandidate& each : found.best)
    if (each.body == winner.body) return each.step;
  return winner.step;
}

// Returns the limit of each rank in bytes; empty if none has one.
std::vector<double> LimitsOf(const TuneProblem& problem, int ranks) {
  std::vector<double> limits;
  for (int rank = 0; rank < ranks; ++rank) limits.push_back(RankLimit(problem, rank));
  const bool any =
      std::any_of(limits.begin(), limits.end(), [](double limit) { return limit < kNoLimit; });
  return any ? limits : std::vector<double>();
}

}  // namespace

TuneOutcome Tune(TuneRequest request, const std::vector<WrittenBuffer>& written) {
  const InterruptsEndBudgets interrupts;
  CheckFolder(request.output);
  CreateFolders(request.output);
  const TemporaryFolder scratch(request.output, "tune-");
  request.scratch = scratch.path();
  const TuneBudget budget(request.budget, request.options + "budget");
  TuneOutcome outcome;
  outcome.infers = request.infers();
  outcome.estimated = !request.machines.empty();
  std::set<int64_t> sizes;
  const Job given = request.infers() ? InferenceJob(request, written, sizes, outcome.notes)
                                     : ReadJob(request.job),
            job = JobToTune(request, given, outcome.notes);
  TuneProblem problem = ProblemOf(request, job);
  std::vector<std::string> read = PackageFiles(request.package, problem.manifest);
  read.push_back(job.path);
  if (!job.plan.empty()) read.push_back(job.plan);
  OutputTexts files = {{"conf.json", ""}, {kPage, ""}};
  if (!request.infers()) files["job.json"] = files[kTunePlan] = "";
  CheckMpirun(request);
  CheckOutputFolder(request.output, kRecord, files, read, request.force);
  if (!request.infers()) LimitCandidates(request, written, job, problem, outcome.notes);
  const RunPlan own = MeasuredOwnRun(request, given, problem.manifest, outcome.notes);

  if (request.infers()) {
    problem.recompute = problem.searched = false;
    problem.replicas = written.empty();
  } else {
    sizes = SizesOfTraining(request, written, job, budget, problem, outcome.notes);
  }
  const bool complete =
      MeasureCosts(request, job, {sizes, CountRanks(own.conf)}, budget, problem, outcome.notes);
  // With one size of microbatches, the best differ by little else than their schedules.
  if (sizes.size() == 1 && !request.infers())
    problem.alike = static_cast<size_t>(request.candidates);
  const std::optional<TuneRow> as_given =
      AsGiven(given, given.accumulate / job.accumulate, own, problem, outcome.notes);
  outcome.found = Search(request, job, problem);
  outcome.rows = RowsOf(request, as_given, problem, outcome);
  if (outcome.rows.empty()) RefuseMemory(request, problem, outcome, complete);
  OrderRows(request, outcome.rows);
  RunCandidates(request, job, problem, budget, outcome);
  for (TuneRow& row : outcome.rows) row.binds = WhatBinds(problem, row.candidate);
  SortRows(outcome.rows);
  if (!outcome.rows.front().failure.empty())
    throw Error(request.package, "no candidate ran: " + outcome.rows.front().failure);

  const TuneCandidate& winner = outcome.rows.front().candidate;
  NoteResults(request, given, outcome.rows.front(), outcome.notes);
  if (!winner.body.empty()) UseAutograd(job, problem);  // what would help is asked for its memory
  if (request.infers() && outcome.rows.front().steps.empty() &&
      winner.microbatches > job.microbatches)
    outcome.notes.push_back("nothing ran, so it is not known whether outputs are the same with " +
                            Counted(winner.microbatches, "microbatch") + " as with " +
                            std::to_string(job.microbatches));
  files["conf.json"] =
      WriteConf(request.cut_package.empty() ? winner.conf : ConfOfRuns(winner.conf));
  if (!request.infers())
    files["job.json"] = JobText(job, outcome.rows.front(), request.output + "/job.json");
  files.erase(kTunePlan);
  if (!winner.plan.ranks.empty()) files[kTunePlan] = WritePlan(winner.plan);
  outcome.help = WhatHelps(problem, winner, BestStepOf(outcome.found, winner));
  outcome.limits = LimitsOf(problem, request.ranks);
  files[kPage] = TunePage(request, problem, outcome, StartLine(request, outcome));
  outcome.interrupted = TuneBudget::Interrupted();
  outcome.cut_off =
      std::any_of(outcome.notes.begin(), outcome.notes.end(), [&](const std::string& note) {
        return note.find(budget.Ended() + " ended ") != std::string::npos;
      });
  outcome.report = TuneReport(outcome);
  outcome.report["start"] = StartLine(request, outcome);
  if (!request.cut_package.empty())
    outcome.report["package"] = std::filesystem::path(request.cut_package).filename().string();
  for (const std::string& note :
       WriteOutputFolder(request.output, kRecord, files, outcome.report, read))
    outcome.notes.push_back(note);
  return outcome;
}

std::string StartLine(const TuneRequest& request, const TuneOutcome& outcome) {
  const TuneRow& winner = outcome.rows.front();
  std::vector<std::string> words = {"pipewright-run"};
  for (const std::string& word :
       StartOptions(request.start, winner.candidate.ranks, winner.in_process))
    words.push_back(word);
  const std::string package = request.cut_package.empty() ? request.package : request.cut_package,
                    conf = request.output + "/conf.json";
  if (request.infers())
    words.insert(words.end(), {"infer", package, "--conf", conf, "--microbatches",
                               std::to_string(winner.candidate.microbatches), "--threads",
                               std::to_string(winner.candidate.threads), "--input", request.input,
                               "-o", "out.safetensors"});
  else
    words.insert(words.end(), {"train", package, request.output + "/job.json", "--conf", conf});
  for (std::string& word : words) word = ShellWord(word);
  return Join(words, " ");
}

}  // namespace pipewright
