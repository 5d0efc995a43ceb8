#include "plan/partition/codegen.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <set>

#include "plan/conf.h"
#include "plan/error.h"
#include "plan/partition/report.h"
#include "plan/partition/torch_text.h"
#include "plan/text.h"
#include "templates.h"

namespace pipewright {

namespace {

using Names = std::vector<std::string>;

// A layer of a stage's file.
struct Layer {
  int stage = -1;
  std::string name;  // layer3
};

struct Generator {
  const ModelGraph& graph;
  const CodegenOptions& options;
  const std::string& path;
  CodegenResult result;

  Generator(const ModelGraph& g, const CodegenOptions& o, const std::string& p)
      : graph(g), options(o), path(p) {}

  int stages = 0;
  std::vector<char> dropped;  // __getitem__ that nothing uses
  std::vector<char> none;     // None in Python: hidden states and their items
  std::vector<NodeKind> kind;
  std::vector<int> stage_of;  // -1 for inputs
  std::vector<int> order;     // topological, then numeric
  std::vector<std::vector<int>> arguments, users;
  std::vector<int> module_of;                              // the node whose module this one uses
  std::vector<std::vector<int>> members, inputs, outputs;  // of each stage; numeric order
  std::vector<Names> takes, gives;  // of each stage: the names of its inputs and outputs
  Names model_inputs, model_outputs;
  std::vector<Layer> layer_of;    // of each module node
  std::vector<std::string> ties;  // stage1.layer4 = stage0.layer2

  std::string Where(int node) const { return path + ": node " + graph.nodes[node].id; }
  bool Less(int a, int b) const { return NumericIdLess(graph.nodes[a].id, graph.nodes[b].id); }
  void Sort(std::vector<int>& nodes) const {
    std::sort(nodes.begin(), nodes.end(), [&](int a, int b) { return Less(a, b); });
  }
  void Prepare();
  void NumberStages();
  void FindShared();
  void FindEnds();
  std::string StageFile(int stage);
  std::string FusedFile();
  std::string InitFile() const;
};

}  // namespace

// Replaces %(name)s; %% is a percent sign. `where` names the template.
static std::string Fill(const std::string& text, const std::map<std::string, std::string>& values,
                        const std::string& where) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (text.compare(i, 2, "%%") == 0) {
      out += text[i++];
      continue;
    }
    size_t end = text.find(")s", i);
    if (text.compare(i, 2, "%(") != 0 || end == std::string::npos)
      throw Error(where, "a % that begins no %(name)s", "write %% for a percent sign");
    std::string name = text.substr(i + 2, end - i - 2);
    auto value = values.find(name);
    if (value == values.end()) {
      Names known;
      for (const auto& [key, unused] : values) known.push_back(key);
      throw Error(where, "there is no %(" + name + ")s" + Suggest(name, known),
                  "known here: " + Join(known, ", "));
    }
    out += value->second;
    i = end + 1;
  }
  // An empty value leaves spaces and empty lines behind: at most one within a class, two outside.
  std::string clean;
  int empty = 0;
  for (const std::string& line : Split(out, '\n')) {
    size_t end = line.find_last_not_of(' ');
    if (end == std::string::npos) {
      ++empty;
      continue;
    }
    clean.append(std::min(empty, line[0] == ' ' ? 1 : 2), '\n');
    clean += line.substr(0, end + 1) + '\n';
    empty = 0;
  }
  return clean;
}

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
  if (!ok) throw UsageError(option, "\"" + name + "\" is not a name in Python");
}

