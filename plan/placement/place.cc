#include "plan/placement/place.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/size.h"
#include "base/text.h"
#include "plan/placement/greedy.h"

namespace pipewright {

std::vector<Atom> Atoms(const ModuleTree& tree, const std::vector<std::string>& no_split) {
  std::vector<TreeEntry> entries, stack = {{false, 0}};
  while (!stack.empty()) {
    TreeEntry entry = stack.back();
    stack.pop_back();
    if (CanSplit(tree, entry, no_split)) {
      std::vector<TreeEntry> parts = SplitEntry(tree, entry);
      stack.insert(stack.end(), parts.rbegin(), parts.rend());
    } else {
      entries.push_back(entry);
    }
  }
  // Finds the entry of every tensor, then joins tied entries, each group under its first.
  std::vector<int> entry_of(tree.tensors.size()), first(entries.size());
  std::iota(first.begin(), first.end(), 0);
  auto root = [&](int e) {
    while (first[static_cast<size_t>(e)] != e) e = first[static_cast<size_t>(e)];
    return e;
  };
  for (size_t e = 0; e < entries.size(); ++e) {
    if (entries[e].is_tensor) {
      entry_of[static_cast<size_t>(entries[e].id)] = static_cast<int>(e);
      continue;
    }
    for (int m = entries[e].id; m < tree.modules[static_cast<size_t>(entries[e].id)].end; ++m)
      for (auto* list : {&tree.modules[static_cast<size_t>(m)].parameters,
                         &tree.modules[static_cast<size_t>(m)].buffers})
        for (int t : *list) entry_of[static_cast<size_t>(t)] = static_cast<int>(e);
  }
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    const size_t same = static_cast<size_t>(tree.tensors[t].first);
    if (!StaysTogether(tree.tensors[same])) continue;
    int a = root(entry_of[t]), b = root(entry_of[same]);
    first[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }
  std::vector<Atom> atoms;
  std::map<int, size_t> atom_of;
  for (size_t e = 0; e < entries.size(); ++e) {
    auto [found, added] = atom_of.insert({root(static_cast<int>(e)), atoms.size()});
    if (added) atoms.emplace_back();
    atoms[found->second].entries.push_back(entries[e]);
    atoms[found->second].bytes += BytesOf(tree, entries[e]);
  }
  std::map<int, std::set<size_t>> users;  // buffer -> atoms
  for (size_t t = 0; t < tree.tensors.size(); ++t)
    if (tree.tensors[t].buffer) users[tree.tensors[t].first].insert(atom_of[root(entry_of[t])]);
  for (const auto& [buffer, of] : users) {
    const TreeTensor& tensor = tree.tensors[static_cast<size_t>(buffer)];
    if (!tensor.buffer) continue;  // another name of a parameter
    Atom& owner = atoms[atom_of[root(entry_of[static_cast<size_t>(buffer)])]];
    if (of.size() == 1) {
      owner.buffer_bytes += tensor.bytes;
      continue;
    }
    owner.bytes -= tensor.bytes;
    for (size_t atom : of) atoms[atom].shared.push_back({buffer, tensor.bytes});
  }
  return atoms;
}

int64_t SharedBytes(const std::vector<Atom>& atoms) {
  std::map<int, int64_t> shared;
  for (const Atom& atom : atoms) shared.insert(atom.shared.begin(), atom.shared.end());
  int64_t bytes = 0;
  for (const auto& [buffer, size] : shared) bytes += size;
  return bytes;
}

namespace {

class Placer {
 public:
  Placer(const ModuleTree& tree, const PlaceOptions& options) : tree_(tree), options_(options) {
    budgets_ = options.budgets;
    reserved_.assign(budgets_.size(), 0);
    for (size_t i = 0; i < budgets_.size(); ++i)
      if (budgets_[i].accelerator() && budgets_[i].limit > 0) accelerators_.push_back(i);
  }

  Placement Run() {
    const PlacePolicy policy = options_.policy;
    const bool low = policy == PlacePolicy::kBalancedLow0;
    const bool balanced = low || policy == PlacePolicy::kBalanced;
    if (policy == PlacePolicy::kOptimal) {
      Optimal();
    } else if (balanced && options_.compat_accelerate) {
      budgets_ = AccelerateBalancedBudgets(tree_, budgets_, options_.no_split, low);
      GreedyPass();
    } else if (!balanced || !Balanced(low)) {
      GreedyPass();
      if (policy == PlacePolicy::kAuto && !options_.compat_accelerate) Unstrand();
    }
    Finish();
    return std::move(result_);
  }

