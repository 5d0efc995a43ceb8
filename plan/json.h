// JSON as every reader here wants it: order kept, errors with file, line and column.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

using Json = nlohmann::ordered_json;

// Parses `text`; throws Error("path:line:column: ..."). Duplicate keys, trailing text and
// more than 1000 levels are errors.
Json ParseJson(std::string_view text, const std::string& path);
// The same, for objects of very many keys; the order is the keys', not the text's.
nlohmann::json ParseSortedJson(std::string_view text, const std::string& path);
Json ReadJson(const std::string& path);

// "line:column" of the value at `path` in `text`, which must be JSON; keys and decimal indices,
// from the outside in. Of a path that leaves the document, the deepest part that exists.
std::string JsonPosition(std::string_view text, const std::vector<std::string>& path);
// `text` as a JSON string: in quotes, on one line. Bytes that are not UTF-8 become U+FFFD.
std::string Quote(std::string_view text);
bool IsUtf8(std::string_view text);

// Every key of `object` must be in `known`: throws Error naming the key, with a suggestion.
// `where` names the object for the reader ("job.json: optimizer").
void CheckKeys(const Json& object, const std::vector<std::string>& known, const std::string& where);

// Indented text for people: lists and objects that fit into 100 columns stay on one line. Ends with
// a newline.
std::string FormatJson(const Json& value);

}  // namespace pipewright
