// A part of split.h: parses the policies of --split.
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/text.h"
#include "passes/split/split.h"

namespace pipewright {
namespace {

int Count(const std::string& text, const std::string& rest, const std::string& kind) {
  char* end = nullptr;
  long count = std::strtol(rest.c_str(), &end, 10);
  if (rest.empty() || *end || count < 1 || count > 100000)
    throw UsageError("--split " + text, "requires a number of modules, as in " + kind + ":4");
  return static_cast<int>(count);
}

std::map<std::string, int> ReadMap(const std::string& path) {
  const Json json = ReadJson(path);
  if (!json.is_object() || json.empty())
    throw Error(path, "is not a JSON object of submodules and their modules",
                "write {\"embed\": 0, \"blocks.0\": 0, \"blocks.1\": 1}");
  std::map<std::string, int> map;
  for (const auto& [name, module] : json.items()) {
    if (name == "$schema") continue;
    if (!module.is_number_integer() || module < 0 || module > 100000)
      throw Error(path + ": " + Quote(name), "expected a module number (0 or more)",
                  "write {\"embed\": 0, \"blocks.0\": 0, \"blocks.1\": 1}");
    map[name] = module.get<int>();
  }
  return map;
}

// Guesses what the user meant by a bare number or bare names.
std::string Meant(const std::string& text) {
  if (text.find_first_not_of("0123456789") == std::string::npos)
    return "equal:" + text + " makes modules of as many operations, balanced:" + text +
           " of as much work";
  return "modules:" + text + " cuts before submodules of these names";
}

}  // namespace

SplitSpec ParseSplit(const std::string& text, const std::vector<std::string>& after) {
  SplitSpec spec;
  spec.text = text.empty() ? "markers" : text;
  if (!after.empty()) {
    if (!text.empty() && text.rfind("modules:", 0) != 0)
      throw UsageError("--split-after", "cannot be combined with --split " + text,
                       "it adds cuts to modules:NAME,..., or stands alone");
    for (const std::string& name : after)
      if (name.empty())
        throw UsageError("--split-after", "requires names, as in blocks.2,blocks.4");
    spec.kind = SplitSpec::kNames;
    spec.after = after;
    if (text.empty()) {
      spec.text = "after " + Join(after, ",");
      return spec;
    }
  }
  size_t colon = text.find(':');
  std::string kind = text.substr(0, colon);
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (text == "markers") return spec;
  if (kind == "equal" || kind == "balanced" || kind == "profile") {
    spec.kind = kind == "equal"      ? SplitSpec::kEqual
                : kind == "balanced" ? SplitSpec::kBalanced
                                     : SplitSpec::kProfile;
    spec.count = Count(text, rest, kind);
  } else if (kind == "size" && colon != std::string::npos) {
    spec.kind = SplitSpec::kSize;
    try {
      spec.bytes = ParseSize(rest, "--split " + text);
    } catch (const Error& e) {
      throw UsageError(e.what());
    }
    if (spec.bytes < 1) throw UsageError("--split " + text, "requires a size, as in size:500MB");
  } else if (kind == "children") {
    spec.kind = SplitSpec::kChildren;
    spec.path = rest;
  } else if (kind == "modules" && colon != std::string::npos) {
    spec.kind = SplitSpec::kNames;
    spec.before = Split(rest, ',');
    for (const std::string& name : spec.before)
      if (name.empty())
        throw UsageError("--split " + text, "requires names, as in modules:blocks.2,blocks.4");
  } else if (text.ends_with(".json") || std::filesystem::is_regular_file(text)) {
    spec.kind = SplitSpec::kMap;
    spec.map = ReadMap(text);
  } else {
    const std::string like =
        Suggest(kind, {"markers", "modules", "children", "equal", "balanced", "profile", "size"});
    throw UsageError("--split " + text,
                     "unknown policy; expected markers, modules:NAME,..., children:PATH, equal:N, "
                     "balanced:N, profile:N, size:BYTES or a JSON file" +
                         like,
                     like.empty() && colon == std::string::npos ? Meant(text) : "");
  }
  return spec;
}

}  // namespace pipewright
