#include "report/svg.h"

#include <cmath>
#include <cstdio>

#include "base/json.h"

namespace pipewright {

// Colored fills carry dark text, so they are the same in light and dark mode.
static const char kStyle[] = R"(<style>
svg { background: #fff; font: 11px sans-serif }
text { fill: #222 } .small { font-size: 9px } .middle { text-anchor: middle }
.end { text-anchor: end } .head { font-size: 13px; font-weight: bold } .on { fill: #111 }
.line { stroke: #bbb } .idle { fill: #eee } path { fill: none }
.F { fill: #7fb2ff } .B { fill: #7ed08c } .I { fill: #5fd0c5 } .W { fill: #ffb45c }
.O { fill: #c9a2f2 } .S { fill: #b0b0b0 }
.edge { stroke: #bbb; stroke-width: 1.5 } .cross { stroke: #d9442f; stroke-width: 2 }
.skip { stroke-dasharray: 5 3 } .limit { stroke: #d9442f; stroke-dasharray: 6 3 }
.held { fill: #9ec5ff } .kept { fill: #4a7fc9 } .bad { fill: #d9442f }
.s0 { fill: #9ec5ff } .s1 { fill: #ffd08a } .s2 { fill: #a5e0ae } .s3 { fill: #f2b3c9 }
.s4 { fill: #d3c2f7 } .s5 { fill: #9fe3e0 } .s6 { fill: #e3dc8a } .s7 { fill: #f5bfa5 }
.c { stroke-width: 1.5 } .dash { stroke-dasharray: 5 3 } .c0 { stroke: #2f7de1 }
.c1 { stroke: #e08214 } .c2 { stroke: #2ca25f } .c3 { stroke: #d6448b } .c4 { stroke: #8f63d2 }
.c5 { stroke: #1aa3a3 } .c6 { stroke: #a89314 } .c7 { stroke: #d95f3b }
@media (prefers-color-scheme: dark) {
svg { background: #1b1d21 } text { fill: #e6e6e6 } .line, .edge { stroke: #666 }
.cross { stroke: #d9442f } .idle { fill: #34373d } }
</style>
)";

std::string EscapeXml(std::string_view text) {
  // JSON's quoting replaces invalid UTF-8 and escapes control characters.
  std::string valid = IsUtf8(text) ? std::string(text) : Quote(text);
  std::string out;
  for (char c : valid) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r')
      out += "\xEF\xBF\xBD";
    else
      out += c;
  }
  return out;
}

std::string ShortNumber(double number) {
  char text[32];
  const double size = std::abs(number);
  std::snprintf(text, sizeof text, size >= 1000 && size < 1e7 ? "%.0f" : "%.4g", number);
  return text;
}

static std::string Fixed(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", number);
  std::string out = text;
  if (out.ends_with(".0")) out.resize(out.size() - 2);
  return out;
}

std::string PathPoint(char command, double x, double y) {
  return command + Fixed(x) + " " + Fixed(y);
}

double TickDistance(double most, int count) {
  if (!(most > 0)) return 1;
  const double rough = most / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

void DrawTimeAxis(Svg& svg, const TimeAxis& axis, double top, double bottom) {
  const double tick = TickDistance(axis.end, 10);
  for (int i = 0; i * tick <= axis.end * (1 + 1e-9); ++i) {
    svg.Line(axis.At(i * tick), top - 8, axis.At(i * tick), bottom, "line");
    svg.Text(axis.At(i * tick), top - 12, ShortNumber(i * tick), "middle");
  }
}

Svg::Svg(double width, double height, const std::string& name) {
  out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Fixed(width) + "\" height=\"" +
         Fixed(height) + "\" viewBox=\"0 0 " + Fixed(width) + " " + Fixed(height) + "\">\n<title>" +
         EscapeXml(name) + "</title>\n" + kStyle;
}

static std::string Closed(const std::string& element, const std::string& hint) {
  if (hint.empty()) return "/>\n";
  return "><title>" + EscapeXml(hint) + "</title></" + element + ">\n";
}

void Svg::Rect(double x, double y, double width, double height, const std::string& kind,
               const std::string& hint) {
  out_ += "<rect x=\"" + Fixed(x) + "\" y=\"" + Fixed(y) + "\" width=\"" + Fixed(width) +
          "\" height=\"" + Fixed(height) + "\" class=\"" + kind + "\"" + Closed("rect", hint);
}

void Svg::Text(double x, double y, std::string_view text, const std::string& kind) {
  out_ += "<text x=\"" + Fixed(x) + "\" y=\"" + Fixed(y) + "\"" +
          (kind.empty() ? "" : " class=\"" + kind + "\"") + ">" + EscapeXml(text) + "</text>\n";
}

void Svg::Line(double x1, double y1, double x2, double y2, const std::string& kind) {
  out_ += "<line x1=\"" + Fixed(x1) + "\" y1=\"" + Fixed(y1) + "\" x2=\"" + Fixed(x2) +
          "\" y2=\"" + Fixed(y2) + "\" class=\"" + kind + "\"/>\n";
}

void Svg::Path(const std::string& d, const std::string& kind, const std::string& hint) {
  out_ += "<path d=\"" + d + "\" class=\"" + kind + "\"" + Closed("path", hint);
}

}  // namespace pipewright
