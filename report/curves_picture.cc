#include "report/curves_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "report/svg.h"

namespace pipewright {

namespace {

constexpr double kLeft = 70, kTop = 40, kWidth = 620, kHeight = 180, kStride = 240;
constexpr double kLegend = 20;  // pixels, height of a line

// A panel, and the keys of its solid and dashed curves.
struct Panel {
  const char *title, *key, *dashed;
};
constexpr Panel kPanels[] = {{"loss", "loss", "validation.loss"},
                             {"accuracy", "accuracy", "validation.accuracy"},
                             {"gradient norm", "gradient_norm", ""},
                             {"learning rate", "learning_rate", ""},
                             {"tokens per second", "tokens_per_second", ""},
                             {"samples per second", "samples_per_second", ""},
                             {"bubble", "bubble", ""}};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void Add(double number) { low = std::min(low, number), high = std::max(high, number); }
  bool empty() const { return low > high; }
  double Part(double number) const { return high > low ? (number - low) / (high - low) : 0.5; }
};

using Curve = std::vector<std::pair<double, double>>;

const Curve& CurveOf(const Metrics& run, const std::string& key) {
  static const Curve none;
  auto found = run.curves.find(key);
  return found == run.curves.end() ? none : found->second;
}

// Reduces a curve to the lowest and highest point of each of 600 stretches, so that peaks stay
// visible.
Curve Thinned(const Curve& curve) {
  constexpr size_t kStretches = 600;
  if (curve.size() <= 2 * kStretches) return curve;
  Curve thin;
  for (size_t i = 0; i < kStretches; ++i) {
    const auto begin = curve.begin() + static_cast<int64_t>(i * curve.size() / kStretches);
    const auto end = curve.begin() + static_cast<int64_t>((i + 1) * curve.size() / kStretches);
    auto [low, high] = std::minmax_element(
        begin, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    thin.push_back(*low);
    if (low != high) thin.push_back(*high);
  }
  return thin;
}

void DrawPanel(Svg& svg, const std::vector<Metrics>& runs, const Panel& panel, double left,
               double top) {
  Range steps, values;
  for (const Metrics& run : runs)
    for (const char* key : {panel.key, panel.dashed})
      for (const auto& [step, value] : CurveOf(run, key)) steps.Add(step), values.Add(value);
  auto x = [&](double step) { return left + kWidth * steps.Part(step); };
  auto y = [&](double value) { return top + kHeight * (1 - values.Part(value)); };
  svg.Text(left, top - 8, panel.title, "head");
  const double tick = TickDistance(values.high - values.low, 5);
  for (double i = std::ceil(values.low / tick); i * tick <= values.high; ++i) {
    svg.Line(left, y(i * tick), left + kWidth, y(i * tick), "line");
    svg.Text(left - 6, y(i * tick) + 4, ShortNumber(i * tick), "end");
  }
  if (values.low == values.high)
    svg.Text(left - 6, y(values.low) + 4, ShortNumber(values.low), "end");
  svg.Text(left, top + kHeight + 16, "step " + ShortNumber(steps.low));
  svg.Text(left + kWidth, top + kHeight + 16, ShortNumber(steps.high), "end");
  for (size_t r = 0; r < runs.size(); ++r)
    for (const char* key : {panel.key, panel.dashed}) {
      std::string path;
      for (const auto& [step, value] : Thinned(CurveOf(runs[r], key)))
        path += PathPoint(path.empty() ? 'M' : 'L', x(step), y(value));
      if (!path.empty())
        svg.Path(path, "c c" + std::to_string(r % 8) + (key == panel.dashed ? " dash" : ""),
                 runs[r].path + ": " + key);
    }
}

void AddNumbers(const Json& json, const std::string& prefix, double step, Metrics& metrics) {
  for (const auto& [key, value] : json.items()) {
    if (prefix.empty() && (key == "step" || key == "losses")) continue;
    if (value.is_number() || value.is_boolean())
      metrics.curves[prefix + key].push_back(
          {step, value.is_number() ? value.get<double>() : value.get<bool>()});
    if (value.is_structured()) AddNumbers(value, prefix + key + ".", step, metrics);
  }
}

}  // namespace

Metrics ReadMetrics(const std::string& path) {
  Metrics metrics;
  metrics.path = path;
  const std::string text = ReadFile(path);
  const std::vector<std::string> lines = Split(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::string where = path + ":" + std::to_string(i + 1);
    Json json;
    try {
      json = ParseJson(lines[i], where);
    } catch (const Error&) {
      if (i + 1 < lines.size()) throw;
      metrics.unfinished = true;
      break;
    }
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number())
      throw Error(where, "not a line of metrics: it has no \"step\"",
                  "give a file that `train --metrics` or the job's \"metrics\" wrote");
    AddNumbers(json, "", json["step"].get<double>(), metrics);
  }
  if (metrics.curves.empty()) throw Error(path, "no metrics in it");
  return metrics;
}

std::string CurvesCsv(const Metrics& run) {
  std::map<int64_t, std::map<std::string, double>> rows;  // by step and key
  std::string text = "step";
  for (const auto& [key, curve] : run.curves) {
    text += "," + key;
    for (const auto& [step, value] : curve) rows[std::llround(step)][key] = value;
  }
  for (const auto& [step, row] : rows) {
    text += "\n" + std::to_string(step);
    for (const auto& [key, curve] : run.curves) {
      auto value = row.find(key);
      text += "," + (value == row.end() ? "" : Json(value->second).dump());
    }
  }
  return text + "\n";
}

std::string CurvesSvg(const std::vector<Metrics>& runs) {
  std::vector<Panel> shown;
  for (const Panel& panel : kPanels)
    if (std::any_of(runs.begin(), runs.end(), [&](const Metrics& run) {
          return !CurveOf(run, panel.key).empty() || !CurveOf(run, panel.dashed).empty();
        }))
      shown.push_back(panel);
  const double legend = kLegend * static_cast<double>(runs.size());
  const double rows = static_cast<double>((shown.size() + 1) / 2);
  Svg svg((kLeft + kWidth) * (shown.size() > 1 ? 2 : 1) + 30, kTop + legend + kStride * rows,
          "Training curves");
  for (size_t r = 0; r < runs.size(); ++r) {
    const double y = 20 + kLegend * static_cast<double>(r);
    svg.Path(PathPoint('M', kLeft, y - 4) + PathPoint('L', kLeft + 24, y - 4),
             "c c" + std::to_string(r % 8));
    svg.Text(kLeft + 32, y, runs[r].path + (runs[r].unfinished ? " (still written to)" : ""));
  }
  for (size_t p = 0; p < shown.size(); ++p)
    DrawPanel(svg, runs, shown[p], kLeft + (kLeft + kWidth) * static_cast<double>(p % 2),
              kTop + legend + kStride * static_cast<double>(p / 2));
  return svg.Take();
}

}  // namespace pipewright
