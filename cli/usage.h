// Words the messages for invalid command lines.
#pragma once
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace pipewright {

// Returns "PROGRAM COMMAND: OPTION: what is wrong", followed by the description of the option or a
// hint where all are listed. `program` has parsed the command line.
std::string UsageMessage(CLI::App& program, const CLI::ParseError& error);

// Returns the message for an unknown command.
std::string UnknownCommand(const CLI::App& program, const std::string& word);

}  // namespace pipewright
