// Writes pictures as SVG, for light and dark surroundings.
#pragma once
#include <string>
#include <string_view>

namespace pipewright {

// For text and attributes of XML: what would be markup is escaped, and what XML forbids (control
// characters, invalid UTF-8) becomes U+FFFD.
std::string EscapeXml(std::string_view text);

// Seconds, bytes and counts as people read them: four digits.
std::string ShortNumber(double number);

class Svg {
 public:
  // `name` is the picture's title for screen readers.
  Svg(double width, double height, const std::string& name);

  // `kind`: classes of the style sheet in svg.cc. `hint` appears under the mouse.
  void Rect(double x, double y, double width, double height, const std::string& kind,
            const std::string& hint = "");
  void Text(double x, double y, std::string_view text, const std::string& kind = "");
  void Line(double x1, double y1, double x2, double y2, const std::string& kind);
  // `d`: path data.
  void Path(const std::string& d, const std::string& kind, const std::string& hint = "");

  std::string Take() { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

// Path data with one digit behind the point: "M 1.5 2".
std::string PathPoint(char command, double x, double y);

// An axis of time from 0 to `end`, with lines down to `bottom`; times stand above `top`.
struct TimeAxis {
  double left = 0, width = 0, end = 1;
  double At(double time) const { return left + width * time / end; }
};
void DrawTimeAxis(Svg& svg, const TimeAxis& axis, double top, double bottom);

// Round values for an axis up to `most`: the distance between two marks, so that there are about
// `count`.
double TickDistance(double most, int count);

}  // namespace pipewright
