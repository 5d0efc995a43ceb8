#include "plan/zb_tabu.h"

#include <algorithm>
#include <limits>

namespace pipewright {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Move {
  int rank = -1, from = 0, to = 0;  // the action at `from` gets position `to`
  double estimate = kNever;
};

class Search {
 public:
  Search(const OrderProblem& p, const Order& order, unsigned seed)
      : p_(p), random_(seed * 2654435761u + 12345), tabu_(size_t{1} << 18, 0) {
    size_t all = static_cast<size_t>(p.stages) * p.microbatches;
    jobs_.resize(3 * all);
    for (int s = 0; s < p.stages; ++s)
      for (int m = 0; m < p.microbatches; ++m) Enter(s, m);
    head_.assign(jobs_.size(), 0), tail_.assign(jobs_.size(), 0);
    place_.assign(jobs_.size(), 0);
    lists_.resize(p.ranks), bytes_.resize(p.ranks), pending_.resize(p.ranks);
    first_.assign(p.ranks, 0);
    for (int r = 0; r < p.ranks; ++r) {
      for (const Op& op : order[r]) lists_[r].push_back(Id(op.kind, op.stage, op.microbatch));
      Refresh(r);
    }
  }

  bool Pass() { return Forward() && (Backward(), true); }
  double span() const { return span_; }
  double total() const { return total_; }
  double makespan() const { return makespan_; }
  const std::vector<std::vector<int>>& lists() const { return lists_; }
  void SetLists(const std::vector<std::vector<int>>& lists) {
    lists_ = lists;
    for (int r = 0; r < p_.ranks; ++r) Refresh(r);
  }

  Order ToOrder(const std::vector<std::vector<int>>& lists) const {
    Order order(p_.ranks);
    std::vector<int> next(p_.stages * static_cast<size_t>(p_.ranks), 0);
    for (int r = 0; r < p_.ranks; ++r) {
      std::vector<std::vector<int>> done(p_.stages);
      std::vector<size_t> weights(p_.stages, 0);
      for (int id : lists[r]) {
        const Job& job = jobs_[id];
        Op op{job.kind, job.stage, job.microbatch};
        if (op.kind == OpKind::kI) done[op.stage].push_back(op.microbatch);
        if (op.kind == OpKind::kW) op.microbatch = done[op.stage][weights[op.stage]++];
        order[r].push_back(op);
      }
    }
    return order;
  }

  // The best move that is not tabu, or any; rank -1 where there is none.
  Move Choose(long now, double best) {
    moves_.clear();
    Collect();
    Move chosen, any;
    int ties = 0;
    for (const Move& move : moves_) {
      bool tabu = IsTabu(move, now) && move.estimate >= best * (1 - 1e-12);
      if (tabu) {
        if (any.rank < 0 || Random() % 4 == 0) any = move;
        continue;
      }
      if (move.estimate < chosen.estimate * (1 - 1e-12)) {
        chosen = move, ties = 1;
      } else if (move.estimate <= chosen.estimate * (1 + 1e-12) && Random() % ++ties == 0) {
        chosen = move;
      }
    }
    return chosen.rank >= 0 ? chosen : any;
  }

  void Apply(const Move& move) {
    auto& list = lists_[move.rank];
    auto at = [&](int i) { return list.begin() + i; };
    if (move.from < move.to)
      std::rotate(at(move.from), at(move.from) + 1, at(move.to) + 1);
    else
      std::rotate(at(move.to), at(move.from), at(move.from) + 1);
    Refresh(move.rank);
  }

  void Undo(const Move& move) { Apply({move.rank, move.to, move.from, 0}); }

  // What the move undid may not come back before `until`. Call it before Apply.
  void Forbid(const Move& move, long until) {
    const auto& list = lists_[move.rank];
    int u = list[move.from], step = move.from < move.to ? 1 : -1;
    for (int i = move.from + step; i != move.to + step; i += step)
      tabu_[Slot(step > 0 ? u : list[i], step > 0 ? list[i] : u)] = until;
  }

  // A move somewhere, whatever comes of it.
  Move Any() {
    for (int trial = 0; trial < 50; ++trial) {
      int r = static_cast<int>(Random() % static_cast<unsigned>(p_.ranks));
      int size = static_cast<int>(lists_[r].size());
      if (size < 2) continue;
      int from = static_cast<int>(Random() % static_cast<unsigned>(size));
      int far = 1 + static_cast<int>(Random() % 6);
      int to = Random() % 2 ? Later(r, from, std::min(size - 1, from + far))
                            : Earlier(r, from, std::max(0, from - far));
      if (to != from) return {r, from, to, 0};
    }
    return {};
  }

