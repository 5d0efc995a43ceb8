// Tests notes, warnings and their colors, and lines that a terminal lets a run rewrite.
#include "base/process/messages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "base/process/terminal.h"
#include "tests/environment.h"

namespace pipewright {
namespace {

// Calls `f` while `stream` is a terminal of 77 columns, which does not control this process.
void OnTerminal(int stream, const std::function<void()>& f) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
    GTEST_SKIP() << "this system gives no terminals";
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  winsize size{};
  size.ws_col = 77;
  ASSERT_EQ(ioctl(terminal, TIOCSWINSZ, &size), 0);
  std::fflush(nullptr);
  const int before = dup(stream);
  dup2(terminal, stream);
  f();
  dup2(before, stream);
  for (int file : {before, terminal, master}) close(file);
}

const Environment::Variables kColorTerminal = {
    {"PIPEWRIGHT_COLOR", nullptr}, {"TERM", "xterm"}, {"NO_COLOR", nullptr}};

TEST(Messages, PaintsByKindAndOnlyWhenAsked) {
  Environment clean(kColorTerminal);
  SetColor(Color::kAlways);
  EXPECT_EQ(Paint("pipewright", Severity::kError, 2), "\033[1;31mpipewright\033[0m");
  EXPECT_EQ(Paint("w", Severity::kWarning, 1), "\033[1;33mw\033[0m");
  EXPECT_EQ(Paint("n", Severity::kNote, 2), "\033[1;36mn\033[0m");
  SetColor(Color::kNever);
  setenv("PIPEWRIGHT_COLOR", "always", 1);
  EXPECT_EQ(Paint("e", Severity::kError, 2), "e") << "an option counts more than the environment";
  SetColor(Color::kAuto);
  EXPECT_EQ(Paint("e", Severity::kError, 2), "\033[1;31me\033[0m");
}

TEST(Messages, ColorsATerminalUnlessItCannotOrMayNot) {
  Environment clean(kColorTerminal);
  std::map<std::string, std::string> painted;
  OnTerminal(STDOUT_FILENO, [&] {
    painted["plain"] = Paint("x", Severity::kNote, 1);
    for (const auto& [name, value] : std::map<std::string, const char*>{
             {"NO_COLOR", "1"}, {"TERM", "dumb"}, {"PIPEWRIGHT_COLOR", "never"}}) {
      Environment one(Environment::Variables{{name, value}});
      painted[name] = Paint("x", Severity::kNote, 1);
    }
    Environment empty(Environment::Variables{{"NO_COLOR", ""}});
    painted["empty"] = Paint("x", Severity::kNote, 1);
    Environment kind(Environment::Variables{{"TERM", ""}});
    painted["no kind"] = Paint("x", Severity::kNote, 1);
  });
  if (painted.empty()) return;
  const std::string colored = "\033[1;36mx\033[0m";
  EXPECT_EQ(painted, (std::map<std::string, std::string>{{"plain", colored},
                                                         {"empty", colored},
                                                         {"NO_COLOR", "x"},
                                                         {"TERM", "x"},
                                                         {"PIPEWRIGHT_COLOR", "x"},
                                                         {"no kind", "x"}}));
}

TEST(Messages, TellsTheRanksItsOwnChoice) {
  Environment clean(Environment::Variables{{"PIPEWRIGHT_COLOR", nullptr}});
  SetColor(Color::kAlways);
  OfferColors();
  EXPECT_STREQ(std::getenv("PIPEWRIGHT_COLOR"), "always");
  SetColor(Color::kNever);
  OfferColors();
  EXPECT_STREQ(std::getenv("PIPEWRIGHT_COLOR"), "never");
  SetColor(Color::kAuto);
}

TEST(Messages, PrintsBehindThePrefix) {
  Environment clean(
      Environment::Variables{{"PIPEWRIGHT_COLOR", "never"}, {"PIPEWRIGHT_COLUMNS", "80"}});
  testing::internal::CaptureStderr();
  PrintNote("a");
  SetMessagePrefix("pipewright-run: ");
  PrintWarning("b % %s");
  SetMessagePrefix("");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "note: a\npipewright-run: warning: b % %s\n");
}

TEST(Terminal, OffersALineOnlyWhereItCanBeRewritten) {
  Environment clean(Environment::Variables{{"PIPEWRIGHT_COLUMNS", "12"}, {"TERM", "xterm"}});
  std::map<std::string, size_t> columns;
  std::string before;
  OnTerminal(STDOUT_FILENO, [&] {
    columns["terminal"] = TerminalColumns();
    OfferProgressLine(true);
    columns["wanted"] = ProgressColumns();
    OnTerminal(STDERR_FILENO, [&] { before = BeforeMessage(); });
    OfferProgressLine(false);
    columns["unwanted"] = ProgressColumns();
    Environment dumb(Environment::Variables{{"TERM", "dumb"}});
    OfferProgressLine(true);
    columns["dumb"] = ProgressColumns();
  });
  if (!columns.empty()) {
    EXPECT_EQ(columns, (std::map<std::string, size_t>{
                           {"terminal", 77}, {"wanted", 77}, {"unwanted", 0}, {"dumb", 0}}));
    EXPECT_EQ(before, "\r\033[K");
  }
  testing::internal::CaptureStdout();  // a file
  setenv("PIPEWRIGHT_COLUMNS", "12", 1);
  EXPECT_EQ(TerminalColumns(), 0u);
  EXPECT_EQ(ProgressColumns(), 12u);
  OfferProgressLine(true);
  EXPECT_EQ(ProgressColumns(), 0u);
  testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace pipewright
