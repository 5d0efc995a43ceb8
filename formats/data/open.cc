#include "formats/data/open.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "formats/job.h"

namespace pipewright {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// Steps SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t SplitMix64(uint64_t x) {
  uint64_t z = x + kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<int64_t> EpochOrder(int64_t count, uint64_t seed, int64_t epoch, bool shuffle) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  uint64_t key = SplitMix64(seed + kGolden * (static_cast<uint64_t>(epoch) + 1));
  std::vector<std::pair<uint64_t, int64_t>> keyed(order.size());
  for (size_t i = 0; i < keyed.size(); ++i)
    keyed[i] = {SplitMix64(key ^ static_cast<uint64_t>(i)), static_cast<int64_t>(i)};
  std::sort(keyed.begin(), keyed.end());
  for (size_t i = 0; i < keyed.size(); ++i) order[i] = keyed[i].second;
  return order;
}

std::shared_ptr<DataSource> OpenPlugin(const std::string& library, const std::string& options) {
  // The library is never closed, because its code may still be in use.
  std::string path = std::filesystem::absolute(library).string();
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Error(library, std::string("cannot be loaded: ") + dlerror());
  auto open = reinterpret_cast<DataSource* (*)(const char*)>(dlsym(handle, "pipewright_open_data"));
  if (!open)
    throw Error(library, "has no function pipewright_open_data",
                "extern \"C\" pipewright::DataSource* pipewright_open_data(const char* options)");
  try {
    std::shared_ptr<DataSource> source(open(options.c_str()));
    if (!source) throw Error("pipewright_open_data returned nothing");
    return source;
  } catch (const std::exception& e) {
    throw Error(library, e.what());
  }
}

std::shared_ptr<DataSource> OpenSource(const DataJob& job) {
  if (!job.tokens.empty()) return OpenTokens(job.tokens, job.token_bytes, job.sequence_length);
  if (!job.plugin.empty()) return OpenPlugin(job.plugin, job.plugin_options);
  std::vector<std::string> wanted;
  for (const auto& [input, column] : job.inputs) wanted.push_back(column);
  wanted.push_back(job.target);
  wanted.insert(wanted.end(), job.targets.begin(), job.targets.end());
  wanted.push_back(job.length);
  std::erase(wanted, "");
  std::vector<ColumnFiles> columns;
  for (const std::string& name : wanted) {
    auto there = [&](const ColumnFiles& column) { return column.column == name; };
    if (std::any_of(columns.begin(), columns.end(), there)) continue;
    auto arrays = job.arrays.find(name);
    columns.push_back({name, name, arrays != job.arrays.end() ? arrays->second : job.tensors});
    if (columns.back().files.empty()) {
      std::vector<std::string> names;
      for (const auto& [array, files] : job.arrays) names.push_back(array);
      throw Error("data.arrays", "has no \"" + name + "\"" + Suggest(name, names));
    }
  }
  return OpenColumns(columns);
}

}  // namespace pipewright
