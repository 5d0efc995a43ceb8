#include "formats/manifest.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/symbol.h"
#include "base/text.h"

namespace pipewright {

namespace {

constexpr int kFormat = 1;

// Reads with messages that name file and key; every getter takes the path of its value.
struct Reader {
  std::string file;

  [[noreturn]] void Fail(const std::string& key, const std::string& what) const {
    throw Error(
        file, key + ": " + what,
        "`pipewright compile` writes this file; restore what was changed, or compile again");
  }
  const Json& At(const Json& object, const char* key, const std::string& path) const {
    auto found = object.find(key);
    if (found == object.end()) Fail(path, std::string("the key \"") + key + "\" is missing");
    return *found;
  }
  template <typename T>
  T Get(const Json& object, const char* key, const std::string& path) const {
    const Json& value = At(object, key, path);
    try {
      return value.get<T>();
    } catch (const Json::exception&) {
      Fail(path + "." + key, "not expected here: " + value.dump().substr(0, 60));
    }
  }
  // Reads a name with `from_text`, which returns nothing for an unknown one.
  template <typename T>
  T Choose(const Json& object, const char* key, const std::string& path,
           std::optional<T> (*from_text)(const std::string&), const std::string& complaint) const {
    const auto text = Get<std::string>(object, key, path);
    const std::optional<T> choice = from_text(text);
    if (!choice) Fail(path + "." + key, Quote(text) + complaint);
    return *choice;
  }
  const Json& List(const Json& object, const char* key, const std::string& path) const {
    const Json& value = At(object, key, path);
    if (!value.is_array()) Fail(path + "." + key, "a list is expected");
    return value;
  }
};

Json ShapeToJson(const std::vector<std::string>& shape) {
  Json out = Json::array();
  for (const std::string& d : shape)
    if (!d.empty() && d.find_first_not_of("0123456789") == std::string::npos && d.size() < 19)
      out.push_back(std::stoll(d));
    else
      out.push_back(d);
  return out;
}

Json ToJson(const ValueInfo& value) {
  Json out{{"name", value.name}};
  if (value.kind != ValueKind::kTensor) out["kind"] = ToText(value.kind);
  if (value.kind == ValueKind::kTensor) {
    if (!value.dtype.empty()) {
      out["dtype"] = value.dtype;
      out["shape"] = ShapeToJson(value.shape);
    }
    out["gradient"] = value.gradient;
  }
  out["from"] = value.producer < 0 ? Json("input") : Json(value.producer);
  out["to"] = value.consumers;
  if (!value.weight.empty()) out["weight"] = value.weight;
  return out;
}

ValueInfo ReadValue(const Reader& reader, const Json& in, const std::string& path) {
  CheckKeys(in, {"name", "kind", "dtype", "shape", "gradient", "from", "to", "weight"},
            reader.file + ": " + path);
  ValueInfo value;
  value.name = reader.Get<std::string>(in, "name", path);
  if (in.contains("kind"))
    value.kind = reader.Choose(in, "kind", path, ValueKindFromText,
                               " is not tensor, int, float, bool or none");
  if (value.kind == ValueKind::kTensor) {
    if (in.contains("dtype") || in.contains("shape")) {
      value.dtype = reader.Get<std::string>(in, "dtype", path);
      for (const Json& d : reader.List(in, "shape", path))
        value.shape.push_back(d.is_string() ? d.get<std::string>() : d.dump());
    }
    value.gradient = reader.Get<bool>(in, "gradient", path);
  }
  value.producer = reader.At(in, "from", path) == "input" ? -1 : reader.Get<int>(in, "from", path);
  value.consumers = reader.Get<std::vector<int>>(in, "to", path);
  if (in.contains("weight")) value.weight = reader.Get<std::string>(in, "weight", path);
  return value;
}

Json ToJson(const WeightInfo& weight) {
  Json out{{"name", weight.name},
           {"kind", ToText(weight.kind)},
           {"dtype", weight.dtype},
           {"shape", weight.shape}};
  if (weight.kind == WeightKind::kParameter) {
    out["requires_grad"] = weight.requires_grad;
    if (weight.place >= 0) out["place"] = weight.place;
  }
  if (weight.kind == WeightKind::kBuffer) {
    out["persistent"] = weight.persistent;
    out["replicas"] = "first";  // files hold the state of a stage's first replica
    out["merge"] = ToText(weight.merge);
  }
  return out;
}

WeightInfo ReadWeight(const Reader& reader, const Json& in, const std::string& path) {
  CheckKeys(in,
            {"name", "kind", "dtype", "shape", "requires_grad", "place", "persistent", "replicas",
             "merge"},
            reader.file + ": " + path);
  WeightInfo weight;
  weight.name = reader.Get<std::string>(in, "name", path);
  weight.kind = reader.Choose(in, "kind", path, WeightKindFromText,
                              " is not parameter, buffer or constant");
  weight.dtype = reader.Get<std::string>(in, "dtype", path);
  weight.shape = reader.Get<std::vector<int64_t>>(in, "shape", path);
  if (weight.kind == WeightKind::kParameter)
    weight.requires_grad = reader.Get<bool>(in, "requires_grad", path);
  if (in.contains("place")) weight.place = reader.Get<int>(in, "place", path);
  if (in.contains("replicas") && in["replicas"] != "first")
    reader.Fail(path + ".replicas",
                in["replicas"].dump() + " is not \"first\", the replica whose buffers files keep");
  if (in.contains("merge")) {
    const std::string rules = " is not a merge rule: choose updates, sum, mean or none";
    weight.merge = reader.Choose(in, "merge", path, BufferMergeFromText, rules);
    if (weight.kind != WeightKind::kBuffer)
      reader.Fail(path + ".merge", Quote(ToText(weight.merge)) + rules);
  }
  weight.persistent =
      weight.kind == WeightKind::kParameter ||
      (weight.kind == WeightKind::kBuffer && reader.Get<bool>(in, "persistent", path));
  return weight;
}

std::vector<SharedWeight> ReadShared(const Reader& reader, const Json& in) {
  std::vector<SharedWeight> shared;
  for (const Json& group : reader.List(in, "shared", "manifest")) {
    std::string path = "shared[" + std::to_string(shared.size()) + "]";
    SharedWeight weight;
    if (!group.is_array()) reader.Fail(path, "a list of holders is expected");
    for (const Json& holder : group)
      weight.holders.push_back(
          {reader.Get<int>(holder, "module", path), reader.Get<std::string>(holder, "name", path)});
    shared.push_back(std::move(weight));
  }
  return shared;
}

// `lookup` returns the ids of the values that a key lists.
template <class Lookup>
std::map<int, NoGradient> ReadNoGradient(const Reader& reader, const Json& module,
                                         const Lookup& lookup, const std::string& path) {
  std::map<int, NoGradient> out;
  if (!module.contains("no_gradient")) return out;
  for (const auto& [output, missed] : module["no_gradient"].items()) {
    const std::string at = path + ".no_gradient." + output;
    CheckKeys(missed, {"inputs", "weights"}, reader.file + ": " + at);
    const int id = lookup(Json({{"name", Json::array({output})}}), "name", at).at(0);
    out[id] = {lookup(missed, "inputs", at),
               reader.Get<std::vector<std::string>>(missed, "weights", at)};
  }
  return out;
}

std::vector<std::string> Names(const std::vector<ValueInfo>& values, const std::vector<int>& ids) {
  std::vector<std::string> names;
  for (int id : ids) names.push_back(values[id].name);
  return names;
}

// Throws Error unless the manifest is consistent: code that uses it does not check again.
// Parameters of the same name are one weight in files, so they must be one in the run, too.
void CheckNames(const Reader& reader, const Manifest& manifest) {
  std::map<std::string, int> first;  // the module that holds a parameter
  for (int m = 0; m < static_cast<int>(manifest.modules.size()); ++m)
    for (const WeightInfo& weight : manifest.modules[m].held) {
      if (weight.kind != WeightKind::kParameter) continue;
      const auto [other, fresh] = first.try_emplace(weight.name, m);
      if (fresh) continue;
      const bool shared = std::any_of(
          manifest.shared.begin(), manifest.shared.end(), [&](const SharedWeight& group) {
            auto holds = [&](int module) {
              return std::any_of(group.holders.begin(), group.holders.end(),
                                 [&](const SharedWeight::Holder& holder) {
                                   return holder.module == module && holder.name == weight.name;
                                 });
            };
            return holds(m) && holds(other->second);
          });
      if (!shared)
        reader.Fail("modules[" + std::to_string(m) + "].held",
                    "the parameter \"" + weight.name + "\" is also held by module " +
                        std::to_string(other->second) +
                        ", and \"shared\" does not list them as one weight: give it another name");
    }
}

void Check(const Reader& reader, const Manifest& manifest) {
  int modules = static_cast<int>(manifest.modules.size());
  if (modules == 0) reader.Fail("modules", "a package has at least one module");
  for (const ValueInfo& value : manifest.values) {
    std::string path = "values: " + value.name;
    if (value.producer < -1 || value.producer >= modules)
      reader.Fail(path, "\"from\" names module " + std::to_string(value.producer) + " of " +
                            std::to_string(modules));
    for (int consumer : value.consumers)
      if (consumer <= value.producer || consumer >= modules)
        reader.Fail(path, "\"to\" names module " + std::to_string(consumer) +
                              ", which does not come after module " +
                              std::to_string(value.producer));
  }
  for (int m = 0; m < modules; ++m) {
    for (int id : manifest.modules[m].inputs) {
      const ValueInfo& value = manifest.values[id];
      if (std::find(value.consumers.begin(), value.consumers.end(), m) == value.consumers.end())
        reader.Fail("values: " + value.name,
                    "\"to\" lacks module " + std::to_string(m) + ", which takes it as an input");
    }
    for (int id : manifest.modules[m].outputs)
      if (manifest.values[id].producer != m)
        reader.Fail("values: " + manifest.values[id].name,
                    "\"from\" is not module " + std::to_string(m) + ", which puts it out");
  }
  for (size_t g = 0; g < manifest.shared.size(); ++g) {
    int last = -1;
    std::optional<bool> trained;
    for (const SharedWeight::Holder& holder : manifest.shared[g].holders) {
      std::string path = "shared[" + std::to_string(g) + "]";
      if (holder.module <= last || holder.module >= modules)
        reader.Fail(path, "holders are modules in ascending order");
      last = holder.module;
      const std::vector<WeightInfo>& held = manifest.modules[last].held;
      auto weight = std::find_if(held.begin(), held.end(),
                                 [&](const WeightInfo& w) { return w.name == holder.name; });
      if (weight == held.end())
        reader.Fail(path, "module " + std::to_string(last) + " holds no \"" + holder.name + "\"");
      if (trained.value_or(weight->requires_grad) != weight->requires_grad)
        reader.Fail(path, "\"requires_grad\" of \"" + holder.name + "\" in module " +
                              std::to_string(last) +
                              " is not that of the module before: they are one weight");
      trained = weight->requires_grad;
    }
  }
  CheckNames(reader, manifest);
}

bool IsZip(const std::string& path) {
  char start[4] = {};
  std::ifstream(path, std::ios::binary).read(start, sizeof start);
  return std::string_view(start, sizeof start) == std::string_view("PK\3\4", 4);
}

}  // namespace

const char* ToText(ValueKind kind) {
  switch (kind) {
    case ValueKind::kTensor:
      return "tensor";
    case ValueKind::kInt:
      return "int";
    case ValueKind::kFloat:
      return "float";
    case ValueKind::kBool:
      return "bool";
    case ValueKind::kNone:
      return "none";
  }
  return "";
}

std::optional<ValueKind> ValueKindFromText(const std::string& text) {
  for (ValueKind kind : {ValueKind::kTensor, ValueKind::kInt, ValueKind::kFloat, ValueKind::kBool,
                         ValueKind::kNone})
    if (text == ToText(kind)) return kind;
  return std::nullopt;
}

const char* ToText(BufferMerge merge) {
  switch (merge) {
    case BufferMerge::kUpdates:
      return "updates";
    case BufferMerge::kSum:
      return "sum";
    case BufferMerge::kMean:
      return "mean";
    case BufferMerge::kNone:
      return "none";
  }
  return "";
}

std::optional<BufferMerge> BufferMergeFromText(const std::string& text) {
  for (BufferMerge merge :
       {BufferMerge::kUpdates, BufferMerge::kSum, BufferMerge::kMean, BufferMerge::kNone})
    if (text == ToText(merge)) return merge;
  return std::nullopt;
}

Manifest ReadManifest(const std::string& package) {
  const std::string file = package + "/manifest.json";
  std::error_code ignored;
  if (std::filesystem::is_regular_file(package, ignored))
    throw Error(
        package, "is a file, where a package (a folder) is expected",
        IsZip(package)
            ? "compile the model first: pipewright compile " + package + " -o FOLDER"
            : "name the folder that `pipewright compile -o` wrote; it comes before other files");
  if (std::filesystem::is_directory(package, ignored) && !std::filesystem::exists(file, ignored) &&
      !ignored)
    throw Error(package, "is not a package: it holds no manifest.json",
                "name a folder that `pipewright compile -o` wrote");
  return ParseManifest(ReadFile(file), file);
}

Manifest ParseManifest(std::string_view text, const std::string& file) {
  Reader reader{file};
  Json in = ParseJson(text, file);
  if (!in.is_object() || in.value("format", "") != "pipewright package")
    reader.Fail("format", "this is not a package of `pipewright compile`");
  if (int version = reader.Get<int>(in, "format_version", "manifest"); version != kFormat)
    throw Error(reader.file,
                "format version " + std::to_string(version) + " is not " + std::to_string(kFormat) +
                    ", which this program reads",
                version > kFormat
                    ? "it is of pipewright " +
                          (in.contains("pipewright") ? in["pipewright"].dump() : "?") +
                          ", newer than this one (" PIPEWRIGHT_VERSION
                          "): run that, or compile the model again with this one"
                    : "compile the model again with this version of pipewright");
  CheckKeys(in,
            {"format", "format_version", "pipewright", "source", "exported_in_training", "symbols",
             "guards", "inputs", "outputs", "modules", "values", "shared", "tied", "op_libraries"},
            reader.file);
  Manifest manifest;
  manifest.version = reader.Get<std::string>(in, "pipewright", "manifest");
  manifest.source = reader.Get<std::string>(in, "source", "manifest");
  manifest.exported_in_training = reader.Get<bool>(in, "exported_in_training", "manifest");
  for (const auto& [symbol, range] : reader.At(in, "symbols", "manifest").items())
    manifest.symbols[symbol] = {reader.Get<int64_t>(range, "min", "symbols." + symbol),
                                reader.Get<int64_t>(range, "max", "symbols." + symbol)};
  if (in.contains("guards"))
    manifest.guards = reader.Get<std::vector<std::string>>(in, "guards", "manifest");

  std::map<std::string, int> ids;
  for (const Json& value : reader.List(in, "values", "manifest")) {
    std::string path = "values[" + std::to_string(manifest.values.size()) + "]";
    manifest.values.push_back(ReadValue(reader, value, path));
    if (!ids.emplace(manifest.values.back().name, ids.size()).second)
      reader.Fail(path, "the name \"" + manifest.values.back().name + "\" appears twice");
  }
  auto lookup = [&](const Json& object, const char* key, const std::string& path) {
    std::vector<int> out;
    for (const std::string& name : reader.Get<std::vector<std::string>>(object, key, path)) {
      auto found = ids.find(name);
      if (found == ids.end()) reader.Fail(path + "." + key, "no value is named \"" + name + "\"");
      out.push_back(found->second);
    }
    return out;
  };
  manifest.inputs = lookup(in, "inputs", "manifest");
  manifest.outputs = lookup(in, "outputs", "manifest");
  for (const Json& module : reader.List(in, "modules", "manifest")) {
    std::string path = "modules[" + std::to_string(manifest.modules.size()) + "]";
    CheckKeys(module,
              {"name", "code", "weights", "code_hash", "line_hashes", "covers", "inputs", "outputs",
               "held", "no_gradient"},
              reader.file + ": " + path);
    ModuleInfo info;
    info.name = reader.Get<std::string>(module, "name", path);
    info.code = reader.Get<std::string>(module, "code", path);
    info.weights = reader.Get<std::string>(module, "weights", path);
    for (const std::string& file : {info.code, info.weights})
      if (file.empty() || file[0] == '/' || file.find("..") != std::string::npos)
        reader.Fail(path, "the file \"" + file + "\" does not lie in the package");
    info.code_hash = reader.Get<std::string>(module, "code_hash", path);
    if (module.contains("line_hashes"))
      info.line_hashes = reader.Get<std::string>(module, "line_hashes", path);
    info.covers = reader.Get<std::vector<std::string>>(module, "covers", path);
    info.inputs = lookup(module, "inputs", path);
    info.outputs = lookup(module, "outputs", path);
    for (const Json& weight : reader.List(module, "held", path))
      info.held.push_back(
          ReadWeight(reader, weight, path + ".held[" + std::to_string(info.held.size()) + "]"));
    info.no_gradient = ReadNoGradient(reader, module, lookup, path);
    manifest.modules.push_back(std::move(info));
  }
  manifest.shared = ReadShared(reader, in);
  manifest.tied = reader.Get<std::vector<std::vector<std::string>>>(in, "tied", "manifest");
  manifest.op_libraries = reader.Get<std::vector<std::string>>(in, "op_libraries", "manifest");
  Check(reader, manifest);
  return manifest;
}

std::string WriteManifest(const Manifest& manifest) {
  Json out{{"format", "pipewright package"},
           {"format_version", kFormat},
           {"pipewright", manifest.version},
           {"source", manifest.source},
           {"exported_in_training", manifest.exported_in_training}};
  out["symbols"] = Json::object();
  for (const auto& [symbol, range] : manifest.symbols)
    out["symbols"][symbol] = {{"min", range.first}, {"max", range.second}};
  if (!manifest.guards.empty()) out["guards"] = manifest.guards;
  out["inputs"] = Names(manifest.values, manifest.inputs);
  out["outputs"] = Names(manifest.values, manifest.outputs);
  out["modules"] = Json::array();
  for (const ModuleInfo& module : manifest.modules) {
    Json held = Json::array();
    for (const WeightInfo& weight : module.held) held.push_back(ToJson(weight));
    out["modules"].push_back({{"name", module.name},
                              {"code", module.code},
                              {"weights", module.weights},
                              {"code_hash", module.code_hash},
                              {"covers", module.covers},
                              {"inputs", Names(manifest.values, module.inputs)},
                              {"outputs", Names(manifest.values, module.outputs)},
                              {"held", held}});
    if (!module.line_hashes.empty()) out["modules"].back()["line_hashes"] = module.line_hashes;
    for (const auto& [output, missed] : module.no_gradient)
      out["modules"].back()["no_gradient"][manifest.values[output].name] = {
          {"inputs", Names(manifest.values, missed.inputs)}, {"weights", missed.weights}};
  }
  out["values"] = Json::array();
  for (const ValueInfo& value : manifest.values) out["values"].push_back(ToJson(value));
  out["shared"] = Json::array();
  for (const SharedWeight& weight : manifest.shared) {
    Json group = Json::array();
    for (const SharedWeight::Holder& holder : weight.holders)
      group.push_back({{"module", holder.module}, {"name", holder.name}});
    out["shared"].push_back(group);
  }
  out["tied"] = manifest.tied;
  out["op_libraries"] = manifest.op_libraries;
  return FormatJson(out);
}

// Returns the modules that compute these values. Relies on producers preceding consumers.
static std::vector<bool> Needed(const Manifest& manifest, const std::vector<int>& values) {
  std::vector<bool> needed(manifest.modules.size());
  auto need = [&](int id) {
    const int producer = manifest.values[static_cast<size_t>(id)].producer;
    if (producer >= 0) needed[static_cast<size_t>(producer)] = true;
  };
  std::for_each(values.begin(), values.end(), need);
  for (size_t m = manifest.modules.size(); m-- > 0;)
    if (needed[m])
      std::for_each(manifest.modules[m].inputs.begin(), manifest.modules[m].inputs.end(), need);
  return needed;
}

void KeepOutputs(Manifest& manifest, const std::vector<std::string>& names,
                 const std::string& where) {
  std::vector<std::string> known;
  for (int id : manifest.outputs) known.push_back(manifest.values[static_cast<size_t>(id)].name);
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(where, "the model has no output \"" + name + "\"" + Suggest(name, known),
                  "its outputs: " + Join(known, ", "));
  if (!names.empty()) {
    std::erase_if(manifest.outputs, [&](int id) {
      const std::string& name = manifest.values[static_cast<size_t>(id)].name;
      return std::find(names.begin(), names.end(), name) == names.end();
    });
    const std::vector<bool> needed = Needed(manifest, manifest.outputs);
    for (size_t m = 0; m < needed.size(); ++m) manifest.modules[m].skipped = !needed[m];
  }
  auto skipped = [&](int module) { return manifest.modules[static_cast<size_t>(module)].skipped; };
  for (ValueInfo& value : manifest.values) std::erase_if(value.consumers, skipped);
  for (SharedWeight& weight : manifest.shared)
    std::erase_if(weight.holders, [&](const auto& holder) { return skipped(holder.module); });
  std::erase_if(manifest.shared, [](const SharedWeight& one) { return one.holders.size() < 2; });
  auto symbols_of = [&](int id) {
    std::set<std::string> symbols;
    for (const std::string& size : manifest.values[static_cast<size_t>(id)].shape)
      for (const std::string& symbol : SymbolsOf(size)) symbols.insert(symbol);
    return symbols;
  };
  auto is_used = [&](int id) {
    return !manifest.values[static_cast<size_t>(id)].consumers.empty() ||
           std::find(manifest.outputs.begin(), manifest.outputs.end(), id) !=
               manifest.outputs.end();
  };
  // The sizes of an input that no module takes may be ones on which the export depends, and which
  // no other input has.
  std::set<std::string> guarded;
  for (const std::string& guard : manifest.guards)
    if (const std::vector<std::string> used = SymbolsOf(guard); names.empty())
      guarded.insert(used.begin(), used.end());
  for (int id : manifest.inputs)
    if (is_used(id))
      for (const std::string& symbol : symbols_of(id)) guarded.erase(symbol);
  std::erase_if(manifest.inputs, [&](int id) {
    const std::set<std::string> symbols = symbols_of(id);
    return !is_used(id) &&
           std::none_of(symbols.begin(), symbols.end(),
                        [&](const std::string& symbol) { return guarded.count(symbol) > 0; });
  });
}

std::vector<std::string> OutputsWithout(const Manifest& manifest, int input) {
  const ValueInfo& value = manifest.values[static_cast<size_t>(input)];
  std::vector<std::string> names;
  for (int id : manifest.outputs) {
    const std::vector<bool> needed = Needed(manifest, {id});
    if (id != input && std::none_of(value.consumers.begin(), value.consumers.end(),
                                    [&](int m) { return needed[static_cast<size_t>(m)]; }))
      names.push_back(manifest.values[static_cast<size_t>(id)].name);
  }
  return names;
}

bool Trained(const Manifest& manifest, const SharedWeight& weight) {
  for (const SharedWeight::Holder& holder : weight.holders)
    for (const WeightInfo& info : manifest.modules[holder.module].held)
      if (info.name == holder.name && !(info.kind == WeightKind::kParameter && info.requires_grad))
        return false;
  return true;
}

StageGraph MakeStageGraph(const Manifest& manifest, const Conf& conf) {
  StageGraph graph;
  graph.stages = static_cast<int>(conf.stage_to_ranks.size());
  graph.ranks_of = conf.stage_to_ranks;
  for (const std::vector<int>& ranks : graph.ranks_of)
    for (int rank : ranks) graph.ranks = std::max(graph.ranks, rank + 1);
  std::map<std::pair<int, int>, bool> edges;
  for (const ValueInfo& value : manifest.values) {
    if (value.producer < 0) continue;
    int from = conf.module_to_stage[value.producer];
    for (int consumer : value.consumers)
      if (int to = conf.module_to_stage[consumer]; to != from)
        edges[{from, to}] = edges[{from, to}] || value.gradient;
  }
  for (const auto& [ends, gradient] : edges)
    graph.edges.push_back({ends.first, ends.second, gradient, 0, 0});
  for (const SharedWeight& weight : manifest.shared) {
    if (!Trained(manifest, weight)) continue;
    std::set<int> stages;
    for (const SharedWeight::Holder& holder : weight.holders)
      stages.insert(conf.module_to_stage[holder.module]);
    graph.shared.emplace_back(stages.begin(), stages.end());
  }
  return graph;
}

}  // namespace pipewright
