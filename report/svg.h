// Writes pictures as SVG, for light and dark mode.
#pragma once
#include <string>
#include <string_view>

namespace pipewright {

// Escapes markup for text and attributes of XML; characters that XML forbids (control characters,
// invalid UTF-8) become U+FFFD.
std::string EscapeXml(std::string_view text);

// Formats a number with four significant digits, or as a whole number from 1000 to 1e7.
std::string ShortNumber(double number);

class Svg {
 public:
  // `name` is the picture's title for screen readers.
  Svg(double width, double height, const std::string& name);

  // `kind` names classes of the style sheet in svg.cc. `hint` is a tooltip.
  void Rect(double x, double y, double width, double height, const std::string& kind,
            const std::string& hint = "");
  void Text(double x, double y, std::string_view text, const std::string& kind = "");
  void Line(double x1, double y1, double x2, double y2, const std::string& kind);
  // `d` is path data.
  void Path(const std::string& d, const std::string& kind, const std::string& hint = "");

  std::string Take() { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

// Returns path data with one digit after the decimal point: "M 1.5 2".
std::string PathPoint(char command, double x, double y);

// A time axis from 0 to `end`, with lines down to `bottom`; times are written above `top`.
struct TimeAxis {
  double left = 0, width = 0, end = 1;
  double At(double time) const { return left + width * time / end; }
};
void DrawTimeAxis(Svg& svg, const TimeAxis& axis, double top, double bottom);

// Returns a round distance between the ticks of an axis up to `most`, for about `count` ticks.
double TickDistance(double most, int count);

}  // namespace pipewright
