#include "cli/help.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/process/terminal.h"
#include "base/text.h"
#include "cli/usage.h"

namespace pipewright {

namespace {

// The kinds of textual values, by the long name of the option. Options of one name have the same
// kind in every command.
const std::map<std::string, std::vector<std::string>> kKinds = {
    {"FILE", {"base", "check", "compare", "conf", "conf-template", "costs", "costs-out",
              "device-map", "from-trace", "init-template", "input", "job", "metrics", "model-template",
              "offload-report", "op-library", "profile", "prompt-file", "replay", "report",
              "save", "save-gradients", "trace", "validate", "weights"}},
    {"FOLDER", {"checkpoint", "dump-ir", "offload-dir", "output_directory"}},
    {"PATH", {"output", "resume-from"}},
    {"BYTES", {"activations", "max-shard-size", "max-size", "memories", "memory"}},
    {"N", {"stages"}},
    {"NAME", {"arch", "dtype", "find", "model_name", "policy", "schedule"}},
    {"LIST", {"hosts", "inputs", "max-memory", "no-split", "offload", "outputs", "placement",
              "recompute", "shared", "special-dtype", "split-after", "stage_to_num_ranks",
              "together", "tokens"}},
    {"COMMAND", {"mpirun"}}};

std::string KindOfText(const CLI::Option& option) {
  for (const auto& [kind, names] : kKinds)
    for (const std::string& name : names)
      if (option.check_lname(name)) return kind;
  return "TEXT";
}

struct Described {
  std::string kind;                // kind of its value, such as FILE; empty: it takes none
  std::vector<std::string> notes;  // default, limits, related options
};

Described Describe(const CLI::Option& option) {
  Described out;
  if (option.get_type_size() != 0) {
    const std::string type = option.get_type_name();
    const size_t colon = type.find(':');
    out.kind = type.substr(0, colon);
    std::string limit = colon == std::string::npos ? "" : type.substr(colon + 1);
    if (out.kind.starts_with("{")) limit = out.kind, out.kind = "TEXT";
    if (out.kind == "TEXT") out.kind = KindOfText(option);
    if (out.kind == "INT" || out.kind == "UINT") out.kind = "N";
    if (out.kind == "FLOAT") out.kind = "X";
    if (limit.starts_with("{")) {
      out.kind = "NAME";
      limit = "one of " + Join(Split(limit.substr(1, limit.size() - 2), ','), ", ");
    }
    if (const std::string value = option.get_default_str(); !value.empty())
      out.notes.push_back("default: " + value);
    if (!limit.empty()) out.notes.push_back(limit);
  }
  if (option.get_required()) out.notes.push_back("required");
  for (const CLI::Option* other : option.get_excludes())
    out.notes.push_back("not with " + other->get_name());
  for (const CLI::Option* other : option.get_needs())
    out.notes.push_back("needs " + other->get_name());
  return out;
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    const Described described = Describe(*option);
    std::string entry = "  " + make_option_name(option, positional);
    if (!positional && !described.kind.empty()) {
      entry += " " + described.kind;
      if (option->get_expected_max() == CLI::detail::expected_max_vector_size) entry += " ...";
    }
    std::string text = option->get_description();
    if (!described.notes.empty()) text += " (" + Join(described.notes, "; ") + ")";
    return Columns(entry, text);
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return Columns("  " + command->get_name(), command->get_description());
  }

 private:
  // Returns the entry with the text beside it, wrapped to the width of a terminal.
  std::string Columns(std::string entry, const std::string& text) const {
    const size_t indent = get_column_width(), width = TerminalColumns();
    if (text.empty()) return entry + "\n";
    if (entry.size() >= indent) entry += "\n" + std::string(indent, ' ');
    entry.resize(std::max(entry.size(), indent), ' ');
    std::string out = entry;
    size_t used = indent;
    std::istringstream words(text);
    bool first = true;
    for (std::string word; words >> word; first = false) {
      if (!first && width > indent && used + 1 + word.size() > width) {
        out += "\n" + std::string(indent, ' ');
        used = indent;
      } else if (!first) {
        out += ' ', ++used;
      }
      out += word, used += word.size();
    }
    return out + "\n";
  }
};

// Calls visit(path, app) for the program, whose path is "", and for all its commands: "plot cut".
template <typename Visit>
void EachCommand(const CLI::App& app, const std::string& path, const Visit& visit) {
  visit(path, app);
  for (const CLI::App* command : app.get_subcommands({}))
    EachCommand(*command, path + (path.empty() ? "" : " ") + command->get_name(), visit);
}

// Returns a script for bash and zsh, which reads bash's scripts.
std::string BashScript(const CLI::App& program) {
  const std::string name = program.get_name();
  std::string function = "_" + name, cases, paths;
  std::replace(function.begin(), function.end(), '-', '_');
  EachCommand(program, "", [&](const std::string& path, const CLI::App& app) {
    if (!path.empty()) paths += (paths.empty() ? "\"" : "|\"") + path + "\"";
    std::vector<std::string> words = CommandNames(app), options = OptionNames(app);
    words.insert(words.end(), options.begin(), options.end());
    cases += "    \"" + path + "\") words=\"" + Join(words, " ") + "\" ;;\n";
  });
  return function + R"(() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="" longer words="" i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    longer="${command:+$command }${COMP_WORDS[i]}"
    case "$longer" in )" + paths + R"() command="$longer" ;; esac
  done
  case "$command" in
)" + cases + R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [[ "$word" != -* && -n "$command" ]] && COMPREPLY+=($(compgen -f -- "$word"))
}
complete -o filenames -F )" + function + " " + name + "\n";
}

std::string FishQuote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string FishScript(const CLI::App& program) {
  const std::string start = "complete -c " + program.get_name() + " ";
  std::string out;
  EachCommand(program, "", [&](const std::string& path, const CLI::App& app) {
    std::string when = path.empty() ? "__fish_use_subcommand" : "";
    for (const std::string& word : Split(path, ' '))
      if (!word.empty())
        when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + word);
    const std::string here = start + "-n " + FishQuote(when);
    for (const CLI::App* command : app.get_subcommands({}))
      out += here + " -f -a " + command->get_name() + " -d " +
             FishQuote(command->get_description()) + "\n";
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group().empty() || !option->nonpositional()) continue;
      out += here;
      for (const std::string& name : option->get_snames()) out += " -s " + name;
      for (const std::string& name : option->get_lnames()) out += " -l " + name;
      if (!Describe(*option).kind.empty()) out += " -r";
      out += " -d " + FishQuote(option->get_description()) + "\n";
    }
  });
  return out;
}

}  // namespace

void SetHelp(CLI::App& program) {
  program.formatter(std::make_shared<HelpFormatter>());
  for (CLI::App* command : program.get_subcommands({})) SetHelp(*command);
}

std::string CompletionScript(const CLI::App& program, const std::string& shell) {
  if (shell == "bash") return BashScript(program);
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + BashScript(program);
  if (shell == "fish") return FishScript(program);
  throw UsageError("completion", "unknown shell \"" + shell + "\"", "known: bash, zsh, fish");
}

}  // namespace pipewright