  unsigned Random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 17, random_ ^= random_ << 5;
    return random_;
  }

 private:
  struct Job {
    OpKind kind = OpKind::kF;
    int stage = 0, microbatch = 0, rank = 0;
    double time = 0;
    int before = -1, behind = -1;  // on the path of the microbatch
    double lag_before = 0, lag_behind = 0;
    double during = 0, after = 0;  // change of bytes
  };
  const OrderProblem& p_;
  unsigned random_;
  std::vector<Job> jobs_;
  std::vector<std::vector<int>> lists_;     // [rank]
  std::vector<std::vector<double>> bytes_;  // [rank][position] during it
  std::vector<std::vector<int>>
      pending_;  // [rank][position] W of its stage that could run before it
  std::vector<int> place_;
  std::vector<double> head_, tail_, first_;
  std::vector<int> topological_, ready_, waiter_, next_waiter_;
  std::vector<size_t> at_;
  std::vector<char> done_;
  double span_ = 0, total_ = 0, makespan_ = 0;
  int worst_ = 0;
  std::vector<Move> moves_;
  std::vector<long> tabu_;
  std::vector<double> heads_;

  int Id(OpKind kind, int stage, int microbatch) const {
    return (stage * p_.microbatches + microbatch) * 3 + static_cast<int>(kind);
  }

  void Enter(int s, int m) {
    int r = p_.RankOf(s, m);
    size_t at = p_.At(s, r);
    for (OpKind kind : {OpKind::kF, OpKind::kI, OpKind::kW}) {
      Job& job = jobs_[Id(kind, s, m)];
      job.kind = kind, job.stage = s, job.microbatch = m, job.rank = r;
    }
    Job& f = jobs_[Id(OpKind::kF, s, m)];
    Job& i = jobs_[Id(OpKind::kI, s, m)];
    Job& w = jobs_[Id(OpKind::kW, s, m)];
    f.time = p_.F[at], i.time = p_.I[at], w.time = p_.W[at];
    f.during = p_.stored[at], f.after = p_.forward_only ? -p_.stored[at] : 0;
    i.during = p_.whole[at] - p_.stored[at], i.after = p_.kept[at] - p_.whole[at];
    w.after = -p_.kept[at];
    if (s == 0) return;
    int q = p_.RankOf(s - 1, m);
    double up = q == r ? 0 : p_.Up(s - 1, q, r), down = q == r ? 0 : p_.Down(s - 1, r, q);
    Job& f0 = jobs_[Id(OpKind::kF, s - 1, m)];
    Job& i0 = jobs_[Id(OpKind::kI, s - 1, m)];
    f.before = Id(OpKind::kF, s - 1, m), f0.behind = Id(OpKind::kF, s, m);
    f.lag_before = f0.lag_behind = up;
    i0.before = Id(OpKind::kI, s, m), i.behind = Id(OpKind::kI, s - 1, m);
    i0.lag_before = i.lag_behind = down;
  }

