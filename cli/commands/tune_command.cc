// pipewright tune PACKAGE JOB --ranks N -o FOLDER
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_folder.h"
#include "base/files/read_file.h"
#include "base/median.h"
#include "base/size.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "cli/commands/tune_runs.h"
#include "cli/numbers.h"
#include "formats/job.h"
#include "formats/optimizer_state.h"
#include "formats/package/package_files.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/run/run_plan.h"
#include "plan/schedules/schedule.h"
#include "plan/tune/search.h"
#include "runtime/trial/written_buffers.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr char kRecord[] = "report.json";

struct TuneRequest {
  std::string package, job, output, memory;
  int ranks = 0, candidates = 5, rounds = 3, repeat = 5;
  double time_limit = kNoLimit;  // seconds for all measured rounds
  bool exact = false, change_microbatch = false, no_measure = false, in_process = false;
  bool json = false, force = false;
};

// Deletes a file when it goes out of scope.
struct TemporaryFile {
  std::string path;
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

// A candidate, and the measured times of its steps.
struct Row {
  TuneCandidate candidate;
  bool as_given = false;
  std::vector<double> steps;  // seconds, the median of each round
  std::string failure;
};

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", 1e3 * seconds);
  return text;
}

int64_t SamplesOf(const Job& job) {
  return job.minibatch_size > 0 ? job.minibatch_size : job.microbatches * job.microbatch_size;
}

// Returns why results depend on the size of microbatches, or "" if they do not.
std::string WhyMicrobatchStays(const std::vector<WrittenBuffer>& written, const Job& job) {
  if (!written.empty()) return "forward writes to " + written[0].name + ", which depends on it";
  for (const LossJob& loss : job.losses)
    if (loss.kind == LossJob::kOutput)
      return "the model computes its loss, which need not be a mean over samples";
  return "";
}

// Returns why replicas of a stage would compute something else than the stage on one rank, by more
// than rounding, or "" if they do not.
std::string WhyNoReplicas(const std::vector<WrittenBuffer>& written, const Job& job) {
  for (const WrittenBuffer& buffer : written)
    if (!job.merge_buffers || !buffer.merges)
      return "forward writes to " + buffer.name +
             ", and each replica would keep that of its own microbatches" +
             (buffer.merges ? " (\"buffers\": \"merge\" in the job may allow them)" : "");
  return "";
}

// Returns the least and the largest number of samples that the inputs allow.
std::pair<int64_t, int64_t> SamplesAllowed(const Manifest& manifest) {
  std::pair<int64_t, int64_t> range = {1, int64_t{1} << 40};
  for (int input : manifest.inputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(input)];
    if (value.shape.empty()) continue;
    const std::string& first = value.shape[0];
    if (auto symbol = manifest.symbols.find(first); symbol != manifest.symbols.end())
      range = {std::max(range.first, symbol->second.first),
               std::min(range.second, symbol->second.second)};
    else if (first.find_first_not_of("0123456789") == std::string::npos)
      range = {std::max<int64_t>(range.first, std::stoll(first)),
               std::min<int64_t>(range.second, std::stoll(first))};
  }
  return range;
}

// Returns the sizes of microbatches to choose from: the job's, powers of two, and a whole
// minibatch.
std::set<int64_t> MicrobatchSizes(const TuneRequest& request, const Manifest& manifest,
                                  const std::vector<WrittenBuffer>& written, const Job& job,
                                  std::vector<std::string>& notes) {
  std::set<int64_t> sizes = {job.microbatch_size};
  std::string why = WhyMicrobatchStays(written, job);
  if (request.exact) why = "--exact keeps the results bitwise identical";
  if (!why.empty() && !request.change_microbatch) {
    notes.push_back("the microbatch stays at " + Counted(job.microbatch_size, "sample") + ": " +
                    why + (request.exact ? "" : " (--change-microbatch changes it anyway)"));
    return sizes;
  }
  const auto [least, most] = SamplesAllowed(manifest);
  for (int64_t size = 1; size <= SamplesOf(job); size *= 2)
    if (size >= least && size <= most) sizes.insert(size);
  if (SamplesOf(job) >= least && SamplesOf(job) <= most) sizes.insert(SamplesOf(job));
  return sizes;
}

