#include "plan/partition/pipedream/codegen/codegen.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/partition/io/report.h"
#include "plan/partition/pipedream/codegen/stage_program.h"
#include "plan/partition/pipedream/codegen/template_text.h"
#include "plan/partition/pipedream/codegen/torch_text.h"
#include "templates.h"

namespace pipewright {

namespace {

using Names = std::vector<std::string>;

constexpr int kMostRanks = 1 << 20;

// A layer of a stage's file.
struct Layer {
  int stage = -1;
  std::string name;  // layer3
};

// A layer that two stages share: `other` replaces `layer`.
struct Tie {
  Layer layer, other;
};

struct Writer {
  const StageProgram& program;
  const CodegenOptions& options;
  const std::set<std::string>& own;  // layers that the model template has
  std::vector<Layer> layer_of{};     // by module node
  std::vector<Tie> ties{};
  Names notes{};

  std::string StageFile(int stage);
  std::string FusedFile() const;
  std::string InitFile() const;
};

}  // namespace

static const Names kModelNeeds = {"module_name", "layer_declarations", "inputs",
                                  "function_definition"};

static std::string Lines(const Names& lines) { return Join(lines, "\n        "); }

static std::string Quoted(const Names& names) {
  Names quoted;
  for (const std::string& name : names) quoted.push_back("\"" + name + "\"");
  return "[" + Join(quoted, ", ") + "]";
}

static std::string Tuple(const Names& names) {
  return names.size() == 1 ? names[0] : "(" + Join(names, ", ") + ")";
}

static void CheckIdentifier(const std::string& name, const std::string& option) {
  bool ok = !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0]));
  for (unsigned char c : name) ok = ok && (std::isalnum(c) || c == '_');
  if (!ok || IsPythonKeyword(name))
    throw UsageError(
        option, "\"" + name + "\" is not a valid Python name" + (ok ? ": it is a keyword" : ""),
        "letters, digits and _ make a name: VGG16Partitioned, vgg16");
}

// Throws Error if the names in `options` are those of other written files and classes, or of names
// that the written code uses.
static void CheckFree(const CodegenOptions& options, int stages) {
  static const std::set<std::string> kUsed = {"arch",    "model", "full_model",
                                              "_stages", "super", "torch"};
  auto refuse = [](const std::string& option, const std::string& name, const std::string& of) {
    throw UsageError(option, "\"" + name + "\" is the name of " + of, "choose another name");
  };
  for (int s = 0; s < stages; ++s) {
    const std::string number = std::to_string(s), of = "what stage " + number + " is written as";
    if (options.name == "Stage" + number) refuse("-n", options.name, of);
    if (options.arch == "stage" + number) refuse("-a", options.arch, of);
  }
  if (kUsed.count(options.name)) refuse("-n", options.name, "something that the written code uses");
  if (options.arch == "__init__") refuse("-a", options.arch, "the file with arch() and model()");
}

static const char kInitialize[] = R"(def _initialize_weights(self):
        for m in self.modules():
            if isinstance(m, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if m.bias is not None:
                    torch.nn.init.constant_(m.bias, 0)
            elif isinstance(m, torch.nn.BatchNorm2d) and m.affine:
                torch.nn.init.constant_(m.weight, 1)
                torch.nn.init.constant_(m.bias, 0)
            elif isinstance(m, torch.nn.Linear):
                torch.nn.init.normal_(m.weight, 0, 0.01)
                if m.bias is not None:
                    torch.nn.init.constant_(m.bias, 0))";

// Computes the number of frames after the convolutions of LAYER, for DeepSpeech.
static const char kSequenceLengths[] = R"(def get_seq_lens(self, input_length):
        lengths = input_length
        for m in self.LAYER.modules():
            if isinstance(m, torch.nn.Conv2d):
                reach = m.dilation[1] * (m.kernel_size[1] - 1) + 1
                lengths = (lengths + 2 * m.padding[1] - reach) // m.stride[1] + 1
        return lengths.int())";

static bool InitializesWeights(const std::string& arch) {
  return arch.starts_with("vgg") || arch.starts_with("resnet");
}