  void Refresh(int r) {
    const auto& list = lists_[r];
    bytes_[r].resize(list.size()), pending_[r].resize(list.size());
    std::vector<int>& count = waiter_;
    count.assign(p_.stages, 0);
    double bytes = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const Job& job = jobs_[list[i]];
      place_[list[i]] = static_cast<int>(i);
      bytes += job.during;
      bytes_[r][i] = bytes;
      bytes += job.after;
      pending_[r][i] = count[job.stage];
      count[job.stage] += job.kind == OpKind::kI ? 1 : job.kind == OpKind::kW ? -1 : 0;
    }
  }

  bool Forward() {
    topological_.clear();
    at_.assign(p_.ranks, 0);
    done_.assign(jobs_.size(), 0);
    waiter_.assign(jobs_.size(), -1);
    next_waiter_.assign(p_.ranks, -1);
    ready_.clear();
    for (int r = p_.ranks; r-- > 0;) ready_.push_back(r);
    while (!ready_.empty()) {
      int r = ready_.back();
      ready_.pop_back();
      const auto& list = lists_[r];
      size_t i = at_[r];
      double now = i ? head_[list[i - 1]] + jobs_[list[i - 1]].time : 0;
      for (; i < list.size(); ++i) {
        int id = list[i];
        const Job& job = jobs_[id];
        if (job.before >= 0) {
          if (!done_[job.before]) {
            next_waiter_[r] = waiter_[job.before];
            waiter_[job.before] = r;
            break;
          }
          now = std::max(now, head_[job.before] + jobs_[job.before].time + job.lag_before);
        }
        head_[id] = now;
        now += job.time;
        done_[id] = 1;
        topological_.push_back(id);
        for (int q = waiter_[id]; q >= 0; q = next_waiter_[q]) ready_.push_back(q);
      }
      at_[r] = i;
    }
    span_ = total_ = makespan_ = 0;
    for (int r = 0; r < p_.ranks; ++r) {
      const auto& list = lists_[r];
      if (at_[r] < list.size()) return false;
      if (list.empty()) continue;
      first_[r] = head_[list[0]];
      double end = head_[list.back()] + jobs_[list.back()].time;
      if (end - first_[r] > span_) span_ = end - first_[r], worst_ = r;
      total_ += end - first_[r];
      makespan_ = std::max(makespan_, end);
    }
    return true;
  }

  double TailFrom(int r, int position) const {  // of what stands at `position` and behind
    const auto& list = lists_[r];
    if (position >= static_cast<int>(list.size())) return -first_[r];
    return jobs_[list[position]].time + tail_[list[position]];
  }
  double HeadUpTo(int r, int position) const {
    if (position < 0) return 0;
    int id = lists_[r][position];
    return head_[id] + jobs_[id].time;
  }
  double Ready(const Job& job) const {
    return job.before < 0 ? 0 : head_[job.before] + jobs_[job.before].time + job.lag_before;
  }
  double Rest(const Job& job) const {
    return job.behind < 0 ? -kNever : job.lag_behind + jobs_[job.behind].time + tail_[job.behind];
  }

  void Backward() {
    for (size_t n = topological_.size(); n-- > 0;) {
      int id = topological_[n];
      const Job& job = jobs_[id];
      tail_[id] = std::max(TailFrom(job.rank, place_[id] + 1), Rest(job));
    }
  }

  // How far the action may go, at most to `to`.
  int Later(int r, int from, int to) const {
    const auto& list = lists_[r];
    int u = list[from];
    const Job& job = jobs_[u];
    double room = p_.room[r] * (1 + 1e-12) + 1e-9, change = job.during + job.after;
    double lower = std::max(0.0, -change);
    int i = from;
    for (; i < to; ++i) {
      const Job& x = jobs_[list[i + 1]];
      if (x.stage == job.stage && x.kind == job.kind) break;
      if (list[i + 1] == job.behind) break;
      if (x.stage == job.stage) {
        if (job.kind == OpKind::kF && x.microbatch == job.microbatch && x.kind == OpKind::kI) break;
        if (job.kind == OpKind::kI && x.kind == OpKind::kW && pending_[r][i + 1] < 2) break;
      }
      if (bytes_[r][i + 1] + lower > room) break;
    }
    // It has its own moment of need there.
    while (i > from && i + 1 <= static_cast<int>(list.size()) && job.kind == OpKind::kI &&
           job.during > 0) {
      double before = bytes_[r][i] + jobs_[list[i]].after - change;
      if (before + job.during <= room) break;
      --i;
    }
    return i;
  }

  int Earlier(int r, int from, int to) const {
    const auto& list = lists_[r];
    const Job& job = jobs_[list[from]];
    double room = p_.room[r] * (1 + 1e-12) + 1e-9, change = job.during + job.after;
    double more = std::max(0.0, change);
    int i = from, pending = pending_[r][from];
    for (; i > to; --i) {
      int id = list[i - 1];
      const Job& x = jobs_[id];
      if (x.stage == job.stage && x.kind == job.kind) break;
      if (id == job.before) break;
      if (x.stage == job.stage) {
        if (job.kind == OpKind::kI && x.kind == OpKind::kF && x.microbatch == job.microbatch) break;
        if (job.kind == OpKind::kW && x.kind == OpKind::kI && --pending < 1) break;
      }
      if (bytes_[r][i - 1] + more > room) break;
      double before = bytes_[r][i - 1] - x.during;
      if (before + job.during > room) break;
    }
    return i;
  }

  double Estimate(int r, int from, int to) {
    const auto& list = lists_[r];
    int low = std::min(from, to), high = std::max(from, to), n = high - low + 1;
    heads_.resize(n);
    auto at = [&](int k) {  // the k-th of the moved range, afterwards
      if (from < to) return k == n - 1 ? list[from] : list[from + 1 + k];
      return k == 0 ? list[from] : list[to + k - 1];
    };
    double now = HeadUpTo(r, low - 1);
    for (int k = 0; k < n; ++k) {
      const Job& job = jobs_[at(k)];
      now = std::max(now, Ready(job));
      heads_[k] = now;
      now += job.time;
    }
    double tail = TailFrom(r, high + 1), longest = -kNever;
    for (int k = n; k-- > 0;) {
      const Job& job = jobs_[at(k)];
      double rest = std::max(tail, Rest(job));
      longest = std::max(longest, heads_[k] + job.time + rest);
      tail = job.time + rest;
    }
    return longest;
  }

  void Consider(int r, int from, int to) {
    if (from == to) return;
    Move move{r, from, to, Estimate(r, from, to)};
    moves_.push_back(move);
  }

  void Collect() {
    constexpr int kFar = 48;
    int r = worst_, last = static_cast<int>(lists_[r].size()) - 1;
    while (last >= 0) {
      const auto& list = lists_[r];
      int begin = last;          // the block
      auto waits = [&](int i) {  // for another rank's action
        const Job& job = jobs_[list[i]];
        return job.before >= 0 && jobs_[job.before].rank != r && Ready(job) >= head_[list[i]] &&
               !(i > 0 && HeadUpTo(r, i - 1) >= head_[list[i]] && Random() % 2);
      };
      while (begin > 0 && !waits(begin)) --begin;
      for (int i = last - 1; i >= std::max(begin, last - kFar); --i)
        Consider(r, i, Later(r, i, last));
      for (int i = begin + 1; i <= std::min(last, begin + kFar); ++i) {
        int to = Earlier(r, i, begin);
        if (i - to != 1 || i - 1 < last - kFar || last != i) Consider(r, i, to);
      }
      const Job& job = jobs_[list[begin]];
      if (job.before < 0 || Ready(job) < head_[list[begin]]) break;
      r = jobs_[job.before].rank;
      last = place_[job.before];
    }
  }

  size_t Slot(int a, int b) const {  // a before b
    uint64_t key = static_cast<uint64_t>(a) * 0x9E3779B97F4A7C15ull +
                   static_cast<uint64_t>(b) * 0xC2B2AE3D27D4EB4Full;
    return static_cast<size_t>(key >> 20) & (tabu_.size() - 1);
  }
  bool IsTabu(const Move& move, long now) const {
    const auto& list = lists_[move.rank];
    int u = list[move.from], step = move.from < move.to ? 1 : -1;
    for (int i = move.from + step; i != move.to + step; i += step)
      if (tabu_[Slot(step > 0 ? list[i] : u, step > 0 ? u : list[i])] > now) return true;
    return false;
  }
};

}  // namespace

