// `pipewright-run`: what mpirun starts, one process a rank.
#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>

#include "compiler/commands.h"
#include "plan/error.h"
#include "runtime/exec/thread_transport.h"
#include "runtime/train.h"
#ifdef PIPEWRIGHT_MPI
#include "runtime/exec/mpi_transport.h"
#endif

namespace pipewright {

namespace {

int in_process = 0;  // ranks as threads; 0: ranks are MPI processes
bool synchronous_sends = false;
StallOptions stall = StallOptionsFromEnvironment();
RunOptions options;

// Runs `work` on every rank.
void RunRanks(void (*work)(const RunOptions&, Transport&)) {
  if (in_process > 0) {
    ThreadOptions threads;
    threads.synchronous_sends |= synchronous_sends;
    threads.stall = stall;
    RunThreads(
        in_process, [&](Transport& transport) { work(options, transport); }, threads);
    return;
  }
#ifdef PIPEWRIGHT_MPI
  WatchOptions watch = WatchOptionsFromEnvironment("pipewright-run");
  watch.stall = stall;
  MpiOptions mpi = MpiOptionsFromEnvironment();
  mpi.synchronous_sends |= synchronous_sends;
  auto body = [&](Transport& transport) {
    work(options, transport);
    return static_cast<int>(kSuccess);
  };
  int code = RunMpi(nullptr, nullptr, watch, body, mpi);
  if (code != kSuccess) throw CLI::RuntimeError(code);
#else
  throw Error("pipewright-run", "was built without MPI", "run ranks as threads: --in-process N");
#endif
}

void AddPackage(CLI::App& app) {
  app.add_option("package", options.package, "folder that `pipewright compile` wrote")->required();
  app.add_option("--conf", options.conf,
                 "which modules run on which ranks (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--weights", options.weights,
                 "safetensors file that replaces the package's weights");
}

void AddTrain(CLI::App& app) {
  AddPackage(app);
  app.add_option("job", options.job, "job file: data, loss, optimizer, schedule")->required();
  app.add_option("--steps", options.steps, "instead of the job's");
  app.add_option("--schedule", options.schedule, "instead of the job's");
  app.add_option("--save", options.save, "where the trained weights go, instead of the job's");
  app.add_option("--metrics", options.metrics,
                 "where a JSON line a step goes, instead of the job's");
  auto* resume = app.add_flag("--resume", options.resume,
                              "go on from the latest checkpoint of the job, if there is one");
  app.add_option("--resume-from", options.resume_from,
                 "go on from this checkpoint, or the latest in this folder")
      ->excludes(resume);
  app.add_option("--save-gradients", options.save_gradients, "writes the last step's gradients");
  app.callback([] { RunRanks(Train); });
}

void AddEval(CLI::App& app) {
  AddPackage(app);
  app.add_option("job", options.job, "job file: data and loss")->required();
  app.add_option("--steps", options.steps, "minibatches (default: all of the data once)");
  app.add_option("--metrics", options.metrics, "where the result goes as JSON");
  app.callback([] { RunRanks(Evaluate); });
}

void AddInfer(CLI::App& app) {
  AddPackage(app);
  app.add_option("--input", options.input, "safetensors file with a tensor for each input")
      ->required();
  app.add_option("-o,--output", options.output, "safetensors file to write")->required();
  app.add_option("--microbatches", options.microbatches, "parts that the rows are cut into")
      ->check(CLI::Range(1, 1 << 20));
  app.callback([] { RunRanks(Infer); });
}

const Command kCommands[] = {
    {"train", "train a package on the data of a job", AddTrain},
    {"eval", "the loss of a package on the data of a job, without training", AddEval},
    {"infer", "a package's outputs for tensors in a file", AddInfer},
};

void AddGlobal(CLI::App& app) {
  app.add_option("--in-process", in_process, "run N ranks as threads of this process, without MPI")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_flag("--synchronous-sends", synchronous_sends,
               "complete a send only when it is received: shows orders that only buffers hide");
  app.add_option("--stall-limit", stall.limit,
                 "end the run when every rank has waited for another, or one was stopped, for so "
                 "many seconds; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->type_name("S");
  app.add_option("--stall-report", stall.report,
                 "say who waits for what after so many seconds without progress; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->type_name("S");
}

}  // namespace

}  // namespace pipewright

int main(int argc, char** argv) {
  return pipewright::RunProgram(
      "pipewright-run", "Runs packages: mpirun -n N pipewright-run train PACKAGE JOB",
      pipewright::kCommands, std::size(pipewright::kCommands), argc, argv, pipewright::AddGlobal);
}
