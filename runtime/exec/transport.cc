#include "runtime/exec/transport.h"

#include <algorithm>
#include <map>
#include <thread>

#include "base/text.h"

namespace pipewright {

void Transport::WaitFor(const Token& token, const Awaited& awaited) {
  if (Test(token)) return;
  status().WaitFor(awaited);
  Wait(token);
  status().WaitFor({});
}

void Transport::WaitUntil(const std::function<Awaited()>& awaits, std::chrono::microseconds poll) {
  for (Awaited now; (now = awaits()).kind != Awaited::kNothing;) {
    status().WaitFor(now);
    Pending();
    std::this_thread::sleep_for(poll);
  }
  status().WaitFor({});
}

Token Transport::AllReduce(const std::vector<int>&, int, Bundle) {
  throw Error("transport", "it adds no values");
}

void RequireHostMemory(const Bundle& bundle) {
  for (const Region& region : bundle.regions)
    if (region.on_device)
      throw Error("transport", "it moves host memory, and was given memory of a device",
                  "copy the values to the host first (StageBody::OnHost)");
}

namespace {

// Returns "rank 2", "ranks 0, 2-4", or "every rank".
std::string RankList(const std::vector<int>& ranks, int size) {
  if (static_cast<int>(ranks.size()) == size && size > 1) return "every rank";
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    std::string run = std::to_string(ranks[i]);
    if (end - i > 1) run += (end - i > 2 ? "-" : ", ") + std::to_string(ranks[end - 1]);
    runs.push_back(run);
    i = end;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + Join(runs, ", ");
}

// Groups the ranks by their text, in the order of each text's first rank.
std::vector<std::pair<std::string, std::vector<int>>> ByText(const std::vector<std::string>& all) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  std::map<std::string, size_t> index;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    auto [at, fresh] = index.emplace(all[rank], groups.size());
    if (fresh) groups.push_back({all[rank], {}});
    groups[at->second].second.push_back(static_cast<int>(rank));
  }
  return groups;
}

}  // namespace

AgreedError::AgreedError(std::vector<std::string> texts)
    : Error(Join(texts, "\n")), texts_(std::move(texts)) {}

std::string AgreedError::Shown(const std::string& program) const {
  std::string lines;
  for (const std::string& text : texts_) lines += program + ": " + text + "\n";
  return lines;
}

void Vote(Transport& transport, const std::string& phase, const std::string& error) {
  std::vector<std::string> all = transport.AllGather(error);
  std::vector<std::string> lines;
  for (const auto& [text, ranks] : ByText(all))
    if (!text.empty())
      lines.push_back(phase + " on " + RankList(ranks, transport.size()) + ": " + text);
  if (!lines.empty()) throw AgreedError(std::move(lines));
}

void Agree(Transport& transport, uint64_t hash, const std::string& what) {
  auto groups = ByText(transport.AllGather(std::to_string(hash)));
  if (groups.size() == 1) return;
  auto most = std::max_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  std::vector<int> odd;
  for (auto group = groups.begin(); group != groups.end(); ++group)
    if (group != most) odd.insert(odd.end(), group->second.begin(), group->second.end());
  std::sort(odd.begin(), odd.end());
  throw AgreedError(what + ": not the same on every rank: " + RankList(odd, transport.size()) +
                    (odd.size() == 1 ? " differs from " : " differ from ") +
                    RankList(most->second, transport.size()) +
                    "\n  give every host the same files and the same command line");
}

std::string HostsText(const std::vector<std::string>& hosts) {
  std::vector<std::string> parts;
  for (const auto& [host, ranks] : ByText(hosts))
    parts.push_back(RankList(ranks, -1) + " on " + host);
  return Join(parts, ", ");
}

}  // namespace pipewright
