// Tests numbers, escapes and elements of pictures.
#include "report/svg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace pipewright {
namespace {

std::string Body(Svg& svg) {
  const std::string text = svg.Take(), end = "</style>\n";
  return text.substr(text.find(end) + end.size());
}

TEST(Svg, EscapesMarkupAndWhatXmlForbids) {
  EXPECT_EQ(EscapeXml("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; 'd'");
  EXPECT_EQ(EscapeXml(std::string_view("\x01x\0", 3)), "\xEF\xBF\xBDx\xEF\xBF\xBD");
  EXPECT_EQ(EscapeXml("a\n\tb\r"), "a\n\tb\r");
  EXPECT_EQ(EscapeXml("größe …"), "größe …");
  EXPECT_EQ(EscapeXml(""), "");
  EXPECT_NE(EscapeXml("a\xFFz").find("\xEF\xBF\xBD"), std::string::npos);
}

TEST(Svg, WritesShortNumbers) {
  for (const auto& [number, text] :
       std::vector<std::pair<double, std::string>>{{0, "0"},
                                                   {0.123456, "0.1235"},
                                                   {12.3456, "12.35"},
                                                   {999.94, "999.9"},
                                                   {1000, "1000"},
                                                   {-1234.5678, "-1235"},
                                                   {9999999, "9999999"},
                                                   {1e7, "1e+07"},
                                                   {2.5e-7, "2.5e-07"}})
    EXPECT_EQ(ShortNumber(number), text);
}

TEST(Svg, WritesElements) {
  EXPECT_EQ(PathPoint('M', 1.5, 2), "M1.5 2");
  EXPECT_EQ(PathPoint('L', -0.25, 1e3), "L-0.2 1000");
  Svg svg(10, 20.5, "a & b");
  svg.Rect(1, 2, 3, 4.25, "F", "<hint>");
  svg.Rect(1, 2, 3, 4, "B");
  svg.Text(5, 6, "x<y", "end");
  svg.Text(5, 6, "z");
  svg.Line(1, 2, 3, 4, "line");
  svg.Path("M1 2", "edge");
  const std::string text = svg.Take();
  EXPECT_TRUE(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"10\" "
                               "height=\"20.5\" viewBox=\"0 0 10 20.5\">\n"
                               "<title>a &amp; b</title>\n<style>"));
  EXPECT_EQ(Body(svg),
            "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4.2\" class=\"F\">"
            "<title>&lt;hint&gt;</title></rect>\n"
            "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" class=\"B\"/>\n"
            "<text x=\"5\" y=\"6\" class=\"end\">x&lt;y</text>\n"
            "<text x=\"5\" y=\"6\">z</text>\n"
            "<line x1=\"1\" y1=\"2\" x2=\"3\" y2=\"4\" class=\"line\"/>\n"
            "<path d=\"M1 2\" class=\"edge\"/>\n</svg>\n");
}

TEST(Svg, ChoosesRoundTicks) {
  EXPECT_DOUBLE_EQ(TickDistance(100, 10), 10);
  EXPECT_DOUBLE_EQ(TickDistance(101, 10), 20);
  EXPECT_DOUBLE_EQ(TickDistance(0.07, 5), 0.02);
  EXPECT_DOUBLE_EQ(TickDistance(6, 1), 10);
  for (double none : {0.0, -3.0, std::nan("")}) EXPECT_EQ(TickDistance(none, 10), 1);
  // Every distance is 1, 2 or 5 times a power of ten, and gives at most `count` ticks after 0, and
  // more than a third of that.
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const double most = std::pow(10, std::uniform_real_distribution<>(-9, 9)(random));
    const int count = std::uniform_int_distribution<>(1, 20)(random);
    const double tick = TickDistance(most, count);
    const double digit = tick / std::pow(10, std::floor(std::log10(tick) + 1e-9));
    EXPECT_LT(std::min({std::abs(digit - 1), std::abs(digit - 2), std::abs(digit - 5)}), 1e-9);
    EXPECT_LE(most / tick, count * (1 + 1e-9));
    EXPECT_GT(most / tick, count / 3.0);
  }
}

TEST(Svg, DrawsATimeAxis) {
  Svg svg(100, 100, "axis");
  DrawTimeAxis(svg, TimeAxis{10, 50, 2}, 30, 90);  // ticks at 0, 0.2, ..., 2
  const std::string body = Body(svg);
  size_t lines = 0;
  for (size_t at = 0; (at = body.find("<line", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 11u);
  EXPECT_NE(body.find("<line x1=\"35\" y1=\"22\" x2=\"35\" y2=\"90\" class=\"line\"/>\n"
                      "<text x=\"35\" y=\"18\" class=\"middle\">1</text>\n"),
            std::string::npos);
  EXPECT_NE(body.find(">2</text>"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
