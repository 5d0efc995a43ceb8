// pipewright tune PACKAGE JOB --ranks N -o FOLDER, or --input FILE instead of JOB
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_folder.h"
#include "base/files/owner_lock.h"
#include "base/files/read_file.h"
#include "base/files/temporary_folder.h"
#include "base/json.h"
#include "base/process/launched_rank.h"
#include "base/size.h"
#include "base/table.h"
#include "base/text.h"
#include "check/rules.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "cli/numbers.h"
#include "compiler/compile.h"
#include "compiler/emit/package.h"
#include "compiler/import/import.h"
#include "compiler/measured/pieces.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "runtime/transport/hosts.h"
#include "runtime/trial/written_buffers.h"
#include "tune/measure/budget.h"
#include "tune/measure/profiles.h"
#include "tune/measure/runs.h"
#include "tune/page.h"
#include "tune/regroup.h"
#include "tune/result.h"
#include "tune/tune.h"

namespace pipewright {

static constexpr char kCut[] = "model.pkg";

// Throws Error if the data do not fit the package, which runs would find after minutes.
static void CheckDataOfRun(const TuneRequest& request, const Manifest& manifest) {
  // Without runs, the data need not be here.
  if (!request.machines.empty() || (request.no_measure && !request.infers())) return;
  CheckRequest check;
  check.package = request.package, check.job = request.job, check.input = request.input;
  CheckResult result;
  if (request.infers())
    Passes(result, "values", [&] { CheckInputValues(check, manifest, result); });
  else
    CheckData(check, ReadJob(request.job), manifest, result);
  for (const Finding& finding : result.findings)
    if (finding.severity == Severity::kError) throw Error(finding.text);
}

static TuneOutcome TunePackage(const TuneRequest& request) {
  const Manifest manifest = ReadManifest(request.package);
  CheckDataOfRun(request, manifest);
  return Tune(request, WrittenBuffers(request.package, manifest));
}

// Throws Error if the output folder has a file that tune writes, such as the result of an earlier
// tune, which took minutes, unless it is to be replaced. The job stays in any case.
static void CheckNoResult(const TuneRequest& request) {
  if (request.force) return;
  std::vector<std::string> names = {"report.json", "report.html", "conf.json"};
  if (!request.infers()) names.insert(names.end(), {"job.json", "plan.csv", kCut});
  for (const std::string& name : names) {
    const std::string path = request.output + "/" + name;
    std::error_code none;
    if (std::filesystem::exists(path) && !std::filesystem::equivalent(path, request.job, none))
      throw Error(path, "already exists", "name another folder, or replace it with --force");
  }
}

struct CutMemory {
  int rank = -1;
  int64_t bytes = 0;  // of tensors, with those that a short run does not show
};

// Returns the rank of the compiled package that is most over its limit; rank -1 if none is.
static CutMemory MostOver(const TuneOutcome& outcome, const Json& ranks) {
  const std::vector<int64_t>& unseen = outcome.rows.front().unseen;
  CutMemory over;
  double most = 0;
  for (size_t rank = 0; rank < std::min(ranks.size(), outcome.limits.size()); ++rank) {
    const int64_t bytes =
        ranks.at(rank).at("peak_bytes").get<int64_t>() + (rank < unseen.size() ? unseen[rank] : 0);
    const double excess = static_cast<double>(bytes) - outcome.limits[rank];
    if (excess <= most) continue;
    most = excess;
    over = {static_cast<int>(rank), bytes};
  }
  return over;
}

// Runs the package that was compiled, since only its pieces were measured, unless the budget is
// over. Returns notes. Throws Error if it does not run, or takes more memory than its limit.
static std::vector<std::string> CheckCut(const TuneRequest& request, const TuneOutcome& outcome,
                                         const TuneBudget& budget) {
  const TuneRow& winner = outcome.rows.front();
  if (winner.steps.empty()) return {};
  TuneRun run = {request.cut_package, request.output + "/job.json", request.output + "/conf.json",
                 winner.candidate.ranks, winner.in_process};
  run.start = request.start;
  // Threads free tensors of each other, so ranks are processes where their memory counts.
  if (!outcome.limits.empty()) run.in_process = RunsInProcess(request, run.ranks);
  const bool counts = !run.in_process || run.ranks == 1;
  std::optional<Json> figures;
  CutMemory over;
  // A rank takes a message more if a busy machine delays the receiver: then it is measured again.
  for (int attempt = 0; attempt < 2 && (attempt == 0 || over.rank >= 0); ++attempt) {
    try {
      if (attempt > 0 || !budget.IsOver()) figures = BenchRun(run, budget);
    } catch (const Error& error) {
      throw Error(request.cut_package,
                  std::string("is compiled, but does not run: ") + error.what());
    }
    if (!figures) break;
    over = counts ? MostOver(outcome, figures->at("ranks")) : CutMemory();
  }
  if (over.rank >= 0)
    throw Error(request.cut_package,
                "rank " + std::to_string(over.rank) + " takes " + SizeText(over.bytes) +
                    ", more than its limit of " +
                    SizeText(static_cast<int64_t>(outcome.limits[static_cast<size_t>(over.rank)])) +
                    ", which its pieces did not exceed",
                "give --memory " + std::to_string(over.bytes) + " or more, and --force");
  if (!figures)
    return {budget.Ended() + " ended tune before " + request.cut_package +
            " ran: only its pieces were measured"};
  return {request.cut_package + " takes " +
          StepText(1e-6 * figures->at("step").at("median").get<double>()) +
          " a step of one minibatch in `bench`"};
}

// Adds notes to the outcome of a tune and to the reports that it wrote.
static void AddNotes(const TuneRequest& request, const std::vector<std::string>& notes,
                     TuneOutcome& outcome) {
  if (notes.empty()) return;
  outcome.notes.insert(outcome.notes.end(), notes.begin(), notes.end());
  const char *record = "report.json", *page = "report.html";
  Json written = ReadJson(request.output + "/" + record);
  written["notes"] = outcome.report["notes"] = outcome.notes;
  WriteRecord(request.output, record, written,
              {{page, WithNotes(ReadFile(request.output + "/" + page), notes)}});
}

// Cuts a model file into pieces, tunes these, and compiles the cut that was found.
static TuneOutcome TuneModel(TuneRequest& request) {
  const InterruptsEndBudgets interrupts;  // so that the pieces are removed
  const TuneBudget clock;
  const std::string model = request.model = request.package;
  const auto read = [&] { return ImportModel(model); };
  request.cut_package = request.output + "/" + kCut;
  CheckReplaceable({request.cut_package, 0, request.force}, {request.package, request.job});
  CreateFolders(request.output);
  const TemporaryFolder scratch(request.output, "pieces-");
  CompileOptions compile;
  // Otherwise, the order in which gradients of tied weights are added depends on the cut.
  compile.passes.shared.transmit = request.exact;
  request.package = compile.output = scratch.path() + "/pieces.pkg";
  if (!request.quiet) std::cerr << "cutting " << model << " into pieces\n";
  const FinePieces pieces = CompilePieces(compile, read);
  const double cutting = clock.Passed();
  const double budget = request.budget;
  request.budget = std::max(0.0, budget - 2 * cutting);  // compiling the best cut takes as long
  TuneOutcome outcome = TunePackage(request);
  const Conf& conf = outcome.rows.front().candidate.conf;
  compile.output = request.cut_package, compile.force = request.force;
  compile.passes.split = KeepCuts(pieces, StartsOfRuns(conf));
  if (!request.quiet) std::cerr << "compiling the best cut\n";
  Model whole = read();
  Compile(whole, compile);
  const TuneBudget left(budget - clock.Passed());
  std::vector<std::string> notes;
  try {
    notes = CheckCut(request, outcome, left);
  } catch (const Error& error) {
    AddNotes(request, {error.what()}, outcome);
    throw;
  }
  AddNotes(request, notes, outcome);
  return outcome;
}

// Throws Error unless there is a job of training, or an input of inference and a package. A job
// without training would fail later, for the first key that it lacks.
static void CheckTask(const TuneRequest& request) {
  if (request.job.empty() && request.input.empty())
    throw UsageError("tune", "has neither a job nor --input",
                     "give it a job for training, or --input FILE for inference");
  if (request.infers() && std::filesystem::is_regular_file(request.package))
    throw Error(request.package, "is a model file, and tune takes packages for inference",
                "compile it first, with more modules than ranks: pipewright compile MODEL "
                "--split equal:N -o PACKAGE");
  if (request.infers()) return;
  const Json job = ReadJson(request.job);
  if (!job.is_object() || job.contains("loss") || job.contains("optimizer")) return;
  throw Error(request.job, "has neither \"loss\" nor \"optimizer\", and a job is for training",
              "for inference, give the inputs instead of a job: pipewright tune PACKAGE --input "
              "FILE --ranks N -o FOLDER");
}

// Removes a folder at the end if it is still empty. A file stays: it is not ours.
struct NoEmptyFolder {
  const std::string path;
  ~NoEmptyFolder() { rmdir(path.c_str()); }
};

// Returns true in the first of the processes that mpirun started, which then starts the ranks of
// runs itself, on the same hosts. The others are not needed.
static bool GoesOnAlone(TuneRequest& request) {
  const std::optional<std::vector<std::string>> hosts = HostsUnderMpirun("tune");
  if (!hosts) return false;
  const std::string list = HostList(*hosts);
  if (list.empty() || request.in_process || !request.machines.empty() ||
      !request.start.hosts.empty())
    return true;
  if (std::ssize(*hosts) < request.ranks)
    throw UsageError("--ranks " + std::to_string(request.ranks),
                     "mpirun started " + Counted(hosts->size(), "rank") + " on several hosts",
                     "start as many as ranks, or name the hosts (--hosts)");
  request.start.hosts = list;
  return true;
}

static void TuneAndShow(TuneRequest& request, bool json) {
  if (LaunchedRanks() > 0 && !GoesOnAlone(request)) return;
  CheckTask(request);
  CheckFolder(request.output);
  const NoEmptyFolder after = {request.output};
  CreateFolders(request.output);
  OwnerLock lock(OwnerLock::FileFor(request.output, true));
  if (!lock.Take())
    throw Error(request.output, "another process tunes there: " + lock.owner().text,
                "start again when it is done, or name another folder");
  CheckNoResult(request);
  const bool is_model = std::filesystem::is_regular_file(request.package);
  const TuneOutcome outcome = is_model ? TuneModel(request) : TunePackage(request);
  if (json) return PrintJson(outcome.report);
  std::cout << FormatTable(TuneCells(outcome.rows, outcome.estimated)) << TuneVerdict(outcome)
            << "\n"
            << TuneCounts(outcome.found) << "\n";
  if (!outcome.help.empty()) {
    const TuneHelp& most = outcome.help.front();
    const long gain = std::lround(100 * (1 - most.step / outcome.rows.front().candidate.step));
    if (gain > 0)
      std::cout << "what would help most: " << most.change << ", " << gain << " % less time ("
                << (outcome.estimated ? "estimated" : "predicted") << ")\n";
  }
  for (const std::string& note : outcome.notes) std::cout << "note: " << note << "\n";
  std::cout << "written to " << request.output << ": conf.json, "
            << (request.infers() ? "" : "job.json, ")
            << (outcome.rows.front().candidate.plan.ranks.empty() ? "" : "plan.csv, ")
            << "report.json, report.html" << (is_model ? ", model.pkg" : "")
            << "\nto start it:\n    " << StartLine(request, outcome) << "\n";
}

void AddTuneCommand(CLI::App& app) {
  auto request = std::make_shared<TuneRequest>();
  TuneRequest& r = *request;
  app.add_option("package", r.package,
                 "folder that `pipewright compile` wrote, or a model file (.pt2, .pt) to cut anew")
      ->required();
  auto* job = app.add_option("job", r.job, "job file: data, loss, optimizer, samples per step");
  auto* input = app.add_option("--input", r.input,
                               "for inference instead of a job: safetensors file with a tensor for "
                               "each input, whose rows are the samples")
                    ->excludes(job);
  app.add_option("--ranks", r.ranks, "maximum number of ranks")
      ->required()
      ->check(AtLeast(1, 1 << 16));
  app.add_option("--memory", r.memory,
                 "memory limit for the tensors of each rank: bytes, or a size such as 8GiB");
  auto* exact = app.add_flag("--exact", r.exact,
                             "keep the microbatches and the order in which their gradients are "
                             "added, so that results stay bitwise identical")
                    ->excludes(input);
  app.add_flag("--change-microbatch", r.change_microbatch,
               "change the microbatches even if results depend on their size")
      ->excludes(exact)
      ->excludes(input);
  app.add_option("--candidates", r.candidates,
                 "number of candidates to measure, besides the job as given (default: 5)")
      ->check(AtLeast(1, 1000));
  app.add_option("--rounds", r.rounds,
                 "measurements of each candidate (default: 3), and as many more if several are "
                 "about as fast")
      ->check(AtLeast(1, 1000));
  app.add_option("--repeat", r.repeat, "measurements of each module's times (default: 5)")
      ->check(AtLeast(1));
  app.add_option_function<std::string>(
         "--budget",
         [request](const std::string& text) { request->budget = ParseDuration(text, "--budget"); },
         "time to measure, such as 90s or 2m; then the best result so far is written")
      ->type_name("TIME");
  auto* machines = app.add_option(
      "--machines", r.machines,
      "file that describes other machines (speed, memory and links of devices): estimates "
      "for them, without running candidates");
  machines->excludes(input);
  app.add_flag("--no-measure", r.no_measure, "choose by predictions alone");
  auto* threads = app.add_flag("--in-process", r.in_process,
                               "measure with ranks as threads of one process, without mpirun");
  app.add_option("--hosts", r.start.hosts,
                 "hosts to start the ranks of runs on with mpirun: NAME:RANKS,NAME:RANKS,...")
      ->excludes(threads)
      ->excludes(machines);
  app.add_option("--mpirun", r.start.mpirun, "mpirun command, with any options of its own")
      ->default_str("mpirun")
      ->excludes(threads)
      ->excludes(machines);
  app.add_flag("--json", r.quiet, "print the report as JSON and nothing else");
  app.add_option("-o,--output", r.output, "folder for conf.json, job.json and the reports")
      ->required();
  app.add_flag("--force", r.force,
               "replace the result of an earlier tune, also files that were edited since");
  app.callback([request] { TuneAndShow(*request, request->quiet); });
}

}  // namespace pipewright
