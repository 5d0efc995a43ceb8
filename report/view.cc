#include "report/view.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/package/package_files.h"
#include "plan/placement/residence.h"

namespace pipewright {

static void ReadViewConf(PackageView& view, const std::string& given) {
  view.conf_path = given.empty() ? view.package + "/conf/mp_conf.json" : given;
  if (given.empty() && !std::filesystem::exists(view.conf_path)) {
    view.missing.push_back("no conf, so no stages and ranks: `pipewright conf` writes one");
    return;
  }
  Conf conf = ReadConf(view.conf_path);
  CheckConf(conf, static_cast<int>(view.manifest.modules.size()), -1, ModuleEdges(view.manifest),
            view.conf_path);
  view.conf = conf;
}

static void ReadViewProfile(PackageView& view, const std::string& given) {
  const std::string path = given.empty() ? view.package + "/profile.json" : given;
  if (given.empty() && !std::filesystem::exists(path)) {
    view.missing.push_back("no profile, so no times: `pipewright profile` measures one");
    return;
  }
  try {
    Profile profile = ParseProfile(ReadFile(path), path);
    CheckProfile(profile, view.manifest, path);
    view.profile = profile;
  } catch (const Error& e) {
    if (!given.empty()) throw;
    view.missing.push_back(std::string("no times: ") + e.what());
  }
}

PackageView ViewPackage(const std::string& package, const std::string& conf,
                        const std::string& profile) {
  PackageView view;
  view.package = package;
  view.manifest = ReadManifest(package);
  ReadViewConf(view, conf);
  ReadViewProfile(view, profile);
  for (const ModuleInfo& module : view.manifest.modules)
    view.edited.push_back(IsEdited(package, module));
  return view;
}

int StageOf(const PackageView& view, int module) {
  return view.conf ? view.conf->module_to_stage[static_cast<size_t>(module)] : -1;
}

std::vector<int> RanksOf(const PackageView& view, int module) {
  if (!view.conf) return {};
  return view.conf->stage_to_ranks[static_cast<size_t>(StageOf(view, module))];
}

int CountStages(const PackageView& view) {
  return view.conf ? static_cast<int>(view.conf->stage_to_ranks.size()) : 0;
}

int CountRanks(const PackageView& view) { return view.conf ? CountRanks(*view.conf) : 0; }

std::optional<int64_t> ValueBytes(const PackageView& view, int value) {
  const ValueInfo& info = view.manifest.values[static_cast<size_t>(value)];
  if (view.profile)
    for (const ProfileValue& measured : view.profile->values)
      if (measured.name == info.name) return static_cast<int64_t>(measured.bytes);
  const Dtype* dtype = FindDtype(info.dtype);
  if (info.kind != ValueKind::kTensor || !dtype) return std::nullopt;
  std::vector<int64_t> shape;
  for (const std::string& size : info.shape) {
    int64_t number = 0;
    auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
    if (error != std::errc() || end != size.data() + size.size()) return std::nullopt;
    shape.push_back(number);
  }
  return static_cast<int64_t>(TensorBytes(*dtype, shape, info.name));
}

int64_t ElementsOf(const WeightInfo& weight) {
  int64_t count = 1;
  for (int64_t size : weight.shape) count *= size;
  return count;
}

ModuleSize SizeOf(const ModuleInfo& module) {
  ModuleSize size;
  for (const WeightInfo& weight : module.held) {
    if (weight.kind == WeightKind::kParameter) size.parameters += ElementsOf(weight);
    size.bytes += BytesOf(weight);
  }
  return size;
}

std::optional<ModuleTime> TimeOf(const PackageView& view, int module) {
  if (!view.profile) return std::nullopt;
  ModuleTime time;
  for (const ProfileNode& node : view.profile->nodes) {
    if (node.module != module) continue;
    time.forward += node.forward.median;
    time.backward += node.backward.median;
  }
  return time;
}

std::vector<Crossing> CrossingsOf(const PackageView& view) {
  std::vector<Crossing> crossings;
  if (!view.conf) return crossings;
  for (size_t v = 0; v < view.manifest.values.size(); ++v) {
    const ValueInfo& value = view.manifest.values[v];
    if (value.producer < 0) continue;
    const int from = StageOf(view, value.producer);
    std::set<int> to;
    for (int consumer : value.consumers) to.insert(StageOf(view, consumer));
    to.erase(from);
    if (!to.empty()) crossings.push_back({static_cast<int>(v), from, {to.begin(), to.end()}});
  }
  return crossings;
}

std::string ValueShapeText(const ValueInfo& value) { return "[" + Join(value.shape, ", ") + "]"; }

}  // namespace pipewright