 private:
  void Put(const Atom& atom, size_t budget, const std::string& why) {
    for (TreeEntry entry : atom.entries)
      result_.parts.push_back(
          {NameOf(tree_, entry), budgets_[budget].device,
           entry == atom.entries[0] ? why : "tied to " + NameOf(tree_, atom.entries[0]),
           BytesOf(tree_, entry)});
  }

  std::vector<int64_t> Limits(const std::vector<size_t>& of) const {
    std::vector<int64_t> limits;
    for (size_t i : of) limits.push_back(budgets_[i].limit);
    return limits;
  }

  void GreedyPass() {
    GreedyResult greedy = PlaceGreedily(tree_, budgets_, options_.no_split, options_.fallback);
    reserved_ = greedy.reserved;
    std::map<std::string, int64_t> bytes;
    for (const TreeModule& module : tree_.modules) bytes[module.name] = module.bytes;
    for (const TreeTensor& tensor : tree_.tensors) bytes[tensor.name] = tensor.bytes;
    for (DeviceChoice& a : greedy.assignments)
      result_.parts.push_back({a.name, a.device, a.why, bytes[a.name]});
    for (const auto& [device, needed] : greedy.too_small)
      result_.warnings.push_back("insufficient memory: nothing could be placed on device " +
                                 device + ", which would have needed " + SizeText(needed));
  }

  // A layer larger than the first accelerator cannot be loaded there; keeping room for it only
  // drives the small layers away, in the end to disk. If everything fits on the accelerators, this
  // places it there instead.
  void Unstrand() {
    if (accelerators_.empty()) return;
    const Budget& first = budgets_[accelerators_[0]];
    bool to_disk = false, empty = true;
    for (const PlacedPart& part : result_.parts) {
      empty = empty && part.device != first.device;
      to_disk = to_disk || (part.bytes > 0 && part.device == "disk");
    }
    LargestLayer largest =
        FindLargestLayer(tree_, SplitEntry(tree_, {false, 0}), options_.no_split);
    if (!to_disk || !empty || first.limit >= largest.bytes) return;
    std::vector<Atom> atoms = Atoms(tree_, options_.no_split);
    std::vector<int> place = MostResident(atoms, Limits(accelerators_));
    if (std::count(place.begin(), place.end(), -1)) return;
    result_ = {};
    reserved_.assign(budgets_.size(), 0);
    for (size_t i = 0; i < atoms.size(); ++i)
      Put(atoms[i], accelerators_[static_cast<size_t>(place[i])],
          "everything fits on the accelerators if no layer has to be loaded");
  }

  // Returns false if the model does not fit on the accelerators in order.
  bool Balanced(bool low_zero) {
    std::vector<Atom> atoms = Atoms(tree_, options_.no_split);
    std::vector<size_t> devices = accelerators_;
    if (devices.empty()) return false;
    std::vector<int> place;
    size_t first = 0;  // atoms before this one are on device 0
    if (low_zero && devices.size() > 1 && budgets_[devices[0]].device == "0") {
      const int64_t room = budgets_[devices[0]].limit;
      AtomLoad zero;
      devices.erase(devices.begin());
      while (true) {
        place = BalanceInOrder({atoms.begin() + static_cast<long>(first), atoms.end()},
                               Limits(devices));
        if (!place.empty() || first == atoms.size()) break;
        zero.Add(atoms[first]);
        if (zero.bytes > room) return false;
        ++first;
      }
    } else {
      place = BalanceInOrder(atoms, Limits(devices));
    }
    if (place.empty() && first < atoms.size()) return false;
    std::map<size_t, AtomLoad> load;
    for (size_t i = 0; i < atoms.size(); ++i) {
      size_t budget = i < first ? accelerators_[0] : devices[static_cast<size_t>(place[i - first])];
      load[budget].Add(atoms[i]);
      Put(atoms[i], budget, i < first ? "what the other devices have no room for" : "balanced");
    }
    // The policy's budget is the largest load; with low_zero, device 0 has its own.
    int64_t largest = 0;
    for (size_t budget : devices) largest = std::max(largest, load[budget].bytes);
    for (size_t budget : accelerators_) {
      bool zero = budget == accelerators_[0] && devices.size() < accelerators_.size();
      const int64_t share = zero ? load[budget].bytes : largest;
      budgets_[budget].limit = std::min(budgets_[budget].limit, share);
    }
    return true;
  }

