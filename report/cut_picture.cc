#include "report/cut_picture.h"

#include <algorithm>
#include <map>

#include "base/size.h"
#include "base/text.h"
#include "report/svg.h"

namespace pipewright {

namespace {

constexpr double kLeft = 20, kTop = 44, kBox = 440, kHeight = 44, kStride = 76;
constexpr double kLane = 14;  // pixels between arrows that skip modules

struct Arrow {
  int from = -1, to = -1;  // modules
  std::vector<int> values;
  size_t lane = 0;  // for arrows that skip modules
};

double Top(int module) { return kTop + kStride * module; }

// Returns an arrow for each pair of modules; those that skip modules get lanes in which they do not
// overlap.
std::vector<Arrow> ArrowsOf(const Manifest& manifest, size_t& lanes) {
  std::map<std::pair<int, int>, std::vector<int>> pairs;
  for (size_t v = 0; v < manifest.values.size(); ++v)
    for (int consumer : manifest.values[v].consumers)
      if (manifest.values[v].producer >= 0)
        pairs[{manifest.values[v].producer, consumer}].push_back(static_cast<int>(v));
  std::vector<Arrow> arrows;
  std::vector<int> free_from;  // by lane: the first module after its last arrow
  for (const auto& [ends, values] : pairs) {
    Arrow arrow{ends.first, ends.second, values, 0};
    if (arrow.to > arrow.from + 1) {
      while (arrow.lane < free_from.size() && free_from[arrow.lane] > arrow.from) ++arrow.lane;
      if (arrow.lane == free_from.size()) free_from.push_back(0);
      free_from[arrow.lane] = arrow.to;
    }
    arrows.push_back(arrow);
  }
  lanes = free_from.size();
  return arrows;
}

// Returns text such as "embedding [s0, 64] 2 KiB".
std::string ValueText(const PackageView& view, int number) {
  const ValueInfo& value = view.manifest.values[static_cast<size_t>(number)];
  std::string text = value.name + " " + ValueShapeText(value);
  if (auto bytes = ValueBytes(view, number)) text += " " + SizeText(*bytes);
  return text;
}

// Returns the first `most` bytes and "…", without cutting a character in two.
std::string Shortened(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

void DrawModule(Svg& svg, const PackageView& view, int number) {
  const ModuleInfo& module = view.manifest.modules[static_cast<size_t>(number)];
  const int stage = StageOf(view, number);
  const ModuleSize size = SizeOf(module);
  std::string facts = Counted(size.parameters, "parameter") + ", " + SizeText(size.bytes);
  if (auto time = TimeOf(view, number))
    facts += ", " + ShortNumber(time->forward * 1e3) + " ms forward, " +
             ShortNumber(time->backward * 1e3) + " ms backward";
  std::string name = module.name;
  if (stage >= 0) {
    std::vector<std::string> ranks;
    for (int rank : RanksOf(view, number)) ranks.push_back(std::to_string(rank));
    name += " · stage " + std::to_string(stage) + " · rank " + Shortened(Join(ranks, ","), 20);
  }
  const double y = Top(number);
  svg.Rect(kLeft, y, kBox, kHeight, stage < 0 ? "idle" : "s" + std::to_string(stage % 8),
           name + "\n" + facts + "\n" + Join(module.covers, " "));
  const std::string ink = stage < 0 ? "" : "on";
  svg.Text(kLeft + 10, y + 18, Shortened(name, 60), ink);
  svg.Text(kLeft + 10, y + 34, Shortened(facts, 66), ink);
}

void DrawArrow(Svg& svg, const PackageView& view, const Arrow& arrow) {
  const bool crosses = StageOf(view, arrow.from) != StageOf(view, arrow.to);
  std::vector<std::string> values;
  for (int value : arrow.values) values.push_back(ValueText(view, value));
  const std::string hint = Join(values, "\n"), kind = crosses ? "cross" : "edge";
  if (arrow.to == arrow.from + 1) {
    const double x = kLeft + 40, y = Top(arrow.from) + kHeight, end = Top(arrow.to);
    svg.Path(PathPoint('M', x, y) + PathPoint('L', x, end) + PathPoint('M', x - 4, end - 6) +
                 PathPoint('L', x, end) + PathPoint('L', x + 4, end - 6),
             kind, hint);
    std::string label = values[0];
    if (values.size() > 1) label += ", " + std::to_string(values.size() - 1) + " more";
    svg.Text(x + 10, y + 20, Shortened(label, 58), "small");
    return;
  }
  const double x = kLeft + kBox, y = Top(arrow.from) + kHeight - 8, end = Top(arrow.to) + 8;
  const double around = x + 16 + kLane * static_cast<double>(arrow.lane);
  svg.Path(PathPoint('M', x, y) + PathPoint('L', around, y) + PathPoint('L', around, end) +
               PathPoint('L', x, end) + PathPoint('M', x + 6, end - 4) + PathPoint('L', x, end) +
               PathPoint('L', x + 6, end + 4),
           kind + " skip", hint);
}

}  // namespace

std::string CutSvg(const PackageView& view) {
  size_t lanes = 0;
  const std::vector<Arrow> arrows = ArrowsOf(view.manifest, lanes);
  const int modules = static_cast<int>(view.manifest.modules.size());
  Svg svg(kLeft + kBox + 40 + kLane * static_cast<double>(lanes), Top(modules),
          "Modules of " + view.package);
  svg.Text(kLeft, 20, Shortened(view.package, 50), "head");
  svg.Text(kLeft, 36, "red: crosses between stages; dashed: skips modules", "small");
  for (const Arrow& arrow : arrows) DrawArrow(svg, view, arrow);
  for (int module = 0; module < modules; ++module) DrawModule(svg, view, module);
  return svg.Take();
}

}  // namespace pipewright
