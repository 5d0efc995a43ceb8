#include "plan/search/critical_path.h"

#include <algorithm>
#include <limits>

namespace pipewright {

static constexpr double kUnreached = std::numeric_limits<double>::infinity();

CriticalPaths::CriticalPaths(const OrderProblem& p, const RankOrders& order) : p_(p) {
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

void CriticalPaths::SetLists(const std::vector<std::vector<int>>& lists) {
  for (int r = 0; r < p_.ranks; ++r) {
    if (lists_[r] == lists[r]) continue;
    lists_[r] = lists[r];
    Refresh(r);
  }
}

void CriticalPaths::Move(int rank, int from, int to) {
  auto& list = lists_[rank];
  auto at = [&](int i) { return list.begin() + i; };
  if (from < to)
    std::rotate(at(from), at(from) + 1, at(to) + 1);
  else
    std::rotate(at(to), at(from), at(from) + 1);
  Refresh(rank);
}

RankOrders CriticalPaths::ToOrder(const std::vector<std::vector<int>>& lists) const {
  RankOrders order(p_.ranks);
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

void CriticalPaths::Enter(int s, int m) {
  int r = p_.RankOf(s, m);
  const OpCosts& costs = p_.Of(s, m);
  for (OpKind kind : {OpKind::kF, OpKind::kI, OpKind::kW}) {
    Job& job = jobs_[Id(kind, s, m)];
    job.kind = kind, job.stage = s, job.microbatch = m, job.rank = r;
    job.time = costs.Time(kind), job.memory = costs.Memory(kind, p_.forward_only);
  }
  if (s == 0) return;
  Job& f = jobs_[Id(OpKind::kF, s, m)];
  Job& i = jobs_[Id(OpKind::kI, s, m)];
  double up = p_.Up(s - 1, m), down = p_.Down(s - 1, m);
  Job& f0 = jobs_[Id(OpKind::kF, s - 1, m)];
  Job& i0 = jobs_[Id(OpKind::kI, s - 1, m)];
  f.before = Id(OpKind::kF, s - 1, m), f0.behind = Id(OpKind::kF, s, m);
  f.lag_before = f0.lag_behind = up;
  i0.before = Id(OpKind::kI, s, m), i.behind = Id(OpKind::kI, s - 1, m);
  i0.lag_before = i.lag_behind = down;
}

void CriticalPaths::Refresh(int r) {
  const auto& list = lists_[r];
  bytes_[r].resize(list.size()), pending_[r].resize(list.size());
  std::vector<int>& count = waiter_;
  count.assign(p_.stages, 0);
  double bytes = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Job& job = jobs_[list[i]];
    place_[list[i]] = static_cast<int>(i);
    bytes += job.memory.during;
    bytes_[r][i] = bytes;
    bytes += job.memory.after;
    pending_[r][i] = count[job.stage];
    count[job.stage] += job.kind == OpKind::kI ? 1 : job.kind == OpKind::kW ? -1 : 0;
  }
}

OrderTimes CriticalPaths::Time() {
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
  OrderTimes times;
  for (int r = 0; r < p_.ranks; ++r) {
    const auto& list = lists_[r];
    if (at_[r] < list.size()) return {};
    if (list.empty()) continue;
    first_[r] = head_[list[0]];
    double end = HeadUpTo(r, static_cast<int>(list.size()) - 1);
    if (end - first_[r] > times.span) worst_ = r;
    times.Add(first_[r], end);
  }
  times.ok = true;
  return times;
}

bool CriticalPaths::Fits(int rank) const {
  return bytes_[rank].empty() ||
         *std::max_element(bytes_[rank].begin(), bytes_[rank].end()) <= p_.Limit(rank);
}

double CriticalPaths::TailFrom(int r, int position) const {
  const auto& list = lists_[r];
  if (position >= static_cast<int>(list.size())) return -first_[r];
  return jobs_[list[position]].time + tail_[list[position]];
}

double CriticalPaths::HeadUpTo(int r, int position) const {
  if (position < 0) return 0;
  int id = lists_[r][position];
  return head_[id] + jobs_[id].time;
}

double CriticalPaths::Ready(const Job& job) const {
  return job.before < 0 ? 0 : head_[job.before] + jobs_[job.before].time + job.lag_before;
}

double CriticalPaths::Rest(const Job& job) const {
  return job.behind < 0 ? -kUnreached : job.lag_behind + jobs_[job.behind].time + tail_[job.behind];
}

OrderTimes CriticalPaths::Pass() {
  OrderTimes times = Time();
  if (!times.ok) return times;
  for (size_t n = topological_.size(); n-- > 0;) {
    int id = topological_[n];
    const Job& job = jobs_[id];
    tail_[id] = std::max(TailFrom(job.rank, place_[id] + 1), Rest(job));
  }
  return times;
}

int CriticalPaths::Later(int r, int from, int to) const {
  const auto& list = lists_[r];
  int u = list[from];
  const Job& job = jobs_[u];
  double room = p_.Limit(r), change = job.memory.during + job.memory.after;
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
  // The memory that the action takes only while it runs must fit there, too.
  while (i > from && i + 1 <= static_cast<int>(list.size()) && job.kind == OpKind::kI &&
         job.memory.during > 0) {
    double before = bytes_[r][i] + jobs_[list[i]].memory.after - change;
    if (before + job.memory.during <= room) break;
    --i;
  }
  return i;
}

int CriticalPaths::Earlier(int r, int from, int to) const {
  const auto& list = lists_[r];
  const Job& job = jobs_[list[from]];
  double room = p_.Limit(r), change = job.memory.during + job.memory.after;
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
    double before = bytes_[r][i - 1] - x.memory.during;
    if (before + job.memory.during > room) break;
  }
  return i;
}

double CriticalPaths::Estimate(int r, int from, int to) {
  const auto& list = lists_[r];
  int low = std::min(from, to), high = std::max(from, to), n = high - low + 1;
  heads_.resize(n);
  auto at = [&](int k) {  // the k-th action of the range after the move
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
  double tail = TailFrom(r, high + 1), longest = -kUnreached;
  for (int k = n; k-- > 0;) {
    const Job& job = jobs_[at(k)];
    double rest = std::max(tail, Rest(job));
    longest = std::max(longest, heads_[k] + job.time + rest);
    tail = job.time + rest;
  }
  return longest;
}

}  // namespace pipewright
