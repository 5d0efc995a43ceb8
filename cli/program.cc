#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/torch_error.h"
#include "cli/commands.h"
#include "cli/usage.h"

namespace pipewright {

// Under mpirun or srun all ranks see the same command line; only one reports errors in it.
static bool IsFirstRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "0";
  return true;
}

// mpirun kills all ranks when one exits with an error, so the others give the first time to report.
static int WrongUsage(const std::string& text) {
  if (IsFirstRank())
    std::cerr << text << std::flush;
  else
    std::this_thread::sleep_for(std::chrono::seconds(2));
  return kUsage;
}

int RunProgram(const char* name, const char* description, const Command* commands, int count,
               int argc, char** argv, void (*add_global)(CLI::App& app)) {
  CLI::App app{description, name};
  app.set_version_flag("--version", std::string(name) + " " PIPEWRIGHT_VERSION);
  app.require_subcommand(1);
  app.fallthrough();  // options of the program may follow the command
  if (add_global) add_global(app);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(commands[i].name);
    commands[i].add(*app.add_subcommand(commands[i].name, commands[i].description));
  }
  // CLI11 only says "a subcommand is required" for a misspelled one.
  if (argc > 1 && argv[1][0] != '-' &&
      std::find(names.begin(), names.end(), argv[1]) == names.end())
    return WrongUsage(UnknownCommand(name, names, argv[1]));
  try {
    app.parse(argc, argv);
    return kSuccess;
  } catch (const CLI::RuntimeError& e) {  // the command has already reported everything
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return WrongUsage(UsageMessage(name, names, app, e));
    std::ostringstream out, err;  // help or version
    app.exit(e, out, err);
    if (IsFirstRank()) std::cout << out.str(), std::cerr << err.str();
    return kSuccess;
  } catch (const UsageError& e) {
    return WrongUsage(std::string(name) + ": " + e.what() + "\n");
  } catch (const std::exception& e) {
    std::cerr << name << ": " << WithoutBacktrace(e.what()) << "\n";
    return kFailure;
  }
}

}  // namespace pipewright
