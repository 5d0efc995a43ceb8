// Reads .pt2 archives of torch.export.save.
#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/symbol.h"
#include "compiler/import/export/buffer_writes.h"
#include "compiler/import/export/export_archive.h"
#include "compiler/import/export/export_graph.h"
#include "formats/torch/archive.h"

namespace pipewright {
namespace {

constexpr int64_t kSchemaMajor = 8;

ExportJson ReadRecord(const Archive& archive, const std::string& record) {
  const std::string text = archive.Read(record);
  ExportJson json = ExportJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    throw Error(archive.path() + ": " + record, "is not JSON", "the file is damaged: export again");
  return json;
}

int64_t Fixed(const ExportJson& size, const std::string& name) {
  if (!size.contains("as_int"))
    throw Error("weight \"" + name + "\"", "has a size that is not a number");
  return size["as_int"].get<int64_t>();
}

// Returns the weight for `name` in the archive's table `config`.
Weight ReadWeight(const Archive& archive, const ExportJson& config, const std::string& folder,
                  const std::string& name) {
  auto entry = config.find(name);
  const std::string where = archive.path() + ": weight \"" + name + "\"";
  if (entry == config.end()) throw Error(where, "is not in the archive");
  if (entry->value("use_pickle", false))
    throw Error(where, "is stored as a Python pickle",
                "store plain tensors: no tensor subclasses, no quantized or sparse ones");
  const ExportJson& meta = entry->at("tensor_meta");
  Weight weight;
  weight.names = {name};
  weight.dtype = ExportDtype(meta.at("dtype").get<int64_t>());
  for (const ExportJson& size : meta.at("sizes")) weight.shape.push_back(Fixed(size, name));
  for (const ExportJson& stride : meta.at("strides")) weight.strides.push_back(Fixed(stride, name));
  weight.storage_offset = Fixed(meta.at("storage_offset"), name);
  weight.requires_grad = meta.value("requires_grad", false);
  if (meta.value("layout", int64_t{7}) != 7)
    throw Error(where, "is not a dense tensor", "convert it with .to_dense() before exporting");
  std::string record = folder + entry->at("path_name").get<std::string>();
  int64_t last = weight.storage_offset;  // the last element's index in the storage
  bool empty = false;
  for (size_t d = 0; d < weight.shape.size(); ++d) {
    if (weight.shape[d] < 0 || weight.strides.at(d) < 0)
      throw Error(where, "has a negative size or stride");
    empty = empty || weight.shape[d] == 0;
    int64_t extent = 0;
    if (!empty && (__builtin_mul_overflow(weight.shape[d] - 1, weight.strides[d], &extent) ||
                   __builtin_add_overflow(last, extent, &last)))
      throw Error(where, "has sizes beyond 64 bits");
  }
  const ExportJson& device = meta.value("device", ExportJson::object());
  weight.absent = !empty && device.value("type", std::string("cpu")) == "meta";
  if (empty || weight.absent) return weight;
  if (!archive.Has(record)) throw Error(where, "has no record " + record + " in the archive");
  weight.absent = archive.Size(record) == 0;  // written from a FakeTensor
  if (weight.absent) return weight;
  weight.file_offset = archive.Offset(record);
  weight.file_bytes = archive.Size(record);
  uint64_t needed = (static_cast<uint64_t>(last) + 1) * c10::elementSize(weight.dtype);
  if (weight.storage_offset < 0 || needed > weight.file_bytes)
    throw Error(where,
                "needs " + std::to_string(needed) + " bytes, its record has " +
                    std::to_string(weight.file_bytes),
                "the file is damaged: copy or export it again");
  return weight;
}

bool SameTensor(const Weight& a, const Weight& b) {
  return a.file_offset == b.file_offset && a.file_bytes != 0 && a.dtype == b.dtype &&
         a.shape == b.shape && a.strides == b.strides && a.storage_offset == b.storage_offset;
}

// Returns the position of each name in a table of weights, which is in the state dict's order.
std::map<std::string, size_t> PlacesIn(const std::string& table) {
  std::map<std::string, size_t> places;
  // The parsed object is sorted by name, so positions are recorded during parsing.
  auto note = [&](int depth, ExportJson::parse_event_t event, ExportJson& parsed) {
    if (depth == 2 && event == ExportJson::parse_event_t::key)
      places.emplace(parsed.get<std::string>(), places.size());
    return true;
  };
  const ExportJson whole = ExportJson::parse(table, note, /*allow_exceptions=*/false);
  return whole.is_discarded() ? std::map<std::string, size_t>() : places;
}

// An argument of the graph that is a weight.
struct WeightArgument {
  size_t index = 0;   // into Model::weights
  bool trained = false;  // under this name: a frozen one may be in the memory of a trained one
};

// Reads the weights of the signature, one per tensor; `arguments` are by name.
void ReadWeights(const Archive& archive, const ExportJson& signature, Model& model,
                 std::map<std::string, WeightArgument>& arguments) {
  ExportJson tables[2];
  const std::string folders[2] = {"data/weights/", "data/constants/"};
  const std::string names[2] = {"model_weights_config.json", "model_constants_config.json"};
  for (int t = 0; t < 2; ++t) {
    const std::string record = folders[t] + names[t];
    if (!archive.Has(record))
      throw Error(archive.path(), "has no " + record, "re-export with torch 2.11 to 2.13");
    tables[t] = ReadRecord(archive, record).at("config");
  }
  std::map<uint64_t, std::vector<size_t>> at_offset;
  struct Spec {
    std::string name;
    WeightKind kind = WeightKind::kConstant;
    bool persistent = false;
    std::string argument;  // empty: unused by forward
  };
  std::vector<Spec> specs;
  std::set<std::string> known;
  for (const ExportJson& spec : signature.at("input_specs")) {
    const std::string kind = spec.begin().key();
    const ExportJson& content = spec.begin().value();
    static const std::map<std::string, WeightKind> kKinds = {
        {"parameter", WeightKind::kParameter},
        {"buffer", WeightKind::kBuffer},
        {"tensor_constant", WeightKind::kConstant}};
    const auto found = kKinds.find(kind);
    if (found == kKinds.end()) continue;
    const bool persistent = found->second == WeightKind::kBuffer
                                ? content.value("persistent", true)
                                : found->second == WeightKind::kParameter;
    specs.push_back({content.at(kind + "_name").get<std::string>(), found->second, persistent,
                     content.at("arg").at("name").get<std::string>()});
    known.insert(specs.back().name);
  }
  // With strict=True the signature lists only what forward uses; the table has the whole state
  // dict.
  for (const auto& [name, entry] : tables[0].items())
    if (!known.count(name))
      specs.push_back(
          {name, entry.value("is_param", false) ? WeightKind::kParameter : WeightKind::kBuffer,
           true, ""});
  // Strict exports list weights in the order of first use; the table has the model's order.
  const std::map<std::string, size_t> places = PlacesIn(archive.Read(folders[0] + names[0]));
  auto place_of = [&](const Spec& spec) {
    auto place = places.find(spec.name);
    return place == places.end() ? places.size() : place->second;
  };
  std::stable_sort(specs.begin(), specs.end(),
                   [&](const Spec& a, const Spec& b) { return place_of(a) < place_of(b); });
  for (const auto& [name, kind, persistent, argument] : specs) {
    int table = tables[0].contains(name) ? 0 : 1;
    Weight weight = ReadWeight(archive, tables[table], folders[table], name);
    weight.kind = kind;
    weight.persistent = persistent;
    if (kind != WeightKind::kParameter) weight.requires_grad = false;
    size_t index = model.weights.size();
    for (size_t other : at_offset[weight.file_offset])
      if (SameTensor(model.weights[other], weight)) index = other;
    if (index == model.weights.size()) {
      at_offset[weight.file_offset].push_back(index);
      model.weights.push_back(weight);
    } else {
      model.weights[index].names.push_back(name);
      if (kind == WeightKind::kParameter) {
        model.weights[index].kind = kind;
        model.weights[index].requires_grad |= weight.requires_grad;
      }
      model.weights[index].persistent |= weight.persistent;
    }
    if (!argument.empty()) arguments[argument] = {index, weight.requires_grad};
  }
}

void CheckVersion(const ExportJson& program, const std::string& path) {
  const ExportJson& version = program.at("schema_version");
  int64_t major = version.at("major").get<int64_t>();
  if (major == kSchemaMajor) return;
  throw Error(path,
              "was written by torch " + program.value("torch_version", std::string("?")) +
                  " in schema " + std::to_string(major) + "." +
                  std::to_string(version.value("minor", int64_t{0})) + "; this program reads " +
                  std::to_string(kSchemaMajor) + ".x",
              major < kSchemaMajor ? "re-export with torch 2.11 to 2.13"
                                   : "re-export with torch 2.13, or use a newer pipewright");
}

// Returns, by output, its name in the tree that the model returned (the `out_spec` of torch.export,
// version 1 of PyTorch's tree specs): the keys on the path to it, "aux.a" for {"aux": {"a": y}},
// with a number for an index in a list or tuple. Empty if there is no key on the path, or the text
// is not such a tree.
std::vector<std::string> OutputNames(const std::string& out_spec) {
  using Json = ExportJson;
  const Json spec = Json::parse(out_spec, nullptr, /*allow_exceptions=*/false);
  if (!spec.is_array() || spec.size() != 2 || spec[0] != 1) return {};
  struct Place {
    const Json* node;
    std::string path;
    bool keyed;
  };
  std::vector<std::string> names;
  std::vector<Place> open = {{&spec[1], "", false}};  // a stack: the next one is last
  while (!open.empty()) {
    Place place = std::move(open.back());
    open.pop_back();
    if (!place.node->is_object()) return {};
    if (!place.node->contains("type") || (*place.node)["type"].is_null()) {
      names.push_back(place.keyed ? place.path : "");
      continue;
    }
    auto children = place.node->find("children_spec"), context = place.node->find("context");
    if (children == place.node->end() || !children->is_array()) return {};
    Json keys;
    if (context != place.node->end() && context->is_string())
      keys = Json::parse(context->get<std::string>(), nullptr, /*allow_exceptions=*/false);
    const bool keyed =
        keys.is_array() && keys.size() == children->size() &&
        std::all_of(keys.begin(), keys.end(), [](const Json& key) { return key.is_string(); });
    for (size_t i = children->size(); i-- > 0;) {
      std::string key = keyed ? keys[i].get<std::string>() : std::to_string(i);
      open.push_back({&(*children)[i], place.path.empty() ? key : place.path + "." + key,
                      place.keyed || keyed});
    }
  }
  return names;
}

// Names the outputs of a dictionary by its keys.
void NameOutputs(const ExportJson& module, ExportConverter& converter, torch::jit::Graph& graph) {
  for (const ExportJson& call : module.at("module_call_graph")) {
    if (!call.at("fqn").get<std::string>().empty() || !call.at("signature").is_object()) continue;
    const std::vector<std::string> names =
        OutputNames(call["signature"].value("out_spec", std::string()));
    if (names.size() != graph.outputs().size()) return;
    std::set<torch::jit::Value*> named;
    std::vector<std::pair<torch::jit::Value*, std::string>> wanted;
    for (size_t i = 0; i < names.size(); ++i) {
      torch::jit::Value* value = graph.outputs()[i];
      const auto kind = value->node()->kind();
      if (names[i].empty() || kind == c10::prim::Param) continue;
      if (named.insert(value).second) wanted.emplace_back(value, Identifier(names[i]));
    }
    if (!wanted.empty()) converter.RenameAll(wanted);
    return;
  }
}

void BindWeights(const Model& model, const std::map<std::string, WeightArgument>& arguments,
                 ExportConverter& converter) {
  for (const auto& [name, argument] : arguments) {
    torch::jit::Value* weight = model.weight_input(argument.index);
    if (model.weights[argument.index].requires_grad && !argument.trained)
      weight = model.graph->insert(c10::aten::detach, {weight});
    converter.BindWeight(name, weight);
  }
}

void Convert(const Archive& archive, const ExportJson& program, Model& model) {
  const ExportJson& module = program.at("graph_module");
  const ExportJson& graph = module.at("graph");
  const ExportJson& signature = module.at("signature");
  std::map<std::string, WeightArgument> arguments;
  ReadWeights(archive, signature, model, arguments);

  auto& out = *model.graph;
  std::vector<torch::jit::Value*> weights;
  for (size_t i = 0; i < model.weights.size(); ++i) weights.push_back(out.addInput());
  out.addInput()->setType(c10::BoolType::get());
  out.addInput()->setType(c10::DeviceObjType::get());
  ExportConverter converter(model, archive.path());
  BindWeights(model, arguments, converter);
  for (const ExportJson& spec : signature.at("input_specs")) {
    const std::string kind = spec.begin().key();
    const ExportJson& content = spec.begin().value();
    if (kind == "user_input") {
      const ExportJson& arg = content.at("arg");
      const std::string what = arg.begin().key();
      const ExportJson& inner = arg.begin().value();
      if (what == "as_tensor") {
        converter.Bind(inner.at("name"), out.addInput(), graph);
      } else if (what == "as_sym_int" && inner.contains("as_name")) {
        auto value = out.addInput();
        value->setType(c10::IntType::get());
        converter.Bind(inner["as_name"], value, graph);
      } else if (what != "as_none" && what != "as_int" && what != "as_float" && what != "as_bool" &&
                 what != "as_string") {
        throw Error(archive.path(), "has an input of kind " + what + ", which is not supported",
                    "pass tensors");
      }
    } else if (kind == "custom_obj" || kind == "token") {
      throw Error(archive.path(), "has an input of kind " + kind + ", which is not supported",
                  "export without script objects and effect tokens");
    }
  }
  // Names weights after the inputs, whose names identify a job's data.
  for (size_t i = 0; i < model.weights.size(); ++i)
    converter.Name(weights[i], Identifier(model.weights[i].names[0]));
  converter.Name(model.training(), "self_training");
  converter.Name(model.device(), "self_device");
  converter.ConvertNodes(graph);
  const ExportJson& specs = signature.at("output_specs");
  std::vector<BufferWrite> writes;
  for (const ExportJson& spec : specs) {
    const std::string kind = spec.begin().key();
    const ExportJson& content = spec.begin().value();
    if (kind == "user_output" || kind == "loss_output") {
      ExportJson arg = content.at("arg");
      if (arg.contains("as_string")) arg = {{"as_none", true}};  // keeps its position
      torch::jit::Value* value =
          converter.Output(kind == "user_output" ? arg : ExportJson{{"as_tensor", arg}});
      // A returned weight gets an alias, because no module produces the weight itself.
      if (std::find(weights.begin(), weights.end(), value) != weights.end())
        value = out.insert(c10::aten::alias, {value});
      out.registerOutput(value);
    } else if (kind == "user_input_mutation") {
      // A functionalized export may write to its caller's tensor; here the run returns copies.
    } else if (kind == "buffer_mutation" || kind == "parameter_mutation") {
      // A functionalized export returns the buffer's new content, which is written back.
      const bool parameter = kind == "parameter_mutation";
      const std::string name =
          content.at(parameter ? "parameter_name" : "buffer_name").get<std::string>();
      torch::jit::Value* buffer = nullptr;
      for (size_t i = 0; i < model.weights.size(); ++i)
        for (const std::string& own : model.weights[i].names)
          if (own == name) buffer = weights[i];
      if (!buffer)
        throw Error(archive.path(), "writes to a buffer \"" + name + "\" that it does not have");
      writes.emplace_back(buffer, converter.Output(ExportJson{{"as_tensor", content.at("arg")}}));
    } else {
      throw Error(archive.path(), "has an output of kind " + kind + ", which is not supported",
                  "export the forward pass only");
    }
  }
  if (writes.empty()) writes = TakeAssignments(model);
  WriteBack(model, writes);
  NameOutputs(module, converter, out);
}

}  // namespace

// Reads the conditions that the file's own module checks: Python text about `L['x'].size()[1]`.
static void ReadGuards(const ExportJson& program, Model& model) {
  if (!program.contains("guards_code")) return;
  static const std::regex kSize(R"(L\['(\w+)'\]((?:\['?\w+'?\])*)\.size\(\)\[(\d{1,4})\])");
  std::map<std::string, const ValueMeta*> inputs;
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i)
    inputs[model.graph->inputs()[i]->debugName()] = model.MetaOf(model.graph->inputs()[i]);
  // Strict exports count the inputs: L['flat_args'][0].
  size_t count = 0;
  for (const ExportJson& spec : program["graph_module"]["signature"]["input_specs"]) {
    if (!spec.contains("user_input")) continue;
    const ExportJson& argument = spec["user_input"]["arg"].begin().value();
    const std::string number = "flat_args_" + std::to_string(count++);
    if (!argument.is_object() || !argument.contains("name")) continue;
    if (const auto input = inputs.find(argument["name"].get<std::string>()); input != inputs.end())
      inputs[number] = input->second;
  }
  // torch renames the second of d["q"] and d_q to d_q_1, but not in its guards.
  auto is_ambiguous = [&](const std::string& name) {
    return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
      return input.first.starts_with(name + "_") &&
             input.first.find_first_not_of("0123456789", name.size() + 1) == std::string::npos;
    });
  };
  for (const ExportJson& entry : program["guards_code"]) {
    const std::string guard = entry.get<std::string>();
    std::string text, rest = guard;
    bool known = true;
    for (std::smatch size; known && std::regex_search(rest, size, kSize); rest = size.suffix()) {
      std::string name = size[1];  // a graph's input: "d_a" for d["a"]
      for (char c : size[2].str())
        if (c != ']' && c != '\'') name += c == '[' ? '_' : c;
      const auto input = inputs.find(name);
      const size_t d = std::stoul(size[3]);
      known = input != inputs.end() && input->second && d < input->second->shape.size() &&
              (name.starts_with("flat_args_") || !is_ambiguous(name));
      if (known) text += size.prefix().str() + "(" + input->second->shape[d] + ")";
    }
    text += rest;
    known = known && IsCondition(text);
    (known ? model.guards : model.unknown_guards).push_back(known ? text : guard);
  }
}

