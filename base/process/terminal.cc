#include "base/process/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace pipewright {

static constexpr char kColumns[] = "PIPEWRIGHT_COLUMNS";

size_t TerminalColumns() {
  winsize size{};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void OfferProgressLine(bool wanted) {
  const char* kind = std::getenv("TERM");
  const bool rewrites = kind && *kind && std::string(kind) != "dumb";
  const pid_t owner = tcgetpgrp(STDOUT_FILENO);  // -1: not this process's controlling terminal
  const bool foreground = owner < 0 || owner == getpgrp();
  const size_t columns = wanted && rewrites && foreground ? TerminalColumns() : 0;
  if (columns > 0)
    setenv(kColumns, std::to_string(columns).c_str(), 1);
  else
    unsetenv(kColumns);
}

size_t ProgressColumns() {
  const char* columns = std::getenv(kColumns);
  return columns ? std::strtoul(columns, nullptr, 10) : 0;
}

const char* BeforeMessage() {
  return ProgressColumns() > 0 && isatty(STDERR_FILENO) ? kClearLine : "";
}

}  // namespace pipewright
