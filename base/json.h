// Parses and writes JSON. Keeps the order of keys and reports errors with file, line and column.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

using Json = nlohmann::ordered_json;

// Parses `text`; throws Error("path:line:column: ..."). Duplicate keys, trailing text and more than
// 1000 levels are errors.
Json ParseJson(std::string_view text, const std::string& path);
// Does the same for objects with very many keys; sorts them by key.
nlohmann::json ParseSortedJson(std::string_view text, const std::string& path);

// Returns "line:column" of the value at `path` in `text`, which must be JSON; the path has keys and
// decimal indices, outermost first. If the path leaves the document, uses its deepest existing
// part.
std::string JsonPosition(std::string_view text, const std::vector<std::string>& path);
// Returns `text` as a JSON string: in quotes, on one line. Invalid UTF-8 bytes become U+FFFD.
std::string Quote(std::string_view text);
bool IsUtf8(std::string_view text);

// Throws Error with a suggestion if `object` has a key that is not in `known`. `where` names the
// object for the user ("job.json: optimizer").
void CheckKeys(const Json& object, const std::vector<std::string>& known, const std::string& where);

// Formats with indentation; lists and objects that fit into 100 columns stay on one line. Ends with
// a newline.
std::string FormatJson(const Json& value);

}  // namespace pipewright
