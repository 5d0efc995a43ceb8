#include "plan/lowering/exchange_joins.h"

#include <algorithm>

namespace pipewright {

ExchangeJoins::ExchangeJoins(const Plan& plan, const StageGraph& graph)
    : exchanges_(ReduceExchanges(graph)),
      joined_(exchanges_.size(), 0),
      waits_(exchanges_.size()),
      places_(plan.ranks.size()),
      next_(plan.ranks.size(), 0) {
  std::vector<std::vector<std::pair<int, int>>> reduces(plan.ranks.size());  // stage, position
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (plan.ranks[r][p].kind == ActionKind::kReduceGrad)
        reduces[r].emplace_back(plan.ranks[r][p].stage, static_cast<int>(p));
  for (auto& list : reduces) std::stable_sort(list.begin(), list.end());
  for (size_t x = 0; x < exchanges_.size(); ++x)
    for (int r : exchanges_[x].ranks) {
      // The n-th REDUCE_GRAD of each stage belongs to the n-th step.
      std::vector<int> last;
      for (int s : exchanges_[x].stages) {
        auto from = std::lower_bound(reduces[r].begin(), reduces[r].end(), std::pair(s, -1));
        for (size_t n = 0; from != reduces[r].end() && from->first == s; ++from, ++n) {
          if (n == last.size()) last.push_back(0);
          last[n] = std::max(last[n], from->second);
        }
      }
      for (size_t n = 0; n < last.size(); ++n)
        places_[r].push_back({static_cast<int>(n), static_cast<int>(x), last[n]});
    }
  for (auto& list : places_) {
    std::stable_sort(list.begin(), list.end(), [](const Place& a, const Place& b) {
      return std::pair(a.step, a.exchange) < std::pair(b.step, b.exchange);
    });
    for (size_t i = 1; i < list.size(); ++i)
      list[i].position = std::max(list[i].position, list[i - 1].position);
  }
}

bool ExchangeJoins::IsComplete(const Place& place) const {
  const int all = static_cast<int>(exchanges_[place.exchange].ranks.size());
  return joined_[place.exchange] >= all * (place.step + 1);
}

int ExchangeJoins::Join(int rank, int position, std::vector<int>& freed) {
  auto& places = places_[rank];
  for (size_t& next = next_[rank]; next < places.size() && places[next].position <= position;
       ++next) {
    Place& place = places[next];
    if (!place.joined) {
      place.joined = true;
      ++joined_[place.exchange];
      if (IsComplete(place)) {
        auto& waits = waits_[place.exchange];
        freed.insert(freed.end(), waits.begin(), waits.end());
        waits.clear();
      }
    }
    if (!IsComplete(place)) return place.exchange;
  }
  return -1;
}

int ExchangeJoins::MissingAt(int rank, int position) const {
  const auto& places = places_[rank];
  for (size_t next = next_[rank]; next < places.size() && places[next].position <= position; ++next)
    if (!IsComplete(places[next])) return places[next].exchange;
  return -1;
}

std::vector<int> ExchangeJoins::Missing(int exchange) const {
  const std::vector<int>& ranks = exchanges_[exchange].ranks;
  std::vector<int> missing;
  for (int rank : ranks) {
    int steps = 0;
    for (const Place& place : places_[rank]) steps += place.exchange == exchange && place.joined;
    if (steps <= joined_[exchange] / static_cast<int>(ranks.size())) missing.push_back(rank);
  }
  return missing;
}

}  // namespace pipewright
