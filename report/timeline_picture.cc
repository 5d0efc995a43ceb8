#include "report/timeline_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "report/svg.h"

namespace pipewright {

namespace {

constexpr double kLeft = 130, kRight = 80, kTop = 54, kWidth = 1200, kRow = 18, kGap = 6;

// A class of the style sheet, and its text in the legend.
struct Kind {
  const char *name, *meaning;
};
constexpr std::array<Kind, 6> kKinds = {{{"F", "forward"},
                                         {"B", "backward"},
                                         {"I", "input gradient"},
                                         {"W", "weight gradient"},
                                         {"O", "forward and backward as one"},
                                         {"S", "optimizer step and others"}}};

size_t KindOf(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return 0;
    case ActionKind::kBackward:
      return 1;
    case ActionKind::kInputGrad:
      return 2;
    case ActionKind::kWeightGrad:
      return 3;
    case ActionKind::kOverlap:
      return 4;
    default:
      return 5;
  }
}

std::string Hint(const TraceAction& e) {
  return ToText(e.action) + ": " + ShortNumber(e.start) + " to " + ShortNumber(e.end) + ", " +
         ShortNumber(e.end - e.start);
}

using Row = std::vector<TraceAction>;

void DrawActions(Svg& svg, const Row& row, const TimeAxis& axis, double y) {
  for (const TraceAction& e : row) {
    const double x = axis.At(e.start), width = axis.At(e.end) - x;
    svg.Rect(x, y, std::max(width - 0.5, 0.1), kRow, kKinds[KindOf(e.action)].name, Hint(e));
    if (e.action.microbatch >= 0 && width >= 16)
      svg.Text(x + width / 2, y + 12.5, std::to_string(e.action.microbatch), "small middle on");
  }
}

// Draws each pixel in the color of the kind that takes most of it, as high as the rank is busy
// there.
void DrawTogether(Svg& svg, const Row& row, const TimeAxis& axis, double y) {
  std::vector<std::array<double, kKinds.size()>> pixels(static_cast<size_t>(kWidth));
  for (const TraceAction& e : row) {
    const double from = axis.At(e.start) - kLeft, to = axis.At(e.end) - kLeft;
    const size_t end = std::min(pixels.size(), static_cast<size_t>(std::ceil(to)));
    for (size_t p = static_cast<size_t>(from); p < end; ++p)
      pixels[p][KindOf(e.action)] +=
          std::min(to, static_cast<double>(p + 1)) - std::max(from, static_cast<double>(p));
  }
  auto look = [&](size_t p) {  // kind, and height in pixels
    const auto& shares = pixels[p];
    double busy = 0;
    for (double share : shares) busy += share;
    const auto most = std::max_element(shares.begin(), shares.end()) - shares.begin();
    return std::pair<size_t, double>(static_cast<size_t>(most),
                                     std::round(kRow * std::min(1.0, busy)));
  };
  for (size_t p = 0; p < pixels.size();) {
    const auto [kind, height] = look(p);
    size_t end = p + 1;
    while (end < pixels.size() && look(end) == std::pair(kind, height)) ++end;
    if (height > 0)
      svg.Rect(kLeft + static_cast<double>(p), y + kRow - height, static_cast<double>(end - p),
               height, kKinds[kind].name);
    p = end;
  }
}

void DrawRow(Svg& svg, const Row& row, const TimeAxis& axis, double y) {
  constexpr double kNarrow = 2;  // pixels of an average action
  double busy = 0;
  for (const TraceAction& e : row) busy += e.end - e.start;
  svg.Rect(kLeft, y, kWidth, kRow, "idle");
  if (kWidth >= kNarrow * static_cast<double>(row.size()))
    DrawActions(svg, row, axis, y);
  else
    DrawTogether(svg, row, axis, y);
  const double idle = std::max(0.0, 100 * (1 - busy / axis.end));
  svg.Text(kLeft + kWidth + 8, y + 12.5, "idle " + ShortNumber(std::round(idle)) + " %");
}

void DrawLegendAndAxis(Svg& svg, const TimeAxis& axis, double bottom, const std::string& units) {
  double x = kLeft;
  for (const Kind& kind : kKinds) {
    svg.Rect(x, 8, 12, 12, kind.name);
    svg.Text(x + 17, 18, kind.meaning);
    x += 40 + 6.2 * static_cast<double>(std::string(kind.meaning).size());
  }
  svg.Rect(x, 8, 12, 12, "idle");
  svg.Text(x + 17, 18, "idle");
  svg.Text(kLeft + kWidth + kRight - 8, 18, units, "end");
  DrawTimeAxis(svg, axis, kTop, bottom);
}

}  // namespace

std::vector<TraceAction> StepOf(const std::vector<TraceAction>& actions, int step,
                                const std::string& path) {
  int last = 0;
  for (const TraceAction& e : actions) last = std::max(last, e.step);
  if (step < 0) step = last;
  std::vector<TraceAction> of_step;
  for (const TraceAction& e : actions)
    if (e.step == step) of_step.push_back(e);
  if (of_step.empty())
    throw Error(path, "it has no step " + std::to_string(step) + "; the last one is " +
                          std::to_string(last));
  double start = of_step[0].start;
  for (const TraceAction& e : of_step) start = std::min(start, e.start);
  for (TraceAction& e : of_step) e.start -= start, e.end -= start;
  return of_step;
}

std::string TimelineSvg(const std::vector<Timeline>& timelines, const std::string& units) {
  TimeAxis axis{kLeft, kWidth, 0};
  size_t ranks = 0;
  for (const Timeline& timeline : timelines)
    for (const TraceAction& e : timeline.actions) {
      axis.end = std::max(axis.end, e.end);
      ranks = std::max(ranks, static_cast<size_t>(e.rank) + 1);
    }
  if (!(axis.end > 0)) axis.end = 1;
  const double group = kRow * static_cast<double>(timelines.size()) + kGap;
  const double bottom = kTop + group * static_cast<double>(ranks);
  Svg svg(kLeft + kWidth + kRight, bottom + 8, "Timeline of one step");
  DrawLegendAndAxis(svg, axis, bottom, units);
  for (size_t t = 0; t < timelines.size(); ++t) {
    std::vector<Row> rows(ranks);
    for (const TraceAction& e : timelines[t].actions)
      rows[static_cast<size_t>(e.rank)].push_back(e);
    for (size_t r = 0; r < ranks; ++r) {
      const double y = kTop + group * static_cast<double>(r) + kRow * static_cast<double>(t);
      svg.Text(kLeft - 8, y + 12.5, "rank " + std::to_string(r) + " " + timelines[t].name, "end");
      DrawRow(svg, rows[r], axis, y);
    }
  }
  return svg.Take();
}

}  // namespace pipewright
