#include "runtime/exec/reduce.h"

#include <set>
#include <string>

#include "plan/error.h"

namespace pipewright {

SharedReducer::SharedReducer(const std::vector<SharedGroup>& groups, StageBody& body,
                             Transport& transport, int first_tag,
                             std::function<void(const Token&, int rank)> wait)
    : groups_(groups),
      body_(body),
      transport_(transport),
      first_tag_(first_tag),
      wait_(std::move(wait)),
      arriving_(groups.size()) {}

template <class F>
void SharedReducer::Named(int group, F f) {
  try {
    f();
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& e) {
    throw Error("shared weight " + std::to_string(group), e.what());
  }
}

void SharedReducer::Begin(const std::vector<int>& groups) {
  const int rank = transport_.rank();
  // Everything is posted before anything is waited for.
  for (int g : groups) {
    Named(g, [&] {
      const SharedGroup& holders = groups_[g];
      const int owner = holders[0].rank;
      if (rank == owner) arriving_[g].resize(holders.size());
      for (size_t h = 0; h < holders.size(); ++h) {
        if (rank == owner && holders[h].rank != rank) {
          Bundle scratch = body_.Scratch(g);
          Token token = transport_.Recv(holders[h].rank, first_tag_ + g, scratch);
          arriving_[g][h] = {std::move(scratch), std::move(token)};
        } else if (rank != owner && holders[h].rank == rank) {
          Bundle gradient = body_.Gradient(g, static_cast<int>(h));
          Token token = transport_.Send(owner, first_tag_ + g, std::move(gradient));
          contributions_.push_back({g, owner, std::move(token)});
        }
      }
      if (rank != owner) begun_.push_back(g);
    });
  }
  for (int g : groups)
    if (groups_[g][0].rank == rank) Named(g, [&] { Sum(g); });
}

void SharedReducer::Sum(int g) {
  const SharedGroup& holders = groups_[g];
  const int rank = transport_.rank();
  Bundle sum = body_.Gradient(g, 0);
  std::set<int> others;
  for (size_t h = 1; h < holders.size(); ++h) {
    if (holders[h].rank == rank) {
      body_.Add(sum, body_.Gradient(g, static_cast<int>(h)));
      continue;
    }
    auto& [scratch, token] = arriving_[g][h];
    wait_(token, holders[h].rank);
    body_.Add(sum, scratch);
    scratch = {}, token = nullptr;
    others.insert(holders[h].rank);
  }
  for (int other : others) sums_.push_back({g, other, transport_.Send(other, first_tag_ + g, sum)});
  for (size_t h = 1; h < holders.size(); ++h)
    if (holders[h].rank == rank) body_.Copy(body_.Gradient(g, static_cast<int>(h)), sum);
}

void SharedReducer::Finish() {
  if (begun_.empty() && sums_.empty()) return;
  const int rank = transport_.rank();
  auto first_here = [&](int g) {
    size_t h = 0;
    while (groups_[g][h].rank != rank) ++h;
    return h;
  };
  // The sum arrives in the memory that the contribution left from.
  for (Sent& sent : contributions_) Named(sent.group, [&] { wait_(sent.token, sent.peer); });
  contributions_.clear();
  std::vector<std::pair<Bundle, Token>> arriving;
  for (int g : begun_) {
    Named(g, [&] {
      Bundle sum = body_.Gradient(g, static_cast<int>(first_here(g)));
      Token token = transport_.Recv(groups_[g][0].rank, first_tag_ + g, sum);
      arriving.emplace_back(std::move(sum), std::move(token));
    });
  }
  for (size_t i = 0; i < begun_.size(); ++i) {
    const int g = begun_[i];
    Named(g, [&] {
      wait_(arriving[i].second, groups_[g][0].rank);
      for (size_t h = first_here(g) + 1; h < groups_[g].size(); ++h)
        if (groups_[g][h].rank == rank)
          body_.Copy(body_.Gradient(g, static_cast<int>(h)), arriving[i].first);
    });
  }
  begun_.clear();
  for (Sent& sent : sums_) Named(sent.group, [&] { wait_(sent.token, sent.peer); });
  sums_.clear();
}

}  // namespace pipewright