// Returns 1, the powers of two below `ranks`, and `ranks`, limited to the number of modules.
std::set<int> RankCounts(int ranks, int modules) {
  std::set<int> counts = {std::min(ranks, modules)};
  for (int count = 1; count < *counts.rbegin(); count *= 2) counts.insert(count);
  return counts;
}

// Returns the order of the stages in the job's own run: with the package's conf or, if its schedule
// or plan needs another, with a conf for the ranks of the request.
StageOrder OwnOrder(const TuneRequest& request, const Job& job, const Manifest& manifest) {
  const TemporaryFile own = {request.output + "/own_conf.json"};
  std::optional<RunPlan> run;
  try {
    run = MakeRunPlan(request.package, "", job, 0, false);
  } catch (const Error&) {
    const std::string schedule = job.plan.empty() ? job.schedule : Job().schedule;
    const int modules = static_cast<int>(manifest.modules.size()),
              ranks = std::min(request.ranks, modules),
              stages = std::min(DefaultStages(schedule, ranks), modules);
    Conf conf = GroupModules(modules, stages);
    conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), ranks, stages);
    WriteFile(own.path, WriteConf(conf));
    run = MakeRunPlan(request.package, own.path, job, 0, false);
  }
  const std::optional<StageOrder> order = OrderOfStages(run->plan);
  if (!order)
    throw Error("--exact",
                "the stages of " + job.plan +
                    " add gradients in different orders, so that results depend on the cut",
                "leave out --exact, or tune a job with another schedule");
  return *order;
}

// Returns true if a stage runs on one rank, which adds gradients in the order of the microbatches.
bool IsUsual(const StageOrder& order) {
  return order.size() == 1 && std::is_sorted(order[0].additions.begin(), order[0].additions.end());
}

// Limits the candidates to those with the job's results. Notes what is left out.
void LimitCandidates(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                     const Job& job, TuneProblem& problem, std::vector<std::string>& notes) {
  if (!request.exact) {
    const std::string why = WhyNoReplicas(written, job);
    problem.replicas = why.empty();
    if (!why.empty()) notes.push_back("schedules with replicas are left out: " + why);
    return;
  }
  if (IsAsynchronous(job))
    throw Error("--exact",
                "the steps of " + job.schedule + " overlap, and no other schedule has its results",
                "leave out --exact, or tune a job with another schedule");
  // Gradients are added in the order of the microbatches, whatever the schedule.
  if (job.exact_reduce && written.empty()) return;
  problem.order = OwnOrder(request, job, problem.manifest);
  if (!IsUsual(*problem.order))
    notes.push_back("--exact leaves out all schedules that add gradients in another order than " +
                    (job.plan.empty() ? job.schedule : job.plan));
}

void Say(const TuneRequest& request, const std::string& text) {
  if (!request.json) std::cerr << text << "\n";
}

// Profiles every microbatch size on every number of ranks. Notes sizes that the model refuses.
void MeasureProfiles(const TuneRequest& request, const Job& job, const std::set<int64_t>& sizes,
                     TuneProblem& problem, std::vector<std::string>& notes) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const TemporaryFile conf = {request.output + "/profile_conf.json"};
  for (int ranks : RankCounts(request.ranks, modules)) {
    WriteFile(conf.path, WriteConf(GroupModules(modules, ranks)));
    for (int64_t size : sizes) {
      Say(request, "measuring the modules: " + Counted(ranks, "rank") + ", microbatches of " +
                       Counted(size, "sample"));
      try {
        problem.profiles.push_back({ranks, MeasureProfile(request.package, conf.path, ranks, size,
                                                          job.threads, request.repeat)});
      } catch (const Error& error) {
        if (size == job.microbatch_size) throw;
        notes.push_back("no microbatches of " + Counted(size, "sample") + ": " + error.what());
      }
    }
  }
}

