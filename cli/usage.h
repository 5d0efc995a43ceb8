// Writes the messages for invalid command lines.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace pipewright {

// Returns "PROGRAM COMMAND: OPTION: what is wrong", followed by the description of the option or a
// hint where all are listed. `program` has parsed the command line.
std::string UsageMessage(CLI::App& program, const CLI::ParseError& error);

// Returns the names of the commands, and those of an app's options that help shows ("-o",
// "--output").
std::vector<std::string> CommandNames(const CLI::App& program);
std::vector<std::string> OptionNames(const CLI::App& app);

// Returns the message for an unknown command.
std::string UnknownCommand(const CLI::App& program, const std::string& word);

}  // namespace pipewright
