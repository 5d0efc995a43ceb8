// Measures the cost of a rank's step beyond its kernels: chains of multiplications of 4 numbers by
// a weight (kernels of about ten nanoseconds), alternately as a package of one stage on one rank
// and with eager LibTorch. Writes a raw file for bench/report.py.
//
//   host_overhead RAW.json [REPETITIONS]
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "base/files/read_file.h"
#include "base/json.h"
#include "compiler/trace.h"
#include "runtime/cpu/memory_settings.h"
#include "runtime/session.h"
#include "runtime/transport/thread_transport.h"

using namespace pipewright;

struct ChainImpl : torch::nn::Module {
  ChainImpl(int operations, int modules) : per_module(operations / modules) {
    for (int i = 0; i < operations; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({4})));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (i > 0 && i % per_module == 0) pipe_split();
      x = x * weights[i];
    }
    return x;
  }
  size_t per_module;
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(Chain);

// Returns the seconds of a step with `count` microbatches.
using Step = std::function<double(int count)>;

static double TimeSteps(int count, const std::function<void()>& step) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
}

// One rank that trains a package of one stage.
class Ours : public Microbatches {
 public:
  Ours(const std::string& folder, int operations, int modules, int microbatches, Transport& rank)
      : session_(rank) {
    const std::string path =
        folder + "/" + std::to_string(operations) + "-" + std::to_string(modules) + ".pkg";
    if (!std::filesystem::exists(path)) {
      CompileOptions options;
      options.output = path;
      Chain chain(operations, modules);
      Model model = Trace(chain, {torch::ones({1, 4})}, {{"x"}});
      Compile(model, options);
      WriteFile(path + "/conf/one_stage.json", WriteConf(GroupModules(modules, 1)));
    }
    Job& job = session_.job;
    job.path = "host_overhead";
    job.microbatches = microbatches;
    job.microbatch_size = 1;
    job.losses[0].kind = LossJob::kMse;
    job.optimizer.kind = OptimizerJob::kSgd;
    SessionOptions options;
    options.package = path;
    options.conf = path + "/conf/one_stage.json";
    session_.Open(options);
    session_.Load({this});
    session_.Start();
  }
  std::vector<TensorSpec> Specs(int64_t /*minibatch*/, int /*microbatch*/) override {
    return {{at::kFloat, {1, 4}, true}};
  }
  at::Tensor Input(int i, int64_t /*minibatch*/, int /*microbatch*/) override {
    return i < 0 ? target_ : input_;
  }
  double Run(int count) {
    return TimeSteps(count, [this] { session_.Step(*this, step_++); });
  }

 private:
  at::Tensor input_ = torch::ones({1, 4}), target_ = torch::ones({1, 4});
  int64_t step_ = 0;
  Session session_;
};

static double Eager(Chain& chain, torch::optim::SGD& optimizer, int microbatches, int count) {
  const torch::Tensor input = torch::ones({1, 4}), target = torch::ones({1, 4});
  return TimeSteps(count, [&] {
    optimizer.zero_grad();
    for (int m = 0; m < microbatches; ++m)
      (torch::mse_loss(chain(input), target) / microbatches).backward();
    optimizer.step();
  });
}

using Samples = std::map<std::string, std::vector<double>>;

// Returns the median and quartiles.
static Json Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double share) { return values[std::lround(share * (values.size() - 1))]; };
  return {at(0.5), at(0.25), at(0.75)};
}

static void Measure(Transport& rank, const std::string& raw_path, int repetitions) {
  const auto folder = std::filesystem::temp_directory_path() / "pipewright-host-overhead";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  struct Case {
    std::string name;
    int operations, modules, microbatches, steps;
  };
  const Case cases[] = {{"short", 16, 1, 8, 60},
                        {"long", 256, 1, 8, 6},
                        {"modules", 256, 64, 8, 6},
                        {"one", 1, 1, 1, 400},
                        {"many", 1, 1, 64, 40}};
  std::map<std::string, std::unique_ptr<Ours>> ours;
  std::map<std::string, Chain> eager;
  std::map<std::string, torch::optim::SGD> optimizers;
  for (const Case& c : cases) {
    ours[c.name] =
        std::make_unique<Ours>(folder.string(), c.operations, c.modules, c.microbatches, rank);
    eager.emplace(c.name, Chain(c.operations, 1));
    optimizers.emplace(c.name, torch::optim::SGD(eager.at(c.name)->parameters(), 1e-3));
  }
  Samples seconds;
  for (int round = -1; round < repetitions; ++round)
    for (const Case& c : cases) {
      const double mine = ours.at(c.name)->Run(c.steps);
      const double theirs = Eager(eager.at(c.name), optimizers.at(c.name), c.microbatches, c.steps);
      if (round < 0) continue;  // warm-up
      seconds["ours " + c.name].push_back(mine / c.microbatches);
      seconds["eager " + c.name].push_back(theirs / c.microbatches);
    }
  auto over = [&](auto figure) {
    std::vector<double> values;
    for (int i = 0; i < repetitions; ++i)
      values.push_back(figure([&](const std::string& name) { return seconds.at(name)[i] * 1e6; }));
    return Spread(values);
  };
  Json ratios, table = {"| what | median (quartiles) |", "|---|---|"};
  auto add = [&](const std::string& what, const std::string& unit, const Json& spread) {
    ratios[what] = {{unit, spread}};
    char line[200];
    std::snprintf(line, sizeof line, "| %s | %.2f (%.2f–%.2f) |", what.c_str(),
                  spread[0].get<double>(), spread[1].get<double>(), spread[2].get<double>());
    table.push_back(line);
    std::puts(line);
  };
  add("an operation, forward and backward, ours ÷ eager C++", "ours/eager", over([](auto t) {
        return (t("ours long") - t("ours short")) / (t("eager long") - t("eager short"));
      }));
  add("an operation, forward and backward, us", "us",
      over([](auto t) { return (t("ours long") - t("ours short")) / 240; }));
  add("an action of a stage of one operation, us, 64 microbatches", "us",
      over([](auto t) { return t("ours many") / 2; }));
  add("of that beyond what eager C++ takes, us", "us",
      over([](auto t) { return (t("ours many") - t("eager many")) / 2; }));
  add("the same with 1 microbatch and its step, us", "us",
      over([](auto t) { return (t("ours one") - t("eager one")) / 2; }));
  add("a boundary of two modules in a stage, forward and backward, us", "us",
      over([](auto t) { return (t("ours modules") - t("ours long")) / 63; }));
  WriteFile(
      raw_path,
      FormatJson(Json{
          {"title", "Host overhead"}, {"samples", seconds}, {"ratios", ratios}, {"table", table}}));
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: host_overhead RAW.json [REPETITIONS]\n");
    return 2;
  }
  torch::set_num_threads(1);
  KeepFreedMemory();
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  try {
    RunThreads(1, [&](Transport& rank) { Measure(rank, argv[1], repetitions); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "host_overhead: %s\n", e.what());
    return 1;
  }
}