// Refuses operations that computed in the default dtype of the process that exported the model:
// with integers or without tensors, and into another floating-point type than float32.
static void CheckDefaultDtype(const Model& model) {
  auto dtype_of = [&](const torch::jit::Value* value) {
    const std::optional<ValueMeta> meta = model.TensorOf(value);
    return meta ? std::optional(meta->dtype) : std::nullopt;
  };
  for (torch::jit::Node* node : AllNodes(*model.graph)) {
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!schema || node->outputs().size() != 1) continue;
    const auto made = dtype_of(node->output());
    if (!made || made == at::kFloat || made == at::kComplexFloat ||
        (!at::isFloatingType(*made) && !at::isComplexType(*made)) || !node->kind().is_aten())
      continue;
    if (const torch::jit::Value* dtype = InputOf(node, "dtype")) {
      const auto named = torch::jit::toIValue(dtype);
      if (!named || !named->isNone()) continue;
    }
    const bool by_default =
        std::all_of(node->inputs().begin(), node->inputs().end(), [&](const torch::jit::Value* in) {
          const auto list = in->type()->cast<c10::ListType>();
          const c10::Type& type = list ? *list->getElementType() : *in->type();
          if (!type.isSubtypeOf(*c10::OptionalType::ofTensor()) ||
              type.kind() == c10::TypeKind::NoneType)
            return true;
          const auto dtype = dtype_of(in);
          return dtype && at::isIntegralType(*dtype, /*includeBool=*/true);
        });
    if (by_default)
      throw Error(model.file + ": " + node->kind().toQualString() + ", " + Origin(node),
                  "gives " + DtypeText(*made) +
                      ", the default dtype of the process that exported the model; a run's is "
                      "float32",
                  "name the dtype in that line, or export the model with the default float32");
  }
}

