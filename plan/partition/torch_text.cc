#include "plan/partition/torch_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <set>

#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

static std::string Strip(const std::string& text) {
  size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

static std::string Name(const std::string& description) {
  return Strip(description.substr(0, description.find('(')));
}

// What stands between the outermost parentheses, or "".
static std::string Inside(const std::string& description) {
  size_t begin = description.find('('), end = description.rfind(')');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return description.substr(begin + 1, end - begin - 1);
}

// Splits at commas outside parentheses, brackets and quotes.
static std::vector<std::string> Arguments(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  char quote = 0;
  for (char c : text) {
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '[') {
      ++depth;
    } else if (c == ')' || c == ']') {
      --depth;
    } else if (c == ',' && depth == 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
  }
  for (std::string& part : parts) part = Strip(part);
  if (parts.size() == 1 && parts[0].empty()) parts.clear();
  return parts;
}

NodeKind KindOf(const std::string& description) {
  static const std::set<std::string> kOperations = {
      "Add",       "Mul",         "Concat",           "Size", "View", "Transpose",
      "Unsqueeze", "__getitem__", "self.get_seq_lens"};
  std::string name = Name(description);
  if (name == "hidden") return NodeKind::kHidden;
  if (kOperations.count(name)) return NodeKind::kOperation;
  bool input = name.starts_with("Input") &&
               std::all_of(name.begin() + 5, name.end(), [](char c) { return std::isdigit(c); });
  return input ? NodeKind::kInput : NodeKind::kModule;
}

bool GivesTensor(const GraphNode& node, const GraphNode* argument) {
  static const std::set<std::string> kTuples = {"LSTM", "GRU", "RNN", "RecurrentAttention",
                                                "MultiheadAttention"};
  std::string name = Name(node.description);
  if (name == "__getitem__" && argument) {
    // The second item of an LSTM is its pair of states.
    std::string producer = Name(argument->description);
    return producer != "LSTM" || Inside(node.description) == "0";
  }
  return name != "Size" && !node.is_list && !kTuples.count(name);
}

std::string OperationCall(const std::string& description, const std::vector<std::string>& arguments,
                          const std::vector<char>& sizes, const std::string& where) {
  std::string name = Name(description), inside = Inside(description);
  auto expect = [&](bool ok, const std::string& what) {
    if (!ok)
      throw Error(where,
                  description + " has " + std::to_string(arguments.size()) + " arguments, " + what);
  };
  if (name == "Add" || name == "Mul") {
    expect(arguments.size() >= 2, "at least two are expected: constants are not in the graph");
    return Join(arguments, name == "Add" ? " + " : " * ");
  }
  if (name == "Concat") {
    expect(!arguments.empty(), "at least one is expected");
    return "torch.cat([" + Join(arguments, ", ") + "], " + (inside.empty() ? "0" : inside) + ")";
  }
  if (name == "View") {
    std::string tensor;
    std::vector<std::string> leading;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (sizes[i])
        leading.push_back(arguments[i]);
      else
        expect(tensor.empty(), "one tensor besides sizes is expected"), tensor = arguments[i];
    }
    expect(!tensor.empty(), "one tensor besides sizes is expected");
    // The description has lost the first size; others that the graph computes come after it.
    std::vector<std::string> rest = pipewright::Arguments(inside);
    if (leading.empty()) leading.push_back(tensor + ".size(0)");
    rest.erase(rest.begin(), rest.begin() + std::min(rest.size(), leading.size() - 1));
    leading.insert(leading.end(), rest.begin(), rest.end());
    return tensor + ".view(" + Join(leading, ", ") + ")";
  }
  expect(arguments.size() == 1, "one is expected");
  if (name == "__getitem__") return arguments[0] + "[" + inside + "]";
  if (name == "self.get_seq_lens") return name + "(" + arguments[0] + ")";
  std::string method = name == "Size" ? "size" : name == "Transpose" ? "transpose" : "unsqueeze";
  return arguments[0] + "." + method + "(" + inside + ")";
}

// One argument of a repr as Python takes it: a bare `inplace` is a flag, a bare word a string.
static std::string Keyword(const std::string& argument) {
  static const std::regex kWord("([A-Za-z_]\\w*) *= *([A-Za-z_]\\w*)");
  std::smatch match;
  if (argument == "inplace") return "inplace=True";
  if (std::regex_match(argument, match, kWord)) {
    std::string value = match[2];
    if (value != "True" && value != "False" && value != "None" && value != "inf" && value != "nan")
      return match[1].str() + "='" + value + "'";
    if (value == "inf" || value == "nan") return match[1].str() + "=float('" + value + "')";
  }
  return argument;
}

// Children of a container's repr: "  (0): Linear(...)  (1): ReLU()".
static std::vector<std::string> Children(const std::string& inside) {
  std::vector<std::string> children;
  size_t i = 0;
  while ((i = inside.find('(', i)) != std::string::npos) {
    size_t colon = inside.find("): ", i);
    if (colon == std::string::npos) break;
    size_t begin = colon + 3, end = begin;
    int depth = 0;
    while (end < inside.size() && (depth > 0 || inside[end] != ')')) {
      if (inside[end] == '(') ++depth;
      if (inside[end] == ')' && --depth == 0) break;
      ++end;
    }
    children.push_back(inside.substr(begin, end + 1 - begin));
    i = std::min(end + 1, inside.size());
  }
  return children;
}

