#include "base/json.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

static std::string Position(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  size_t line = 1 + static_cast<size_t>(std::count(text.begin(), text.begin() + byte, '\n'));
  size_t start = text.rfind('\n', byte ? byte - 1 : 0);
  size_t column = byte - (start == std::string_view::npos || byte == 0 ? 0 : start + 1) + 1;
  return std::to_string(line) + ":" + std::to_string(column);
}

// Walks a valid document and calls visit(path, offset) for every value, before the values inside
// it.
template <typename Visit>
static void WalkJson(std::string_view text, Visit visit) {
  struct Frame {
    bool array;
    size_t index;
  };
  std::vector<Frame> frames;
  std::vector<std::string> path;
  bool key_next = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (std::string_view(" \t\r\n:").find(c) != std::string_view::npos) continue;
    if (c == ',') {
      if (frames.back().array)
        path.back() = std::to_string(++frames.back().index);
      else
        key_next = true;
      continue;
    }
    if (c == ']' || c == '}') {
      frames.pop_back(), path.pop_back();
      key_next = false;
      continue;
    }
    size_t begin = i;
    if (c == '"') {
      for (++i; text[i] != '"'; ++i) i += text[i] == '\\';
      if (key_next) {
        path.back() = Json::parse(text.substr(begin, i + 1 - begin)).get<std::string>();
        visit(path, begin, true);
        key_next = false;
        continue;
      }
    }
    visit(path, begin, false);
    if (c == '[' || c == '{') {
      frames.push_back({c == '[', 0});
      path.push_back(c == '[' ? "0" : "");
      key_next = c == '{';
    } else if (c != '"') {
      while (i + 1 < text.size() &&
             std::string_view(",]} \t\r\n").find(text[i + 1]) == std::string_view::npos)
        ++i;
    }
  }
}

std::string JsonPosition(std::string_view text, const std::vector<std::string>& path) {
  size_t best = 0, depth = 0;
  WalkJson(text, [&](const std::vector<std::string>& at, size_t offset, bool is_key) {
    if (is_key || at.size() > path.size() || at.size() <= depth) return;
    if (std::equal(at.begin(), at.end(), path.begin())) best = offset, depth = at.size();
  });
  return Position(text, best);
}

// Returns the start of the word that contains `byte`.
static size_t WordAt(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  while (byte > 0 &&
         (std::isalpha(static_cast<unsigned char>(text[byte - 1])) || text[byte - 1] == '-'))
    --byte;
  return byte;
}

// Returns "NaN", "-Infinity" or the like, which other languages write; "" for anything else.
static std::string NotANumber(std::string_view text) {
  size_t end = 0;
  std::string lower;
  while (end < text.size() &&
         (std::isalpha(static_cast<unsigned char>(text[end])) || text[end] == '-'))
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(text[end++])));
  const std::string bare = lower.substr(lower.starts_with('-'));
  return bare == "nan" || bare == "inf" || bare == "infinity" ? std::string(text.substr(0, end))
                                                              : "";
}

// Finds duplicate keys and limits the depth. This is not a callback of Document::parse because with
// one the library scans a whole list again after each object in it.
template <typename Document>
class KeyWatch : public nlohmann::json_sax<Document> {
 public:
  explicit KeyWatch(const std::string& path) : path_(path) {}
  std::string duplicate;  // the first key that an object repeats

  bool null() override { return Inside(); }
  bool boolean(bool) override { return Inside(); }
  bool number_integer(typename Document::number_integer_t) override { return Inside(); }
  bool number_unsigned(typename Document::number_unsigned_t) override { return Inside(); }
  bool number_float(typename Document::number_float_t, const std::string&) override {
    return Inside();
  }
  bool string(std::string&) override { return Inside(); }
  bool binary(typename Document::binary_t&) override { return Inside(); }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second && duplicate.empty()) duplicate = name;
    return Inside();
  }
  // Document::parse says what is wrong.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  const std::string& path_;
  std::vector<std::set<std::string>> keys_;  // one set for each level; a list's stays empty

  // Copying and printing a document use stack for each level.
  bool Inside() {
    if (keys_.size() > 1000) throw Error(path_, "nested deeper than 1000 levels");
    return true;
  }
  bool Open() {
    Inside();
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }
};

