// Uses pipewright as a library: every process of a communicator builds its stages of a package,
// trains them on tensors that it makes itself, evaluates, and reads gradients and weights.
//
//     mpirun -n 3 train_step PACKAGE        a language model of bytes, compiled for 3 ranks
//     train_step PACKAGE                    the same package, called in this process without ranks
#include <ATen/ATen.h>
#include <mpi.h>

#include <cstdio>

#include "runtime/module/local_package.h"
#include "runtime/session.h"
#include "runtime/transport/mpi_transport.h"

using namespace pipewright;

constexpr int kMicrobatches = 4, kRows = 2, kLength = 16;

// Sequences of bytes that count up.
struct Counting : Microbatches {
  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int /*microbatch*/) override {
    return {{at::kLong, {kRows, kLength}, true}};
  }
  // Returns the model's input (0) or the target (-1).
  at::Tensor Input(int input, int64_t minibatch, int microbatch) override {
    at::Tensor first = at::arange(kRows).view({-1, 1}) * 64 + 16 * microbatch + minibatch;
    return (first + at::arange(kLength) + (input < 0 ? 1 : 0)).remainder(256);
  }
};

static void CallLocally(const std::string& path) {
  LocalPackage package(path, /*training=*/true);
  Counting text;
  Conf conf = ReadConf(path + "/conf/mp_conf.json");
  std::vector<c10::IValue> values = package.Begin({text.Input(0, 0, 0)});
  for (size_t stage = 0; stage < conf.stage_to_ranks.size(); ++stage)
    package.RunStage(conf, static_cast<int>(stage), values);
  at::Tensor logits = package.End(values)[0].toTensor();
  at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), text.Input(-1, 0, 0).flatten());
  loss.backward();
  const std::string name = package.manifest().modules[0].held[0].name;
  std::printf("local: loss %.6f, gradient of %s %.6f\n", loss.item<double>(), name.c_str(),
              package.Weight(name).grad().norm().item<double>());
}

static void Train(const std::string& path, Transport& transport) {
  Session session(transport);
  session.job.path = "train_step";
  session.job.microbatches = kMicrobatches;
  session.job.microbatch_size = kRows;
  session.job.losses[0].kind = LossJob::kCrossEntropy;
  session.job.validation.every = 1;  // it evaluates, too
  session.job.optimizer.kind = OptimizerJob::kAdamW;
  SessionOptions options;
  options.package = path;
  options.keep_gradients = true;
  Counting text;
  session.Open(options);
  session.Load({&text});
  session.Start();
  for (int64_t step = 0; step < 5; ++step) {
    session.Step(text, step);
    if (!session.losses.empty())
      std::printf("step %lld: first loss %.6f\n", static_cast<long long>(step), session.losses[0]);
  }
  Evaluation evaluation;
  session.Evaluate(text, 0, evaluation);
  if (evaluation.known()) std::printf("evaluated: loss %.6f\n", evaluation.mean());
  const Manifest& manifest = session.run.manifest;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const std::string& name = manifest.modules[m].held[0].name;
    at::Tensor weight = session.stages->Weight(static_cast<int>(m), name);
    if (!weight.defined()) continue;  // belongs to another rank
    at::Tensor gradient = session.stages->LastGradient(static_cast<int>(m), name);
    std::printf("rank %d: %s %.6f, gradient %.6f\n", transport.rank(), name.c_str(),
                weight.norm().item<double>(),
                gradient.defined() ? gradient.norm().item<double>() : 0);
  }
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_step PACKAGE\n");
    return 2;
  }
  int level = 0, size = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  // Any communicator will do.
  MPI_Comm communicator;
  MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
  MPI_Comm_size(communicator, &size);
  try {
    if (size == 1) {
      CallLocally(argv[1]);
    } else {
      MpiOptions options = MpiOptionsFromEnvironment();
      options.communicator = MPI_Comm_c2f(communicator);
      MpiTransport transport(&argc, &argv, options);
      Train(argv[1], transport);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train_step: %s\n", e.what());
    MPI_Abort(communicator, 1);
  }
  MPI_Comm_free(&communicator);
  MPI_Finalize();
}
