#include "plan/receive_buffers.h"

#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "plan/actions.h"

namespace pipewright {

namespace {

// The buffers of one edge and direction on one rank.
struct Buffers {
  int in_use = 0, most = 0;
  // (number of computes before it was freed, buffer number)
  std::priority_queue<std::pair<int, int>, std::vector<std::pair<int, int>>, std::greater<>> free;
};

// Keys are receiving stage, peer and direction.
using Edges = std::map<std::tuple<int, int, bool>, Buffers>;

// Calls take(buffers, recv) at every RECV and give(buffers, microbatch, computes) when a compute
// uses the received data.
template <typename Take, typename Give>
void Walk(std::vector<Action>& actions, Edges& edges, Take take, Give give) {
  std::map<std::pair<int, bool>, std::vector<Buffers*>> into;  // (stage, backward)
  for (auto& [key, buffers] : edges) into[{std::get<0>(key), std::get<2>(key)}].push_back(&buffers);
  int computes = 0;
  for (Action& a : actions) {
    if (IsRecv(a.kind)) take(edges[{a.stage, PeerOf(a), a.kind == ActionKind::kRecvBackward}], a);
    if (!IsCompute(a.kind)) continue;
    ++computes;
    if (HasForward(a))
      for (Buffers* buffers : into[{a.stage, false}]) give(*buffers, a.microbatch, computes);
    if (HasBackward(a))
      for (Buffers* buffers : into[{BackwardStage(a), true}])
        give(*buffers, BackwardMicrobatch(a), computes);
  }
}

}  // namespace

void NumberSlots(Plan& plan) {
  for (std::vector<Action>& actions : plan.ranks) {
    Edges edges;
    for (const Action& a : actions)
      if (IsRecv(a.kind)) edges[{a.stage, PeerOf(a), a.kind == ActionKind::kRecvBackward}];
    // Data that reached this rank without a RECV (from another replica) take no buffer.
    std::map<Buffers*, std::unordered_map<int, int>> held;  // microbatch -> buffer
    Walk(
        actions, edges,
        [&](Buffers& b, Action& recv) {
          held[&b][recv.microbatch] = 0;
          b.most = std::max(b.most, ++b.in_use);
        },
        [&](Buffers& b, int microbatch, int) {
          b.in_use -= static_cast<int>(held[&b].erase(microbatch));
        });
    for (auto& [key, b] : edges)
      for (int i = 0; i < b.most; ++i) b.free.push({0, i});
    held.clear();
    Walk(
        actions, edges,
        [&](Buffers& b, Action& recv) {
          recv.slot = b.free.top().second;
          b.free.pop();
          held[&b][recv.microbatch] = recv.slot;
        },
        [&](Buffers& b, int microbatch, int computes) {
          auto found = held[&b].find(microbatch);
          if (found == held[&b].end()) return;
          b.free.push({computes, found->second});
          held[&b].erase(found);
        });
  }
}

}  // namespace pipewright