// Returns the job as it is: modules grouped in order, its own schedule and microbatches.
std::optional<Row> AsGiven(const TuneRequest& request, const Job& job, const TuneProblem& problem,
                           std::vector<std::string>& notes) {
  if (!job.plan.empty()) {
    notes.push_back("the unmodified job is not among the candidates: it has a plan, " + job.plan);
    return std::nullopt;
  }
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const int ranks = std::min(request.ranks, modules);
  for (const TuneProfile& profile : problem.profiles) {
    if (profile.ranks != ranks || profile.profile.microbatch != job.microbatch_size) continue;
    try {
      Row row;
      row.as_given = true;
      row.candidate = Predict(problem, profile, GroupModules(modules, ranks), job.schedule,
                              job.microbatches, job.recompute.all);
      return row;
    } catch (const Error& error) {
      notes.push_back(std::string("the unmodified job is not among the candidates: ") +
                      error.what());
    }
  }
  return std::nullopt;
}

bool Same(const TuneCandidate& a, const TuneCandidate& b) {
  return a.ranks == b.ranks && a.microbatches == b.microbatches && a.schedule == b.schedule &&
         a.recompute == b.recompute && a.conf == b.conf;
}

std::string JobText(const TuneRequest& request, const Job& job, const TuneCandidate& candidate) {
  return ChangedJob(job.path, request.output + "/job.json",
                    {candidate.schedule, candidate.microbatches, SamplesOf(job),
                     candidate.recompute});
}

// Measures the candidates in turn, so that a busy moment of the machine affects all of them.
void MeasureRows(const TuneRequest& request, const Job& job, std::vector<Row>& rows,
                 std::vector<std::string>& notes) {
  const auto start = std::chrono::steady_clock::now();
  const TemporaryFile job_file = {request.output + "/candidate_job.json"},
                      conf_file = {request.output + "/candidate_conf.json"};
  for (int round = 0; round < request.rounds; ++round)
    for (size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows[i];
      if (!row.failure.empty()) continue;
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      const bool measured = std::any_of(rows.begin(), rows.end(),
                                        [](const Row& each) { return !each.steps.empty(); });
      if (measured && passed.count() > request.time_limit) {
        const auto open = std::count_if(rows.begin(), rows.end(), [](const Row& each) {
          return each.steps.empty() && each.failure.empty();
        });
        notes.push_back("--time-limit ended the measurements in round " +
                        std::to_string(round + 1) + " of " + std::to_string(request.rounds) +
                        (open ? ": " + std::to_string(open) + " of " +
                                    Counted(rows.size(), "candidate") + " were not measured"
                              : ""));
        round = request.rounds;
        break;
      }
      Say(request, "round " + std::to_string(round + 1) + " of " +
                       std::to_string(request.rounds) + ": candidate " + std::to_string(i + 1) +
                       " of " + std::to_string(rows.size()));
      WriteFile(job_file.path, JobText(request, job, row.candidate));
      WriteFile(conf_file.path, WriteConf(row.candidate.conf));
      TuneRun run = {request.package, job_file.path, conf_file.path, row.candidate.ranks,
                     request.in_process};
      constexpr double kSeconds = 1;  // length of a measurement, to average out noise
      run.steps = std::clamp(static_cast<int>(std::ceil(kSeconds / row.candidate.step)), 3, 50);
      try {
        row.steps.push_back(MeasureStep(run));
      } catch (const Error& error) {
        row.failure = error.what();
        notes.push_back("candidate " + std::to_string(i + 1) + " is dropped: " + row.failure);
      }
    }
}

// Sorts rows: measured ones by their time, then those that were only predicted, then failed ones.
void SortRows(std::vector<Row>& rows) {
  auto key = [](const Row& row) -> std::pair<int, double> {
    if (!row.failure.empty()) return {2, 0};
    if (row.steps.empty()) return {1, row.candidate.step};
    return {0, Median(row.steps)};
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const Row& a, const Row& b) { return key(a) < key(b); });
}

double Peak(const TuneCandidate& candidate) {
  return *std::max_element(candidate.peak_bytes.begin(), candidate.peak_bytes.end());
}

