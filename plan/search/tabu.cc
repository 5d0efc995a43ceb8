#include "plan/search/tabu.h"

#include <algorithm>
#include <limits>

#include "plan/search/critical_path.h"

namespace pipewright {

namespace {


struct Move {
  int rank = -1, from = 0, to = 0;  // the action at `from` gets position `to`
  double estimate = std::numeric_limits<double>::infinity();
};

class Search {
 public:
  Search(const OrderProblem& p, const RankOrders& order, unsigned seed)
      : paths(p, order), random_(seed * 2654435761u + 12345), tabu_(size_t{1} << 18, 0) {}

  CriticalPaths paths;

  // Returns the best move that is not tabu or beats `best`, or else any; rank -1 if there is none.
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

  void Apply(const Move& move) { paths.Move(move.rank, move.from, move.to); }
  void Undo(const Move& move) { Apply({move.rank, move.to, move.from, 0}); }

  // Makes the order that the move changes tabu until `until`. Must be called before Apply.
  void Forbid(const Move& move, long until) {
    const auto& list = paths.lists()[move.rank];
    int u = list[move.from], step = move.from < move.to ? 1 : -1;
    for (int i = move.from + step; i != move.to + step; i += step)
      tabu_[Slot(step > 0 ? u : list[i], step > 0 ? list[i] : u)] = until;
  }

  // Returns a random move.
  Move Any() {
    for (int trial = 0; trial < 50; ++trial) {
      int r = static_cast<int>(Random() % static_cast<unsigned>(paths.lists().size()));
      int size = static_cast<int>(paths.lists()[r].size());
      if (size < 2) continue;
      int from = static_cast<int>(Random() % static_cast<unsigned>(size));
      int far = 1 + static_cast<int>(Random() % 6);
      int to = Random() % 2 ? paths.Later(r, from, std::min(size - 1, from + far))
                            : paths.Earlier(r, from, std::max(0, from - far));
      if (to != from) return {r, from, to, 0};
    }
    return {};
  }

  unsigned Random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 17, random_ ^= random_ << 5;
    return random_;
  }

 private:
  unsigned random_;
  std::vector<Move> moves_;
  std::vector<long> tabu_;

  void Consider(int r, int from, int to) {
    if (from == to) return;
    Move move{r, from, to, paths.Estimate(r, from, to)};
    moves_.push_back(move);
  }

  void Collect() {
    constexpr int kFar = 48;
    int r = paths.worst(), last = static_cast<int>(paths.lists()[r].size()) - 1;
    while (last >= 0) {
      const auto& list = paths.lists()[r];
      int begin = last;          // the block is [begin, last]
      auto waits = [&](int i) {  // true if i starts when another rank's action has ended
        const CriticalPaths::Job& job = paths.job(list[i]);
        return job.before >= 0 && paths.job(job.before).rank != r &&
               paths.Ready(job) >= paths.head(list[i]) &&
               !(i > 0 && paths.HeadUpTo(r, i - 1) >= paths.head(list[i]) && Random() % 2);
      };
      while (begin > 0 && !waits(begin)) --begin;
      for (int i = last - 1; i >= std::max(begin, last - kFar); --i)
        Consider(r, i, paths.Later(r, i, last));
      for (int i = begin + 1; i <= std::min(last, begin + kFar); ++i) {
        int to = paths.Earlier(r, i, begin);
        if (i - to != 1 || i - 1 < last - kFar || last != i) Consider(r, i, to);
      }
      const CriticalPaths::Job& job = paths.job(list[begin]);
      if (job.before < 0 || paths.Ready(job) < paths.head(list[begin])) break;
      r = paths.job(job.before).rank;
      last = paths.place(job.before);
    }
  }

  size_t Slot(int a, int b) const {  // a before b
    uint64_t key = static_cast<uint64_t>(a) * 0x9E3779B97F4A7C15ull +
                   static_cast<uint64_t>(b) * 0xC2B2AE3D27D4EB4Full;
    return static_cast<size_t>(key >> 20) & (tabu_.size() - 1);
  }
  bool IsTabu(const Move& move, long now) const {
    const auto& list = paths.lists()[move.rank];
    int u = list[move.from], step = move.from < move.to ? 1 : -1;
    for (int i = move.from + step; i != move.to + step; i += step)
      if (tabu_[Slot(step > 0 ? list[i] : u, step > 0 ? u : list[i])] > now) return true;
    return false;
  }
};

}  // namespace

OrderTimes Tabu(const OrderProblem& problem, RankOrders& order, long moves, unsigned seed,
                double enough) {
  Search search(problem, order, seed);
  OrderTimes best = search.paths.Pass();
  if (!best.ok) return best;
  enough *= 1 + 1e-12;
  auto lists = search.paths.lists();
  long since = 0;
  for (long now = 1; now <= moves && best.span > enough; ++now) {
    Move move = search.Choose(now, best.span);
    if (since > 3000 || move.rank < 0) {
      search.paths.SetLists(lists);
      search.paths.Pass();
      for (unsigned n = 1 + search.Random() % 8; n > 0; --n) {
        Move any = search.Any();
        if (any.rank < 0) break;
        search.Apply(any);
        if (!search.paths.Pass().ok) {
          search.Undo(any);
          search.paths.Pass();
        }
      }
      since = 0;
      continue;
    }
    search.Forbid(move, now + 8 + static_cast<long>(search.Random() % 24));
    search.Apply(move);
    OrderTimes times = search.paths.Pass();
    if (!times.ok) {
      search.Undo(move);
      search.paths.Pass();
      continue;
    }
    ++since;
    if (times.Better(best)) {
      if (times.span < best.span * (1 - 1e-9)) since = 0;
      best = times;
      lists = search.paths.lists();
    }
  }
  order = search.paths.ToOrder(lists);
  return best;
}

}  // namespace pipewright
