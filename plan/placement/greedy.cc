#include "plan/placement/greedy.h"

#include <algorithm>
#include <set>

#include "base/size.h"

namespace pipewright {
namespace {

bool Under(const std::string& name, const std::string& prefix) {
  return name == prefix || prefix.empty() ||
         (name.size() > prefix.size() && name.compare(0, prefix.size(), prefix) == 0 &&
          name[prefix.size()] == '.');
}

class Greedy {
 public:
  Greedy(const ModuleTree& tree, const std::vector<Budget>& budgets,
         const std::vector<std::string>& no_split, bool fallback)
      : tree_(tree), budgets_(budgets), no_split_(no_split), fallback_(fallback) {
    used_.assign(budgets.size(), 0);
    result_.reserved.assign(budgets.size(), 0);
    std::map<int, std::vector<int>> groups;
    for (size_t i = 0; i < tree.tensors.size(); ++i)
      groups[tree.tensors[i].first].push_back(static_cast<int>(i));
    for (auto& [first, members] : groups)
      if (members.size() > 1) ties_.push_back(members);
    todo_ = SplitEntry(tree, {false, 0});
  }

  GreedyResult Run() {
    largest_ = FindLargestLayer(tree_, todo_, no_split_);
    while (!todo_.empty()) {
      if (device_ == budgets_.size()) {
        for (TreeEntry entry : todo_) result_.unplaced.push_back(NameOf(tree_, entry));
        break;
      }
      TreeEntry entry = todo_.front();
      todo_.erase(todo_.begin());
      Place(entry);
    }
    return std::move(result_);
  }

 private:
  const Budget& budget() const { return budgets_[device_]; }

  int FirstOf(const std::vector<int>& group) const {
    return tree_.tensors[static_cast<size_t>(group[0])].first;
  }

  // The first accelerator and the CPU keep room for the largest layer.
  bool IsMain() const {
    return budget().device == "cpu" || (budget().accelerator() && device_ == 0);
  }

  std::vector<TreeEntry> Modules(const std::vector<TreeEntry>& entries) const {
    std::vector<TreeEntry> modules;
    for (TreeEntry entry : entries)
      if (!entry.is_tensor) modules.push_back(entry);
    return modules;
  }

  // Returns the entries still to place that are tied to `entry`, directly or through others, in
  // order.
  std::vector<size_t> TiedTo(TreeEntry entry, const std::vector<TreeEntry>& among) const {
    std::vector<TreeEntry> held = {entry};
    std::set<size_t> found;
    for (size_t next = 0; next < held.size() && !ties_.empty(); ++next)
      for (const std::vector<int>& group : ties_) {
        if (!StaysTogether(tree_.tensors[static_cast<size_t>(FirstOf(group))])) continue;
        auto holds = [&](int t) { return Holds(tree_, held[next], t); };
        if (std::none_of(group.begin(), group.end(), holds)) continue;
        for (size_t i = 0; i < among.size(); ++i) {
          auto other = [&](int t) { return Holds(tree_, among[i], t); };
          if (!found.count(i) && std::any_of(group.begin(), group.end(), other)) {
            found.insert(i);
            held.push_back(among[i]);
          }
        }
      }
    return {found.begin(), found.end()};
  }

  // Returns the bytes of an entry and those tied to it. A tensor with several names counts once per
  // device. A tensor that the entry shares with one that is still to place counts there.
  int64_t BytesTogether(TreeEntry entry, const std::vector<TreeEntry>& among,
                        const std::vector<size_t>& tied) const {
    std::vector<TreeEntry> together = {entry};
    for (size_t i : tied) together.push_back(among[i]);
    int64_t bytes = 0;
    for (TreeEntry e : together) bytes += BytesOf(tree_, e);
    for (const std::vector<int>& group : ties_) {
      auto held = [&](int t) {
        return std::any_of(together.begin(), together.end(),
                           [&](TreeEntry e) { return Holds(tree_, e, t); });
      };
      if (std::none_of(group.begin(), group.end(), held)) continue;
      const int first = FirstOf(group);
      const TreeTensor& tensor = tree_.tensors[static_cast<size_t>(first)];
      const bool counted = held(first);
      const auto place = tensor_device_.find(first);
      const bool placed = place != tensor_device_.end();
      const bool here = placed && place->second.count(device_) > 0;
      if (counted && here) bytes -= tensor.bytes;
      if (!counted && !here && (placed || !StaysTogether(tensor))) bytes += tensor.bytes;
    }
    return bytes;
  }

  void Assign(TreeEntry entry, std::string why) {
    result_.assignments.push_back({NameOf(tree_, entry), budget().device, std::move(why)});
    for (const std::vector<int>& group : ties_)
      for (int t : group)
        if (Holds(tree_, entry, t)) tensor_device_[FirstOf(group)].insert(device_);
  }