template <typename Document>
static Document Parse(std::string_view text, const std::string& path) {
  // The library treats a NUL byte as the end of the text.
  if (size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(path + ":" + Position(text, nul), "not JSON: a NUL byte");
  // The library keeps the last of two equal keys; here duplicates are an error.
  KeyWatch<Document> watch(path);
  Document::sax_parse(text.begin(), text.end(), &watch);
  Document parsed;
  try {
    parsed = Document::parse(text.begin(), text.end());
  } catch (const typename Document::parse_error& e) {
    const size_t word = WordAt(text, e.byte ? e.byte - 1 : 0);
    if (std::string number = NotANumber(text.substr(word)); !number.empty())
      throw Error(path + ":" + Position(text, word),
                  number + " is not a JSON number: write a finite one");
    std::string reason = e.what();
    size_t colon = reason.find("column");
    colon = reason.find(": ", colon == std::string::npos ? 0 : colon);
    if (colon != std::string::npos) reason = reason.substr(colon + 2);
    // The message quotes the input, which may not be text.
    if (!IsUtf8(reason))
      std::replace_if(
          reason.begin(), reason.end(), [](char c) { return static_cast<signed char>(c) < 0; },
          '?');
    throw Error(path + ":" + Position(text, e.byte ? e.byte - 1 : 0), "not JSON: " + reason);
  } catch (const typename Document::out_of_range& e) {
    // Parses "... number overflow parsing '1e999'".
    std::string reason = e.what(), number = reason.substr(reason.find('\'') + 1);
    number = number.substr(0, number.find('\''));
    throw Error(path + ":" + Position(text, text.find(number)), number + " is too large a number");
  }
  if (!watch.duplicate.empty()) {
    std::set<std::vector<std::string>> seen;
    size_t second = text.size();
    WalkJson(text, [&](const std::vector<std::string>& at, size_t offset, bool is_key) {
      if (is_key && !seen.insert(at).second) second = std::min(second, offset);
    });
    throw Error(path + ":" + Position(text, second),
                "the key \"" + watch.duplicate + "\" appears twice");
  }
  return parsed;
}

Json ParseJson(std::string_view text, const std::string& path) { return Parse<Json>(text, path); }

nlohmann::json ParseSortedJson(std::string_view text, const std::string& path) {
  return Parse<nlohmann::json>(text, path);
}

std::string Quote(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsUtf8(std::string_view text) {
  try {
    Json(std::string(text)).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

// Returns this program's name for a key of another program, or the section that a key belongs in;
// "" if unknown.
static std::string OtherWord(const std::string& key, const std::vector<std::string>& known) {
  struct Word {
    const char *other, *known, *here;
  };
  static const Word kWords[] = {{"learning_rate", "lr", "lr"},
                                {"lr", "optimizer", "optimizer.lr"},
                                {"learning_rate", "optimizer", "optimizer.lr"},
                                {"weight_decay", "optimizer", "optimizer.weight_decay"},
                                {"momentum", "optimizer", "optimizer.momentum"},
                                {"betas", "optimizer", "optimizer.betas"},
                                {"clip_norm", "optimizer", "optimizer.clip_norm"},
                                {"max_grad_norm", "optimizer", "optimizer.clip_norm"},
                                {"max_grad_norm", "clip_norm", "clip_norm"},
                                {"lr_schedule", "optimizer", "optimizer.lr_schedule"},
                                {"warmup", "optimizer", "optimizer.lr_schedule.warmup"},
                                {"warmup", "lr_schedule", "lr_schedule.warmup"},
                                {"shuffle", "data", "data.shuffle"},
                                {"sequence_length", "data", "data.sequence_length"},
                                {"gradient_accumulation_steps", "accumulate", "accumulate"},
                                {"max_steps", "steps", "steps"},
                                {"batch_size", "microbatch_size", "microbatch_size"},
                                {"epochs", "steps", "steps"},
                                {"epsilon", "eps", "eps"}};
  for (const Word& word : kWords)
    if (key == word.other && std::find(known.begin(), known.end(), word.known) != known.end())
      return std::string(" (did you mean \"") + word.here + "\"?)";
  return "";
}

void CheckKeys(const Json& object, const std::vector<std::string>& known,
               const std::string& where) {
  if (!object.is_object()) throw Error(where, "an object is expected, not " + object.dump());
  for (const auto& item : object.items())
    // Editors complete keys from the schema that a file names.
    if (item.key() != "$schema" &&
        std::find(known.begin(), known.end(), item.key()) == known.end()) {
      std::string like = OtherWord(item.key(), known);
      if (like.empty()) like = Suggest(item.key(), known);
      std::vector<std::string> sorted = known;
      std::sort(sorted.begin(), sorted.end());
      throw Error(where, "unknown key \"" + item.key() + "\"" + like,
                  like.empty() ? "known here: " + Join(sorted, ", ") : "");
    }
}

static void Format(const Json& value, size_t indent, size_t used, std::string& out) {
  std::string line = value.dump();
  if (value.empty() || !value.is_structured() || indent + used + line.size() <= 100) {
    // dump() writes no space after separators; this adds them for readability.
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\\')
        out += line[i++];
      else if (line[i] == '"')
        quoted = !quoted;
      out += line[i];
      if (!quoted && (line[i] == ',' || line[i] == ':')) out += ' ';
    }
    return;
  }
  bool object = value.is_object();
  out += object ? "{" : "[";
  bool first = true;
  for (const auto& item : value.items()) {
    if (!first) out += ",";
    first = false;
    out += "\n" + std::string(indent + 2, ' ');
    std::string key = object ? Json(item.key()).dump() + ": " : "";
    out += key;
    Format(item.value(), indent + 2, key.size() + 1, out);
  }
  out += "\n" + std::string(indent, ' ') + (object ? "}" : "]");
}

std::string FormatJson(const Json& value) {
  std::string out;
  Format(value, 0, 0, out);
  return out + "\n";
}

}  // namespace pipewright
