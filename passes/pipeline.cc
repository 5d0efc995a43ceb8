#include "passes/pipeline.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "passes/dead_code.h"
#include "passes/dense_gradients.h"
#include "passes/graph/error_context.h"
#include "passes/name_writes.h"
#include "passes/random_operations.h"
#include "passes/restore_devices.h"
#include "passes/restore_training.h"
#include "passes/split/cuts.h"
#include "passes/split/identities.h"
#include "passes/split/isolate_writes.h"
#include "passes/split/layouts.h"
#include "passes/split/localize.h"
#include "passes/split/pass_through.h"
#include "passes/split/show_writes.h"

namespace pipewright {

static constexpr char kFault[] =
    "cut elsewhere (--split), or not at all (--split equal:1), and see; this is a fault of "
    "pipewright: please report it with the model";
static constexpr char kFaultAtAnOperation[] =
    "write that line with other operations; this is a fault of pipewright: please report it with "
    "the model";

// Rejects operators on which LibTorch would later fail with an internal assertion.
static void CheckOperators(const Model& model) {
  for (torch::jit::Node* node : AllNodes(*model.graph)) {
    if (node->kind().is_prim() || node->maybeSchema()) continue;
    std::vector<std::string> given;
    for (const torch::jit::Value* input : node->inputs())
      given.push_back(input->type()->annotation_str());
    throw Error(model.file + ": " + node->kind().toQualString() + ", " + Origin(node),
                "is called with (" + Join(given, ", ") + "), which none of its overloads takes",
                "write that line with other operations, or with arguments of the types that it "
                "takes in TorchScript");
  }
}

static void Run(const Model& model, const char* pass, const std::function<void()>& function) {
  ErrorContext::Take();  // clears what a caught exception left
  try {
    function();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {  // no fault of the model
    ErrorContext::Take();
    throw;
  } catch (const std::exception& e) {
    if (SaysOutOfMemory(e.what())) throw;
    const std::string at = ErrorContext::Take();
    throw Error(model.file + (at.empty() ? "" : ": " + at),
                std::string("pass ") + pass + " fails: " + WithoutBacktrace(e.what()),
                at.empty() ? kFault : kFaultAtAnOperation);
  }
}

std::vector<ModuleBody> RunPasses(Model& model, const PipelineOptions& options,
                                  std::vector<std::string>* warnings) {
  CheckOperators(model);
  ModuleAssignment assignment;
  const std::vector<std::pair<const char*, std::function<void()>>> passes = {
      // First, so that no later pass looks at operations whose results are unused.
      {"dead_code", [&] { RemoveDeadCode(*model.graph); }},
      // Before the random operations, which use the training flag.
      {"restore_training", [&] { RestoreTraining(model); }},
      {"dense_gradients", [&] { MakeGradientsDense(model, warnings); }},
      {"restore_devices", [&] { RestoreDevices(model); }},
      // Before cutting: ids count over the whole model, so they do not depend on the cuts.
      {"random_operations", [&] { RewriteRandomOperations(model); }},
      // Removes constants that were replaced above, and flags.
      {"dead_code_again", [&] { RemoveDeadCode(*model.graph); }},
      // Before cutting by cost, which avoids the cuts that isolate_writes would refuse.
      {"name_writes", [&] { NameWrites(model); }},
      {"assign_modules", [&] { assignment = AssignModules(model, options.split); }},
      // From here on, transmitted weights are ordinary values.
      {"transmit_shared", [&] { TransmitShared(model, assignment, options.shared); }},
      // Before the passes that look at what crosses a cut.
      {"use_operands", [&] { UseOperands(model, assignment); }},
      // Needs to know which module uses which values.
      {"localize", [&] { Localize(model, assignment); }},
      // After every module has its own lists.
      {"isolate_writes", [&] { IsolateWrites(model, assignment); }},
      {"check_layouts", [&] { CheckLayouts(model, assignment); }},
      // After the last pass that changes which values a module uses.
      {"pass_through", [&] { PassThrough(model, assignment); }},
      // Last, because LibTorch reads the code of each module.
      {"show_writes", [&] { ShowWrites(model, assignment); }},
  };
  std::string before;
  auto dump = [&](const std::string& name) {
    if (options.dump.empty()) return;
    std::string text = model.graph->toString(/*print_source_locations=*/false);
    if (text != before) WriteFile(options.dump + "/" + name + ".ir", text);
    before = text;
  };
  if (!options.dump.empty()) std::filesystem::create_directories(options.dump);
  dump("00_import");
  for (size_t i = 0; i < passes.size(); ++i) {
    Run(model, passes[i].first, passes[i].second);
    try {
      model.graph->lint();
    } catch (const std::exception& e) {
      throw Error(model.file,
                  std::string("pass ") + passes[i].first + " broke the graph: " +
                      WithoutBacktrace(e.what()),
                  kFault);
    }
    char number[32];
    std::snprintf(number, sizeof number, "%02zu_", i + 1);
    dump(std::string(number).append(passes[i].first));
  }
  if (warnings)
    warnings->insert(warnings->end(), assignment.warnings.begin(), assignment.warnings.end());
  std::vector<ModuleBody> bodies;
  Run(model, "collect_bodies", [&] { bodies = CollectBodies(model, assignment); });
  const SplitSpec& split = options.split;
  const bool counted = split.kind == SplitSpec::kEqual || split.kind == SplitSpec::kBalanced;
  if (warnings && counted && bodies.size() < static_cast<size_t>(split.count))
    warnings->push_back("--split " + split.text + ": only " +
                        Counted(static_cast<int64_t>(bodies.size()), "module") +
                        ": the operations of the others are unused, or are recomputed where they are used");
  if (warnings && split.kind == SplitSpec::kChildren && bodies.size() == 1)
    warnings->push_back("--split " + split.text + ": only one child of " +
                        (split.path.empty() ? "the model" : split.path) +
                        " has operations, so the model is one module; " +
                        NameContainer(model.submodules));
  return bodies;
}

}  // namespace pipewright