  void Place(TreeEntry entry) {
    const std::string& name = NameOf(tree_, entry);
    auto& names = largest_.names;
    names.erase(std::remove_if(names.begin(), names.end(),
                               [&](const std::string& n) { return Under(n, name); }),
                names.end());
    if (names.empty()) largest_ = FindLargestLayer(tree_, Modules(todo_), no_split_);

    std::vector<size_t> tied = TiedTo(entry, todo_);
    int64_t alone = BytesTogether(entry, {}, {}), together = BytesTogether(entry, todo_, tied);
    int64_t reserve = IsMain() ? largest_.bytes : 0;
    int64_t limit = budget().limit - reserve;

    if (budget().unlimited() ||
        used_[device_] + together <= limit - ReserveBeside(entry, tied, reserve))
      return Take(entry, tied, together, reserve);

    // The entry would fit alone, so a tied module is split and the entry is tried again.
    if (!tied.empty() && used_[device_] + alone <= limit)
      for (size_t i : tied)
        if (CanSplit(tree_, todo_[i], no_split_)) {
          Replace(i, SplitEntry(tree_, todo_[i]));
          todo_.insert(todo_.begin(), entry);
          return;
        }
    if (used_[device_] + alone >= limit && CanSplit(tree_, entry, no_split_)) {
      std::vector<TreeEntry> parts = SplitEntry(tree_, entry);
      todo_.insert(todo_.begin(), parts.begin(), parts.end());
      largest_ = FindLargestLayer(tree_, Modules(todo_), no_split_);
      return;
    }
    if (used_[device_] == 0 && fallback_ && budget().device != "disk" &&
        TakeFallback(entry, together))
      return;
    if (used_[device_] == 0 && budget().device != "disk")
      result_.too_small[budget().device] = together + reserve;
    result_.reserved[device_] = reserve;
    ++device_;
    todo_.insert(todo_.begin(), entry);
  }

  // Returns the change (0 or negative) of the reserve if the tied modules are placed with the
  // entry. accelerate still keeps room for them, which is safe, but counts the holder of several
  // tied tensors several times. Only for such a holder is the reserve corrected here.
  int64_t ReserveBeside(TreeEntry entry, const std::vector<size_t>& tied, int64_t reserve) const {
    auto shares_several = [&](size_t i) {
      int shared = 0;
      for (const std::vector<int>& group : ties_) {
        auto in = [&](TreeEntry e) {
          return std::count_if(group.begin(), group.end(),
                               [&](int t) { return Holds(tree_, e, t); });
        };
        if (in(entry)) shared += static_cast<int>(in(todo_[i]));
      }
      return shared > 1;
    };
    if (reserve == 0 || std::none_of(tied.begin(), tied.end(), shares_several)) return 0;
    std::vector<TreeEntry> left;
    for (size_t i = 0; i < todo_.size(); ++i)
      if (!std::binary_search(tied.begin(), tied.end(), i)) left.push_back(todo_[i]);
    return std::min<int64_t>(0, FindLargestLayer(tree_, Modules(left), no_split_).bytes - reserve);
  }

  void Take(TreeEntry entry, const std::vector<size_t>& tied, int64_t bytes, int64_t reserve) {
    std::string why = budget().unlimited() ? "no limit here"
                                           : SizeText(used_[device_]) + " + " + SizeText(bytes) +
                                                 " fit " + SizeText(budget().limit);
    if (reserve) why += ", " + SizeText(reserve) + " kept free for the largest layer to come";
    used_[device_] += bytes;
    Assign(entry, why);
    for (size_t i : tied) Assign(todo_[i], "tied to " + NameOf(tree_, entry));
    for (size_t i = tied.size(); i-- > 0;) todo_.erase(todo_.begin() + static_cast<long>(tied[i]));
  }

  void Replace(size_t at, const std::vector<TreeEntry>& parts) {
    todo_.erase(todo_.begin() + static_cast<long>(at));
    todo_.insert(todo_.begin() + static_cast<long>(at), parts.begin(), parts.end());
    largest_ = FindLargestLayer(tree_, Modules(todo_), no_split_);
  }

  // Finds the first module that fits beside the reserved layer, where a module comes before its
  // parts, and moves it to the front of the list, followed by `entry`.
  bool TakeFallback(TreeEntry entry, int64_t together) {
    int64_t limit = budget().limit - std::max(largest_.bytes, together);
    std::vector<TreeEntry> later = todo_;
    while (!later.empty()) {
      TreeEntry candidate = later.front();
      later.erase(later.begin());
      if (BytesTogether(candidate, later, TiedTo(candidate, later)) <= limit) {
        // Splits the modules that contain it until the list has it.
        auto at = std::find(todo_.begin(), todo_.end(), candidate);
        while (at == todo_.end()) {
          size_t above = 0;
          while (!Under(NameOf(tree_, candidate), NameOf(tree_, todo_[above]))) ++above;
          std::vector<TreeEntry> parts = SplitEntry(tree_, todo_[above]);
          todo_.erase(todo_.begin() + static_cast<long>(above));
          todo_.insert(todo_.begin() + static_cast<long>(above), parts.begin(), parts.end());
          at = std::find(todo_.begin(), todo_.end(), candidate);
        }
        todo_.erase(at);
        todo_.insert(todo_.begin(), {candidate, entry});
        return true;
      }
      if (!CanSplit(tree_, candidate, no_split_)) continue;
      std::vector<TreeEntry> parts = SplitEntry(tree_, candidate);
      later.insert(later.begin(), parts.begin(), parts.end());
    }
    return false;
  }

  const ModuleTree& tree_;
  const std::vector<Budget>& budgets_;
  const std::vector<std::string>& no_split_;
  const bool fallback_;
  std::vector<std::vector<int>> ties_;             // tensors of each tied group
  std::vector<TreeEntry> todo_;                    // still to place, in order
  size_t device_ = 0;                              // the budget that is being filled
  std::vector<int64_t> used_;                      // by budget
  LargestLayer largest_;                           // the largest layer still to place
  std::map<int, std::set<size_t>> tensor_device_;  // first of a tied group -> its budgets
  GreedyResult result_;
};

}  // namespace

GreedyResult PlaceGreedily(const ModuleTree& tree, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& no_split, bool fallback) {
  return Greedy(tree, budgets, no_split, fallback).Run();
}

}  // namespace pipewright
