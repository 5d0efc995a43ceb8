// V-Half and V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, 2405.15362, section 4
// and appendix). A building block of one microbatch repeats every six slots. Warm-up and cool-down
// are reordered without raising the peak of held activations, once with W in the slots left free
// and once without; in between, idle slots are removed.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "plan/schedules/generators.h"

namespace pipewright {

namespace {

constexpr int kPeriod = 6;  // F, I and W of two stages
// A rank's kinds of compute in the order of a microbatch's path: F of its first and of its second
// stage, I of the second and of the first, then W of both.
constexpr int kF0 = 0, kF1 = 1, kI1 = 2, kI0 = 3, kW = 4, kKinds = 5;
constexpr int kFree = -1;

// One rank's computes in time slots of equal length. The n-th W belongs to the n-th I.
struct Row {
  std::array<std::vector<int>, kKinds> at;  // [kind][microbatch], or of W [n] -> slot
  std::vector<int> kind;                    // [slot], or kFree
  // [slot] the activations held after it, and the I whose W is pending
  std::vector<int> held, waiting;

  int Slots() const { return static_cast<int>(kind.size()); }
};

class Reordering {
 public:
  Reordering(int ranks, int microbatches, bool half) : p_(ranks), m_(microbatches), rows_(ranks) {
    int shift = half ? (p_ % 2 == 0 ? 3 : 0) : (p_ % 3 == 0 ? 2 : 0);
    for (int i = 0; i < p_; ++i) {
      const int first[4] = {half ? 2 * i : i, half ? 3 * p_ - i - 2 : 2 * p_ - i - 1,
                            half ? 3 * p_ + shift + 2 * i - 1 : 2 * p_ + shift + i,
                            half ? 6 * p_ + shift - i - 2 : 4 * p_ + shift - i - 1};
      for (int k = kF0; k <= kI0; ++k)
        for (int n = 0; n < m_; ++n) rows_[i].at[k].push_back(first[k] + kPeriod * n);
    }
  }

  void Run() {
    Place(true);
    Reorder(true);
    Squeeze();
    Place(false);
    Reorder(false);
    Place(true);
  }

  Plan ToPlan() const {
    Plan plan;
    plan.stages = 2 * p_, plan.microbatches = m_;
    for (int r = 0; r < p_; ++r) {
      auto& actions = plan.ranks.emplace_back();
      std::array<int, kKinds> next{};
      std::vector<Action> weights;
      for (int kind : rows_[r].kind) {
        if (kind == kFree) continue;
        int n = next[kind]++, stage = kind == kF0 || kind == kI0 ? r : 2 * p_ - 1 - r;
        if (kind == kW) {
          actions.push_back(weights[n]);
        } else if (kind <= kF1) {
          actions.push_back(Compute(ActionKind::kForward, stage, n));
        } else {
          actions.push_back(Compute(ActionKind::kInputGrad, stage, n));
          weights.push_back(Compute(ActionKind::kWeightGrad, stage, n));
        }
      }
    }
    return plan;
  }

 private:
  int p_, m_;  // ranks; microbatches
  std::vector<Row> rows_;

  // Computes what a row's slots hold. `weights`: W get the free slots, as early as possible;
  // otherwise they have no slots, but are assumed to run in the free ones.
  void Place(bool weights) {
    for (Row& row : rows_) {
      int end = 0;
      for (int k = kF0; k <= kI0; ++k) end = std::max(end, row.at[k].back() + 1);
      row.kind.assign(end, kFree);
      for (int k = kF0; k <= kI0; ++k)
        for (int slot : row.at[k]) row.kind[slot] = k;
      row.at[kW].clear();
      int waiting = 0;
      for (int slot = 0; weights && (slot < end || waiting > 0); ++slot) {
        if (slot == row.Slots()) row.kind.push_back(kFree);
        int& kind = row.kind[slot];
        if (kind == kFree && waiting > 0) {
          kind = kW, --waiting;
          row.at[kW].push_back(slot);
        } else {
          waiting += kind == kI0 || kind == kI1;
        }
      }
      row.held.assign(row.kind.size(), 0), row.waiting.assign(row.kind.size(), 0);
      Hold(row, 0, row.Slots(), weights, row.Slots() * 2, true);
    }
  }

  // Updates the slots from `from` on, at least up to `to`, until nothing changes any more. Returns
  // true if at most `limit` activations are held; `keep` stores the results.
  static bool Hold(Row& row, int from, int to, bool weights, int limit, bool keep) {
    int held = from > 0 ? row.held[from - 1] : 0, waiting = from > 0 ? row.waiting[from - 1] : 0;
    for (int slot = from; slot < row.Slots(); ++slot) {
      int kind = row.kind[slot];
      if (kind == kF0 || kind == kF1) ++held;
      if (kind == kI0 || kind == kI1) waiting += !weights;
      if (kind == kW) --held;
      if (kind == kFree && waiting > 0) --held, --waiting;
      if (held > limit) return false;
      if (slot > to && held == row.held[slot] && waiting == row.waiting[slot]) break;
      if (keep) row.held[slot] = held, row.waiting[slot] = waiting;
    }
    return true;
  }

