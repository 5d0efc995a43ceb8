#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_path.h"
#include "base/files/overwrite.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/package/edited_lines.h"
#include "plan/plan_text.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/simulate.h"
#include "report/curves_picture.h"
#include "report/cut_picture.h"
#include "report/inspect.h"
#include "report/memory_picture.h"
#include "report/prediction.h"
#include "report/svg.h"
#include "report/timeline_picture.h"
#include "templates.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr char kMark[] = "<!-- written by pipewright report -->";

// The contents of the page while they are collected.
struct Parts {
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> missing;
  std::vector<Timeline> timelines;
  std::string memory, curves;  // pictures
};

// Returns what to call a file: its path, or `instead` if it is in a folder that the Python package
// made for a run (python/pipewright/runs.py), which does not outlive the interpreter.
std::string Named(const std::string& path, const char* instead) {
  const std::string folder = fs::path(path).parent_path().filename().string();
  return folder.starts_with("pipewright-run-") ? instead : path;
}

void AddPackage(const PackageView& view, Parts& parts) {
  ModuleSize all;
  std::vector<std::string> edited;
  for (size_t m = 0; m < view.manifest.modules.size(); ++m) {
    const ModuleInfo& module = view.manifest.modules[m];
    all.parameters += SizeOf(module).parameters;
    all.bytes += SizeOf(module).bytes;
    if (view.edited[m]) edited.push_back(EditedPlace(view.package, module));
  }
  parts.facts.push_back({"package", view.package + ", of " + view.manifest.source +
                                        ", compiled by pipewright " + view.manifest.version});
  parts.facts.push_back({"model", Counted(view.manifest.modules.size(), "module") + ", " +
                                      Counted(all.parameters, "parameter") + ", " +
                                      SizeText(all.bytes)});
  constexpr size_t kNamed = 8;
  const size_t more = edited.size() - std::min(edited.size(), kNamed);
  edited.resize(edited.size() - more);
  if (more > 0) edited.push_back(std::to_string(more) + " more");
  if (!edited.empty()) parts.facts.push_back({"edited by hand", Join(edited, ", ")});
  if (view.conf)
    parts.facts.push_back({"conf", Named(view.conf_path, "of pipewright.train") + ": " +
                                       Counted(CountStages(view), "stage") + ", " +
                                       Counted(CountRanks(view), "rank")});
  if (const auto& p = view.profile)
    parts.facts.push_back({"profile", "microbatches of " + Counted(p->microbatch, "sample") +
                                          ", " + Counted(p->threads, "thread") +
                                          " per rank, median of " + std::to_string(p->repeat) +
                                          ", measured on " +
                                          (p->links.empty() ? "one rank" : "the ranks together")});
  parts.missing = view.missing;
}

// Adds the predicted step, in time and memory.
std::optional<Prediction> AddPrediction(const PageInput& input, Parts& parts) {
  if (!input.job) {
    parts.missing.push_back("no predicted timeline and memory: give a job with --job JOB");
    return std::nullopt;
  }
  const Job& job = *input.job;
  parts.facts.push_back({"job", Named(job.path, "of pipewright.train") + ": " + job.schedule +
                                    ", " + Counted(job.microbatches, "microbatch") + " of " +
                                    Counted(job.microbatch_size, "sample") + " per step, " +
                                    Counted(job.steps, "step") + ", " + job.optimizer.type + ", " +
                                    Counted(job.threads, "thread") + " per rank"});
  if (!input.view.conf || !input.view.profile) return std::nullopt;  // already listed as missing
  Prediction prediction = PredictRun(input.view, job);
  parts.missing.insert(parts.missing.end(), prediction.notes.begin(), prediction.notes.end());
  const ActionTrace trace = Simulate(prediction.plan, prediction.costs);
  parts.timelines.push_back({"predicted", StepOf(ActionsOf(prediction.plan, trace), 0, job.path)});
  const double limit = input.memory > 0 ? input.memory : static_cast<double>(job.memory);
  if (!(limit > 0))
    parts.missing.push_back("no memory limit to compare with: give one with --memory SIZE");
  parts.memory = MemorySvg(prediction.plan, prediction.costs, trace, limit, "time in microseconds");
  return prediction;
}

void AddTrace(const PageInput& input, const std::optional<Prediction>& prediction, Parts& parts) {
  const PackageView& view = input.view;
  const std::string measure = "`pipewright-run bench " + view.package + " " +
                              (input.job ? Named(input.job->path, "JOB") : "JOB") +
                              " --trace FILE`";
  if (input.trace.empty()) {
    parts.missing.push_back("no measured timeline: " + measure +
                            " writes a trace, and --trace FILE shows it");
    return;
  }
  const std::vector<TraceAction> actions = ReadChromeTrace(ReadFile(input.trace), input.trace);
  int ranks = 0, stages = 0;
  std::set<int> steps;
  for (const TraceAction& e : actions) {
    ranks = std::max(ranks, e.rank + 1);
    stages = std::max(stages, e.action.stage + 1);
    steps.insert(e.step);
  }
  const std::string found = Counted(ranks, "rank") + " and " + Counted(stages, "stage");
  if (view.conf && (ranks != CountRanks(view) || stages != CountStages(view))) {
    parts.missing.push_back("no measured timeline: " + input.trace + " has " + found + ", " +
                            Named(view.conf_path, "the conf") + " has " +
                            std::to_string(CountRanks(view)) + " and " +
                            std::to_string(CountStages(view)) +
                            ": it belongs to another package or conf. " + measure + " writes one");
    return;
  }
  parts.facts.push_back({"trace", input.trace + ": " + found + ", " +
                                      Counted(steps.size(), "step") +
                                      ", the last of which is drawn"});
  parts.timelines.push_back({"measured", StepOf(actions, -1, input.trace)});
  if (!prediction) return;
  const std::string other =
      OrderDifference(parts.timelines[0].actions, actions, prediction->plan.microbatches);
  if (!other.empty())
    parts.missing.push_back(input.trace + " follows a different schedule than " +
                            Named(input.job->path, "the job") + ": " + other);
}

