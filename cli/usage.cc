#include "cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/text.h"
#include "cli/commands.h"
#include "formats/job.h"

namespace pipewright {

std::vector<std::string> CommandNames(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

namespace {

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
    for (const std::string& name : OptionNames(*app)) options.push_back(name);
  const std::string out = "unexpected " + Join(quoted, " ");
  for (const std::string& extra : extras) {
    if (!extra.starts_with("--")) continue;
    const std::string name = extra.substr(0, extra.find('='));
    std::string key = name.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    const std::vector<std::string>& keys = JobKeys();
    if (command.get_option_no_throw("job") && std::count(keys.begin(), keys.end(), key))
      return out + "\n  set it in the job: \"" + key + "\" (docs/reference/job.md)";
    if (std::string other = CommandsWith(command, name); !other.empty())
      return out + "\n  it is an option of " + other;
    if (const std::string like = Suggest(name, options); !like.empty()) return out + like;
  }
  return out;
}

}  // namespace

std::string UnknownCommand(const CLI::App& program, const std::string& word) {
  const std::string name = program.get_name();
  std::string out = name + ": unknown command \"" + word + "\"";
  for (const Command& command : Commands()) {
    if (command.name != word) continue;
    if (command.program != name)
      return out + "\n  did you mean \"" + command.program + " " + word + "\"?\n";
    return name + ": " + word + " needs LibTorch, and this " + name + " was built without it\n";
  }
  const std::vector<std::string> names = CommandNames(program);
  return out + Suggest(word, names) + "\n  commands: " + Join(names, ", ") + "\n";
}

std::string UsageMessage(CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string name = app.get_name();
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
      if (!extra.starts_with("-")) return UnknownCommand(app, extra);
    if (extras.empty())
      return name + ": missing command (see --help)\n  commands: " + Join(CommandNames(app), ", ") +
             "\n";
  }
  std::string list = "\n  see " + name + " --help\n";
  // An unknown option may be why another argument is missing, or one too many.
  bool over = dynamic_cast<const CLI::ExtrasError*>(&error) || command == &app ||
              std::any_of(extras.begin(), extras.end(),
                          [](const std::string& extra) { return extra.starts_with("--"); });
  if (over && !extras.empty()) return name + ": " + Unexpected(*command, extras) + list;
  std::string what = error.what();
  const CLI::Option* option = OptionOf(*command, what);
  if (option && dynamic_cast<const CLI::ArgumentMismatch*>(&error))
    what = option->get_name() + ": " +
           (option->count() > 1 ? "given " + std::to_string(option->count()) + " times"
                                : "its value is missing");
  if (!option || option->get_description().empty()) return name + ": " + what + list;
  return name + ": " + what + "\n  " + option->get_name() + ": " + option->get_description() + "\n";
}

}  // namespace pipewright
