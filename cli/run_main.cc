// `pipewright-run`: the program that mpirun starts, one process per rank.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/process/messages.h"
#include "base/process/terminal.h"
#include "cli/numbers.h"
#include "cli/program.h"
#include "cli/supervise_command.h"
#include "report/page.h"
#include "runtime/commands/bench.h"
#include "runtime/commands/generate.h"
#include "runtime/commands/infer.h"
#include "runtime/commands/train.h"
#include "runtime/cpu/process_memory.h"
#include "runtime/exec/phase.h"
#include "runtime/transport/thread_transport.h"
#include "runtime/watch/watch.h"
#ifdef PIPEWRIGHT_MPI
#include "runtime/transport/mpi_transport.h"
#endif

namespace pipewright {

namespace {

int in_process = 0;  // number of ranks as threads; 0: ranks are MPI processes
StallOptions stall = StallOptionsFromEnvironment();
RunOptions options;
std::string matmul = "auto";  // for infer and generate
BenchOptions bench;
GenerateOptions generate;
bool quiet = false, verbose = false;  // for train
std::vector<std::string> arguments;   // the whole command line

// Set by signals if ranks are threads, and polled a few times a second (ThreadOptions::tick).
volatile std::sig_atomic_t stop_signal = 0, end_signal = 0;

bool trains = false;

// Handles signals as the watch of a rank under MPI does.
void HandleSignals(std::deque<StatusFile>& ranks) {
  if (stop_signal) ranks[0].RequestStop();
  const int signal = end_signal;
  if (!signal) return;
  end_signal = 0;
  for (const StatusFile& rank : ranks) {
    RankStatus now = rank.Read();
    std::fprintf(stderr, "%spipewright-run: %s is ended by %s: %s\n", BeforeMessage(),
                 DescribeRank(now).c_str(), signal == SIGINT ? "SIGINT" : "SIGTERM",
                 DescribePlace(now).c_str());
  }
  if (trains && StopsFirst(ranks[0].Read())) {
    std::fputs(kEndsAfterStep, stderr);
    return ranks[0].RequestStop();
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void CatchSignals() {
  // A program that starts this one with blocked signals does not mean that it can never be ended.
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaddset(&handled, signal);
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
  std::signal(SIGUSR1, [](int) { stop_signal = 1; });
  // Training continues when the reader of its output is gone: its weights matter more.
  if (trains) std::signal(SIGPIPE, SIG_IGN);
  for (const int signal : {SIGTERM, SIGINT})
    if (std::signal(signal, [](int number) { end_signal = number; }) == SIG_IGN)
      std::signal(signal, SIG_IGN);  // it runs in the background of a shell
}

// Runs `work`, then writes the page that the job or --report asks for, on rank 0. `add_files` adds
// the files that the run has written.
void WithReport(const RunOptions& run, const std::string& schedule, Transport& transport,
                const std::function<void()>& work,
                const std::function<void(const Job&, PageInput&)>& add_files) {
  Job job;
  Phase(transport, "reading", [&] {
    job = ReadJobOf(run);
    if (!schedule.empty()) SetSchedule(job, schedule);
    if (!job.report.empty() && transport.rank() == 0)
      CheckPageOutput(job.report,
                      {run.job, run.conf, run.weights, run.trace, bench.trace, job.plan, job.costs},
                      false);
  });
  work();
  // Collective, so all ranks call it, even if this one writes no page.
  Phase(transport, "writing the report", [&] {
    if (job.report.empty() || transport.rank() != 0) return;
    PageInput input;
    input.view = ViewPackage(run.package, run.conf, "");
    add_files(job, input);
    input.job = job;
    std::fputs(WritePage(job.report, input).c_str(), bench.json ? stderr : stdout);
  });
}

void TrainWithReport(const RunOptions& run, Transport& transport) {
  int64_t steps = 0;
  WithReport(
      run, "", transport, [&] { steps = Train(run, transport); },
      [&](const Job& job, PageInput& input) {
        if (steps > 0) input.trace = run.trace;
        // A run that had nothing left to train may have written no metrics; a stream cannot be
        // read.
        std::error_code none;
        if (std::filesystem::is_regular_file(job.metrics, none)) input.metrics = {job.metrics};
      });
}

// Runs `work` on every rank.
void RunRanks(void (*work)(const RunOptions&, Transport&)) {
  if (IsSupervised() || in_process > 0) OfferProgressLine(work == TrainWithReport && !quiet);
  if (IsSupervised()) OfferColors();
  if (IsSupervised()) RunSupervised(arguments, options, work == TrainWithReport);
  if (in_process > 0) {
    if (const char* size = std::getenv("OMPI_COMM_WORLD_SIZE"); size && std::string(size) != "1")
      throw UsageError("--in-process: mpirun started " + std::string(size) +
                       " processes, and each would run every rank\n  start pipewright-run without "
                       "mpirun, or leave out --in-process");
    trains = work == TrainWithReport;
    CatchSignals();
    // mpirun binds each rank to a core. Without this, each thread rank would use all cores.
    if (in_process > 1 && options.threads == 0 && !std::getenv("OMP_NUM_THREADS"))
      options.threads = 1;
    ThreadOptions threads;
    threads.stall = stall;
    threads.tick = HandleSignals;
    try {
      RunThreads(in_process, [&](Transport& transport) { work(options, transport); }, threads);
    } catch (const AgreedError& e) {
      std::fflush(nullptr);
      const std::string name = Paint("pipewright-run", Severity::kError, STDERR_FILENO);
      std::fputs(e.Shown(name).c_str(), stderr);
      throw CLI::RuntimeError(kFailure);
    }
    return;
  }
#ifdef PIPEWRIGHT_MPI
  WatchOptions watch = WatchOptionsFromEnvironment("pipewright-run");
  watch.stall = stall;
  watch.stops = work == TrainWithReport;
  auto body = [&](Transport& transport) {
    work(options, transport);
    return static_cast<int>(kSuccess);
  };
  int code = RunMpi(nullptr, nullptr, watch, body);
  if (code != kSuccess) throw CLI::RuntimeError(code);
#else
  throw Error("pipewright-run", "was built without MPI", "run ranks as threads: --in-process N");
#endif
}

void AddPackage(CLI::App& app) {
  app.add_option("package", options.package, "folder that `pipewright compile` wrote")->required();
  app.add_option("--conf", options.conf,
                 "conf that assigns modules to ranks (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--weights", options.weights,
                 "weights to use instead of the package's (safetensors, shards, torch.save)");
  app.add_flag("--verify-files", options.verify_files,
               "compare the whole content of files that several ranks read, not only sizes and "
               "samples");
}

void AddOffload(CLI::App& app) {
  app.add_option("--device-map", options.device_map,
                 "device map from `pipewright place`: which weights stay in memory (0, 1, ..., "
                 "cpu), and which are read from disk when they are needed")
      ->excludes(app.get_option("--conf"));
  app.add_option("--offload-dir", options.offload_dir,
                 "not used: weights on disk are read from the package's own files");
  app.add_option("--offload-report", options.offload_report,
                 "JSON file for a report of the weights read from disk and kept in memory");
}

void AddThreads(CLI::App& app) {
  app.add_option("--threads", options.threads,
                 "threads per rank (default: OMP_NUM_THREADS, or the available cores; 1 if several "
                 "ranks are threads); outputs are bitwise identical only for the same number")
      ->check(InRange(1, 1024));
  app.add_option("--matmul", matmul,
                 "library for float32 matrix products: libtorch (as in training), onednn, or auto "
                 "(onednn on AMD processors, where it is faster); results differ by rounding")
      ->check(CLI::IsMember({"auto", "libtorch", "onednn"}))
      ->capture_default_str();
}

MatMul MatMulAskedFor() {
  for (const auto& [name, choice] : MatMulNames())
    if (name == matmul) return choice;
  return MatMul::kLibTorch;
}

void AddSet(CLI::App& app) {
  app.add_option("--set", options.set,
                 "override a value of the job, such as optimizer.lr=0.1 or data.shuffle=false "
                 "(repeatable)")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void AddReport(CLI::App& app) {
  app.add_option("--report", options.report,
                 "HTML page about the run, written at its end (overrides the job)");
}

void AddTrain(CLI::App& app) {
  AddPackage(app);
  app.add_option("job", options.job, "job file: data, loss, optimizer, schedule")->required();
  AddSet(app);
  app.add_option("--steps", options.steps, "number of steps (overrides the job)")
      ->check(AtLeast(1));
  app.add_option("--schedule", options.schedule, "schedule (overrides the job)");
  app.add_option("--save", options.save, "where to save the trained weights (overrides the job)");
  app.add_option("--metrics", options.metrics,
                 "where to write metrics, one JSON line per step (overrides the job)");
  app.add_option("--trace", options.trace,
                 "write a Chrome trace of the last step (chrome://tracing, Perfetto)");
  AddReport(app);
  app.add_option("--checkpoint", options.checkpoint,
                 "folder for checkpoints (overrides the job)");
  auto* resume = app.add_flag("--resume", options.resume,
                              "resume from the latest checkpoint of the job, if there is one");
  app.add_option("--resume-from", options.resume_from,
                 "resume from this checkpoint, or from the latest one in this folder")
      ->excludes(resume);
  app.add_option("--save-gradients", options.save_gradients, "write the last step's gradients");
  AddOffload(app);
  auto* no_lines = app.add_flag("--quiet", quiet, "print only warnings and errors");
  app.add_flag("--verbose", verbose, "print a line for each step")->excludes(no_lines);
  app.callback([] {
    if (verbose) options.set.insert(options.set.begin(), "log_every=1");
    // Its file descriptor stays open, because metrics may go to /dev/stdout.
    if (quiet && !(stdout = std::fopen("/dev/null", "w")))
      throw Error("/dev/null", std::strerror(errno));
    RunRanks(TrainWithReport);
  });
}

void AddEval(CLI::App& app) {
  AddPackage(app);
  app.add_option("job", options.job, "job file: data and loss")->required();
  AddSet(app);
  app.add_option("--steps", options.steps,
                 "number of minibatches (default: one pass over the data)")
      ->check(AtLeast(1));
  app.add_option("--metrics", options.metrics, "where to write the result as JSON");
  AddOffload(app);
  app.callback([] { RunRanks(Evaluate); });
}

void AddInfer(CLI::App& app) {
  AddPackage(app);
  app.add_option("--input", options.input, "safetensors file with a tensor for each input")
      ->required();
  app.add_option("-o,--output", options.output, "safetensors file to write")->required();
  app.add_option(
         "--outputs", options.outputs,
         "compute only these outputs: NAME,...; inputs that they do not need may be missing")
      ->delimiter(',');
  app.add_option("--microbatches", options.microbatches,
                 "number of microbatches to split the rows into")
      ->check(AtLeast(1, 1 << 20));
  AddThreads(app);
  AddOffload(app);
  app.add_flag("--on-request", options.on_request,
               "before that, run a measurement for each line on standard input: \"steps N\"");
  app.callback([] {
    options.matmul = MatMulAskedFor();
    RunRanks(Infer);
  });
}

void AddGenerate(CLI::App& app) {
  AddPackage(app);
  auto* prompt = app.add_option("--prompt", generate.prompts,
                                "prompt to continue; each byte is a token (repeatable)")
                     ->allow_extra_args(false);
  app.add_option("--prompt-file", generate.prompt_file, "file with a prompt to continue");
  app.add_option("--tokens", generate.tokens, "prompt as token numbers, such as 1,2,3 (repeatable)")
      ->allow_extra_args(false)
      ->excludes(prompt);
  app.add_option("--max-new-tokens", generate.new_tokens, "number of tokens to add to each text")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("--temperature", generate.sample.temperature,
                 "value that divides the logits; 0: always pick the likeliest token")
      ->check(NumberAtLeast(0))
      ->capture_default_str();
  app.add_option("--top-k", generate.sample.top_k, "choose among the k likeliest tokens; 0: all")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("--top-p", generate.sample.top_p,
                 "choose among the likeliest tokens that together have this probability")
      ->check(NumberInRange(0, 1))
      ->capture_default_str();
  app.add_option("--repetition-penalty", generate.sample.repetition_penalty,
                 "above 1: make tokens that already occur in the text less likely")
      ->check(NumberMoreThan(0))
      ->capture_default_str();
  app.add_option("--seed", generate.seed, "seed for choosing tokens")->capture_default_str();
  app.add_option("--stop", generate.stop, "number of the token that ends a text")
      ->check(AtLeast(0));
  app.add_option("--context", generate.context,
                 "maximum number of tokens that the model sees (default: as exported)")
      ->check(AtLeast(1));
  app.add_option("--logits", generate.logits, "index of the model output that holds the logits")
      ->check(AtLeast(0))
      ->capture_default_str();
  app.add_option("-o,--output", options.output, "file to write (default: standard output)");
  app.add_flag("--json", generate.json, "write tokens and texts as JSON");
  AddThreads(app);
  AddOffload(app);
  app.callback([] {
    options.matmul = MatMulAskedFor();
    RunRanks(
        [](const RunOptions& run, Transport& transport) { Generate(run, generate, transport); });
  });
}

void AddBench(CLI::App& app) {
  AddPackage(app);
  app.add_option("job", options.job, "job file: data, loss, optimizer, schedule")->required();
  AddSet(app);
  app.add_option("--steps", bench.steps, "number of steps to measure (default: 10)")
      ->check(AtLeast(1));
  app.add_option("--warmup", bench.warmup, "number of steps to run before measuring (default: 3)")
      ->check(AtLeast(0));
  app.add_option("--schedule", bench.schedule, "schedule (overrides the job)");
  app.add_option("--trace", bench.trace,
                 "write a Chrome trace, for `pipewright simulate --compare`");
  app.add_option("--costs", bench.costs,
                 "write the costs of the stages, for `pipewright simulate`");
  AddReport(app);
  auto* json = app.add_flag("--json", bench.json, "print the figures as JSON");
  app.add_flag("--on-request", bench.on_request,
               "run a measurement for each line on standard input: \"steps N\", \"stages SECONDS\" "
               "or \"halves SECONDS\"")
      ->excludes(json);
  app.callback([] {
    RunRanks([](const RunOptions& run, Transport& transport) {
      BenchOptions own = bench;
      own.package = run.package, own.job = run.job, own.conf = run.conf;
      own.verify_files = run.verify_files, own.set = run.set;
      if (own.on_request) return Bench(own, transport);
      WithReport(
          run, own.schedule, transport, [&] { Bench(own, transport); },
          [&](const Job&, PageInput& input) { input.trace = own.trace; });
    });
  });
}

const std::map<std::string, AddCommand> kAdders = {{"train", AddTrain},
                                                   {"bench", AddBench},
                                                   {"eval", AddEval},
                                                   {"infer", AddInfer},
                                                   {"generate", AddGenerate}};

void AddGlobal(CLI::App& app) {
  app.add_option("--in-process", in_process, "run N ranks as threads of this process, without MPI")
      ->check(InRange(1, 1024))
      ->type_name("N");
  AddSupervisor(app);
  app.add_flag("--synchronous-sends")
      ->description("accepted for older scripts, without effect: sends are always synchronous");
  app.add_option("--stall-limit", stall.limit,
                 "end the run after S seconds in which every rank waits for another, or a rank is "
                 "stopped; 0: never")
      ->check(NumberAtLeast(0))
      ->capture_default_str()
      ->type_name("S");
  app.add_option("--stall-report", stall.report,
                 "report which rank waits for what after S seconds without progress; 0: never")
      ->check(NumberAtLeast(0))
      ->capture_default_str()
      ->type_name("S");
}

}  // namespace

}  // namespace pipewright

int main(int argc, char** argv) {
  pipewright::KeepFreedMemory();
  pipewright::DropStartUpCode();
  pipewright::arguments.assign(argv, argv + argc);
  pipewright::SetMessagePrefix("pipewright-run: ");
  return pipewright::RunProgram(
      "pipewright-run", "Trains and runs packages: mpirun -n N pipewright-run train PACKAGE JOB",
      pipewright::kAdders, argc, argv, pipewright::AddGlobal);
}
