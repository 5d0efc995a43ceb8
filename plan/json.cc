#include "plan/json.h"

#include <algorithm>
#include <set>

#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

static std::string Position(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  size_t line = 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + byte, '\n'));
  size_t start = text.rfind('\n', byte ? byte - 1 : 0);
  size_t column = byte - (start == std::string_view::npos || byte == 0 ? 0 : start + 1) + 1;
  return std::to_string(line) + ":" + std::to_string(column);
}

Json ParseJson(std::string_view text, const std::string& path) {
  // The library keeps the last of two equal keys; here the second is an error.
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && duplicate.empty() &&
        !keys.back().insert(parsed.get<std::string>()).second)
      duplicate = parsed.get<std::string>();
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& e) {
    std::string reason = e.what();
    size_t colon = reason.find("column");
    colon = reason.find(": ", colon == std::string::npos ? 0 : colon);
    if (colon != std::string::npos) reason = reason.substr(colon + 2);
    throw Error(path + ":" + Position(text, e.byte ? e.byte - 1 : 0), "not JSON: " + reason);
  }
  if (!duplicate.empty()) throw Error(path, "the key \"" + duplicate + "\" appears twice");
  return parsed;
}

Json ReadJson(const std::string& path) { return ParseJson(ReadFile(path), path); }

void CheckKeys(const Json& object, const std::vector<std::string>& known,
               const std::string& where) {
  if (!object.is_object()) throw Error(where, "an object is expected, not " + object.dump());
  for (const auto& item : object.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      throw Error(where, "unknown key \"" + item.key() + "\"" + Suggest(item.key(), known),
                  "known here: " + Join(known, ", "));
}

}  // namespace pipewright