std::string Writer::StageFile(int stage) {
  Names declarations, statements, names, returned, imports;
  std::unordered_map<int, std::string> local;  // name of each value in this stage
  std::map<int, int> first_use;                // by module in this stage
  int count = 0;
  for (size_t i = 0; i < program.inputs[stage].size(); ++i) {
    int node = program.inputs[stage][i];
    names.push_back("input" + std::to_string(i));
    local[node] = "out" + std::to_string(count++);
    const GraphNode* argument = program.arguments[node].empty()
                                    ? nullptr
                                    : &program.graph.nodes[program.arguments[node][0]];
    // An in-place layer must not change the input of other stages.
    bool tensor = GivesTensor(program.graph.nodes[node], argument);
    statements.push_back(local[node] + " = " + names.back() + (tensor ? ".clone()" : ""));
  }
  for (int node : program.members[stage]) {
    Names values;
    std::vector<char> sizes;
    for (int from : program.arguments[node]) {
      values.push_back(program.none[from] ? "None" : local[from]);
      sizes.push_back(program.graph.nodes[from].description.starts_with("Size(") &&
                      program.kind[from] == NodeKind::kOperation);
    }
    int number = count++;
    local[node] = "out" + std::to_string(number);
    std::string call;
    if (program.kind[node] == NodeKind::kOperation) {
      call = OperationCall(program.Describe(node), values, sizes);
    } else {
      const int owner = program.module_of[node];
      const auto [use, first] = first_use.emplace(owner, node);
      if (first) {
        layer_of[node] = {stage, "layer" + std::to_string(number)};
        ModuleText module = DeclareModule(program.Describe(node), own);
        declarations.push_back("self." + layer_of[node].name + " = " + module.declaration);
        if (!module.import_statement.empty()) imports.push_back(module.import_statement);
        if (!module.note.empty()) notes.push_back(program.Where(node) + ": " + module.note);
        if (owner != node) ties.push_back({layer_of[node], layer_of[owner]});
      } else {
        layer_of[node] = layer_of[use->second];
      }
      if (values.empty())
        throw Error(program.Where(node), "no edge leads to it, but a layer needs an input",
                    "add an edge from an Input node or another layer");
      // A single edge of an attention is its query, key and value; the second of two is key and
      // value.
      if (ReprName(program.graph.nodes[node].description) == "MultiheadAttention")
        while (values.size() < 3) values.push_back(values.back());
      call = "self." + layer_of[node].name + "(" + Join(values, ", ") + ")";
    }
    statements.push_back(local[node] + " = " + call);
  }
  for (int node : program.outputs[stage]) returned.push_back(local[node]);
  statements.push_back("return " + Tuple(returned));
  std::string methods;
  if (InitializesWeights(options.arch)) {
    declarations.push_back("self._initialize_weights()");
    methods = kInitialize;
  }
  for (int node : program.members[stage]) {
    if (ReprName(program.graph.nodes[node].description) != "self.get_seq_lens") continue;
    std::string layer;
    for (int other : program.members[stage])
      if (program.graph.nodes[other].description.starts_with("MaskConv"))
        layer = layer_of[other].name;
    if (layer.empty())
      throw Error(program.Where(node),
                  "counts the frames that a MaskConv leaves, and stage " + std::to_string(stage) +
                      " has none",
                  "put both into one stage");
    std::string method = kSequenceLengths;
    method.replace(method.find("LAYER"), 5, layer);
    methods = method + (methods.empty() ? "" : "\n\n    " + methods);
    break;
  }
  if (declarations.empty()) declarations.push_back("pass");
  std::sort(imports.begin(), imports.end());
  imports.erase(std::unique(imports.begin(), imports.end()), imports.end());
  return FillTemplate(options.model_template,
                      {{"import_statements", Join(imports, "\n")},
                       {"module_name", "Stage" + std::to_string(stage)},
                       {"layer_declarations", Lines(declarations)},
                       {"module_methods", methods},
                       {"inputs", Join(names, ", ")},
                       {"function_definition", Lines(statements)}},
                      "the model template", kModelNeeds);
}

std::string Writer::FusedFile() const {
  Names declarations, statements, imports;
  for (int s = 0; s < program.stages; ++s) {
    std::string number = std::to_string(s);
    imports.push_back("from .stage" + number + " import Stage" + number);
    declarations.push_back("self.stage" + number + " = Stage" + number + "()");
    statements.push_back(Tuple(program.gives[s]) + " = self.stage" + number + "(" +
                         Join(program.takes[s], ", ") + ")");
  }
  for (const Tie& tie : ties)
    declarations.push_back("self.stage" + std::to_string(tie.layer.stage) + "." + tie.layer.name +
                           " = self.stage" + std::to_string(tie.other.stage) + "." +
                           tie.other.name);
  statements.push_back("return " + Tuple(program.model_outputs));
  return FillTemplate(options.model_template,
                      {{"import_statements", Join(imports, "\n")},
                       {"module_name", options.name},
                       {"layer_declarations", Lines(declarations)},
                       {"module_methods", ""},
                       {"inputs", Join(program.model_inputs, ", ")},
                       {"function_definition", Lines(statements)}},
                      "the model template", kModelNeeds);
}