OrderTimes Tabu(const OrderProblem& problem, Order& order, long moves, unsigned seed,
                double enough) {
  Search search(problem, order, seed);
  OrderTimes best;
  if (!search.Pass()) return best;
  auto times = [&] {
    OrderTimes t;
    t.ok = true, t.span = search.span(), t.total = search.total(), t.makespan = search.makespan();
    return t;
  };
  best = times();
  enough *= 1 + 1e-12;
  auto lists = search.lists();
  long since = 0;
  for (long now = 1; now <= moves && best.span > enough; ++now) {
    Move move = search.Choose(now, best.span);
    if (since > 3000 || move.rank < 0) {
      search.SetLists(lists);
      search.Pass();
      for (unsigned n = 1 + search.Random() % 8; n > 0; --n) {
        Move any = search.Any();
        if (any.rank < 0) break;
        search.Apply(any);
        if (!search.Pass()) {
          search.Undo(any);
          search.Pass();
        }
      }
      since = 0;
      continue;
    }
    search.Forbid(move, now + 8 + static_cast<long>(search.Random() % 24));
    search.Apply(move);
    if (!search.Pass()) {
      search.Undo(move);
      search.Pass();
      continue;
    }
    ++since;
    if (times().Better(best)) {
      if (times().span < best.span * (1 - 1e-9)) since = 0;
      best = times();
      lists = search.lists();
    }
  }
  order = search.ToOrder(lists);
  return best;
}

}  // namespace pipewright
