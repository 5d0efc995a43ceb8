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
#include "formats/package/package_files.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/tune/search.h"

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
std::string WhyMicrobatchStays(const Manifest& manifest, const Job& job) {
  for (const ModuleInfo& module : manifest.modules)
    for (const WeightInfo& weight : module.held)
      if (weight.kind == WeightKind::kBuffer && weight.merge == BufferMerge::kUpdates)
        return "the running statistics of " + weight.name + " depend on it";
  for (const LossJob& loss : job.losses)
    if (loss.kind == LossJob::kOutput)
      return "the model computes its loss, which need not be a mean over samples";
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
                                  const Job& job, std::vector<std::string>& notes) {
  std::set<int64_t> sizes = {job.microbatch_size};
  std::string why = WhyMicrobatchStays(manifest, job);
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
      if ((round > 0 || i > 0) && passed.count() > request.time_limit) {
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
    throw Error(request.package, "no schedule is defined for these ranks and microbatches");
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
  problem.optimizer_state = OptimizerState(job.optimizer);
  if (!request.memory.empty())
    problem.memory = static_cast<double>(ParseSize(request.memory, "--memory"));
  if (!job.freeze.empty()) Freeze(problem.manifest, job.freeze, job.path + ": freeze");
  std::vector<std::string> read = PackageFiles(request.package, problem.manifest);
  read.push_back(request.job);
  OutputTexts files = {{"conf.json", ""}, {"job.json", ""}};
  CheckOutputFolder(request.output, kRecord, files, read, request.force);
  CreateFolders(request.output);

  std::vector<std::string> notes;
  const std::set<int64_t> sizes = MicrobatchSizes(request, problem.manifest, job, notes);
  problem.in_order = request.exact;
  // Each replica would keep statistics of its own microbatches, and gradients would be added in
  // another order.
  problem.replicas = !request.exact && (request.change_microbatch ||
                                        WhyMicrobatchStays(problem.manifest, job).empty());
  MeasureProfiles(request, job, sizes, problem, notes);
  const TuneResult found = SearchTune(problem, static_cast<size_t>(request.candidates));
  if (found.best.empty()) RefuseMemory(request, found);
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
  // The job as given is measured first, so that the result is not slower, however short the time.
  std::stable_partition(rows.begin(), rows.end(), [](const Row& row) { return row.as_given; });
  if (!request.no_measure) MeasureRows(request, job, rows, notes);
  SortRows(rows);
  if (rows.empty() || !rows.front().failure.empty())
    throw Error(request.package, "no candidate ran: " +
                                     (rows.empty() ? notes.back() : rows.front().failure));

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
  app.add_flag("--exact", r.exact,
               "keep the microbatches, so that results stay bitwise identical");
  app.add_flag("--change-microbatch", r.change_microbatch,
               "change the microbatches even if results depend on their size");
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
