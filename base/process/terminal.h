// Finds out whether a run can show its progress on a line that it rewrites.
#pragma once
#include <cstddef>

namespace pipewright {

// Returns the width in columns of the terminal on stdout, or 0 if stdout is not a terminal.
size_t TerminalColumns();

// Tells this process and the ranks that it starts whether they may rewrite a line on its terminal.
// Under mpirun, a rank cannot know where its output goes. They may not if stdout is not a terminal,
// if the terminal cannot do it (TERM=dumb), or if this process runs in the background of a shell.
void OfferProgressLine(bool wanted);

// Returns the width in columns of a line that may be rewritten, or 0 if none was offered.
size_t ProgressColumns();

// Erases the current line and moves the cursor to its beginning.
inline constexpr char kClearLine[] = "\r\033[K";
// Between these two, the terminal cuts a line that is too long instead of wrapping it.
inline constexpr char kCutLines[] = "\033[?7l", kWrapLines[] = "\033[?7h";

// Returns what to write to stderr before a message, so that it does not mix with a line that is
// being rewritten: kClearLine, or "" if there is no such line.
const char* BeforeMessage();

}  // namespace pipewright