std::string TableOf(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> table = {{"", "ranks", "microbatches", "schedule", "stages",
                                                  "predicted", "measured", "from - to", "bubble",
                                                  "peak"}};
  for (const Row& row : rows) {
    const TuneCandidate& c = row.candidate;
    const auto [low, high] = std::minmax_element(row.steps.begin(), row.steps.end());
    char bubble[16];
    std::snprintf(bubble, sizeof bubble, "%.0f %%", 100 * c.bubble);
    table.push_back(
        {row.as_given ? "as given" : "", std::to_string(c.ranks),
         std::to_string(c.microbatches) + " of " + std::to_string(c.microbatch),
         c.schedule + (c.recompute ? ", recompute" : ""),
         std::to_string(c.conf.stage_to_ranks.size()), Milliseconds(c.step),
         !row.failure.empty()  ? "failed"
         : row.steps.empty() ? "-"
                             : Milliseconds(Median(row.steps)),
         row.steps.empty() ? "-" : Milliseconds(*low) + " - " + Milliseconds(*high), bubble,
         SizeText(static_cast<int64_t>(Peak(c)))});
  }
  return FormatTable(table);
}

Json ReportJson(const std::vector<Row>& rows, const TuneResult& found,
                const std::vector<std::string>& notes) {
  Json report = {{"candidates", Json::array()}};
  for (const Row& row : rows) {
    const TuneCandidate& c = row.candidate;
    Json json = {{"ranks", c.ranks},           {"microbatches", c.microbatches},
                 {"microbatch", c.microbatch}, {"schedule", c.schedule},
                 {"recompute", c.recompute},   {"as_given", row.as_given},
                 {"predicted", c.step},        {"measured", row.steps},
                 {"bubble", c.bubble},         {"peak_bytes", c.peak_bytes},
                 {"module_to_stage", c.conf.module_to_stage},
                 {"stage_to_ranks", c.conf.stage_to_ranks}};
    if (!row.failure.empty()) json["failure"] = row.failure;
    report["candidates"].push_back(json);
  }
  report["simulated"] = found.simulated;
  report["pruned"] = found.pruned;
  report["over_memory"] = found.over;
  report["undefined"] = found.unfit;
  report["notes"] = notes;
  return report;
}

[[noreturn]] void RefuseMemory(const TuneRequest& request, const TuneResult& found) {
  if (found.large.empty())
    throw Error(request.package,
                "no schedule is defined for these ranks and microbatches" +
                    std::string(request.exact ? ", and has the results of the job" : ""));
  const TuneCandidate& least = found.large.front();
  const auto bytes = static_cast<int64_t>(std::ceil(Peak(least)));
  throw Error("--memory " + request.memory,
              "nothing fits: the smallest of " + Counted(found.over, "candidate") + " takes " +
                  SizeText(bytes) + " on a rank (" +
                  Counted(least.ranks, "rank") + ", " + least.schedule +
                  (least.recompute ? " with recomputation, " : ", ") +
                  Counted(least.microbatches, "microbatch") + ")",
              "give --memory " + std::to_string(bytes) + " or more, or more ranks");
}

