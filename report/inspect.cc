#include "report/inspect.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "base/dtype.h"
#include "base/size.h"
#include "base/table.h"
#include "base/text.h"
#include "plan/placement/residence.h"

namespace pipewright {

namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Numbers(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (int number : numbers) parts.push_back(std::to_string(number));
  return parts.empty() ? "-" : Join(parts, ",");
}

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", seconds * 1e3);
  return text;
}

std::string StageText(int stage) { return stage < 0 ? "-" : std::to_string(stage); }

std::string TypeText(const ValueInfo& value) {
  return value.dtype.empty() ? ToText(value.kind) : value.dtype;
}

std::string KindText(const WeightInfo& weight) {
  const bool frozen = weight.kind == WeightKind::kParameter && !weight.requires_grad;
  return frozen ? "frozen" : ToText(weight.kind);
}

std::string Covers(const ModuleInfo& module) {
  return module.covers.empty() ? "-" : Join(module.covers, " ");
}

// The modules of a stage or of a rank.
struct Group {
  std::vector<int> stages, ranks, modules;
  ModuleSize size;
};

void Add(const PackageView& view, int module, Group& group) {
  const ModuleSize size = SizeOf(view.manifest.modules[static_cast<size_t>(module)]);
  group.modules.push_back(module);
  group.size.parameters += size.parameters;
  group.size.bytes += size.bytes;
}

std::vector<Group> Stages(const PackageView& view) {
  std::vector<Group> groups(static_cast<size_t>(CountStages(view)));
  for (size_t s = 0; s < groups.size(); ++s) {
    groups[s].stages = {static_cast<int>(s)};
    groups[s].ranks = view.conf->stage_to_ranks[s];
  }
  for (size_t m = 0; view.conf && m < view.manifest.modules.size(); ++m)
    Add(view, static_cast<int>(m), groups[static_cast<size_t>(StageOf(view, static_cast<int>(m)))]);
  return groups;
}

std::vector<Group> Ranks(const PackageView& view) {
  std::vector<Group> groups(static_cast<size_t>(CountRanks(view)));
  for (const Group& stage : Stages(view))
    for (int rank : stage.ranks) {
      Group& group = groups[static_cast<size_t>(rank)];
      group.ranks = {rank};
      group.stages.push_back(stage.stages[0]);
      for (int module : stage.modules) Add(view, module, group);
    }
  return groups;
}

std::string Summary(const PackageView& view) {
  Group all;
  for (size_t m = 0; m < view.manifest.modules.size(); ++m) Add(view, static_cast<int>(m), all);
  std::string text = view.package + ": " + view.manifest.source + ", compiled by pipewright " +
                     view.manifest.version + "\n" + Counted(all.modules.size(), "module") + ", " +
                     Counted(all.size.parameters, "parameter") + ", " + SizeText(all.size.bytes);
  if (view.conf)
    text += "\n" + view.conf_path + ": " + Counted(CountStages(view), "stage") + ", " +
            Counted(CountRanks(view), "rank");
  return text + "\n";
}

std::string ModulesTable(const PackageView& view) {
  Rows rows = {{"module", "stage", "ranks", "parameters", "size"}};
  if (view.profile) rows[0].insert(rows[0].end(), {"forward ms", "backward ms"});
  rows[0].push_back("submodules");
  for (size_t m = 0; m < view.manifest.modules.size(); ++m) {
    const ModuleInfo& module = view.manifest.modules[m];
    const int number = static_cast<int>(m);
    const ModuleSize size = SizeOf(module);
    rows.push_back({module.name + (view.edited[m] ? " (edited)" : ""),
                    StageText(StageOf(view, number)), Numbers(RanksOf(view, number)),
                    std::to_string(size.parameters), SizeText(size.bytes)});
    const auto time = TimeOf(view, number);
    if (view.profile)
      rows.back().insert(rows.back().end(), {time ? Milliseconds(time->forward) : "-",
                                             time ? Milliseconds(time->backward) : "-"});
    rows.back().push_back(Covers(module));
  }
  return FormatTable(rows);
}

std::string GroupsTable(const std::vector<Group>& groups, bool by_rank) {
  Rows rows = {{by_rank ? "rank" : "stage", by_rank ? "stages" : "ranks", "modules", "parameters",
                "size"}};
  for (const Group& group : groups)
    rows.push_back({Numbers(by_rank ? group.ranks : group.stages),
                    Numbers(by_rank ? group.stages : group.ranks), Numbers(group.modules),
                    std::to_string(group.size.parameters), SizeText(group.size.bytes)});
  return FormatTable(rows);
}

std::string BytesText(const PackageView& view, int value) {
  const auto bytes = ValueBytes(view, value);
  return bytes ? SizeText(*bytes) : "-";
}

