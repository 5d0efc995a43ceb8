#include "report/differences.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/files/read_file.h"
#include "base/json_comments.h"
#include "base/text.h"
#include "formats/conf.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "plan/actions.h"
#include "plan/loop_text.h"
#include "plan/plan_text.h"
#include "plan/simulate/compare.h"

namespace pipewright {

namespace {

using List = std::vector<Difference>;

bool SameBytes(const std::string& first, const std::string& second) {
  const MappedFile left(first), right(second);
  return left.bytes() == right.bytes();
}

void CompareFiles(const std::string& first, const std::string& second, const std::string& name,
                  List& list) {
  const std::string left = first + "/" + name, right = second + "/" + name;
  const bool in_left = std::filesystem::exists(left), in_right = std::filesystem::exists(right);
  if (in_left && in_right && !SameBytes(left, right))
    list.push_back({name, "other content", "other content"});
  else if (in_left != in_right)
    list.push_back({name, in_left ? "a file" : "", in_right ? "a file" : ""});
}

Json WithoutHashes(Json manifest) {
  manifest.erase("pipewright");
  for (Json& module : manifest["modules"]) {  // the files themselves are compared
    module.erase("code_hash");
    module.erase("line_hashes");
  }
  return manifest;
}

void ComparePackages(const std::string& first, const std::string& second, List& list) {
  const Manifest left = ReadManifest(first), right = ReadManifest(second);
  CompareJson(WithoutHashes(ReadJson(first + "/manifest.json")),
              WithoutHashes(ReadJson(second + "/manifest.json")), "", list);
  const size_t modules = std::min(left.modules.size(), right.modules.size());
  for (size_t m = 0; m < modules; ++m)
    for (auto file : {&ModuleInfo::code, &ModuleInfo::weights})
      if (left.modules[m].*file == right.modules[m].*file)
        CompareFiles(first, second, left.modules[m].*file, list);
  for (const char* conf : {"dp_conf.json", "hybrid_conf.json", "mp_conf.json"})
    CompareFiles(first, second, std::string("conf/") + conf, list);
}

void CompareConfs(const std::string& first, const std::string& second, List& list) {
  ReadConf(first), ReadConf(second);
  CompareJson(ReadJson(first), ReadJson(second), "", list);
}

void CompareJobs(const std::string& first, const std::string& second, List& list) {
  ReadJob(first), ReadJob(second);
  CompareJson(ReadJson(first), ReadJson(second), "", list);
}

void CompareText(const std::string& where, const std::string& first, const std::string& second,
             List& list) {
  if (first != second) list.push_back({where, first, second});
}

std::string StagesText(const std::vector<int>& stages) {
  std::vector<std::string> parts;
  for (int stage : stages) parts.push_back(std::to_string(stage));
  return parts.empty() ? "none" : Join(parts, ",");
}

void ComparePlans(const std::string& first, const std::string& second, List& list) {
  const Plan left = ReadPlanOrLoop(ReadFile(first), first, 0);
  const Plan right = ReadPlanOrLoop(ReadFile(second), second, 0);
  auto number = [&](const char* name, int64_t a, int64_t b) {
    CompareText(name, std::to_string(a), std::to_string(b), list);
  };
  number("stages", left.stages, right.stages);
  number("microbatches", left.microbatches, right.microbatches);
  number("steps", left.steps, right.steps);
  number("ranks", static_cast<int64_t>(left.ranks.size()),
         static_cast<int64_t>(right.ranks.size()));
  CompareText("recomputed stages", StagesText(left.recompute),
              StagesText(right.recompute), list);
  CompareText("shared weights", Json(left.shared).dump(), Json(right.shared).dump(), list);
  for (size_t r = 0; r < std::min(left.ranks.size(), right.ranks.size()); ++r) {
    const std::vector<Action>&a = left.ranks[r], &b = right.ranks[r];
    const std::string rank = "rank " + std::to_string(r);
    number((rank + ", number of actions").c_str(), static_cast<int64_t>(a.size()),
           static_cast<int64_t>(b.size()));
    // Lists only the first difference: most actions after it differ, too.
    const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    if (at != a.end() || other != b.end())
      list.push_back({rank + ", action " + std::to_string(at - a.begin()),
                      at == a.end() ? "" : ToText(*at), other == b.end() ? "" : ToText(*other)});
  }
}

std::string Microseconds(double time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g us", time);
  return text;
}

std::vector<TraceAction> SortedTrace(const std::string& path) {
  std::vector<TraceAction> actions = ReadChromeTrace(ReadFile(path), path);
  std::stable_sort(actions.begin(), actions.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.start) < std::tie(b.rank, b.start);
  });
  return actions;
}

