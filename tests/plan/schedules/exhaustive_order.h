// Finds the true optimum of small cases by search over every order of F, I and W on every rank.
// Shares no code with zb-auto. Microbatches are interchangeable, so each stage takes them in order.
#pragma once
#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

namespace pipewright::exhaustive {

struct Instance {
  int ranks = 0, microbatches = 0;
  std::vector<int> rank_of;  // by stage
  int F = 1, I = 1, W = 1, latency = 0;
  double memory = 1e30, activation = 1, kept = 0;
  // By stage, if some recompute: the time that this adds to I, and the bytes held from F to I.
  std::vector<int> again;
  std::vector<double> stored;

  int InputGrad(int s) const { return I + (again.empty() ? 0 : again[s]); }
  double Stored(int s) const { return stored.empty() ? activation : stored[s]; }
};

class Search {
 public:
  // Searches for orders with a span (or makespan) below `limit`.
  Search(const Instance& one, bool span) : c_(one), span_(span) {
    stages_ = static_cast<int>(c_.rank_of.size());
    f_.resize(stages_), i_.resize(stages_), w_.resize(stages_);
    clock_.resize(c_.ranks), first_.assign(c_.ranks, -1), bytes_.resize(c_.ranks);
    work_.resize(c_.ranks);
    for (int s = 0; s < stages_; ++s)
      work_[c_.rank_of[s]] += c_.microbatches * (c_.F + c_.InputGrad(s) + c_.W);
  }

  int Least(int limit) {
    best_ = limit;
    Go(0, -1);
    return best_;
  }
  long nodes() const { return nodes_; }

 private:
  Instance c_;
  bool span_;
  int stages_ = 0, best_ = 0;
  long nodes_ = 0;
  std::vector<std::vector<int>> f_, i_;  // ends, by stage
  std::vector<int> w_;                   // W done, by stage
  std::vector<int> clock_, first_, work_;
  std::vector<double> bytes_;
  std::unordered_set<std::string> seen_;

  int Gap(int a, int b) const { return c_.rank_of[a] == c_.rank_of[b] ? 0 : c_.latency; }

  // Returns a lower bound on the end, whatever follows.
  int Bound() const {
    int bound = 0;
    for (int r = 0; r < c_.ranks; ++r) {
      int end = clock_[r] + work_[r];
      bound = std::max(bound, span_ ? (first_[r] < 0 ? work_[r] : end - first_[r]) : end);
    }
    // The last microbatch still has to come back.
    int start = span_ ? first_[c_.rank_of[0]] : 0;
    if (start < 0) return bound;
    int path = 0;
    for (int s = 0; s < stages_; ++s) {  // forwards left in stage s, then the path to the end
      int left = c_.microbatches - static_cast<int>(f_[s].size());
      int way = 0;
      for (int t = s + 1; t < stages_; ++t) way += c_.F + Gap(t - 1, t);
      int back = 0;
      for (int t = stages_; t-- > 0;) back += c_.I + (t ? Gap(t - 1, t) : 0);
      if (left) path = std::max(path, clock_[c_.rank_of[s]] + left * c_.F + way + back + c_.W);
      left = c_.microbatches - static_cast<int>(i_[s].size());
      back = 0;
      for (int t = s; t-- > 0;) back += c_.I + Gap(t, t + 1);
      if (left) path = std::max(path, clock_[c_.rank_of[s]] + left * c_.I + back + c_.W);
    }
    return std::max(bound, path - start);
  }

  std::string State() const {
    std::string key;
    auto add = [&](int x) { key.append(reinterpret_cast<const char*>(&x), sizeof x); };
    for (int s = 0; s < stages_; ++s) {
      add(static_cast<int>(f_[s].size())), add(static_cast<int>(i_[s].size())), add(w_[s]);
      // Ends of actions whose results are still needed.
      size_t used = s + 1 < stages_ ? f_[s + 1].size() : i_[s].size();
      for (size_t m = used; m < f_[s].size(); ++m) add(f_[s][m]);
      used = s > 0 ? i_[s - 1].size() : i_[s].size();
      for (size_t m = used; m < i_[s].size(); ++m) add(i_[s][m]);
    }
    for (int r = 0; r < c_.ranks; ++r) add(clock_[r]), add(first_[r]);
    return key;
  }

  // Places actions by ascending start, so that each set of orders occurs once.
  void Go(int last_start, int last_rank) {
    ++nodes_;
    if (Bound() >= best_) return;
    bool done = true;
    for (int r = 0; r < c_.ranks; ++r) done &= work_[r] == 0;
    if (done) {
      best_ = Bound();
      return;
    }
    if (seen_.size() < 4'000'000) {
      std::string key = State();
      int more[2] = {last_start, last_rank};
      key.append(reinterpret_cast<const char*>(more), sizeof more);
      if (!seen_.insert(std::move(key)).second) return;
    }
    for (int s = 0; s < stages_; ++s) {
      int r = c_.rank_of[s], m = static_cast<int>(f_[s].size());
      if (m < c_.microbatches && bytes_[r] + c_.Stored(s) <= c_.memory &&
          (s == 0 || static_cast<int>(f_[s - 1].size()) > m)) {
        int ready = s ? f_[s - 1][m] + Gap(s - 1, s) : 0;
        Place(s, r, std::max(clock_[r], ready), c_.F, 'F', last_start, last_rank);
      }
      m = static_cast<int>(i_[s].size());
      if (m < static_cast<int>(f_[s].size()) &&
          bytes_[r] + c_.activation - c_.Stored(s) <= c_.memory &&
          (s + 1 == stages_ || static_cast<int>(i_[s + 1].size()) > m)) {
        int ready = s + 1 < stages_ ? i_[s + 1][m] + Gap(s, s + 1) : f_[s][m];
        Place(s, r, std::max(clock_[r], ready), c_.InputGrad(s), 'I', last_start, last_rank);
      }
      if (w_[s] < static_cast<int>(i_[s].size()))
        Place(s, r, clock_[r], c_.W, 'W', last_start, last_rank);
    }
  }

  void Place(int s, int r, int start, int time, char kind, int last_start, int last_rank) {
    if (start < last_start || (start == last_start && r < last_rank)) return;
    int clock = clock_[r], first = first_[r];
    double bytes = bytes_[r];
    if (first_[r] < 0) first_[r] = start;
    clock_[r] = start + time;
    work_[r] -= time;
    if (kind == 'F') f_[s].push_back(start + time), bytes_[r] += c_.Stored(s);
    if (kind == 'I') i_[s].push_back(start + time), bytes_[r] += c_.kept - c_.Stored(s);
    if (kind == 'W') ++w_[s], bytes_[r] -= c_.kept;
    Go(start, r);
    if (kind == 'F') f_[s].pop_back();
    if (kind == 'I') i_[s].pop_back();
    if (kind == 'W') --w_[s];
    clock_[r] = clock, first_[r] = first, bytes_[r] = bytes;
    work_[r] += time;
  }
};

}  // namespace pipewright::exhaustive
