#include "plan/zb_order.h"

#include <algorithm>
#include <deque>
#include <queue>

namespace pipewright {

OrderProblem MakeProblem(const Costs& costs, int ranks, const Placement& placement,
                         int microbatches, double memory, const std::vector<char>& recompute,
                         bool forward_only) {
  OrderProblem p;
  p.ranks = ranks;
  p.stages = static_cast<int>(placement.size());
  p.microbatches = microbatches;
  p.forward_only = forward_only;
  p.placement = placement;
  p.held.resize(ranks);
  p.room.assign(ranks, memory);
  size_t size = static_cast<size_t>(p.stages) * ranks;
  for (auto* list : {&p.F, &p.I, &p.W, &p.stored, &p.whole, &p.kept}) list->assign(size, 0);
  for (int s = 0; s < p.stages; ++s) {
    p.one_rank_each &= placement[s].size() == 1;
    for (int r : placement[s]) {
      const StageCosts& c = CostsOf(costs, s, r);
      bool again = !recompute.empty() && recompute[s] && c.recompute >= 0;
      size_t at = p.At(s, r);
      p.held[r].push_back(s);
      p.room[r] -= c.weights;
      p.F[at] = c.F;
      p.I[at] = c.I + (again ? c.recompute : 0);
      p.W[at] = c.W;
      p.whole[at] = c.activation;
      p.stored[at] = again ? c.checkpoint : c.activation;
      p.kept[at] = c.kept_for_W;
    }
  }
  if (p.one_rank_each) {
    p.up.assign(p.stages, 0), p.down.assign(p.stages, 0);
    for (int s = 0; s + 1 < p.stages; ++s) {
      int a = placement[s][0], b = placement[s + 1][0];
      double bytes = CostsOf(costs, s, a).output;
      p.up[s] = TransferTime(costs, a, b, bytes);
      p.down[s] = TransferTime(costs, b, a, bytes);
    }
    return p;
  }
  p.up.assign(size * ranks, 0), p.down.assign(size * ranks, 0);
  for (int s = 0; s + 1 < p.stages; ++s)
    for (int a : placement[s])
      for (int b : placement[s + 1]) {
        double bytes = CostsOf(costs, s, a).output;
        p.up[p.At(s, a) * ranks + b] = TransferTime(costs, a, b, bytes);
        p.down[p.At(s, b) * ranks + a] = TransferTime(costs, b, a, bytes);
      }
  return p;
}

bool OrderTimes::Better(const OrderTimes& than) const {
  if (ok != than.ok) return ok;
  double least = 1e-9 * (span + than.span);  // rounding is no improvement
  if (span < than.span - least) return true;
  if (span > than.span + least) return false;
  if (total < than.total - least) return true;
  if (total > than.total + least) return false;
  return makespan < than.makespan - least;
}

OrderTimer::OrderTimer(const OrderProblem& problem)
    : problem_(problem), events_(problem.ranks), next_waiter_(problem.ranks) {}

bool OrderTimer::Fits(int rank, const std::vector<Op>& list) const {
  double room = problem_.room[rank] * (1 + 1e-12) + 1e-9, bytes = 0;
  for (const Op& op : list) {
    size_t at = problem_.At(op.stage, rank);
    if (op.kind == OpKind::kF) bytes += problem_.stored[at];
    if (op.kind == OpKind::kI) bytes += problem_.whole[at] - problem_.stored[at];
    if (bytes > room) return false;
    if (op.kind == OpKind::kI) bytes += problem_.kept[at] - problem_.whole[at];
    if (op.kind == OpKind::kF && problem_.forward_only) bytes -= problem_.stored[at];
    if (op.kind == OpKind::kW) bytes -= problem_.kept[at];
  }
  return true;
}

OrderTimes OrderTimer::Time(const Order& order) {
  const OrderProblem& p = problem_;
  size_t size = static_cast<size_t>(p.stages) * p.microbatches;
  forward_.assign(size, {}), backward_.assign(size, {});
  position_.assign(p.ranks, 0);
  ready_.clear();
  for (int r = p.ranks; r-- > 0;) {
    events_[r].clear();
    ready_.push_back(r);
  }
  auto wait = [&](Done& done, int rank) {
    next_waiter_[rank] = done.waiter;
    done.waiter = rank;
  };
  while (!ready_.empty()) {
    int r = ready_.back();
    ready_.pop_back();
    auto& events = events_[r];
    for (size_t& i = position_[r]; i < order[r].size(); ++i) {
      const Op& op = order[r][i];
      size_t at = static_cast<size_t>(op.stage) * p.microbatches + op.microbatch;
      Event event;
      if (i) event = {events.back().end, 0, r, static_cast<int>(i) - 1};
      Done* own = nullptr;
      double time = 0;
      if (op.kind == OpKind::kF) {
        own = &forward_[at];
        time = p.F[p.At(op.stage, r)];
        if (op.stage > 0) {
          Done& input = forward_[at - p.microbatches];
          if (input.end < 0) {
            wait(input, r);
            break;
          }
          int from = p.RankOf(op.stage - 1, op.microbatch);
          double ready = input.end + (from == r ? 0 : p.Up(op.stage - 1, from, r));
          if (ready > event.start) event = {ready, 0, from, input.position};
        }
      } else if (op.kind == OpKind::kI) {
        own = &backward_[at];
        time = p.I[p.At(op.stage, r)];
        if (forward_[at].end < 0) return {};
        if (op.stage + 1 < p.stages) {
          Done& input = backward_[at + p.microbatches];
          if (input.end < 0) {
            wait(input, r);
            break;
          }
          int from = p.RankOf(op.stage + 1, op.microbatch);
          double ready = input.end + (from == r ? 0 : p.Down(op.stage, from, r));
          if (ready > event.start) event = {ready, 0, from, input.position};
        }
      } else {
        time = p.W[p.At(op.stage, r)];
        if (backward_[at].end < 0) return {};
      }
      event.end = event.start + time;
      events.push_back(event);
      if (!own) continue;
      int waiter = own->waiter;
      *own = {event.end, static_cast<int>(i), -1};
      for (; waiter >= 0; waiter = next_waiter_[waiter]) ready_.push_back(waiter);
    }
  }
  OrderTimes times;
  times.ok = true;
  for (int r = 0; r < p.ranks; ++r) {
    if (position_[r] < order[r].size()) return {};
    if (order[r].empty()) continue;
    double span = events_[r].back().end - events_[r].front().start;
    if (span > times.span) times.span = span, worst_ = r;
    times.total += span;
    times.makespan = std::max(times.makespan, events_[r].back().end);
  }
  return times;
}

PlayResult Play(const OrderProblem& p, const Order& script_in, double patience) {
  constexpr double kUnknown = 1e300;
  PlayResult result;
  Order script = script_in;
  size_t size = static_cast<size_t>(p.stages) * p.microbatches, left = 0;
  std::vector<double> forward(size, kUnknown), backward(size, kUnknown);
  std::fill(forward.begin(), forward.begin() + p.microbatches, 0);
  struct Rank {
    size_t position = 0;
    double bytes = 0, free = 0, wake = 0, first = -1, last = 0;
    std::deque<Op> pending;
  };
  std::vector<Rank> ranks(p.ranks);
  result.order.resize(p.ranks);
  using Turn = std::pair<double, int>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<Turn>> turns;
  for (int r = 0; r < p.ranks; ++r) {
    turns.push({0, r});
    left += script[r].size();
    result.order[r].reserve(script[r].size() * 3 / 2 + 1);
  }
  auto arrive = [&](std::vector<double>& table, size_t at, double time, int from, int to) {
    table[at] = time;
    Rank& rank = ranks[to];
    if (to == from) return;
    double turn = std::max(time, rank.free);
    if (rank.wake < 0 || (rank.wake > rank.free && turn < rank.wake))
      turns.push({rank.wake = turn, to});
  };
  while (!turns.empty()) {
    auto [now, r] = turns.top();
    turns.pop();
    Rank& rank = ranks[r];
    if (rank.wake != now) continue;
    double room = p.room[r] * (1 + 1e-12) + 1e-9;
    Op op;
    bool weight = false;
    if (rank.position < script[r].size()) {
      auto need = [&](const Op& o) {
        size_t at = p.At(o.stage, r);
        return o.kind == OpKind::kF ? p.stored[at] : p.whole[at] - p.stored[at];
      };
      auto here = script[r].begin() + static_cast<std::ptrdiff_t>(rank.position);
      if (rank.bytes + need(*here) > room && rank.pending.empty()) {
        if (here->kind != OpKind::kF) return result;
        auto next =
            std::find_if(here, script[r].end(), [](const Op& o) { return o.kind == OpKind::kI; });
        if (next == script[r].end()) return result;
        std::rotate(here, next, next + 1);
        if (rank.bytes + need(*here) > room) return result;
      }
      op = *here;
      size_t at = static_cast<size_t>(op.stage) * p.microbatches + op.microbatch;
      double ready = (op.kind == OpKind::kF ? forward : backward)[at];
      if (rank.bytes + need(op) > room) {
        weight = true;
      } else if (ready > now) {
        const Op* w = rank.pending.empty() ? nullptr : &rank.pending.front();
        weight = w && ready - now >= patience * p.W[p.At(w->stage, r)];
        if (!weight) {
          rank.wake = ready < kUnknown ? ready : -1;
          if (rank.wake >= 0) turns.push({ready, r});
          continue;
        }
      } else {
        ++rank.position;
        --left;
      }
    } else if (!rank.pending.empty()) {
      weight = true;
    } else {
      continue;
    }
    if (weight) {
      op = rank.pending.front();
      rank.pending.pop_front();
    }
    size_t cost = p.At(op.stage, r);
    double end = now + (op.kind == OpKind::kF   ? p.F[cost]
                        : op.kind == OpKind::kI ? p.I[cost]
                                                : p.W[cost]);
    if (rank.first < 0) rank.first = now;
    rank.last = rank.free = rank.wake = end;
    turns.push({end, r});
    result.order[r].push_back(op);
    size_t at = static_cast<size_t>(op.stage) * p.microbatches + op.microbatch;
    if (op.kind == OpKind::kF) {
      if (!p.forward_only) rank.bytes += p.stored[cost];
      if (op.stage + 1 < p.stages) {
        int to = p.RankOf(op.stage + 1, op.microbatch);
        double latency = to == r ? 0 : p.Up(op.stage, r, to);
        arrive(forward, at + p.microbatches, end + latency, r, to);
      } else {
        backward[at] = end;
      }
    } else if (op.kind == OpKind::kI) {
      rank.bytes += p.kept[cost] - p.stored[cost];
      rank.pending.push_back({OpKind::kW, op.stage, op.microbatch});
      if (op.stage > 0) {
        int to = p.RankOf(op.stage - 1, op.microbatch);
        double latency = to == r ? 0 : p.Down(op.stage - 1, r, to);
        arrive(backward, at - p.microbatches, end + latency, r, to);
      }
    } else {
      rank.bytes -= p.kept[cost];
    }
  }
  if (left) return result;
  result.times.ok = true;
  for (const Rank& rank : ranks) {
    if (rank.first < 0) continue;
    result.times.span = std::max(result.times.span, rank.last - rank.first);
    result.times.total += rank.last - rank.first;
    result.times.makespan = std::max(result.times.makespan, rank.last);
  }
  return result;
}

}  // namespace pipewright
