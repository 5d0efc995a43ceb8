#include "plan/placement/budgets.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/size.h"
#include "base/text.h"

namespace pipewright {

static const char kOption[] = "--max-memory";

static std::pair<int, int64_t> DeviceOrder(const std::string& device) {
  if (device == "cpu") return {1, 0};
  if (device == "disk") return {2, 0};
  return {0, std::stoll(device)};
}

static std::string DeviceName(std::string text) {
  while (!text.empty() && text.front() == ' ') text.erase(0, 1);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  if (text == "cpu" || text == "disk") return text;
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0)
    throw Error(kOption, "unknown device " + Quote(text) + Suggest(text, {"cpu", "disk"}),
                "devices are 0, 1, ..., cpu and disk");
  return std::to_string(number);
}

std::vector<Budget> ParseBudgets(const std::vector<std::string>& texts) {
  std::vector<Budget> budgets;
  std::set<std::string> named;
  for (const std::string& text : texts)
    for (const std::string& part : Split(text, ',')) {
      size_t equals = part.find('=');
      if (equals == std::string::npos)
        throw Error(kOption, Quote(part) + " is not DEVICE=SIZE", "as in 0=10GiB,cpu=30GiB");
      std::string device = DeviceName(part.substr(0, equals));
      if (!named.insert(device).second)
        throw Error(kOption, "the device " + device + " is named twice");
      budgets.push_back({device, ParseSize(part.substr(equals + 1), kOption)});
    }
  if (!named.count("disk")) budgets.push_back({"disk", -1});
  std::sort(budgets.begin(), budgets.end(), [](const Budget& a, const Budget& b) {
    return DeviceOrder(a.device) < DeviceOrder(b.device);
  });
  return budgets;
}

// Returns the bytes of the largest among the first modules or tensors of each class, in the order
// of the model.
static int64_t LargestFirstBlock(const ModuleTree& tree, const std::vector<std::string>& no_split) {
  std::set<std::string> wanted(no_split.begin(), no_split.end());
  int64_t largest = 0;
  for (size_t i = 1; i < tree.modules.size(); ++i)
    if (tree.modules[i].bytes > 0 && wanted.erase(tree.modules[i].class_name))
      largest = std::max(largest, tree.modules[i].bytes);
  return largest;
}

// Returns the mean size of the modules that hold tensors and have no child that does.
static int64_t MeanLeafModule(const ModuleTree& tree) {
  std::vector<bool> holds(tree.modules.size(), false), inner(tree.modules.size(), false);
  for (size_t i = 0; i < tree.tensors.size(); ++i)
    if (tree.tensors[i].first == static_cast<int>(i))
      holds[static_cast<size_t>(tree.tensors[i].module)] = true;
  for (size_t i = tree.modules.size(); i-- > 1;)
    if (holds[i]) {
      size_t parent = static_cast<size_t>(tree.modules[i].parent);
      holds[parent] = inner[parent] = true;
    }
  double sum = 0;
  int count = 0;
  for (size_t i = 1; i < tree.modules.size(); ++i)
    if (holds[i] && !inner[i]) sum += static_cast<double>(tree.modules[i].bytes), ++count;
  return static_cast<int64_t>(sum / std::max(count, 1));
}

std::vector<Budget> AccelerateBalancedBudgets(const ModuleTree& tree, std::vector<Budget> budgets,
                                              const std::vector<std::string>& no_split,
                                              bool low_zero) {
  std::vector<Budget*> devices;
  for (Budget& budget : budgets)
    if (budget.accelerator() && budget.limit > 0) devices.push_back(&budget);
  if (devices.empty()) return budgets;
  if (devices.size() == 1) low_zero = false;
  int64_t total = tree.modules[0].bytes;
  int64_t count = static_cast<int64_t>(devices.size()) - (low_zero ? 1 : 0);
  double margin =
      static_cast<double>(std::max(LargestFirstBlock(tree, no_split), MeanLeafModule(tree)));
  int64_t share = total / count + static_cast<int64_t>(1.25 * margin);
  for (size_t i = low_zero ? 1 : 0; i + 1 < devices.size(); ++i)
    devices[i]->limit = std::min(devices[i]->limit, share);
  if (low_zero) {
    int64_t others = 0;  // cannot overflow: stops once the model is covered
    for (size_t i = 1; i < devices.size() && others < total; ++i)
      others += std::min(devices[i]->limit, total);
    devices[0]->limit = std::min(devices[0]->limit, std::max<int64_t>(0, total - others));
  }
  return budgets;
}

}  // namespace pipewright