std::string CrossingsTable(const PackageView& view) {
  Rows rows = {{"value", "from", "to", "dtype", "shape", "size", "gradient"}};
  for (const Crossing& crossing : CrossingsOf(view)) {
    const ValueInfo& value = view.manifest.values[static_cast<size_t>(crossing.value)];
    rows.push_back({value.name, std::to_string(crossing.from), Numbers(crossing.to),
                    TypeText(value), ValueShapeText(value), BytesText(view, crossing.value),
                    value.gradient ? "yes" : "no"});
  }
  return rows.size() == 1 ? "none\n" : FormatTable(rows);
}

std::string SharedLines(const PackageView& view) {
  std::string text;
  for (const SharedWeight& weight : view.manifest.shared) {
    std::vector<std::string> holders;
    for (const SharedWeight::Holder& holder : weight.holders)
      holders.push_back(holder.name + " (module " + std::to_string(holder.module) + ")");
    text += Join(holders, ", ") + "\n";
  }
  return text;
}

Json OrNull(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); }

Json ValueJson(const PackageView& view, int number) {
  const ValueInfo& value = view.manifest.values[static_cast<size_t>(number)];
  return {{"name", value.name},
          {"kind", ToText(value.kind)},
          {"dtype", value.dtype},
          {"shape", value.shape},
          {"bytes", OrNull(ValueBytes(view, number))},
          {"gradient", value.gradient}};
}

Json GroupJson(const char* key, const Group& group, bool by_rank) {
  return {{key, by_rank ? group.ranks[0] : group.stages[0]},
          {by_rank ? "stages" : "ranks", by_rank ? group.stages : group.ranks},
          {"modules", group.modules},
          {"parameters", group.size.parameters},
          {"bytes", group.size.bytes}};
}

}  // namespace

std::string PackageText(const PackageView& view) {
  std::string text = Summary(view) + "\n" + ModulesTable(view);
  if (view.conf) {
    text += "\n" + GroupsTable(Stages(view), false) + "\n" + GroupsTable(Ranks(view), true);
    text += "\nvalues that cross between stages, for each microbatch:\n" + CrossingsTable(view);
  }
  if (!view.manifest.shared.empty()) text += "\nshared weights:\n" + SharedLines(view);
  for (size_t i = 0; i < view.missing.size(); ++i)
    text += (i == 0 ? "\n" : "") + view.missing[i] + "\n";
  return text;
}

Json ModuleJson(const PackageView& view, int number) {
  const ModuleInfo& module = view.manifest.modules[static_cast<size_t>(number)];
  const ModuleSize size = SizeOf(module);
  const auto time = TimeOf(view, number);
  Json json = {{"module", number},
               {"name", module.name},
               {"stage", view.conf ? Json(StageOf(view, number)) : Json()},
               {"ranks", RanksOf(view, number)},
               {"code", module.code},
               {"edited", static_cast<bool>(view.edited[static_cast<size_t>(number)])},
               {"file", module.weights},
               {"submodules", module.covers},
               {"parameters", size.parameters},
               {"bytes", size.bytes},
               {"forward_seconds", time ? Json(time->forward) : Json()},
               {"backward_seconds", time ? Json(time->backward) : Json()},
               {"inputs", Json::array()},
               {"outputs", Json::array()},
               {"weights", Json::array()}};
  for (int value : module.inputs) json["inputs"].push_back(ValueJson(view, value));
  for (int value : module.outputs) json["outputs"].push_back(ValueJson(view, value));
  for (const WeightInfo& weight : module.held)
    json["weights"].push_back({{"name", weight.name},
                               {"kind", ToText(weight.kind)},
                               {"dtype", weight.dtype},
                               {"shape", weight.shape},
                               {"bytes", BytesOf(weight)},
                               {"requires_grad", weight.requires_grad}});
  return json;
}

Json PackageJson(const PackageView& view) {
  Json json = {{"package", view.package},
               {"source", view.manifest.source},
               {"pipewright", view.manifest.version},
               {"conf", view.conf ? Json(view.conf_path) : Json()},
               {"modules", Json::array()},
               {"stages", Json::array()},
               {"ranks", Json::array()},
               {"crossing", Json::array()},
               {"shared", Json::array()},
               {"missing", view.missing}};
  for (size_t m = 0; m < view.manifest.modules.size(); ++m)
    json["modules"].push_back(ModuleJson(view, static_cast<int>(m)));
  for (const Group& stage : Stages(view))
    json["stages"].push_back(GroupJson("stage", stage, false));
  for (const Group& rank : Ranks(view)) json["ranks"].push_back(GroupJson("rank", rank, true));
  for (const Crossing& crossing : CrossingsOf(view)) {
    json["crossing"].push_back(ValueJson(view, crossing.value));
    json["crossing"].back()["from"] = crossing.from;
    json["crossing"].back()["to"] = crossing.to;
  }
  for (const SharedWeight& weight : view.manifest.shared) {
    Json holders = Json::array();
    for (const SharedWeight::Holder& holder : weight.holders)
      holders.push_back({{"module", holder.module}, {"name", holder.name}});
    json["shared"].push_back(holders);
  }
  return json;
}