  // Returns the slot after everything that the compute waits for.
  int Ready(int r, int kind, int n, const std::vector<int>& backward) const {
    int ready = 0;
    auto behind = [&](const Row& row, int k) { ready = std::max(ready, row.at[k][n] + 1); };
    if ((kind == kF0 || kind == kI1) && r > 0) behind(rows_[r - 1], kind);
    if ((kind == kF1 || kind == kI0) && r + 1 < p_) behind(rows_[r + 1], kind);
    if (kind > kF0 && kind < kW) behind(rows_[r], kind - 1);
    if (kind == kW) ready = std::max(ready, backward[n] + 1);
    if (n > 0) ready = std::max(ready, rows_[r].at[kind][n - 1] + 1);
    return ready;
  }

  // Moves computes, slot by slot and rank by rank, into the earliest free slot at which they are
  // ready and the peak does not grow. Does so in the warm-up (if W have slots) and the cool-down,
  // that is, before the first microbatch is back at stage 0 and after the last one has started
  // there.
  void Reorder(bool weights) {
    int limit = 0, slots = 0;
    for (const Row& row : rows_) {
      for (int held : row.held) limit = std::max(limit, held);
      slots = std::max(slots, row.Slots());
    }
    std::vector<Row> before = rows_;
    std::vector<std::array<int, kKinds>> next(p_);
    std::vector<std::vector<int>> backward(p_);  // [rank] the slots of I among those visited
    std::vector<std::vector<int>> free(p_);      // [rank][slot] -> first slot to try from there
    for (int r = 0; r < p_; ++r) {
      free[r].resize(rows_[r].kind.size() + 1);
      std::iota(free[r].begin(), free[r].end(), 0);
    }
    enum { kWarmUp, kSteady, kCoolDown } phase = kWarmUp;
    for (int slot = 0; slot < slots; ++slot)
      for (int r = 0; r < p_; ++r) {
        Row& row = rows_[r];
        if (slot >= before[r].Slots() || before[r].kind[slot] == kFree) continue;
        int kind = before[r].kind[slot], n = next[r][kind]++, to = slot;
        if (phase == kWarmUp && r == 0 && kind == kI0) phase = kSteady;
        bool stays = phase == kSteady || (phase == kWarmUp && !weights);
        if (phase == kSteady && kind == kF0 && n == m_ - 1) phase = kCoolDown;
        if (!stays)
          to = Earlier(row, slot, Ready(r, kind, n, backward[r]), weights, limit, free[r]);
        row.at[kind][n] = to;
        free[r][to] = to + 1;
        if (kind == kI0 || kind == kI1) {
          auto& list = backward[r];
          list.insert(std::upper_bound(list.begin(), list.end(), to), to);
        }
      }
  }

  static int FirstFree(std::vector<int>& free, int slot) {
    int root = slot;
    while (free[root] != root) root = free[root];
    while (free[slot] != root) slot = std::exchange(free[slot], root);
    return root;
  }

  // Moves the compute at `slot` and returns its new slot.
  static int Earlier(Row& row, int slot, int ready, bool weights, int limit,
                     std::vector<int>& free) {
    int kind = row.kind[slot];
    for (int to = FirstFree(free, ready); to < slot; to = FirstFree(free, to + 1)) {
      if (row.kind[to] != kFree) continue;
      row.kind[to] = kind, row.kind[slot] = kFree;
      if (Hold(row, to, slot, weights, limit, false)) {
        Hold(row, to, slot, weights, limit, true);
        return to;
      }
      row.kind[to] = kFree, row.kind[slot] = kind;
    }
    return slot;
  }

  // Runs every compute in its rank's order as soon as it is ready.
  void Squeeze() {
    int slots = 0;
    for (const Row& row : rows_) slots = std::max(slots, row.Slots());
    std::vector<Row> before = rows_;
    std::vector<std::array<int, kKinds>> next(p_);
    std::vector<int> now(p_);
    for (int slot = 0; slot < slots; ++slot)
      for (int r = 0; r < p_; ++r) {
        if (slot >= before[r].Slots() || before[r].kind[slot] == kFree) continue;
        int kind = before[r].kind[slot], n = next[r][kind]++;
        int at = kind == kW ? now[r] : std::max(now[r], Ready(r, kind, n, {}));
        rows_[r].at[kind][n] = at;
        now[r] = at + 1;
      }
  }
};

Plan Controlled(const ScheduleRequest& q, bool half) {
  Reordering reordering(q.ranks, std::max(q.microbatches, 2 * q.ranks), half);
  reordering.Run();
  Plan plan = reordering.ToPlan();
  Trim(plan, q.stages, q.microbatches);
  return plan;
}

}  // namespace

Plan VHalf(const ScheduleRequest& q) { return Controlled(q, true); }
Plan VMin(const ScheduleRequest& q) { return Controlled(q, false); }

}  // namespace pipewright