// Stages as the graph names them, numbered from 0 without gaps.
void Generator::NumberStages() {
  std::set<int> used;
  bool missing = false;
  int example = -1;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (kind[i] == NodeKind::kInput || dropped[i] || none[i]) continue;
    if (graph.nodes[i].stage < 0)
      missing = true, example = static_cast<int>(i);
    else
      used.insert(graph.nodes[i].stage);
  }
  // A stage may hold nothing but inputs: it hands them on.
  for (const GraphNode& node : graph.nodes)
    if (node.stage >= 0 && !missing) used.insert(node.stage);
  if (missing && !used.empty())
    throw Error(Where(example), "has no stage, others have",
                "partition the graph: pipewright partition GRAPH -o DIR");
  std::vector<int> dense(used.begin(), used.end());
  stages = std::max<int>(1, static_cast<int>(dense.size()));
  stage_of.assign(graph.nodes.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].stage >= 0 && !dense.empty())
      stage_of[i] = static_cast<int>(
          std::lower_bound(dense.begin(), dense.end(), graph.nodes[i].stage) - dense.begin());
  // An item is taken where its tuple is made: tuples do not travel between stages.
  for (int node : order)
    if (graph.nodes[node].description.starts_with("__getitem__(") && arguments[node].size() == 1 &&
        kind[arguments[node][0]] != NodeKind::kInput)
      stage_of[node] = std::min(stage_of[node], stage_of[arguments[node][0]]);
  for (auto [from, to] : graph.edges) {
    if (kind[from] == NodeKind::kInput || dropped[to] || none[from]) continue;
    if (stage_of[from] > stage_of[to])
      throw Error(Where(to),
                  "is in stage " + std::to_string(stage_of[to]) + " but uses node " +
                      graph.nodes[from].id + " of stage " + std::to_string(stage_of[from]),
                  "a stage may only use values of itself and of earlier stages");
  }
}