static std::string ValuesTable(const PackageView& view, const std::vector<int>& values,
                               bool outputs) {
  Rows rows = {{outputs ? "output" : "input", outputs ? "to" : "from", "dtype", "shape", "size"}};
  for (int number : values) {
    const ValueInfo& value = view.manifest.values[static_cast<size_t>(number)];
    std::string other = value.producer < 0 ? "the model's input"
                                           : "module " + std::to_string(value.producer);
    if (outputs)
      other = value.consumers.empty() ? "the model's output"
                                      : "modules " + Numbers(value.consumers);
    rows.push_back(
        {value.name, other, TypeText(value), ValueShapeText(value), BytesText(view, number)});
  }
  return FormatTable(rows);
}

std::string ModuleText(const PackageView& view, int number) {
  const ModuleInfo& module = view.manifest.modules[static_cast<size_t>(number)];
  const ModuleSize size = SizeOf(module);
  std::string text = module.name + ": " + Counted(size.parameters, "parameter") + ", " +
                     SizeText(size.bytes) + "\n";
  Rows rows = {{"code", module.code +
                            (view.edited[static_cast<size_t>(number)] ? " (edited)" : "")},
               {"weights", module.weights},
               {"submodules", Covers(module)}};
  if (view.conf) {
    rows.push_back({"stage", StageText(StageOf(view, number))});
    rows.push_back({"ranks", Numbers(RanksOf(view, number))});
  }
  if (auto time = TimeOf(view, number)) {
    rows.push_back({"forward", Milliseconds(time->forward) + " ms"});
    rows.push_back({"backward", Milliseconds(time->backward) + " ms"});
  }
  text += FormatTable(rows) + "\n" + ValuesTable(view, module.inputs, false) + "\n" +
          ValuesTable(view, module.outputs, true);
  if (module.held.empty()) return text;
  Rows held = {{"weight", "kind", "dtype", "shape", "size"}};
  for (const WeightInfo& weight : module.held)
    held.push_back({weight.name, KindText(weight), weight.dtype, ShapeText(weight.shape),
                    SizeText(BytesOf(weight))});
  return text + "\n" + FormatTable(held);
}

std::vector<FoundName> FindInPackage(const PackageView& view, const std::string& word) {
  std::vector<FoundName> found;
  auto add = [&](const std::string& kind, const std::string& name, int module,
                 const std::string& file) {
    if (name.find(word) != std::string::npos) found.push_back({kind, name, module, file});
  };
  for (size_t m = 0; m < view.manifest.modules.size(); ++m) {
    const ModuleInfo& module = view.manifest.modules[m];
    const int number = static_cast<int>(m);
    add("module", module.name, number, module.code);
    for (const std::string& name : module.covers) add("submodule", name, number, module.code);
    for (const WeightInfo& weight : module.held)
      add(ToText(weight.kind), weight.name, number, module.weights);
  }
  for (const ValueInfo& value : view.manifest.values)
    add("value", value.name, value.producer,
        value.producer < 0
            ? ""
            : view.manifest.modules[static_cast<size_t>(value.producer)].code);
  return found;
}

std::string FoundText(const PackageView& view, const std::vector<FoundName>& found) {
  Rows rows = {{"name", "kind", "module", "stage", "ranks", "file"}};
  for (const FoundName& f : found) {
    if (f.module < 0)
      rows.push_back({f.name, "input", "-", "-", "-", "-"});
    else
      rows.push_back({f.name, f.kind, std::to_string(f.module), StageText(StageOf(view, f.module)),
                      Numbers(RanksOf(view, f.module)), f.file});
  }
  return FormatTable(rows);
}

Json FoundJson(const PackageView& view, const std::vector<FoundName>& found) {
  Json list = Json::array();
  for (const FoundName& f : found) {
    const bool input = f.module < 0;
    list.push_back({{"name", f.name},
                    {"kind", input ? "input" : f.kind},
                    {"module", input ? Json() : Json(f.module)},
                    {"stage", input || !view.conf ? Json() : Json(StageOf(view, f.module))},
                    {"ranks", input ? Json::array() : Json(RanksOf(view, f.module))},
                    {"file", input ? Json() : Json(f.file)}});
  }
  return list;
}

}  // namespace pipewright
