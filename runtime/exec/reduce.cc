#include "runtime/exec/reduce.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"

namespace pipewright {

int OwnerOf(const SharedGroup& group) {
  for (const SharedHolder& holder : group)
    if (holder.sums) return holder.rank;
  return group[0].rank;
}

std::vector<int> AllReduceRanks(const SharedGroup& group) {
  std::vector<int> ranks;
  for (const SharedHolder& holder : group) {
    if (!holder.gives || !holder.gets ||
        std::find(ranks.begin(), ranks.end(), holder.rank) != ranks.end())
      return {};
    ranks.push_back(holder.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks.size() > 1 ? ranks : std::vector<int>{};
}

RankPairs ReducePairs(const SharedGroup& group) {
  RankPairs pairs;
  const int owner = OwnerOf(group);
  for (const SharedHolder& holder : group) {
    if (holder.rank == owner) continue;
    if (holder.gives) pairs.emplace(holder.rank, owner);
    if (holder.gets) pairs.emplace(owner, holder.rank);
  }
  return pairs;
}

SharedReducer::SharedReducer(const std::vector<SharedGroup>& groups, StageBody& body,
                             Transport& transport, int first_tag,
                             std::function<void(const Token&, int rank)> wait)
    : groups_(groups),
      body_(body),
      transport_(transport),
      first_tag_(first_tag),
      wait_(std::move(wait)),
      early_(groups.size()) {}

template <class F>
void SharedReducer::Exchange(int group, F f, bool begins) {
  try {
    const std::shared_ptr<void> exchanging = body_.Exchanging(begins);
    f();
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& e) {
    throw Error("sum of gradients " + std::to_string(group), e.what());
  }
}

void SharedReducer::BeginEarly(int g) {
  early_[g] = true;
  Post(g);
}

void SharedReducer::Begin(int g) {
  due_.push_back(g);
  if (early_[g])
    early_[g] = false;
  else
    Post(g);
}

void SharedReducer::Post(int g) {
  const int rank = transport_.rank();
  const SharedGroup& holders = groups_[g];
  const int owner = OwnerOf(holders);
  Exchange(
      g,
      [&] {
        if (body_.AllReduces(g)) {
          size_t own = 0;
          while (holders[own].rank != rank) ++own;
          all_reduced_[g] = transport_.AllReduce(AllReduceRanks(holders), first_tag_ + g,
                                                 body_.Gradient(g, static_cast<int>(own)));
          return;
        }
        std::vector<std::pair<Bundle, Token>> arriving(holders.size());
        for (size_t h = 0; h < holders.size(); ++h) {
          if (!holders[h].gives) continue;
          if (rank == owner && holders[h].rank != rank) {
            Bundle scratch = body_.Scratch(g);
            Token token = transport_.Recv(holders[h].rank, first_tag_ + g, scratch);
            arriving[h] = {std::move(scratch), std::move(token)};
          } else if (rank != owner && holders[h].rank == rank) {
            Bundle gradient = body_.Gradient(g, static_cast<int>(h));
            Token token = transport_.Send(owner, first_tag_ + g, std::move(gradient));
            contributions_.push_back({g, owner, std::move(token)});
          }
        }
        if (rank == owner) arriving_[g] = std::move(arriving);
      },
      /*begins=*/true);
}

void SharedReducer::Advance() {
  std::vector<int> complete;
  for (auto& [g, arriving] : arriving_)
    Exchange(g, [&, &contributions = arriving] {
      if (std::all_of(contributions.begin(), contributions.end(),
                      [&](const auto& one) { return !one.second || transport_.Test(one.second); }))
        complete.push_back(g);
    });
  for (int g : complete) Exchange(g, [&] { Sum(g); });
}

// Weights without elements have no address, so one equal address does not decide.
static bool IsSameMemory(const Bundle& a, const Bundle& b) {
  for (size_t i = 0; i < a.regions.size(); ++i)
    if (a.regions[i].data != b.regions[i].data) return false;
  return true;
}

void SharedReducer::Sum(int g) {
  const SharedGroup& holders = groups_[g];
  const int rank = transport_.rank();
  std::vector<std::pair<Bundle, Token>> arriving = std::move(arriving_.extract(g).mapped());
  Bundle sum, part;  // sum of all previous terms, and of this term
  int term = holders[0].term;
  std::set<int> others;
  for (size_t h = 0; h < holders.size(); ++h) {
    if (holders[h].gets && holders[h].rank != rank) others.insert(holders[h].rank);
    if (!holders[h].gives) continue;
    if (holders[h].term != term && part.owner) {
      if (sum.owner)
        body_.Add(sum, part);
      else
        sum = std::move(part);
      part = {};
    }
    term = holders[h].term;
    Bundle given;
    if (holders[h].rank == rank) {
      given = body_.Gradient(g, static_cast<int>(h));
    } else {
      wait_(arriving[h].second, holders[h].rank);
      given = std::move(arriving[h].first);
      arriving[h] = {};
    }
    if (part.owner)
      body_.Add(part, given);
    else
      part = std::move(given);
  }
  if (sum.owner)
    body_.Add(sum, part);
  else
    sum = std::move(part);
  for (int other : others) sums_.push_back({g, other, transport_.Send(other, first_tag_ + g, sum)});
  for (size_t h = 0; h < holders.size(); ++h) {
    if (holders[h].rank != rank || !holders[h].gets) continue;
    Bundle own = body_.Gradient(g, static_cast<int>(h));
    if (!IsSameMemory(own, sum)) body_.Copy(own, sum);
  }
}

void SharedReducer::WaitForSent(std::vector<Sent>& sent) {
  std::erase_if(sent, [&](Sent& one) {
    if (std::find(due_.begin(), due_.end(), one.group) == due_.end()) return false;
    Exchange(one.group, [&] {
      wait_(one.token, one.peer);
      transport_.ComeAfter(one.token);
    });
    return true;
  });
}

void SharedReducer::Finish() {
  if (due_.empty()) return;
  const int rank = transport_.rank();
  for (int g : due_)
    if (arriving_.count(g)) Exchange(g, [&] { Sum(g); });
  for (int g : due_) {
    const auto found = all_reduced_.find(g);
    if (found == all_reduced_.end()) continue;
    const std::vector<int> ranks = AllReduceRanks(groups_[g]);
    Exchange(g, [&] { wait_(found->second, ranks[0] == rank ? ranks[1] : ranks[0]); });
  }
  // The sum arrives in the memory that the contribution was sent from.
  WaitForSent(contributions_);
  struct Arrival {
    int group;
    size_t holder;
    Bundle sum;
    Token token;
  };
  std::vector<Arrival> arrivals;
  auto gets_here = [&](int g, size_t h) {
    return groups_[g][h].rank == rank && groups_[g][h].gets;
  };
  for (int g : due_) {
    const int owner = OwnerOf(groups_[g]);
    size_t h = 0;
    while (h < groups_[g].size() && !gets_here(g, h)) ++h;
    if (all_reduced_.count(g) || owner == rank || h == groups_[g].size()) continue;
    Exchange(g, [&] {
      Bundle sum = body_.Gradient(g, static_cast<int>(h));
      Token token = transport_.Recv(owner, first_tag_ + g, sum);
      arrivals.push_back({g, h, std::move(sum), std::move(token)});
    });
  }
  for (Arrival& arrival : arrivals) {
    const int g = arrival.group;
    Exchange(g, [&] {
      wait_(arrival.token, OwnerOf(groups_[g]));
      for (size_t h = arrival.holder + 1; h < groups_[g].size(); ++h)
        if (gets_here(g, h)) body_.Copy(body_.Gradient(g, static_cast<int>(h)), arrival.sum);
    });
  }
  WaitForSent(sums_);
  body_.EndExchanges();
  for (int g : due_) all_reduced_.erase(g);
  due_.clear();
}

}  // namespace pipewright