void Tune(const TuneRequest& request) {
  const Job job = ReadJob(request.job);
  TuneProblem problem;
  problem.manifest = ReadManifest(request.package);
  problem.samples = SamplesOf(job);
  problem.microbatch_size = job.microbatch_size, problem.microbatches = job.microbatches;
  problem.optimizer_state = StateTensorsPerParameter(job.optimizer);
  if (!request.memory.empty())
    problem.memory = static_cast<double>(ParseSize(request.memory, "--memory"));
  if (!job.freeze.empty()) Freeze(problem.manifest, job.freeze, job.path + ": freeze");
  std::vector<std::string> read = PackageFiles(request.package, problem.manifest);
  read.push_back(request.job);
  OutputTexts files = {{"conf.json", ""}, {"job.json", ""}};
  CheckOutputFolder(request.output, kRecord, files, read, request.force);
  CreateFolders(request.output);

  std::vector<std::string> notes;
  const std::vector<WrittenBuffer> written = WrittenBuffers(request.package, problem.manifest);
  LimitCandidates(request, written, job, problem, notes);
  const std::set<int64_t> sizes = MicrobatchSizes(request, problem.manifest, written, job, notes);
  MeasureProfiles(request, job, sizes, problem, notes);
  const TuneResult found = SearchTune(problem, static_cast<size_t>(request.candidates));
  std::vector<Row> rows;
  for (const TuneCandidate& candidate : found.best) rows.push_back({candidate, false, {}, ""});
  if (std::optional<Row> given = AsGiven(request, job, problem, notes)) {
    auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return Same(row.candidate, given->candidate);
    });
    if (same != rows.end())
      same->as_given = true;
    else if (Peak(given->candidate) <= problem.memory)
      rows.push_back(*given);
    else
      notes.push_back("the unmodified job would take " +
                      SizeText(static_cast<int64_t>(Peak(given->candidate))) +
                      " on a rank, more than --memory");
  }
  if (rows.empty()) RefuseMemory(request, found);
  // The job as given is measured first, so that the result is not slower, however short the time.
  std::stable_partition(rows.begin(), rows.end(), [](const Row& row) { return row.as_given; });
  if (!request.no_measure) MeasureRows(request, job, rows, notes);
  SortRows(rows);
  if (!rows.front().failure.empty())
    throw Error(request.package, "no candidate ran: " + rows.front().failure);

  const TuneCandidate& winner = rows.front().candidate;
  files["conf.json"] = WriteConf(winner.conf);
  files["job.json"] = JobText(request, job, winner);
  const Json report = ReportJson(rows, found, notes);
  for (const std::string& note : WriteOutputFolder(request.output, kRecord, files, report, read))
    notes.push_back(note);
  if (request.json) return PrintJson(report);
  std::cout << TableOf(rows);
  std::cout << "candidates: " << found.simulated << " simulated, " << found.pruned
            << " pruned by their bound, " << found.over << " over the memory limit, " << found.unfit
            << " not defined or not allowed\n";
  for (const std::string& note : notes) std::cout << "note: " << note << "\n";
  std::cout << "written to " << request.output << ": conf.json, job.json, " << kRecord
            << "\nto start it:\n    pipewright-run -n " << winner.ranks << " train "
            << request.package << " " << request.output << "/job.json --conf " << request.output
            << "/conf.json\n";
}

}  // namespace

void AddTuneCommand(CLI::App& app) {
  auto request = std::make_shared<TuneRequest>();
  TuneRequest& r = *request;
  app.add_option("package", r.package, "folder that `pipewright compile` wrote")->required();
  app.add_option("job", r.job, "job file: data, loss, optimizer, samples per step")->required();
  app.add_option("--ranks", r.ranks, "maximum number of ranks")
      ->required()
      ->check(AtLeast(1, 1 << 16));
  app.add_option("--memory", r.memory,
                 "memory limit for the tensors of each rank: bytes, or a size such as 8GiB");
  auto* exact = app.add_flag("--exact", r.exact,
                             "keep the microbatches and the order in which their gradients are "
                             "added, so that results stay bitwise identical");
  app.add_flag("--change-microbatch", r.change_microbatch,
               "change the microbatches even if results depend on their size")
      ->excludes(exact);
  app.add_option("--candidates", r.candidates, "number of candidates to measure (default: 5)")
      ->check(AtLeast(1, 1000));
  app.add_option("--rounds", r.rounds, "measurements of each candidate (default: 3)")
      ->check(AtLeast(1, 1000));
  app.add_option("--repeat", r.repeat, "measurements of each module's times (default: 5)")
      ->check(AtLeast(1));
  app.add_option("--time-limit", r.time_limit,
                 "seconds until the rounds end; the best result so far is written")
      ->check(NumberAtLeast(0));
  app.add_flag("--no-measure", r.no_measure, "choose by predictions alone");
  app.add_flag("--in-process", r.in_process,
               "measure with ranks as threads of one process, without mpirun");
  app.add_flag("--json", r.json, "print the report as JSON and nothing else");
  app.add_option("-o,--output", r.output, "folder for conf.json, job.json and report.json")
      ->required();
  app.add_flag("--force", r.force,
               "also replace files that were edited, or that tune did not write");
  app.callback([request] { Tune(*request); });
}

}  // namespace pipewright