void CompareTraces(const std::string& first, const std::string& second, List& list) {
  const std::vector<TraceAction> left = SortedTrace(first), right = SortedTrace(second);
  auto numbered = [&](const char* name, auto number) {
    CompareText(name, std::to_string(number(left)), std::to_string(number(right)), list);
  };
  numbered("actions", [](const auto& actions) { return actions.size(); });
  numbered("ranks", [](const auto& actions) {
    return 1 + std::max_element(actions.begin(), actions.end(), [](const auto& a, const auto& b) {
                 return a.rank < b.rank;
               })->rank;
  });
  numbered("stages", [](const auto& actions) {
    return 1 + std::max_element(actions.begin(), actions.end(), [](const auto& a, const auto& b) {
                 return a.action.stage < b.action.stage;
               })->action.stage;
  });
  if (!list.empty()) return;
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i].rank != right[i].rank || !(left[i].action == right[i].action)) {
      list.push_back({"rank " + std::to_string(left[i].rank) + ", at " +
                          Microseconds(left[i].start),
                      ToText(left[i].action), ToText(right[i].action)});
      break;
    }
  const Comparison compared = CompareTraces(left, right);
  auto times = [&](const std::string& where, double a, double b) {
    CompareText(where, Microseconds(a), Microseconds(b), list);
  };
  times("step", compared.predicted_step, compared.measured_step);
  for (const ComparedKind& kind : compared.stages)
    times("stage " + std::to_string(kind.stage) + ", median " + KindName(kind.kind),
          kind.predicted, kind.measured);
  for (size_t r = 0; r < compared.ranks.size(); ++r) {
    times("rank " + std::to_string(r) + ", busy", compared.ranks[r].predicted_busy,
          compared.ranks[r].measured_busy);
    times("rank " + std::to_string(r) + ", idle", compared.ranks[r].predicted_idle,
          compared.ranks[r].measured_idle);
  }
  for (size_t i = 0; list.empty() && i < left.size(); ++i) {
    times("start of " + ToText(left[i].action), left[i].start, right[i].start);
    times("end of " + ToText(left[i].action), left[i].end, right[i].end);
  }
}

// Determines the kind of file from its content, not from its name.
std::string KindOf(const std::string& path) {
  if (std::filesystem::is_directory(path)) return "package";
  const std::string text = WithoutComments(ReadFile(path));
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || (text[begin] != '{' && text[begin] != '[')) return "plan";
  const Json json = ParseJson(text, path);
  if (json.is_array() || json.contains("traceEvents")) return "trace";
  return json.contains("module_to_stage_map") ? "conf" : "job";
}

}  // namespace

Differences FindDifferences(const std::string& first, const std::string& second) {
  Differences found;
  found.kind = KindOf(first);
  if (const std::string other = KindOf(second); other != found.kind)
    throw Error(second, "it is a " + other + ", and " + first + " is a " + found.kind,
                "compare two packages, confs, plans, jobs or traces");
  static const std::map<std::string, void (*)(const std::string&, const std::string&, List&)>
      compare = {{"package", ComparePackages},
                 {"conf", CompareConfs},
                 {"plan", ComparePlans},
                 {"job", CompareJobs},
                 {"trace", CompareTraces}};
  compare.at(found.kind)(first, second, found.list);
  return found;
}

std::string DifferencesText(const Differences& differences, const std::string& first,
                            const std::string& second) {
  constexpr size_t kMost = 100;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, differences.list.size()); ++i) {
    const Difference& d = differences.list[i];
    if (d.first.empty() || d.second.empty())
      text += "only in " + (d.first.empty() ? second : first) + ": " + d.where + ": " +
              (d.first.empty() ? d.second : d.first) + "\n";
    else if (d.first == d.second)
      text += d.where + ": " + d.first + "\n";
    else
      text += d.where + ": " + d.first + " and " + d.second + "\n";
  }
  if (differences.list.size() > kMost)
    text += "and " + std::to_string(differences.list.size() - kMost) + " more (--json has all)\n";
  return text.empty() ? "the " + differences.kind + "s are the same\n" : text;
}

Json DifferencesJson(const Differences& differences) {
  Json list = Json::array();
  for (const Difference& d : differences.list)
    list.push_back({{"where", d.where},
                    {"first", d.first.empty() ? Json() : Json(d.first)},
                    {"second", d.second.empty() ? Json() : Json(d.second)}});
  return {{"kind", differences.kind}, {"equal", differences.list.empty()}, {"differences", list}};
}

}  // namespace pipewright
