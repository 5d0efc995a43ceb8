#include "compiler/import/script/script_source.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "formats/torch/pickle.h"

namespace pipewright {

void CheckNesting(const std::string& code, const std::string& where) {
  constexpr int kDeepest = 300;
  int depth = 0, deepest = 0, run = 0;  // run: consecutive operators, as in "not not x"
  size_t indent = 0, line = 1;
  bool start = true;
  char quote = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    char c = code[i];
    if (c == '\n') ++line;
    if (quote) {
      if (c == '\\')
        ++i;
      else if (c == quote || c == '\n')
        quote = 0;
      continue;
    }
    if (start) {
      indent = c == ' ' ? indent + 1 : 0;
      start = c == ' ';
    }
    if (c == '\n') start = true, indent = 0;
    if (c == '"' || c == '\'') quote = c;
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    run = c == '-' || c == '~' || (c == 't' && i >= 2 && code.compare(i - 2, 3, "not") == 0)
              ? run + 1
              : (c == ' ' || c == 'n' || c == 'o' ? run : 0);
    deepest = std::max({deepest, depth, run, static_cast<int>(std::min<size_t>(indent, 4000) / 2)});
    if (deepest > kDeepest)
      throw Error(where + ":" + std::to_string(line),
                  "nests deeper than " + std::to_string(kDeepest) + " levels",
                  "write the model with intermediate values");
  }
}

namespace {

class ModelLines : public torch::jit::SourceRangeUnpickler {
 public:
  explicit ModelLines(std::string pickle) : pickle_(std::move(pickle)) {}

  std::optional<torch::jit::SourceRange> findSourceRangeThatGenerated(
      const torch::jit::SourceRange& range) override {
    if (!read_) Read();
    auto after = std::upper_bound(
        lines_.begin(), lines_.end(), range.start(),
        [](size_t at, const auto& entry) { return at < static_cast<size_t>(entry.first); });
    std::optional<torch::jit::SourceRange> found;
    if (after != lines_.begin()) found = Line((after - 1)->second);
    // A statement may start before the first of its entries.
    bool known = found && found->source()->filename() && !found->source()->filename()->empty();
    if (!known && after != lines_.end() && static_cast<size_t>(after->first) < range.end())
      found = Line(after->second);
    return found;
  }

 private:
  void Read() {
    read_ = true;
    try {
      ParsePickle(pickle_, "debug_pkl", [](const std::string&) { return true; });
      tree_ = torch::jit::unpickle(pickle_.data(), pickle_.size());
      auto entries = tree_.toTupleRef().elements();
      if (!entries.empty() && entries[0].isString()) {
        texts_ = entries.at(1);
        entries = entries.at(2).toTupleRef().elements();
      }
      for (const at::IValue& entry : entries) {
        const auto& parts = entry.toTupleRef().elements();
        lines_.emplace_back(parts.at(0).toInt(), parts.at(1));
      }
    } catch (const std::exception&) {
      lines_.clear();
    }
    pickle_.clear();
  }

  std::string Text(const at::IValue& value) const {
    return value.isInt() ? texts_.toTupleRef().elements().at(value.toInt()).toStringRef()
                         : value.toStringRef();
  }

  std::optional<torch::jit::SourceRange> Line(const at::IValue& value) const {
    try {
      const auto& range = value.toTupleRef().elements();
      const auto& source = range.at(0).toTupleRef().elements();
      std::string text, file;
      if (source.at(0).isIntList())
        for (int64_t piece : source[0].toIntVector()) text += Text(piece);
      else
        text = Text(source[0]);
      if (!source.at(1).isNone()) file = Text(source[1]);
      int64_t start = range.at(1).toInt(), end = range.at(2).toInt();
      if (start < 0 || end < start || static_cast<size_t>(end) > text.size()) return std::nullopt;
      auto made = std::make_shared<torch::jit::Source>(text, file, source.at(2).toInt());
      return torch::jit::SourceRange(made, static_cast<size_t>(start), static_cast<size_t>(end));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  std::string pickle_;
  bool read_ = false;
  at::IValue tree_, texts_;
  std::vector<std::pair<int64_t, at::IValue>> lines_;
};

}  // namespace

std::shared_ptr<torch::jit::SourceRangeUnpickler> MakeModelLines(std::string pickle) {
  return std::make_shared<ModelLines>(std::move(pickle));
}

}  // namespace pipewright
