// Notes and warnings on standard error, and their colors.
#pragma once
#include <string>

namespace pipewright {

enum class Color { kAuto, kAlways, kNever };

// kAuto, the default, does what PIPEWRIGHT_COLOR says ("always" or "never"), and otherwise colors
// what is printed to a terminal, unless NO_COLOR is set or TERM is "dumb" or empty.
void SetColor(Color color);

// Makes the ranks that this process starts do the same, although their output is not a terminal.
void OfferColors();

enum class Severity { kError, kWarning, kNote };

// Returns "error", "warning" or "note".
const char* ToText(Severity severity);

// Returns `text` in the color of `severity` if `stream` (1: standard output, 2: standard error)
// shows colors, and as it is otherwise.
std::string Paint(const std::string& text, Severity severity, int stream);

// Sets what stands before each note and warning of this process: "pipewright-run: ". The default
// is "".
void SetMessagePrefix(const std::string& prefix);

// Print "note: TEXT" and "warning: TEXT" on standard error, behind the prefix. A line that is
// rewritten on the terminal is removed first.
void PrintNote(const std::string& text);
void PrintWarning(const std::string& text);

}  // namespace pipewright