// The groups of `pattern` where it matches.
static std::vector<std::string> Numbers(const std::string& text, const char* pattern) {
  std::smatch match;
  std::vector<std::string> numbers;
  if (std::regex_search(text, match, std::regex(pattern)))
    for (size_t i = 1; i < match.size(); ++i) numbers.push_back(match[i]);
  return numbers;
}

static ModuleText Declare(const std::string& description, const std::string& where, int depth);

// The modules of DeepSpeech (SeanNaren's deepspeech.pytorch), which its `model` defines.
static ModuleText DeclareSpeech(const std::string& name, const std::string& inside,
                                const std::string& where) {
  const std::string import = "from model import " + name;
  if (name == "ResizeInput" || name == "InferenceBatchSoftmax") return {name + "()", import, ""};
  if (name == "BatchRNN") {
    static const std::regex kRnn("(LSTM|GRU|RNN)\\((\\d+), (\\d+)([^)]*)\\)");
    std::smatch match;
    if (!std::regex_search(inside, match, kRnn))
      throw Error(where, "the sizes of its BatchRNN are not given");
    bool both = match[4].str().find("bidirectional=True") != std::string::npos;
    bool norm = inside.find("batch_norm") != std::string::npos;
    return {"BatchRNN(" + match[2].str() + ", " + match[3].str() + ", rnn_type=torch.nn." +
                match[1].str() + ", batch_norm=" + (norm ? "True" : "False") +
                ", bidirectional=" + (both ? "True" : "False") + ")",
            import, ""};
  }
  // MaskConv and SequenceWise wrap a Sequential.
  size_t begin = inside.find("Sequential("), end = begin;
  if (begin == std::string::npos)
    throw Error(where, "the layers of its " + name + " are not given");
  for (int depth = 0; end < inside.size(); ++end) {
    depth += (inside[end] == '(') - (inside[end] == ')');
    if (inside[end] == ')' && depth == 0) break;
  }
  ModuleText layers = Declare(inside.substr(begin, end + 1 - begin), where, 1);
  return {name + "(" + layers.declaration + ")", import, layers.note};
}

static ModuleText Declare(const std::string& description, const std::string& where, int depth) {
  static const std::set<std::string> kSpeech = {"MaskConv", "BatchRNN", "ResizeInput",
                                                "InferenceBatchSoftmax", "SequenceWise"};
  std::string name = Name(description), inside = Inside(description);
  if (name.empty() || !std::all_of(name.begin(), name.end(),
                                   [](char c) { return std::isalnum(c) || c == '_' || c == '.'; }))
    throw Error(where, "\"" + description + "\" is not the description of a module");
  if (description.size() > 10000) throw Error(where, "its description is too long");
  auto features = Numbers(inside, ".*in_features=(\\d+), out_features=(\\d+)");
  auto rnn = Numbers(inside, ".*LSTM\\((\\d+), (\\d+)\\)");
  std::string from = "from seq2seq.models.";
  if (name == "EmuBidirLSTM" && rnn.size() == 2)
    return {"EmuBidirLSTM(" + Join(rnn, ", ") + ")", from + "encoder import EmuBidirLSTM", ""};
  if (name == "RecurrentAttention" && rnn.size() == 2 && features.size() == 2)
    return {"RecurrentAttention(" + Join(rnn, ", ") + ", " + features[0] + ")",
            from + "decoder import RecurrentAttention", ""};
  if (name == "Classifier" && features.size() == 2)
    return {"Classifier(" + Join(features, ", ") + ")", from + "decoder import Classifier", ""};
  if (kSpeech.count(name)) return DeclareSpeech(name, inside, where);
  std::string qualified = name.starts_with("torch.") ? name : "torch.nn." + name;
  if (name == "MultiheadAttention" && inside.find("(out_proj)") != std::string::npos) {
    if (features.empty()) throw Error(where, "the size of its MultiheadAttention is not given");
    return {qualified + "(" + features[0] + ", 1)", "",
            "the number of heads is not in its description: 1 is written"};
  }
  if (inside.find("): ") == std::string::npos) {
    std::vector<std::string> arguments = Arguments(inside);
    for (std::string& argument : arguments) argument = Keyword(argument);
    return {qualified + "(" + Join(arguments, ", ") + ")", "", ""};
  }
  if (name != "Sequential" || depth > 20)
    throw Error(
        where, "how to construct a " + name + " is not in its description",
        "profile the modules within it, or describe it by the arguments of its constructor");
  ModuleText whole;
  std::vector<std::string> parts;
  for (const std::string& child : Children(inside)) {
    ModuleText part = Declare(child, where, depth + 1);
    parts.push_back(part.declaration);
    if (!part.import_statement.empty()) whole.import_statement = part.import_statement;
    if (!part.note.empty()) whole.note = part.note;
  }
  whole.declaration = qualified + "(" + Join(parts, ", ") + ")";
  return whole;
}

ModuleText DeclareModule(const std::string& description, const std::string& where) {
  return Declare(description, where, 0);
}

}  // namespace pipewright
