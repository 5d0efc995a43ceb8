#include "cli/program.h"

#include <CLI/CLI.hpp>
#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/process/launched_rank.h"
#include "base/process/messages.h"
#include "base/torch_error.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/usage.h"

namespace pipewright {

// Under mpirun or srun all ranks see the same command line; only one reports errors in it.
static bool IsFirstRank() {
  return LaunchedRank() <= 0;
}

// Prints the message on the first rank. mpirun kills all ranks when one exits with an error, so the
// others give the first one time to report.
static int WrongUsage(const std::string& text) {
  if (IsFirstRank())
    std::cerr << text << std::flush;
  else
    std::this_thread::sleep_for(std::chrono::seconds(2));
  return kUsage;
}

// Returns null if there is no such command.
static CLI::App* FindCommand(CLI::App& app, const std::string& name) {
  for (CLI::App* command : app.get_subcommands({}))
    if (command->get_name() == name) return command;
  return nullptr;
}

// Adds the commands of both programs, help and completion. Returns false for other commands.
static bool AddOwn(const std::string& name, CLI::App& program, CLI::App& app) {
  if (name == "help") {
    auto words = std::make_shared<std::vector<std::string>>();
    app.add_option("command", *words, "the command to describe (default: the program itself)");
    app.callback([&program, words] {
      CLI::App* at = &program;
      std::string name = program.get_name();
      for (const std::string& word : *words) {
        CLI::App* inner = FindCommand(*at, word);
        if (!inner) throw UsageError("help", "there is no command \"" + word + "\"");
        name += " " + word;
        at = inner;
      }
      // App::help would show the command that was parsed, which is `help` itself.
      std::cout << at->get_formatter()->make_help(at, name, CLI::AppFormatMode::Normal);
    });
  } else if (name == "completion") {
    auto shell = std::make_shared<std::string>();
    app.add_option("shell", *shell, "bash, zsh or fish")->required();
    app.callback([&program, shell] { std::cout << CompletionScript(program, *shell); });
  } else {
    return false;
  }
  return true;
}

// Adds the program's commands, in the order of the table.
static void AddCommands(const std::string& program, const std::map<std::string, AddCommand>& adders,
                        CLI::App& app) {
  size_t added = 0;
  for (const Command& command : Commands()) {
    auto adder = adders.find(command.name);
    const bool own = command.name == "help" || command.name == "completion";
    if (command.program != program || (adder == adders.end() && !own)) continue;
    CLI::App* sub = app.add_subcommand(command.name, command.description);
    if (!command.example.empty()) sub->footer(ExampleText(command.example));
    if (AddOwn(command.name, app, *sub)) continue;
    adder->second(*sub);
    ++added;
  }
  if (added != adders.size())
    throw std::logic_error("a command of " + program + " is missing in cli/commands.cc");
}

// Opens standard streams that are closed (`>&-`). Otherwise the next file that is opened would take
// their place and receive what is printed.
static void OpenStandardStreams() {
  for (int stream : {0, 1, 2})
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) != stream) std::abort();
}

// Returns the error of standard output; "" if everything was written.
static std::string OutputError() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return "";
  const std::string why = errno ? ": " + std::string(std::strerror(errno)) : "";
  return "standard output: cannot be written" + why +
         "\n  some output is missing; files that the command writes are complete";
}

static void AddColorOption(CLI::App& app) {
  const std::map<std::string, Color> colors = {
      {"auto", Color::kAuto}, {"always", Color::kAlways}, {"never", Color::kNever}};
  app.add_option_function<std::string>(
         "--color", [colors](const std::string& when) { SetColor(colors.at(when)); },
         "when to color errors, warnings and notes; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "always", "never"}))
      ->default_str("auto");
}

static int Run(const std::string& name, const std::string& description,
               const std::map<std::string, AddCommand>& adders, int argc, char** argv,
               AddCommand add_global) {
  // A write beyond the user's file size limit then fails, as on a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app{description, name};
  app.set_version_flag("--version", name + " " PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  app.fallthrough();  // options of the program may follow the command
  AddColorOption(app);
  if (add_global) add_global(app);
  AddCommands(name, adders, app);
  SetHelp(app);
  // CLI11 only says "a subcommand is required" for a misspelled one.
  if (argc > 1 && argv[1][0] != '-' && !FindCommand(app, argv[1]))
    return WrongUsage(UnknownCommand(app, argv[1]));
  try {
    app.parse(argc, argv);
    return kSuccess;
  } catch (const CLI::RuntimeError& e) {  // the command has already reported everything
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return WrongUsage(UsageMessage(app, e));
    std::ostringstream out, err;  // help or version
    app.exit(e, out, err);
    if (IsFirstRank()) std::cout << out.str(), std::cerr << err.str();
    return kSuccess;
  } catch (const UsageError& e) {
    return WrongUsage(name + ": " + e.what() + "\n");
  } catch (const std::bad_alloc&) {
    std::cerr << Paint(name, Severity::kError, 2) << ": there is not enough memory for this\n";
    return kFailure;
  } catch (const std::exception& e) {
    std::cerr << Paint(name, Severity::kError, 2) << ": " << WithoutBacktrace(e.what()) << "\n";
    return kFailure;
  }
}

int RunProgram(const std::string& name, const std::string& description,
               const std::map<std::string, AddCommand>& adders, int argc, char** argv,
               AddCommand add_global) {
  OpenStandardStreams();
  // A parent that ignores it would keep this process from seeing how its own children end.
  std::signal(SIGCHLD, SIG_DFL);
  const int code = Run(name, description, adders, argc, argv, add_global);
  if (code != kSuccess) return code;
  const std::string missing = OutputError();
  if (missing.empty()) return kSuccess;
  std::cerr << name << ": " << missing << "\n";
  return kFailure;
}

}  // namespace pipewright
