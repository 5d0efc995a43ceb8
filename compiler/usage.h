// What a command line that was not understood gets to read.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace pipewright {

// "PROGRAM COMMAND: OPTION: what is wrong", and below it what the option is, or where all are
// listed. `commands`: those of the program.
std::string UsageMessage(const std::string& program, const std::vector<std::string>& commands,
                         CLI::App& app, const CLI::ParseError& error);

// For a command that the program does not have.
std::string UnknownCommand(const std::string& program, const std::vector<std::string>& commands,
                           const std::string& word);

}  // namespace pipewright
