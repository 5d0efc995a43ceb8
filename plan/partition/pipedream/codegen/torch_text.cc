#include "plan/partition/pipedream/codegen/torch_text.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/text.h"
#include "plan/partition/pipedream/codegen/torch_modules.h"

namespace pipewright {

namespace {

using Names = std::vector<std::string>;

}  // namespace

NodeKind KindOf(const std::string& description) {
  static const std::set<std::string> kOperations = {
      "Add",       "Mul",         "Concat",           "Size", "View", "Transpose",
      "Unsqueeze", "__getitem__", "self.get_seq_lens"};
  std::string name = ReprName(description);
  if (name == "hidden") return NodeKind::kHidden;
  if (kOperations.count(name)) return NodeKind::kOperation;
  bool input = name.starts_with("Input") &&
               std::all_of(name.begin() + 5, name.end(), [](char c) { return std::isdigit(c); });
  return input ? NodeKind::kInput : NodeKind::kModule;
}

bool GivesTensor(const GraphNode& node, const GraphNode* argument) {
  static const std::set<std::string> kTuples = {"LSTM", "GRU", "RNN", "RecurrentAttention",
                                                "MultiheadAttention"};
  auto last = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const std::string name = last(ReprName(node.description));
  if (name == "__getitem__" && argument) {
    // The second item of an LSTM is its pair of states.
    const std::string producer = last(ReprName(argument->description));
    return producer != "LSTM" || node.description.find("(0)") != std::string::npos;
  }
  return name != "Size" && !node.is_list && !kTuples.count(name);
}

static bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c));
  });
}

// Returns the integers of an operation such as View(-1, 9216).
static Names Integers(const Description& description, const std::string& name) {
  Names integers;
  const ModuleRepr repr = ReadModuleRepr(description);
  for (const ModuleRepr::Argument& argument : repr.arguments) {
    if ((name == "Add" || name == "Mul") && argument.name == "inplace") continue;
    if (!argument.name.empty() || !IsNumber(argument.value.substr(argument.value[0] == '-')))
      throw Error(description.At(argument.at), name + " takes integers");
    integers.push_back(argument.value);
  }
  if (!repr.children.empty())
    throw Error(description.At(repr.children[0].at), name + " takes integers");
  return integers;
}

std::string OperationCall(const Description& description, const Names& arguments,
                          const std::vector<char>& sizes) {
  const std::string name = ReprName(description.text);
  const Names numbers = Integers(description, name);
  auto expect = [&](bool ok, const std::string& what) {
    if (!ok)
      throw Error(description.At(), description.text + " has " + std::to_string(arguments.size()) +
                                        " arguments, " + what);
  };
  auto expect_numbers = [&](size_t least, size_t most) {
    if (numbers.size() < least || numbers.size() > most)
      throw Error(description.At(), name + " takes " +
                                        Counted(static_cast<int64_t>(most), "number") + ", not " +
                                        std::to_string(numbers.size()));
  };
  if (name == "Add" || name == "Mul") {
    expect_numbers(0, 0);
    expect(arguments.size() >= 2, "at least two are expected: constants are not in the graph");
    return Join(arguments, name == "Add" ? " + " : " * ");
  }
  if (name == "Concat") {
    expect_numbers(0, 1);
    expect(!arguments.empty(), "at least one is expected");
    return "torch.cat([" + Join(arguments, ", ") + "], " + (numbers.empty() ? "0" : numbers[0]) +
           ")";
  }
  if (name == "View") {
    std::string tensor;
    Names leading;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (sizes[i])
        leading.push_back(arguments[i]);
      else
        expect(tensor.empty(), "one tensor besides sizes is expected"), tensor = arguments[i];
    }
    expect(!tensor.empty(), "one tensor besides sizes is expected");
    if (leading.empty() && numbers.empty())
      throw Error(description.At(), "View has no sizes", "give those after the first: View(9216)");
    // The description lacks the first size; sizes that the graph computes replace those after it.
    Names rest = numbers;
    if (leading.empty()) leading.push_back(tensor + ".size(0)");
    rest.erase(rest.begin(), rest.begin() + std::min(rest.size(), leading.size() - 1));
    leading.insert(leading.end(), rest.begin(), rest.end());
    return tensor + ".view(" + Join(leading, ", ") + ")";
  }
  expect(arguments.size() == 1, "one is expected");
  if (name == "self.get_seq_lens") {
    expect_numbers(0, 0);
    return name + "(" + arguments[0] + ")";
  }
  const size_t most = name == "Transpose" ? 2 : 1;
  expect_numbers(name == "Size" ? 0 : most, most);
  if (name == "__getitem__") return arguments[0] + "[" + numbers[0] + "]";
  std::string method = name == "Size" ? "size" : name == "Transpose" ? "transpose" : "unsqueeze";
  return arguments[0] + "." + method + "(" + Join(numbers, ", ") + ")";
}

