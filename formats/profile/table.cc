#include "formats/profile/table.h"

#include <cstdio>

#include "base/size.h"
#include "base/table.h"
#include "base/text.h"

namespace pipewright {

static std::string Format(const char* format, double a, double b = 0) {
  char out[64];
  std::snprintf(out, sizeof out, format, a, b);
  return out;
}

static std::string Time(const ProfileTime& timing) {
  return Format("%.3f ±%.3f", timing.median * 1000, timing.spread * 1000);
}

static std::string Bytes(double bytes) { return SizeText(static_cast<int64_t>(bytes)); }

std::string ProfileTable(const Profile& profile) {
  std::vector<double> sent(profile.nodes.size(), 0);
  for (const ProfileValue& value : profile.values)
    if (value.producer >= 0 && !value.consumers.empty()) sent[value.producer] += value.bytes;
  std::vector<std::vector<std::string>> rows = {{"node", "F ms", "B ms", "I ms", "W ms", "sends",
                                                 "keeps", "keeps for W", "weights", "peak",
                                                 "body", "holds"}};
  for (size_t i = 0; i < profile.nodes.size(); ++i) {
    const ProfileNode& node = profile.nodes[i];
    rows.push_back({node.name, Time(node.forward), Time(node.backward), Time(node.input_gradient),
                    Time(node.weight_gradient), Bytes(sent[i]), Bytes(node.kept),
                    Bytes(node.kept_for_weight), Bytes(node.parameters + node.buffers),
                    Bytes(node.peak), node.body.empty() ? "-" : node.body, node.description});
  }
  std::string out = FormatTable(rows);
  for (const ProfileLink& link : profile.links)
    out += "rank " + std::to_string(link.from) + " -> " + std::to_string(link.to) + "  " +
           Format("%.1f us  ", link.latency * 1e6) +
           Format("%.2f ±%.2f GB/s", link.bytes_per_second / 1e9, link.spread / 1e9) + "\n";
  return out;
}

}  // namespace pipewright