void AddMetrics(const PageInput& input, Parts& parts) {
  if (input.metrics.empty()) {
    parts.missing.push_back(
        "no training curves: `pipewright-run train --metrics FILE` writes metrics, "
        "and --metrics FILE shows them");
    return;
  }
  std::vector<Metrics> runs;
  for (const std::string& path : input.metrics) {
    runs.push_back(ReadMetrics(path));
    double last = 0;
    for (const auto& [key, curve] : runs.back().curves)
      for (const auto& [step, value] : curve) last = std::max(last, step);
    const std::string name = runs.back().path = Named(path, "of this run");
    parts.facts.push_back({"metrics", name + ": to step " + ShortNumber(last)});
    if (runs.back().unfinished)
      parts.missing.push_back(name + " ends within a line: the run is still in progress");
    else if (input.job && last < static_cast<double>(input.job->steps))
      parts.missing.push_back(name + " ends at step " + ShortNumber(last) + " of the job's " +
                              std::to_string(input.job->steps) +
                              ": the run is still in progress, or was ended early");
  }
  parts.curves = CurvesSvg(runs);
}

// Returns for each rank gaps and durations in ticks, each a millionth of the step, and the actions.
Json TimelineJson(const Timeline& timeline) {
  double end = 0;
  size_t ranks = 0;
  for (const TraceAction& e : timeline.actions) {
    end = std::max(end, e.end);
    ranks = std::max(ranks, static_cast<size_t>(e.rank) + 1);
  }
  const double tick = end > 0 ? end / 1e6 : 1;
  std::vector<std::vector<const TraceAction*>> rows(ranks);
  for (const TraceAction& e : timeline.actions) rows[static_cast<size_t>(e.rank)].push_back(&e);
  Json json = {{"name", timeline.name}, {"tick", tick}, {"step", end}, {"ranks", Json::array()}};
  for (auto& row : rows) {
    std::stable_sort(row.begin(), row.end(), [](const TraceAction* a, const TraceAction* b) {
      return a->start < b->start;
    });
    Json times = Json::array();
    std::vector<std::string> texts;
    int64_t before = 0;
    for (const TraceAction* e : row) {
      const int64_t from = std::llround(e->start / tick), to = std::llround(e->end / tick);
      times.push_back(from - before);
      times.push_back(to - from);
      before = to;
      texts.push_back(ToText(e->action));
    }
    json["ranks"].push_back({{"times", times}, {"actions", Join(texts, " ")}});
  }
  return json;
}

// Formats JSON for a <script> element: no text in it can end the element.
std::string ScriptText(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  for (char c : text) out += c == '<' ? "\\u003c" : std::string(1, c);
  return out;
}

// Replaces each {{name}} of the template; the inserted texts are not scanned.
std::string Filled(std::string_view text, const std::map<std::string, std::string>& parts) {
  std::string out;
  for (size_t at = text.find("{{"); at != std::string_view::npos; at = text.find("{{")) {
    const size_t end = text.find("}}", at);
    out += text.substr(0, at);
    out += parts.at(std::string(text.substr(at + 2, end - at - 2)));
    text.remove_prefix(end + 2);
  }
  return out += text;
}

}  // namespace

std::string ReportPage(const PageInput& input) {
  Parts parts;
  AddPackage(input.view, parts);
  const std::optional<Prediction> prediction = AddPrediction(input, parts);
  AddTrace(input, prediction, parts);
  AddMetrics(input, parts);
  parts.facts.push_back({"this page", "written by pipewright " PIPEWRIGHT_VERSION});
  if (input.job) parts.facts.push_back({"the job's text", input.job->text});
  Json data = {{"package", PackageJson(input.view)},
               {"facts", parts.facts},
               {"missing", parts.missing},
               {"timelines", Json::array()}};
  for (const Timeline& timeline : parts.timelines)
    data["timelines"].push_back(TimelineJson(timeline));
  return Filled(kText_report_html_template,
                {{"title", EscapeXml("Report of " + input.view.package)},
                 {"cut", CutSvg(input.view)},
                 {"memory", parts.memory},
                 {"curves", parts.curves},
                 {"data", ScriptText(data)}});
}

void CheckPageOutput(const std::string& path, const std::vector<std::string>& read, bool replace) {
  CheckWritable(path, read);
  if (!replace)
    CheckOverwrite(path, "already exists, and is not a page of an earlier report",
                   "name another file, or remove this one", [](const std::string& text) {
                     return text.substr(0, 200).find(kMark) != std::string::npos;
                   });
}

std::string WritePage(const std::string& path, const PageInput& input) {
  const std::string page = ReportPage(input);
  WriteFile(path, page);
  return IsStream(path) ? ""
                        : path + ": " + SizeText(static_cast<int64_t>(page.size())) +
                              ", opens in any browser\n";
}

}  // namespace pipewright
