// Words the messages for invalid command lines.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace pipewright {

// Returns "PROGRAM COMMAND: OPTION: what is wrong", followed by the description of the option or a
// hint where all are listed. `commands` are those of the program.
std::string UsageMessage(const std::string& program, const std::vector<std::string>& commands,
                         CLI::App& app, const CLI::ParseError& error);

// Returns the message for an unknown command.
std::string UnknownCommand(const std::string& program, const std::vector<std::string>& commands,
                           const std::string& word);

}  // namespace pipewright
