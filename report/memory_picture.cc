#include "report/memory_picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/size.h"
#include "plan/actions.h"
#include "plan/plan_text.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/rank_account.h"
#include "report/svg.h"
#include "report/timeline_picture.h"

namespace pipewright {

namespace {

constexpr double kLeft = 70, kRight = 190, kTop = 54, kWidth = 1200, kGap = 6;

std::string Bytes(double bytes) { return SizeText(static_cast<int64_t>(std::llround(bytes))); }

// Collects the maximum that a rank holds within each pixel.
class Columns {
 public:
  Columns(const TimeAxis& axis, double bytes)
      : axis_(axis), columns_(static_cast<size_t>(kWidth), 0), bytes_(bytes) {}

  // Counts the bytes last given to Hold for the pixels up to `time`, at least one.
  void Until(double time) {
    const double last = kWidth - 1;
    const double from = axis_.At(time_) - axis_.left, to = axis_.At(time) - axis_.left;
    const auto begin = static_cast<size_t>(std::min(from, last));
    const auto end = static_cast<size_t>(std::min(std::ceil(to), kWidth));
    for (size_t c = begin; time_ <= axis_.end && c < std::max(begin + 1, end); ++c)
      columns_[c] = std::max(columns_[c], bytes_);
    time_ = std::max(time_, time);
  }
  void Hold(double bytes) { bytes_ = bytes; }
  const std::vector<double>& columns() const { return columns_; }

 private:
  const TimeAxis& axis_;
  std::vector<double> columns_;
  double bytes_, time_ = 0;
};

struct RankMemoryRow {
  double start = 0, most = 0;
  size_t position = 0;  // the action with the highest peak
  std::vector<double> columns;
};

RankMemoryRow RowOf(const Plan& plan, size_t rank, const Costs& costs, const ActionTrace& trace,
                    const TimeAxis& axis) {
  const RankAccount bytes = BytesOfRank(plan, static_cast<int>(rank), costs, RecomputeOf(plan));
  RankMemoryRow row{bytes.start, bytes.start, 0, {}};
  for (size_t p = 0; p < bytes.actions.size(); ++p)
    if (const double most = bytes.actions[p].most; most > row.most)
      row.most = most, row.position = p;
  Columns columns(axis, bytes.start);
  for (const MemoryAt& change : MemoryOverTime(bytes, trace.ranks[rank])) {
    columns.Until(change.time);
    columns.Hold(change.bytes);
  }
  columns.Until(axis.end);
  row.columns = columns.columns();
  return row;
}

// Returns the outline of the columns, with points where the height changes.
std::string Outline(const std::vector<double>& columns, double bottom, double height, double full) {
  std::string path = PathPoint('M', kLeft, bottom);
  for (size_t c = 0; c < columns.size();) {
    size_t end = c + 1;
    while (end < columns.size() && columns[end] == columns[c]) ++end;
    const double y = bottom - height * columns[c] / full;
    path += PathPoint('L', kLeft + static_cast<double>(c), y);
    path += PathPoint('L', kLeft + static_cast<double>(end), y);
    c = end;
  }
  return path + PathPoint('L', kLeft + kWidth, bottom) + "Z";
}

void DrawLegend(Svg& svg, double full, double limit, const std::string& units) {
  svg.Rect(kLeft, 8, 12, 12, "kept");
  svg.Text(kLeft + 17, 18, "weights and optimizer state");
  svg.Rect(kLeft + 190, 8, 12, 12, "held");
  svg.Text(kLeft + 207, 18, "activations, gradients, messages");
  double x = kLeft + 410;
  if (limit > 0) {
    svg.Line(x, 14, x + 24, 14, "limit");
    svg.Text(x + 29, 18, "limit, " + Bytes(limit));
    x += 150;
  }
  svg.Text(x, 18, "a row is " + Bytes(full) + " high");
  svg.Text(kLeft + kWidth + kRight - 8, 18, units, "end");
}

}  // namespace

std::string MemorySvg(const Plan& plan, const Costs& costs, const ActionTrace& trace, double limit,
                      const std::string& units) {
  TimeAxis axis{kLeft, kWidth, 0};
  for (const TraceAction& e : StepOf(ActionsOf(plan, trace), 0, "plan"))
    axis.end = std::max(axis.end, e.end);
  if (!(axis.end > 0)) axis.end = 1;
  std::vector<RankMemoryRow> rows;
  double full = limit;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    rows.push_back(RowOf(plan, r, costs, trace, axis));
    full = std::max(full, rows.back().most);
  }
  if (!(full > 0)) full = 1;
  const double height = rows.size() <= 16 ? 44 : 26;
  const double bottom = kTop + (height + kGap) * static_cast<double>(rows.size());
  Svg svg(kLeft + kWidth + kRight, bottom + 8, "Memory of each rank over one step");
  DrawLegend(svg, full, limit, units);
  DrawTimeAxis(svg, axis, kTop, bottom);
  for (size_t r = 0; r < rows.size(); ++r) {
    const RankMemoryRow& row = rows[r];
    const double y = kTop + (height + kGap) * static_cast<double>(r), base = y + height;
    std::string hint = "rank " + std::to_string(r) + ": weights " + Bytes(row.start) +
                       ", at most " + Bytes(row.most);
    if (row.position < plan.ranks[r].size())
      hint += " at " + ToText(plan.ranks[r][row.position]);
    svg.Rect(kLeft, y, kWidth, height, "idle");
    svg.Path(Outline(row.columns, base, height, full), "held", hint);
    const double weights = height * row.start / full;
    svg.Rect(kLeft, base - weights, kWidth, weights, "kept", hint);
    std::string text = Bytes(row.most);
    if (limit > 0) {
      svg.Line(kLeft, base - height * limit / full, kLeft + kWidth, base - height * limit / full,
               "limit");
      text += row.most > limit ? ", " + Bytes(row.most - limit) + " over"
                               : ", " + ShortNumber(std::round(100 * row.most / limit)) + " %";
    }
    svg.Text(kLeft - 8, y + height / 2 + 4, "rank " + std::to_string(r), "end");
    svg.Text(kLeft + kWidth + 8, y + height / 2 + 4, text,
             limit > 0 && row.most > limit ? "bad" : "");
  }
  return svg.Take();
}

}  // namespace pipewright