static const std::string* Named(const ModuleRepr& module, const std::string& name) {
  for (const ModuleRepr::Argument& argument : module.arguments)
    if (argument.name == name) return &argument.value;
  return nullptr;
}

// Appends all descendants of a module, in the order of the text.
static void Flatten(const ModuleRepr& module, std::vector<const ModuleRepr*>& within) {
  for (const ModuleRepr& child : module.children) {
    within.push_back(&child);
    Flatten(child, within);
  }
}

// The sizes of the last Linear within a module, and of its last LSTM with no other arguments.
struct Sizes {
  Names linear, lstm;
};

static Sizes SizesWithin(const ModuleRepr& module) {
  Sizes sizes;
  std::vector<const ModuleRepr*> within;
  Flatten(module, within);
  for (const ModuleRepr* part : within) {
    const std::string *in = Named(*part, "in_features"), *out = Named(*part, "out_features");
    if (in && out && IsNumber(*in) && IsNumber(*out)) sizes.linear = {*in, *out};
    if (part->name == "LSTM" && part->arguments.size() == 2 &&
        IsNumber(part->arguments[0].value) && IsNumber(part->arguments[1].value))
      sizes.lstm = {part->arguments[0].value, part->arguments[1].value};
  }
  return sizes;
}

namespace {

struct Declarer {
  const Description& description;
  const std::set<std::string>& own;

  ModuleText Declare(const ModuleRepr& module) const;
  ModuleText Speech(const ModuleRepr& module) const;
  void CheckKnown(const std::string& name, size_t at) const;
};

}  // namespace

static bool IsSpeech(const std::string& name) {
  static const std::set<std::string> kSpeech = {"MaskConv", "BatchRNN", "ResizeInput",
                                                "InferenceBatchSoftmax", "SequenceWise"};
  return kSpeech.count(name) > 0;
}

static bool IsTranslation(const std::string& name) {
  return name == "EmuBidirLSTM" || name == "RecurrentAttention" || name == "Classifier";
}

void Declarer::CheckKnown(const std::string& name, size_t at) const {
  if (own.count(name) || IsSpeech(name) || IsTranslation(name) || !TorchName(name).empty()) return;
  if (name == "Module" || name == "torch.nn.Module")
    throw Error(description.At(at),
                "names a module of a package; codegen writes layers of torch.nn",
                "a package needs no code: run it with the conf of the partition, "
                "pipewright-run train PACKAGE JOB --conf DIR/hybrid_conf.json");
  Names known = TorchModules();
  known.insert(known.end(), own.begin(), own.end());
  std::erase(known, "*");
  if (own.count("*"))
    throw Error(description.At(at),
                "there is no layer " + name + " in torch.nn" + Suggest(name, known),
                "the model template has \"import *\", whose names are not known: list those of "
                "your own layers, \"from MODULE import " +
                    name + "\"");
  throw Error(description.At(at),
              "there is no layer " + name + " in torch.nn" + Suggest(name, known),
              "name one that it has; a layer of your own is one that the model template imports: "
              "--model-template FILE with \"from MODULE import " +
                  name + "\"");
}