  void Optimal();
  void PutAtoms(const std::vector<Atom>& atoms, const std::vector<int>& resident,
                const std::vector<size_t>& compute, const std::vector<size_t>& storage);
  void Finish();

  const ModuleTree& tree_;
  const PlaceOptions& options_;
  std::vector<Budget> budgets_;
  std::vector<int64_t> reserved_;
  std::vector<size_t> accelerators_;
  Placement result_;
};

// Returns the bytes of an atom that are loaded onto the device that computes, unless resident.
int64_t Travels(const Atom& atom, bool offload_buffers) {
  return atom.bytes - (offload_buffers ? 0 : atom.buffer_bytes);
}

// Puts atoms where `resident` says: an index into `compute`, or -1 for atoms that are loaded for
// each sweep. Those are in RAM as far as they fit, the rest on disk.
void Placer::PutAtoms(const std::vector<Atom>& atoms, const std::vector<int>& resident,
                      const std::vector<size_t>& compute, const std::vector<size_t>& storage) {
  std::vector<bool> done(atoms.size(), false);
  for (size_t i = 0; i < atoms.size(); ++i) {
    if (resident[i] < 0) continue;
    done[i] = true;
    Put(atoms[i], compute[static_cast<size_t>(resident[i])], "resident");
  }
  for (size_t budget : storage) {
    std::vector<Atom> left = atoms;
    for (size_t i = 0; i < atoms.size(); ++i)
      if (done[i]) left[i].bytes = 0, left[i].shared.clear();
    int64_t limit = budgets_[budget].unlimited() ? INT64_MAX / 4 : budgets_[budget].limit;
    std::vector<int> place = MostResident(left, {limit});
    for (size_t i = 0; i < atoms.size(); ++i) {
      if (done[i] || place[i] < 0) continue;
      done[i] = true;
      Put(atoms[i], budget, "brought in each sweep");
    }
  }
}

void Placer::Optimal() {
  std::vector<Atom> atoms = Atoms(tree_, options_.no_split);
  // The accelerators compute, or cpu if there are none.
  std::vector<size_t> compute = accelerators_, storage;
  for (size_t i = 0; i < budgets_.size(); ++i)
    if (!budgets_[i].accelerator())
      (compute.empty() && budgets_[i].device == "cpu" ? compute : storage).push_back(i);
  int64_t total = tree_.modules[0].bytes, room = 0;
  std::vector<int64_t> limits;
  for (size_t i : compute) {
    limits.push_back(
        std::max<int64_t>(0, std::min(budgets_[i].limit, INT64_MAX / 4) - options_.activations));
    room += std::min(limits.back(), total);
  }
  std::vector<int64_t> sizes = {0};  // candidates for the largest atom that is not resident
  for (const Atom& atom : atoms) sizes.push_back(Travels(atom, options_.offload_buffers));
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());

  // Tries each size of a slot: larger atoms must be resident, then as much of the rest as possible.
  // Buffers of atoms that are not resident are on the first device.
  std::vector<int> best;
  int64_t best_moved = INT64_MAX, best_slots = 0;
  const int64_t shared = SharedBytes(atoms);
  result_.moved_bound = INT64_MAX;
  for (int64_t size : sizes) {
    const int64_t slots = size * options_.slots;
    result_.moved_bound = std::min(
        result_.moved_bound,
        size == 0 ? (total <= room ? 0 : INT64_MAX)
                  : std::max(size, total - std::max<int64_t>(0, room - std::min(slots, room))));
    std::vector<int64_t> left = limits;
    if (!left.empty() && (left[0] -= slots) < 0) break;
    std::vector<Stay> stays;
    for (const Atom& atom : atoms) {
      const int64_t travels = Travels(atom, options_.offload_buffers);
      stays.push_back({atom.bytes, travels, travels > size});
    }
    std::vector<int> place;
    if (size == 0) place = BalanceInOrder(atoms, left);
    if (place.empty()) {
      // Keeps room for all shared buffers, wherever their users are placed.
      if (!left.empty() && left[0] < shared) continue;
      for (int64_t& limit : left) limit = std::max<int64_t>(0, limit - shared);
      place = MostResident(stays, left);
    }
    int64_t moved = 0;
    bool fits = !place.empty();
    for (size_t i = 0; fits && i < atoms.size(); ++i) {
      if (place[i] >= 0) continue;
      moved += stays[i].travels;
      fits = !stays[i].must;
    }
    if (fits && moved < best_moved) best = place, best_moved = moved, best_slots = slots;
  }
  if (best.empty() && !atoms.empty()) {
    best.assign(atoms.size(), -1);
    if (!compute.empty())
      result_.warnings.push_back("insufficient memory: device " + budgets_[compute[0]].device +
                                 " has no room for " + std::to_string(options_.slots) +
                                 " slots of the largest layer; nothing is resident");
  }
  result_.moved = best_moved == INT64_MAX ? total : best_moved;
  result_.moved_bound = std::min(result_.moved_bound, result_.moved);
  if (!compute.empty() && result_.moved > 0)
    reserved_[compute[0]] = std::min(best_slots, std::max<int64_t>(0, limits[0]));
  for (size_t i : compute) reserved_[i] += std::min(options_.activations, budgets_[i].limit);

