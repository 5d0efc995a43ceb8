// The terminal that a run shows its progress on.
#pragma once
#include <cstddef>

namespace pipewright {

// Returns the columns of the terminal that stdout is, or 0 where it is not one.
size_t TerminalColumns();

// Tells the ranks that this process starts, and itself, whether they may rewrite a line on its
// terminal: under mpirun, a rank cannot know what its output ends up in. They may not where stdout
// is no terminal, where the terminal cannot do it (TERM=dumb), or where it is in use by the shell
// that runs this process in the background.
void OfferProgressLine(bool wanted);

// Returns the columns of a line that may be rewritten, or 0 where nobody has offered one.
size_t ProgressColumns();

// Removes the line that the cursor is on, and goes to its beginning.
inline constexpr char kClearLine[] = "\r\033[K";
// Between these two, the terminal cuts a line that is too long instead of wrapping it.
inline constexpr char kCutLines[] = "\033[?7l", kWrapLines[] = "\033[?7h";

// Returns what a message on stderr begins with, so that it does not stand within a line that is
// rewritten: kClearLine, or "" where there is none.
const char* BeforeMessage();

}  // namespace pipewright
