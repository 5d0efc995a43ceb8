// Compiles its own model and trains it: a torch::nn module with cuts in its forward, traced,
// written as a package, and trained on four ranks (threads of this process). Then trains it with
// plain LibTorch for comparison.
//
//   train FOLDER TEXT [STEPS]       the package goes to FOLDER, TEXT is any file to learn from
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "compiler/trace.h"
#include "formats/weights/safetensors.h"
#include "runtime/commands/train.h"
#include "runtime/transport/thread_transport.h"

namespace F = torch::nn::functional;

constexpr int64_t kWidth = 32, kLength = 16;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    in = register_module("in", torch::nn::Linear(kWidth, 4 * kWidth));
    out = register_module("out", torch::nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    // Averages all earlier positions, then applies a small network.
    torch::Tensor mean = x.cumsum(1) / torch::arange(1, x.size(1) + 1, x.options()).unsqueeze(1);
    return x + out(F::gelu(in(norm(x + mean))));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear in{nullptr}, out{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embed = register_module("embed", torch::nn::Embedding(256, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    head = register_module("head", torch::nn::Linear(kWidth, 256));
  }
  torch::Tensor forward(torch::Tensor tokens) {
    torch::Tensor x = embed(tokens);
    for (const auto& block : *blocks) {
      pipewright::pipe_split();
      x = block->as<Block>()->forward(x);
    }
    return head(x);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

static std::string Job(const std::string& text, int steps) {
  const pipewright::Json job = {
      {"data", {{"tokens", text}, {"sequence_length", kLength}, {"shuffle", false}}},
      {"loss", "cross_entropy"},
      {"optimizer", {{"type", "sgd"}, {"lr", 0.5}}},
      {"schedule", "1f1b"},
      {"microbatches", 4},
      {"microbatch_size", 4},
      {"steps", steps},
      {"log_every", steps}};
  return pipewright::FormatJson(job);
}

// Trains the same steps with LibTorch alone.
static void TrainAlone(Net& net, const std::string& text, int steps) {
  const std::string bytes = pipewright::ReadFile(text);
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  int64_t sample = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    double loss = 0;
    for (int m = 0; m < 4; ++m) {
      torch::Tensor rows = torch::empty({4, kLength + 1}, torch::kLong);
      for (int64_t r = 0; r < 4; ++r, ++sample)
        for (int64_t i = 0; i <= kLength; ++i)
          rows[r][i] = static_cast<uint8_t>(bytes[static_cast<size_t>(sample * kLength + i)]);
      torch::Tensor logits = net(rows.slice(1, 0, kLength));
      torch::Tensor each =
          F::cross_entropy(logits.flatten(0, 1), rows.slice(1, 1, kLength + 1).flatten());
      (each / 4).backward();
      loss += each.item<double>() / 4;
    }
    optimizer.step();
    if (step == 0 || step + 1 == steps) std::cout << "alone: loss " << loss << "\n";
  }
}

static int Main(const std::string& folder, const std::string& text, int steps) {
  torch::manual_seed(1);
  torch::set_num_threads(1);
  Net net;
  pipewright::Model model =
      pipewright::Trace(net, {torch::zeros({2, kLength}, torch::kLong)}, {{"tokens"}});
  pipewright::CompileOptions options;
  options.output = folder + "/net.pkg";
  pipewright::Compiled compiled = pipewright::Compile(model, options);
  std::cout << options.output << ": " << compiled.manifest.modules.size() << " modules\n";

  pipewright::WriteFile(folder + "/job.json", Job(text, steps));
  pipewright::RunOptions run;
  run.package = options.output;
  run.job = folder + "/job.json";
  run.save = folder + "/trained.safetensors";
  pipewright::RunThreads(static_cast<int>(compiled.manifest.modules.size()),
                         [&](pipewright::Transport& rank) { pipewright::Train(run, rank); });

  TrainAlone(net, text, steps);
  pipewright::SafetensorsFile trained(run.save);
  double largest = 0;
  for (const auto& parameter : net->named_parameters()) {
    const pipewright::TensorInfo& info = trained.At(parameter.key());
    torch::Tensor ours = torch::empty(info.shape);
    trained.Read(info, 0, static_cast<char*>(ours.data_ptr()), info.end - info.begin);
    largest = std::max(largest, (ours - parameter.value()).abs().max().item<double>());
  }
  std::cout << "largest difference of a weight: " << largest << "\n";
  return largest < 1e-4 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: train FOLDER TEXT [STEPS]\n";
    return 2;
  }
  try {
    return Main(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 20);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
