// Makes the help of commands, and their completion in a shell.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace pipewright {

// Gives `program` and all its commands one form of help: the kind of each option's value (FILE,
// FOLDER, BYTES, N, ...), then the description with default and limits. On a terminal, lines are
// wrapped to its width.
void SetHelp(CLI::App& program);

// Returns a script that completes the commands and options of `program` in `shell`: bash, zsh or
// fish. Throws UsageError for another shell.
std::string CompletionScript(const CLI::App& program, const std::string& shell);

}  // namespace pipewright
