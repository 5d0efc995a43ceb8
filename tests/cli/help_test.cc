// Tests help, completion and messages of a program with a few options.
#include "cli/help.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/child.h"
#include "cli/numbers.h"
#include "cli/usage.h"

namespace pipewright {
namespace {

// A program with the commands "cut" and "draw", whose options take values of several kinds.
struct Example {
  CLI::App app{"an example", "prog"};
  CLI::App *cut, *draw;
  std::string input, output, split, size;
  int ranks = 2;
  bool fast = false;
  std::string message;  // for the last command line

  Example() {
    app.require_subcommand(1);
    cut = app.add_subcommand("cut", "cut a model");
    cut->add_option("input", input, "the model's file")->required();
    CLI::Option* out = cut->add_option("-o,--output", output, "where to write");
    cut->add_option("--ranks", ranks, "how many")->check(InRange(1, 64))->default_str("2");
    cut->add_flag("--fast", fast, "do not optimize")->excludes(out);
    cut->add_option("--secret", split, "not shown")->group("");
    draw = app.add_subcommand("draw", "draw the \"user's\" model");
    draw->add_option("--memory", size, "limit");
    draw->add_option("--kind", split, "which")->check(CLI::IsMember({"svg", "text"}));
    SetHelp(app);
  }
  std::string Parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app.parse(words);
    } catch (const CLI::ParseError& e) {
      return UsageMessage(app, e);
    }
    return "";
  }
};

TEST(Help, ShowsKindsDefaultsAndLimits) {
  Example e;
  const std::string cut = e.cut->help(), draw = e.draw->help();
  for (const char* part : {"  -o,--output PATH", "  --ranks N", "how many (default: 2; 1 to 64)",
                           "the model's file (required)", "do not optimize (not with --output)"})
    EXPECT_NE(cut.find(part), std::string::npos) << part << "\n" << cut;
  EXPECT_EQ(cut.find("secret"), std::string::npos);
  for (const char* part : {"  --memory BYTES", "  --kind NAME", "which (one of svg, text)"})
    EXPECT_NE(draw.find(part), std::string::npos) << part << "\n" << draw;
}

TEST(Usage, ListsNames) {
  Example e;
  EXPECT_EQ(CommandNames(e.app), (std::vector<std::string>{"cut", "draw"}));
  EXPECT_EQ(OptionNames(*e.cut),
            (std::vector<std::string>{"-h", "--help", "-o", "--output", "--ranks", "--fast"}));
}

TEST(Usage, WordsWhatIsWrong) {
  EXPECT_EQ(Example().Parse({}), "prog: missing command (see --help)\n  commands: cut, draw\n");
  EXPECT_EQ(Example().Parse({"drow"}),
            "prog: unknown command \"drow\" (did you mean \"draw\"?)\n  commands: cut, draw\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "--ranks", "0"}),
            "prog cut: --ranks: \"0\" is less than 1\n  --ranks: how many\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "--rank", "3"}),
            "prog cut: unexpected \"--rank\" \"3\" (did you mean \"--ranks\"?)\n"
            "  see prog cut --help\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "--memory", "3"}),
            "prog cut: unexpected \"--memory\" \"3\"\n  it is an option of draw\n"
            "  see prog cut --help\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "--output"}),
            "prog cut: --output: its value is missing\n  --output: where to write\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "-o", "a", "-o", "b"}),
            "prog cut: --output: given 2 times\n  --output: where to write\n");
  EXPECT_EQ(Example().Parse({"cut", "m", "--ranks", "64"}), "");
}

// Lets bash complete a line of words, the last of which is incomplete.
std::string Completed(const std::string& script, const std::string& words) {
  const std::string command = script + "COMP_WORDS=(" + words +
                              "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _prog; "
                              "printf '%s ' \"${COMPREPLY[@]}\"";
  const ChildResult result = RunChild({"bash", "-c", command});
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(Completion, CompletesInBash) {
  if (RunChild({"bash", "-c", "complete -p >/dev/null; compgen -W a a"}).code != 0)
    GTEST_SKIP() << "no bash with completion";
  const std::string script = CompletionScript(Example().app, "bash");
  EXPECT_EQ(Completed(script, "prog d"), "draw ");
  EXPECT_EQ(Completed(script, "prog cut --r"), "--ranks ");
  EXPECT_EQ(Completed(script, "prog draw --r"), " ");
  EXPECT_EQ(Completed(script, "prog draw --m"), "--memory ");
}

TEST(Completion, QuotesForFishAndRefusesOthers) {
  const std::string fish = CompletionScript(Example().app, "fish");
  EXPECT_NE(fish.find("complete -c prog -n '__fish_use_subcommand' -f -a draw -d "
                      "'draw the \"user\\'s\" model'\n"),
            std::string::npos)
      << fish;
  EXPECT_NE(fish.find("complete -c prog -n '__fish_seen_subcommand_from cut' -s o -l output -r -d "
                      "'where to write'\n"),
            std::string::npos);
  EXPECT_EQ(CompletionScript(Example().app, "zsh"),
            "autoload -U +X bashcompinit && bashcompinit\n" +
                CompletionScript(Example().app, "bash"));
  try {
    CompletionScript(Example().app, "csh");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("completion: unknown shell \"csh\"")) << e.what();
  }
}

}  // namespace
}  // namespace pipewright