// Declares a module of DeepSpeech (SeanNaren's deepspeech.pytorch), which its `model` defines.
ModuleText Declarer::Speech(const ModuleRepr& module) const {
  const std::string import = "from model import " + module.name;
  if (module.name == "ResizeInput" || module.name == "InferenceBatchSoftmax")
    return {module.name + "()", import, ""};
  std::vector<const ModuleRepr*> within;
  Flatten(module, within);
  if (module.name == "BatchRNN") {
    bool norm = false;
    const ModuleRepr* rnn = nullptr;
    for (const ModuleRepr* part : within) {
      norm = norm || part->name.starts_with("BatchNorm");
      if (!rnn && (part->name == "LSTM" || part->name == "GRU" || part->name == "RNN")) rnn = part;
    }
    if (!rnn || rnn->arguments.size() < 2 || !IsNumber(rnn->arguments[0].value) ||
        !IsNumber(rnn->arguments[1].value))
      throw Error(description.At(module.at), "the sizes of its BatchRNN are not given");
    const std::string* both = Named(*rnn, "bidirectional");
    return {"BatchRNN(" + rnn->arguments[0].value + ", " + rnn->arguments[1].value +
                ", rnn_type=torch.nn." + rnn->name + ", batch_norm=" + (norm ? "True" : "False") +
                ", bidirectional=" + (both && *both == "True" ? "True" : "False") + ")",
            import, ""};
  }
  // MaskConv and SequenceWise wrap a Sequential.
  for (const ModuleRepr* part : within)
    if (part->name == "Sequential") {
      ModuleText layers = Declare(*part);
      return {module.name + "(" + layers.declaration + ")", import, layers.note};
    }
  throw Error(description.At(module.at), "the layers of its " + module.name + " are not given");
}

static std::string Written(const std::vector<ModuleRepr::Argument>& arguments) {
  Names written;
  for (const ModuleRepr::Argument& argument : arguments)
    written.push_back((argument.name.empty() ? "" : argument.name + "=") + argument.value);
  return Join(written, ", ");
}

ModuleText Declarer::Declare(const ModuleRepr& module) const {
  CheckKnown(module.name, module.at);
  const bool whole = module.children.empty();
  if (own.count(module.name) && whole)
    return {module.name + "(" + Written(module.arguments) + ")", "", ""};
  const Sizes sizes = SizesWithin(module);
  const std::string from = "from seq2seq.models.";
  if (module.name == "EmuBidirLSTM" && !sizes.lstm.empty())
    return {"EmuBidirLSTM(" + Join(sizes.lstm, ", ") + ")", from + "encoder import EmuBidirLSTM",
            ""};
  if (module.name == "RecurrentAttention" && !sizes.lstm.empty() && !sizes.linear.empty())
    return {"RecurrentAttention(" + Join(sizes.lstm, ", ") + ", " + sizes.linear[0] + ")",
            from + "decoder import RecurrentAttention", ""};
  if (module.name == "Classifier" && !sizes.linear.empty())
    return {"Classifier(" + Join(sizes.linear, ", ") + ")", from + "decoder import Classifier", ""};
  if (IsSpeech(module.name)) return Speech(module);
  const std::string name = TorchName(module.name);
  if (name == "MultiheadAttention" && !whole && !sizes.linear.empty())
    return {"torch.nn." + name + "(" + sizes.linear[0] + ", 1)", "",
            "the number of heads is not in its description: 1 is written"};
  if (whole && !name.empty() && (name != "Sequential" || module.arguments.empty())) {
    return {"torch.nn." + name + "(" + Written(ConstructorArguments(module, description)) + ")", "",
            ""};
  }
  if (name != "Sequential" || !module.arguments.empty())
    throw Error(
        description.At(module.at),
        "how to construct a " + module.name + " is not in its description",
        "profile the modules within it, or describe it by the arguments of its constructor");
  ModuleText text;
  Names parts;
  for (const ModuleRepr& child : module.children) {
    ModuleText part = Declare(child);
    parts.push_back(part.declaration);
    if (!part.import_statement.empty()) text.import_statement = part.import_statement;
    if (!part.note.empty()) text.note = part.note;
  }
  text.declaration = "torch.nn.Sequential(" + Join(parts, ", ") + ")";
  return text;
}