void Generator::Prepare() {
  int n = static_cast<int>(graph.nodes.size());
  arguments = Arguments(graph);
  users.resize(n);
  kind.resize(n);
  for (int i = 0; i < n; ++i) {
    kind[i] = KindOf(graph.nodes[i].description);
    if (kind[i] == NodeKind::kInput && !arguments[i].empty()) kind[i] = NodeKind::kModule;
    for (int from : arguments[i]) users[from].push_back(i);
  }
  // Nodes in numeric order, as far as the edges allow.
  std::vector<int> rank(n), by_rank(n);
  std::iota(by_rank.begin(), by_rank.end(), 0);
  std::stable_sort(by_rank.begin(), by_rank.end(), [&](int a, int b) { return Less(a, b); });
  for (int r = 0; r < n; ++r) rank[by_rank[r]] = r;
  std::vector<std::pair<int, int>> edges;
  for (auto [from, to] : graph.edges) edges.push_back({rank[from], rank[to]});
  for (int r : TopologicalOrder(n, edges)) order.push_back(by_rank[r]);

  dropped.assign(n, 0);
  none.assign(n, 0);
  for (int node : order) {
    bool item = graph.nodes[node].description.starts_with("__getitem__");
    none[node] = kind[node] == NodeKind::kHidden ||
                 (item && arguments[node].size() == 1 && none[arguments[node][0]]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    int node = order[i];
    bool used = std::any_of(users[node].begin(), users[node].end(),
                            [&](int user) { return !dropped[user]; });
    dropped[node] =
        !used && (none[node] || (kind[node] == NodeKind::kOperation &&
                                 graph.nodes[node].description.starts_with("__getitem__")));
  }
  bool assumed = false;
  if (!graph.arguments_ordered)
    for (int i = 0; i < n; ++i)
      assumed = assumed ||
                (arguments[i].size() > 1 && (kind[i] == NodeKind::kModule ||
                                             graph.nodes[i].description.starts_with("Concat")));
  if (assumed)
    result.notes.push_back(
        "the profile has lost the order in which nodes take their arguments (Concat and others): "
        "they are taken in numeric node order");
}

void Generator::FindShared() {
  int n = static_cast<int>(graph.nodes.size());
  module_of.resize(n);
  std::iota(module_of.begin(), module_of.end(), 0);
  std::map<std::string, int> first, by_id;
  for (int node : order) {
    by_id[graph.nodes[node].id] = node;
    if (kind[node] != NodeKind::kModule) continue;
    const GraphNode& g = graph.nodes[node];
    auto [owner, added] = first.emplace(g.description, node);
    // Parameters are counted where a module is used first.
    if (!added && g.parameter_bytes == 0 && graph.nodes[owner->second].parameter_bytes > 0)
      module_of[node] = owner->second;
    if (!added && g.parameter_bytes > 0 && graph.nodes[owner->second].parameter_bytes == 0)
      owner->second = node;
  }
  for (const Names& group : options.shared) {
    std::vector<int> nodes;
    for (const std::string& id : group) {
      auto found = by_id.find(id);
      if (found == by_id.end()) throw UsageError("--shared", "there is no node " + id);
      nodes.push_back(found->second);
    }
    auto earliest = [&](int a, int b) {
      return std::find(order.begin(), order.end(), a) < std::find(order.begin(), order.end(), b);
    };
    std::sort(nodes.begin(), nodes.end(), earliest);
    for (int node : nodes) module_of[node] = nodes[0];
  }
}

void Generator::FindEnds() {
  members.resize(stages), inputs.resize(stages), outputs.resize(stages);
  takes.resize(stages), gives.resize(stages);
  Names wire(graph.nodes.size());  // of each value: its latest name
  std::vector<int> all_inputs;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (kind[i] == NodeKind::kInput) all_inputs.push_back(static_cast<int>(i));
  Sort(all_inputs);
  for (int node : all_inputs) {
    wire[node] = "input" + std::to_string(model_inputs.size());
    model_inputs.push_back(wire[node]);
  }
  for (int node : order)
    if (!dropped[node] && !none[node] && kind[node] != NodeKind::kInput)
      members[stage_of[node]].push_back(node);
  int count = 0;
  for (int s = 0; s < stages; ++s) {
    std::set<int> needed;
    for (int node : members[s]) {
      for (int from : arguments[node])
        if (!none[from] && (kind[from] == NodeKind::kInput || stage_of[from] != s))
          needed.insert(from);
      int used = 0, used_elsewhere = 0;
      for (int user : users[node]) {
        used += !dropped[user];
        used_elsewhere += !dropped[user] && stage_of[user] != s;
      }
      if (!used || used_elsewhere) outputs[s].push_back(node);
    }
    inputs[s].assign(needed.begin(), needed.end());
    // A stage of inputs alone hands them on; later stages then take them from it.
    if (members[s].empty())
      for (int node : all_inputs)
        if (stage_of[node] == s) inputs[s].push_back(node), outputs[s].push_back(node);
    if (outputs[s].empty())
      throw Error(path, "stage " + std::to_string(s) + " has nothing to compute or hand on");
    Sort(inputs[s]);
    Sort(outputs[s]);
    for (int node : inputs[s]) takes[s].push_back(wire[node]);
    for (int node : outputs[s]) {
      wire[node] = "out" + std::to_string(count++);
      gives[s].push_back(wire[node]);
      if (std::all_of(users[node].begin(), users[node].end(),
                      [&](int user) { return dropped[user]; }))
        model_outputs.push_back(wire[node]);
    }
  }
}

static const char kInitialize[] = R"(def _initialize_weights(self):
        for m in self.modules():
            if isinstance(m, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if m.bias is not None:
                    torch.nn.init.constant_(m.bias, 0)
            elif isinstance(m, torch.nn.BatchNorm2d):
                torch.nn.init.constant_(m.weight, 1)
                torch.nn.init.constant_(m.bias, 0)
            elif isinstance(m, torch.nn.Linear):
                torch.nn.init.normal_(m.weight, 0, 0.01)
                torch.nn.init.constant_(m.bias, 0))";

static bool InitializesWeights(const std::string& arch) {
  return arch.starts_with("vgg") || arch.starts_with("resnet");
}

std::string Generator::StageFile(int stage) {
  Names declarations, statements, names, returned, imports;
  std::vector<std::string> local(graph.nodes.size());
  int count = 0;
  for (size_t i = 0; i < inputs[stage].size(); ++i) {
    int node = inputs[stage][i];
    names.push_back("input" + std::to_string(i));
    local[node] = "out" + std::to_string(count++);
    const GraphNode* argument =
        arguments[node].empty() ? nullptr : &graph.nodes[arguments[node][0]];
    // A layer that works in place must not change what other stages see.
    bool tensor = GivesTensor(graph.nodes[node], argument);
    statements.push_back(local[node] + " = " + names.back() + (tensor ? ".clone()" : ""));
  }
  for (int node : members[stage]) {
    Names values;
    std::vector<char> sizes;
    for (int from : arguments[node]) {
      values.push_back(none[from] ? "None" : local[from]);
      sizes.push_back(graph.nodes[from].description.starts_with("Size(") &&
                      kind[from] == NodeKind::kOperation);
    }
    int number = count++;
    local[node] = "out" + std::to_string(number);
    std::string call;
    if (kind[node] == NodeKind::kOperation) {
      call = OperationCall(graph.nodes[node].description, values, sizes, Where(node));
    } else {
      int owner = module_of[node];
      bool declare = owner == node || layer_of[owner].stage != stage;
      // Of a module that lives in another stage, the stage's first use stands for the later ones.
      for (int other : members[stage])
        if (declare && other != node && module_of[other] == owner &&
            layer_of[other].stage == stage) {
          owner = other;
          declare = false;
        }
      if (declare) {
        layer_of[node] = {stage, "layer" + std::to_string(number)};
        ModuleText module = DeclareModule(graph.nodes[node].description, Where(node));
        declarations.push_back("self." + layer_of[node].name + " = " + module.declaration);
        if (!module.import_statement.empty()) imports.push_back(module.import_statement);
        if (!module.note.empty()) result.notes.push_back(Where(node) + ": " + module.note);
        if (owner != node)
          ties.push_back("stage" + std::to_string(stage) + "." + layer_of[node].name + " = stage" +
                         std::to_string(layer_of[owner].stage) + "." + layer_of[owner].name);
      } else {
        layer_of[node] = layer_of[owner];
      }
      call = "self." + layer_of[node].name + "(" + Join(values, ", ") + ")";
    }
    statements.push_back(local[node] + " = " + call);
  }
  for (int node : outputs[stage]) returned.push_back(local[node]);
  statements.push_back("return " + Tuple(returned));
  std::string methods;
  if (InitializesWeights(options.arch)) {
    declarations.push_back("self._initialize_weights()");
    methods = kInitialize;
  }
  if (declarations.empty()) declarations.push_back("pass");
  std::sort(imports.begin(), imports.end());
  imports.erase(std::unique(imports.begin(), imports.end()), imports.end());
  return Fill(options.model_template,
              {{"import_statements", Join(imports, "\n")},
               {"module_name", "Stage" + std::to_string(stage)},
               {"layer_declarations", Lines(declarations)},
               {"module_methods", methods},
               {"inputs", Join(names, ", ")},
               {"function_definition", Lines(statements)}},
              "the model template");
}

std::string Generator::FusedFile() {
  Names declarations, statements, imports;
  for (int s = 0; s < stages; ++s) {
    std::string number = std::to_string(s);
    imports.push_back("from .stage" + number + " import Stage" + number);
    declarations.push_back("self.stage" + number + " = Stage" + number + "()");
    statements.push_back(Tuple(gives[s]) + " = self.stage" + number + "(" + Join(takes[s], ", ") +
                         ")");
  }
  for (const std::string& tie : ties) {
    std::string line = "self." + tie;
    line.insert(line.find("= ") + 2, "self.");
    declarations.push_back(line);
  }
  statements.push_back("return " + Tuple(model_outputs));
  return Fill(options.model_template,
              {{"import_statements", Join(imports, "\n")},
               {"module_name", options.name},
               {"layer_declarations", Lines(declarations)},
               {"module_methods", ""},
               {"inputs", Join(model_inputs, ", ")},
               {"function_definition", Lines(statements)}},
              "the model template");
}

std::string Generator::InitFile() const {
  Names imports = {"from ." + options.arch + " import " + options.name}, model, stage_names;
  for (int s = 0; s < stages; ++s) {
    std::string number = std::to_string(s);
    imports.push_back("from .stage" + number + " import Stage" + number);
    stage_names.push_back("Stage" + number + "()");
    std::string instance = ties.empty() ? stage_names[s] : "stages[" + number + "]";
    model.push_back("(" + instance + ", " + Quoted(takes[s]) + ", " + Quoted(gives[s]) + ")");
  }
  std::string criterion = "(criterion, " + Quoted(model_outputs) + ", [\"loss\"])";
  std::string list = Join(model, ",\n        ");
  if (!ties.empty()) {
    // One module used by several stages: they hold the same weights.
    std::string helper = "\n\ndef _stages():\n    stages = [" + Join(stage_names, ", ") + "]\n";
    for (std::string tie : ties) {
      for (int s = stages; s-- > 0;) {
        std::string name = "stage" + std::to_string(s) + ".";
        for (size_t at; (at = tie.find(name)) != std::string::npos;)
          tie.replace(at, name.size(), "stages[" + std::to_string(s) + "].");
      }
      helper += "    " + tie + "\n";
    }
    imports.push_back(helper + "    return stages");
    list = "*(lambda stages: [\n            " + Join(model, ",\n            ") +
           "\n        ])(_stages())";
  }
  return Fill(options.init_template,
              {{"import_statements", Join(imports, "\n")},
               {"arch", options.arch},
               {"model", list + ",\n        " + criterion},
               {"full_model", options.name + "()"}},
              "the __init__ template");
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
  return Fill(text,
              {{"module_to_stage_map", list(modules)},
               {"stage_to_rank_map", "{" + Join(ranks, ", ") + "}"}},
              "the conf template");
}

CodegenResult GenerateCode(const ModelGraph& graph, const CodegenOptions& given,
                           const std::string& path) {
  CodegenOptions options = given;
  if (options.model_template.empty()) options.model_template = kText_model_py_template;
  if (options.init_template.empty()) options.init_template = kText__init_py_template;
  if (options.conf_template.empty()) options.conf_template = kText_conf_json_template;
  CheckIdentifier(options.name, "-n");
  CheckIdentifier(options.arch, "-a");
  Generator g(graph, options, path);
  g.Prepare();
  g.NumberStages();
  g.FindShared();
  g.FindEnds();
  g.layer_of.resize(graph.nodes.size());
  std::vector<int> replicas(g.stages, 1);
  for (auto [stage, count] : options.replicas) {
    if (stage < 0 || stage >= g.stages)
      throw UsageError("--stage_to_num_ranks", "there is no stage " + std::to_string(stage),
                       "the stages are 0 to " + std::to_string(g.stages - 1));
    replicas[stage] = count;
  }
  for (int s = 0; s < g.stages; ++s)
    g.result.files["stage" + std::to_string(s) + ".py"] = g.StageFile(s);
  g.result.files[options.arch + ".py"] = g.FusedFile();
  g.result.files["__init__.py"] = g.InitFile();
  StageConfs confs = MakeStageConfs(replicas);
  g.result.files["dp_conf.json"] = ConfText(confs.dp, options.conf_template);
  g.result.files["mp_conf.json"] = ConfText(confs.mp, options.conf_template);
  g.result.files["hybrid_conf.json"] = ConfText(confs.hybrid, options.conf_template);
  return g.result;
}

}  // namespace pipewright