std::string Writer::InitFile() const {
  Names imports = {"from ." + options.arch + " import " + options.name}, model, stage_names;
  for (int s = 0; s < program.stages; ++s) {
    std::string number = std::to_string(s);
    imports.push_back("from .stage" + number + " import Stage" + number);
    stage_names.push_back("Stage" + number + "()");
    std::string instance = ties.empty() ? stage_names[s] : "stages[" + number + "]";
    model.push_back("(" + instance + ", " + Quoted(program.takes[s]) + ", " +
                    Quoted(program.gives[s]) + ")");
  }
  std::string criterion = "(criterion, " + Quoted(program.model_outputs) + ", [\"loss\"])";
  std::string list = Join(model, ",\n        ");
  if (!ties.empty()) {
    // Stages that use the same module share its weights.
    std::string helper = "\n\ndef _stages():\n    stages = [" + Join(stage_names, ", ") + "]\n";
    for (const Tie& tie : ties)
      helper += "    stages[" + std::to_string(tie.layer.stage) + "]." + tie.layer.name +
                " = stages[" + std::to_string(tie.other.stage) + "]." + tie.other.name + "\n";
    imports.push_back(helper + "    return stages");
    list = "*(lambda stages: [\n            " + Join(model, ",\n            ") +
           "\n        ])(_stages())";
  }
  return FillTemplate(options.init_template,
                      {{"import_statements", Join(imports, "\n")},
                       {"arch", options.arch},
                       {"model", list + ",\n        " + criterion},
                       {"full_model", options.name + "()"}},
                      "the __init__ template", {"model"});
}

static std::string ConfText(const Conf& conf, const std::string& text) {
  std::vector<int> modules = conf.module_to_stage;
  modules.push_back(modules.back());  // the criterion's
  auto list = [](const std::vector<int>& numbers) {
    Names parts;
    for (int n : numbers) parts.push_back(std::to_string(n));
    return "[" + Join(parts, ", ") + "]";
  };
  Names ranks;
  for (size_t s = 0; s < conf.stage_to_ranks.size(); ++s)
    ranks.push_back("\"" + std::to_string(s) + "\": " + list(conf.stage_to_ranks[s]));
  return FillTemplate(text,
                      {{"module_to_stage_map", list(modules)},
                       {"stage_to_rank_map", "{" + Join(ranks, ", ") + "}"}},
                      "the conf template", {"module_to_stage_map", "stage_to_rank_map"});
}

CodegenResult GenerateCode(const ModelGraph& graph, const CodegenOptions& given,
                           const std::string& path) {
  CodegenOptions options = given;
  if (options.model_template.empty()) options.model_template = kText_model_py_template;
  if (options.init_template.empty()) options.init_template = kText__init_py_template;
  if (options.conf_template.empty()) options.conf_template = kText_conf_json_template;
  CheckIdentifier(options.name, "-n");
  CheckIdentifier(options.arch, "-a");
  StageProgram program = MakeStageProgram(graph, options.shared, path);
  CheckFree(options, program.stages);
  const std::set<std::string> own = ClassesOf(options.model_template);
  Writer writer{program, options, own};
  writer.layer_of.resize(graph.nodes.size());
  std::vector<int> replicas(program.stages, 1);
  int64_t total = 0;
  for (auto [stage, count] : options.replicas) {
    if (stage < 0 || stage >= program.stages)
      throw UsageError("--stage_to_num_ranks", "there is no stage " + std::to_string(stage),
                       program.stages == 1
                           ? "the only one is 0"
                           : "the stages are 0 to " + std::to_string(program.stages - 1));
    if (count < 1 || (total += count) > kMostRanks)
      throw UsageError("--stage_to_num_ranks",
                       Counted(count, "rank") + " for stage " + std::to_string(stage),
                       "a stage has 1 rank or more, all together " + std::to_string(kMostRanks) +
                           " at most");
    replicas[stage] = count;
  }
  CodegenResult result;
  result.stages = program.stages;
  for (int s = 0; s < program.stages; ++s)
    result.files["stage" + std::to_string(s) + ".py"] = writer.StageFile(s);
  result.files[options.arch + ".py"] = writer.FusedFile();
  result.files["__init__.py"] = writer.InitFile();
  StageConfs confs = MakeStageConfs(replicas);
  result.files["dp_conf.json"] = ConfText(confs.dp, options.conf_template);
  result.files["mp_conf.json"] = ConfText(confs.mp, options.conf_template);
  result.files["hybrid_conf.json"] = ConfText(confs.hybrid, options.conf_template);
  result.notes = program.notes;
  result.notes.insert(result.notes.end(), writer.notes.begin(), writer.notes.end());
  return result;
}

}  // namespace pipewright