ModuleText DeclareModule(const Description& description, const std::set<std::string>& own) {
  const Declarer declarer{description, own};
  // This check comes first, because the arguments of an unknown layer may be anything.
  if (const std::string name = ReprName(description.text); !name.empty() &&
      std::all_of(name.begin(), name.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '_' || c == '.';
      }))
    declarer.CheckKnown(name, 0);
  return declarer.Declare(ReadModuleRepr(description));
}

// Returns the end of the Python string that begins at `begin`. The end of the line ends it too,
// unless it is triple-quoted.
static size_t EndOfString(const std::string& text, size_t begin) {
  const std::string quote(1, text[begin]), triple = quote + quote + quote;
  const std::string close = text.compare(begin, 3, triple) == 0 ? triple : quote;
  size_t i = begin + close.size();
  for (; i < text.size() && text.compare(i, close.size(), close) != 0; ++i) {
    if (close == quote && text[i] == '\n') return i;
    if (text[i] == '\\') ++i;
  }
  return std::min(text.size(), i + close.size());
}

// Returns the unindented statements of a Python text, each as its words and signs.
static std::vector<Names> Statements(const std::string& text) {
  std::vector<Names> statements;
  Names words;
  int depth = 0;
  bool indented = false, fresh = true;  // the state of the line; fresh: it has only blanks so far
  auto end = [&] {
    if (!words.empty() && !indented) statements.push_back(words);
    words.clear();
    depth = 0;
  };
  auto is_word = [&](size_t i) {
    return std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_';
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool first = fresh && words.empty();
    if (c == '\\') {
      i += text.compare(i + 1, 2, "\r\n") == 0 ? 2 : 1;
    } else if (c == '#') {
      i = std::min(text.size(), text.find('\n', i)) - 1;
    } else if (c == '\n') {
      // Parentheses continue imports only: the placeholders in other statements may not balance.
      if (depth > 0 && !words.empty() && words[0] == "from") continue;
      end();
      fresh = true, indented = false;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      if (first && c != '\r') indented = true;
    } else if (c == ';') {
      end();
    } else if (c == '"' || c == '\'') {
      i = EndOfString(text, i) - 1;
      words.push_back(std::string(1, c)), fresh = false;
    } else {
      std::string word(1, c);
      if (is_word(i))
        while (i + 1 < text.size() && is_word(i + 1)) word += text[++i];
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      words.push_back(word), fresh = false;
    }
  }
  end();
  return statements;
}

std::set<std::string> ClassesOf(const std::string& model_template) {
  std::set<std::string> classes;
  auto add = [&](const std::string& word) {
    if (std::isalpha(static_cast<unsigned char>(word[0])) || word[0] == '_' || word == "*")
      classes.insert(word);
  };
  for (Names words : Statements(model_template)) {
    if (words[0] == "class" && words.size() > 1 && words[1] != "*") add(words[1]);
    if (words[0] != "from") continue;
    auto import = std::find(words.begin(), words.end(), "import");
    if (import == words.end()) continue;
    words.erase(words.begin(), import + 1);
    std::erase_if(words, [](const std::string& word) { return word == "(" || word == ")"; });
    words.push_back(",");
    for (auto begin = words.begin(); begin != words.end();) {
      auto comma = std::find(begin, words.end(), ",");
      if (comma - begin == 1) add(*begin);  // NAME
      if (comma - begin == 3 && begin[1] == "as") add(begin[2]);
      begin = comma + 1;
    }
  }
  return classes;
}

}  // namespace pipewright
