#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"
#include "formats/job_keys.h"

namespace pipewright {

namespace {

// Directs users who look for a command of the other program.
struct Elsewhere {
  const char* program;
  std::vector<std::string> commands;
};

const Elsewhere kPrograms[] = {
    {"pipewright",
     {"codegen", "compile", "conf", "partition", "plan", "place", "profile", "simulate",
      "version", "weights"}},
    {"pipewright-run", {"train", "bench", "eval", "infer", "generate"}},
};

std::string Number(const std::string& digits) {
  double value = std::strtod(digits.c_str(), nullptr);
  char out[32];
  std::snprintf(out, sizeof out, "%.15g", value);
  return out;
}

// Extracts the text between two marks. Returns false if one of them is missing.
bool Between(const std::string& text, const std::string& left, const std::string& right,
             std::string& found) {
  size_t from = text.find(left);
  if (from == std::string::npos) return false;
  from += left.size();
  size_t to = right.empty() ? text.size() : text.rfind(right);
  if (to == std::string::npos || to < from) return false;
  found = text.substr(from, to - from);
  return true;
}

// CLI11 states a range by its bounds even if they are the largest number there is.
std::string Readable(const std::string& what) {
  std::string option = what.substr(0, what.find(": ")), value, bounds, times;
  if (Between(what, ": At Most 1 required but received ", "", times))
    return option + ": given " + times + " times";
  if (Between(what, ": 1 required ", " missing", value)) return option + ": its value is missing";
  if (!Between(what, ": Value ", " not in range ", value) ||
      !Between(what, " not in range ", "", bounds))
    return what;
  size_t to = bounds.find(" to ");
  if (to == std::string::npos) return what;
  std::string low = bounds.substr(0, to), high = bounds.substr(to + 4);
  char* end = nullptr;
  double number = std::strtod(value.c_str(), &end), least = std::strtod(low.c_str(), nullptr),
         most = std::strtod(high.c_str(), nullptr);
  std::string wrong = option + ": \"" + value + "\" is ";
  bool whole = low.find('.') == std::string::npos;
  if (value.empty() || *end) return wrong + (whole ? "not a whole number" : "not a number");
  if (number > most) return wrong + "more than " + Number(high);
  if (number < least) return wrong + "less than " + Number(low);
  if (number == least) return wrong + "not more than " + Number(low);  // an omitted bound
  return wrong + "not a whole number";
}

// Returns the option that the message begins with, or null.
const CLI::Option* OptionOf(const CLI::App& command, const std::string& what) {
  std::string name = what.substr(0, what.find_first_of(": "));
  for (const CLI::App* app = &command; app; app = app->get_parent())
    if (const CLI::Option* option = app->get_option_no_throw(name)) return option;
  return nullptr;
}

// Returns the other commands that have such an option.
std::string CommandsWith(const CLI::App& command, const std::string& name) {
  std::vector<std::string> others;
  if (command.get_parent())
    for (const CLI::App* other : command.get_parent()->get_subcommands({}))
      if (other->get_option_no_throw(name)) others.push_back(other->get_name());
  return Join(others, ", ");
}

std::string Unexpected(const CLI::App& command, const std::vector<std::string>& extras) {
  std::vector<std::string> quoted, options;
  for (const std::string& extra : extras) quoted.push_back("\"" + extra + "\"");
  for (const CLI::App* app = &command; app; app = app->get_parent())
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  const std::string out = "unexpected " + Join(quoted, " ");
  for (const std::string& extra : extras) {
    if (!extra.starts_with("--")) continue;
    const std::string name = extra.substr(0, extra.find('='));
    std::string key = name.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    const std::vector<std::string>& keys = JobKeys();
    if (command.get_option_no_throw("job") && std::count(keys.begin(), keys.end(), key))
      return out + "\n  the job says it: \"" + key + "\" (docs/reference/job.md)";
    if (std::string other = CommandsWith(command, name); !other.empty())
      return out + "\n  it is an option of " + other;
    if (const std::string like = Suggest(name, options); !like.empty()) return out + like;
  }
  return out;
}

}  // namespace

std::string UnknownCommand(const std::string& program, const std::vector<std::string>& commands,
                           const std::string& word) {
  std::string out = program + ": unknown command \"" + word + "\"";
  for (const Elsewhere& other : kPrograms)
    if (other.program != program &&
        std::find(other.commands.begin(), other.commands.end(), word) != other.commands.end())
      return out + "\n  did you mean \"" + std::string(other.program) + " " + word + "\"?\n";
  return out + Suggest(word, commands) + "\n  commands: " + Join(commands, ", ") + "\n";
}

std::string UsageMessage(const std::string& program, const std::vector<std::string>& commands,
                         CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name = program;
  for (bool deeper = true; deeper;) {
    deeper = false;
    for (const CLI::App* one : command->get_subcommands()) {
      command = one, name += " " + one->get_name(), deeper = true;
      break;
    }
  }
  // CLI11 lists leftover arguments from last to first.
  std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (command == &app) {
    for (const std::string& extra : extras)
      if (!extra.starts_with("-")) return UnknownCommand(program, commands, extra);
    if (extras.empty())
      return name + ": missing command (see --help)\n  commands: " + Join(commands, ", ") + "\n";
  }
  std::string list = "\n  " + name + " --help lists what it takes\n";
  bool over = dynamic_cast<const CLI::ExtrasError*>(&error) || command == &app;
  if (over && !extras.empty()) return name + ": " + Unexpected(*command, extras) + list;
  std::string what = Readable(error.what());
  const CLI::Option* option = OptionOf(*command, what);
  if (!option || option->get_description().empty()) return name + ": " + what + list;
  return name + ": " + what + "\n  " + option->get_name() + ": " + option->get_description() + "\n";
}

}  // namespace pipewright
