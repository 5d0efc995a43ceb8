#include "compiler/measured/profile_split.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "plan/partition/io/profile_problem.h"
#include "plan/partition/solve.h"
#include "runtime/measure/measure_package.h"

namespace pipewright {

namespace {

// The pieces of the model and their costs.
struct Pieces {
  SplitSpec split;
  std::vector<int> cut_before;  // by module of the package: the number of the cut
  Profile profile;              // empty if there are too few pieces
};

Pieces MeasurePieces(const ProfileSplit& wanted, Model model, int depth) {
  const SplitSpec& asked = wanted.compile.passes.split;
  Pieces pieces;
  pieces.split.kind = SplitSpec::kFine;
  pieces.split.text = asked.text;
  pieces.split.depth = depth;
  CompileOptions compile = wanted.compile;
  compile.passes.split = pieces.split;
  compile.passes.dump.clear();
  compile.ranks = 0;
  Compiled compiled = Compile(model, compile);
  pieces.cut_before = compiled.assigned;
  if (pieces.cut_before.size() < static_cast<size_t>(asked.count)) return pieces;
  ProfileOptions options;
  options.package = compile.output;
  options.input = wanted.input;
  options.microbatch = wanted.microbatch;
  options.repeat = wanted.repeat;
  MeasureOnRanks(options, 1, [] {},
                 [&](const Profile& profile, const std::string&) { pieces.profile = profile; });
  return pieces;
}

// Checks that the measurement has inputs, before the weights are copied.
void CheckInputs(const ProfileSplit& wanted, const Model& model) {
  std::unique_ptr<SafetensorsFile> file;
  if (!wanted.input.empty()) file = std::make_unique<SafetensorsFile>(wanted.input);
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i) {
    const torch::jit::Value* input = model.graph->inputs()[i];
    if (!input->hasUses() || input->type()->kind() != c10::TypeKind::TensorType) continue;
    if (file)
      file->At(input->debugName());
    else if (!model.MetaOf(input))
      throw Error("--split " + wanted.compile.passes.split.text,
                  model.file + " does not record the sizes of input \"" + input->debugName() +
                      "\", which the measurement needs",
                  "give a safetensors file with a tensor for each input: --input FILE");
  }
}

// Replaces the advice to edit the measured folder, which is deleted by now, in the error.
std::string WithoutFolder(std::string failure, const std::string& input) {
  const size_t cure = failure.find("\n  where it is the values that it refuses, write ");
  if (cure == std::string::npos) return failure;
  failure.resize(cure);
  return failure + "\n  give tensors that it takes" +
         (input.empty() ? ": --input FILE" : ", with --input, in place of " + input);
}

// Deletes the folder when it goes out of scope.
struct Temporary {
  std::string path;
  ~Temporary() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

SplitSpec FindProfileSplit(const ProfileSplit& wanted, std::string& note) {
  Temporary temporary{wanted.compile.output};
  const SplitSpec& asked = wanted.compile.passes.split;
  Pieces pieces;
  std::string failure;  // error of the finest pieces
  const int kDepths[] = {0, 3, 2, 1};
  for (int depth : kDepths) {
    Model model = wanted.read();
    if (depth == kDepths[0]) CheckInputs(wanted, model);
    try {
      pieces = MeasurePieces(wanted, std::move(model), depth);
      break;
    } catch (const Error& e) {
      if (failure.empty()) failure = e.what();
    }
  }
  if (pieces.profile.nodes.empty() && !failure.empty())
    throw Error("--split " + asked.text + ": " + WithoutFolder(failure, wanted.input));
  if (pieces.profile.nodes.empty())
    throw Error("--split " + asked.text,
                "cuts between submodules make only " +
                    Counted(static_cast<int64_t>(pieces.cut_before.size()), "module"),
                "ask for as many at most, or cut with --split equal:" +
                    std::to_string(asked.count));
  ProfileCosts costs;
  costs.bandwidth = wanted.bandwidth;
  PartitionProblem problem = ToProblem(pieces.profile, costs).problem;
  // Modules are runs of the order of execution, so each piece depends on the one before it.
  int count = static_cast<int>(problem.nodes.size());
  for (int i = 0; i + 1 < count; ++i) problem.values.push_back({i, {i + 1}, 0, 0, 0});
  problem.stages = asked.count;
  DeviceClass device;
  device.count = asked.count;
  problem.devices = {device};
  PartitionResult result = SolvePartition(problem, {});
  if (!result.feasible) throw Error("--split " + asked.text, "no such partition exists");
  SplitSpec split = pieces.split;
  split.keep_all = false;
  for (size_t s = 1; s < result.stages.size(); ++s)
    split.keep.push_back(pieces.cut_before[result.stages[s].nodes[0]]);
  char text[160];
  std::snprintf(text, sizeof text,
                "%d pieces measured; the slowest of %d modules takes %.3f ms, at least %.3f ms is "
                "needed",
                count, asked.count, result.objective * 1000, result.lower_bound * 1000);
  note = text;
  if (!failure.empty()) note += "; finer pieces failed: " + failure;
  return split;
}

}  // namespace pipewright