Model ImportExport(const Archive& archive) {
  const std::string &path = archive.path(), record = "models/model.json";
  if (archive.Has("byteorder") && archive.Read("byteorder") == "big")
    throw Error(path, "holds big-endian weights", "export on a little-endian machine");
  Model model;
  model.file = path;
  model.files = {path};
  model.graph = std::make_shared<torch::jit::Graph>();
  try {
    ExportJson program = ReadRecord(archive, record);
    CheckVersion(program, path);
    Convert(archive, program, model);
    for (const auto& [symbol, range] : program.at("range_constraints").items()) {
      auto bound = [&](const char* key, int64_t otherwise) {
        return range.contains(key) && range[key].is_number_integer() ? range[key].get<int64_t>()
                                                                     : otherwise;
      };
      model.symbols[symbol] = {bound("min_val", 0), bound("max_val", INT64_MAX)};
    }
    ReadGuards(program, model);
    CheckDefaultDtype(model);
    for (const ExportJson& call : program.at("graph_module").at("module_call_graph"))
      if (const std::string name = call.at("fqn"); !name.empty()) model.submodules.push_back(name);
  } catch (const nlohmann::json::exception& e) {
    throw Error(path + ": model.json", std::string("does not follow the schema: ") + e.what(),
                "re-export with torch 2.11 to 2.13");
  } catch (const c10::Error& e) {
    throw Error(
        path + ": model.json",
        std::string("LibTorch cannot take it: ") + e.what_without_backtrace(),
        "check that torch.export.load reads the file and that the program runs; then report "
        "it with the file");
  }
  return model;
}

}  // namespace pipewright