  PutAtoms(atoms, best, compute, storage);
}

void Placer::Finish() {
  for (const PlacedPart& part : result_.parts) result_.map.push_back({part.name, part.device});
  std::vector<std::string> device = TensorDevices(tree_, result_.map);
  // Modules without tensors need no place. No prefix may cover a tensor that has no place.
  for (size_t i = 0; i < tree_.tensors.size(); ++i)
    if (device[i].empty()) result_.map.push_back({tree_.tensors[i].name, ""});
  result_.map = CleanDeviceMap(result_.map);
  std::erase_if(result_.map, [](const auto& entry) { return entry.second.empty(); });
  std::map<std::string, int64_t> used;
  std::set<std::pair<int, std::string>> counted;
  int64_t visiting_buffers = 0;
  const Budget* main = nullptr;  // the device that computes with the parts on cpu and disk
  for (const Budget& budget : budgets_)
    if (!main && budget.device != "disk" && budget.limit != 0) main = &budget;
  for (size_t i = 0; i < tree_.tensors.size(); ++i) {
    const TreeTensor& tensor = tree_.tensors[i];
    if (device[i].empty()) {
      result_.uncovered.push_back(tensor.name);
      continue;
    }
    const int64_t bytes = tree_.tensors[static_cast<size_t>(tensor.first)].bytes;
    const bool offloaded = main && main->accelerator() ? device[i] == "cpu" || device[i] == "disk"
                                                       : device[i] == "disk";
    const bool stays = main && tensor.buffer && offloaded && !options_.offload_buffers;
    const std::string& where = stays ? main->device : device[i];
    if (!counted.insert({tensor.first, where}).second) continue;
    used[where] += bytes;
    if (stays) visiting_buffers += bytes;
  }
  for (size_t i = 0; i < budgets_.size(); ++i)
    result_.budgets.push_back(
        {budgets_[i].device, budgets_[i].limit, used[budgets_[i].device], reserved_[i]});

  // accelerate warns too if the buffers of offloaded modules do not fit on any accelerator.
  if (visiting_buffers > 0 && main->accelerator()) {
    bool fits = false;
    for (size_t i = 0; i < budgets_.size(); ++i) {
      if (!budgets_[i].accelerator()) continue;
      int64_t own = used[budgets_[i].device] + reserved_[i];
      if (budgets_[i].device == main->device) own -= visiting_buffers;
      fits = fits || budgets_[i].limit >= own + visiting_buffers;
    }
    if (!fits)
      result_.warnings.push_back(
          "the buffers of offloaded modules, " + SizeText(visiting_buffers) + ", stay on device " +
          main->device +
          " and do not fit beside what lies there; --offload-buffers lets them travel as well");
  }
  if (!result_.uncovered.empty())
    result_.warnings.push_back(
        "the model does not fit: " + std::to_string(result_.uncovered.size()) +
        " tensors found no place");
}

}  // namespace

PlacePolicy PlacePolicyFromText(const std::string& text) {
  static const std::vector<std::pair<const char*, PlacePolicy>> kPolicies = {
      {"auto", PlacePolicy::kAuto},
      {"balanced", PlacePolicy::kBalanced},
      {"balanced_low_0", PlacePolicy::kBalancedLow0},
      {"sequential", PlacePolicy::kSequential},
      {"optimal", PlacePolicy::kOptimal}};
  std::vector<std::string> names;
  for (const auto& [name, policy] : kPolicies) {
    if (text == name) return policy;
    names.push_back(name);
  }
  throw Error("--policy", "unknown policy " + Quote(text) + Suggest(text, names),
              "policies: " + Join(names, ", "));
}

Placement Place(const ModuleTree& tree, const PlaceOptions& options) {
  return Placer(tree, options).Run();
}

}  // namespace pipewright
