// The command line of ranks that a program starts with mpirun.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// An option that only the program that starts the ranks uses, or that it sets itself.
struct StartOption {
  const char* name = "";
  bool has_value = false;
};

// Returns the command of the ranks: this program, with the arguments of its own command line except
// for these options.
std::vector<std::string> RankArguments(const std::vector<std::string>& command_line,
                                       const std::vector<StartOption>& left_out);

}  // namespace pipewright
