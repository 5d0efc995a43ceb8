// Defines the error type for everything that a user can cause and fix.
#pragma once
#include <stdexcept>
#include <string>

namespace pipewright {

// Says what failed, where, and how to fix it. `what()` reads "WHERE: WHAT" and, on a second line,
// the cure. `where` is a file, "file:line:column", an option, or rank/stage/microbatch/action.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
  Error(const std::string& where, const std::string& what, const std::string& cure = "")
      : std::runtime_error(where + ": " + what + (cure.empty() ? "" : "\n  " + cure)) {}
};

// An invalid command line (exit code 2).
class UsageError : public Error {
 public:
  using Error::Error;
};

// Exit codes of every program: also in docs/reference/command-line.md.
enum ExitCode { kSuccess = 0, kFailure = 1, kUsage = 2 };

}  // namespace pipewright
