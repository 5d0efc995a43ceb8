#include "formats/package/edited_lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.h"

namespace pipewright {
namespace {

using Lines = std::vector<std::string>;

std::vector<int> Edited(const Lines& then, const Lines& now) {
  return EditedLines(Join(now, "\n") + "\n", LineHashes(Join(then, "\n") + "\n"));
}

TEST(EditedLines, AreThoseThatDiffer) {
  const Lines code = {"class Module0(Module):", "  def forward(self, x: Tensor) -> Tensor:",
                      "    y = torch.tanh(x)",    "    z = torch.exp(y)",
                      "    return z"};
  auto with = [&](auto change) {
    Lines now = code;
    change(now);
    return Edited(code, now);
  };
  EXPECT_EQ(with([](Lines&) {}), std::vector<int>{});
  EXPECT_EQ(with([](Lines& now) { now[2] = "    y = torch.relu(x)"; }), std::vector<int>{3});
  EXPECT_EQ(with([](Lines& now) { now.insert(now.begin() + 3, {"    print(y)", "    y += 1"}); }),
            (std::vector<int>{4, 5}));
  EXPECT_EQ(with([](Lines& now) { now[0] += " ", now[4] += " "; }), (std::vector<int>{1, 5}));
  EXPECT_EQ(with([](Lines& now) { now.erase(now.begin() + 3); }), std::vector<int>{4});
  EXPECT_EQ(with([](Lines& now) { now.pop_back(); }), std::vector<int>{4});
  EXPECT_EQ(with([](Lines& now) { now.push_back(""); }), std::vector<int>{6});
  EXPECT_EQ(Edited(code, {}), std::vector<int>{1});
  EXPECT_EQ(EditedLines("", LineHashes("a\n")), std::vector<int>{1});
  EXPECT_EQ(EditedLines("a\nb", LineHashes("a\nb\n")), std::vector<int>{2});
  EXPECT_EQ(EditedLines("a\n", ""), std::vector<int>{});  // an earlier version's package
}

TEST(EditedLines, ThatDifferInOneCharacterDoNotHaveOneHash) {
  const std::string line = "    x_1 = torch.narrow(x, 1, 0, 3)";
  for (size_t at = 0; at < line.size(); ++at)
    for (char other : {'0', '1', '7', 'a', 'b', 'z', ' '}) {
      std::string now = line;
      now[at] = other;
      if (now == line) continue;
      EXPECT_NE(LineHashes(now), LineHashes(line)) << now;
    }
}

TEST(EditedLines, OfManyEditsAreExactlyTheEdited) {
  std::mt19937 random(1);
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    Lines then(1 + below(60));
    for (size_t i = 0; i < then.size(); ++i)  // some lines are equal, as in real code
      then[i] = below(4) ? "line " + std::to_string(i) : "return";
    Lines now = then;
    std::vector<char> edited(now.size());
    for (size_t edits = below(6); edits > 0; --edits) {
      const size_t at = below(now.size());
      const std::string line = "edit " + std::to_string(edits) + " of " + std::to_string(round);
      edited.insert(edited.begin() + static_cast<long>(at), true);
      now.insert(now.begin() + static_cast<long>(at), line);
    }
    std::vector<int> expected;
    for (size_t i = 0; i < edited.size(); ++i)
      if (edited[i]) expected.push_back(static_cast<int>(i) + 1);
    EXPECT_EQ(Edited(then, now), expected) << Join(now, "\n");
  }
}

TEST(EditedLines, OfALargeFileAreFound) {
  Lines then(5000), now(5000);
  for (size_t i = 0; i < then.size(); ++i) then[i] = now[i] = "line " + std::to_string(i);
  now[100] = "edited", now[120] = "edited, too";
  EXPECT_EQ(Edited(then, now), (std::vector<int>{101, 121}));
  now[4900] = "far away";  // too many pairs: everything between them
  EXPECT_EQ(Edited(then, now).front(), 101);
  EXPECT_EQ(Edited(then, now).size(), 4801u);
}

}  // namespace
}  // namespace pipewright
