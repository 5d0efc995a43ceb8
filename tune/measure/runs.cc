#include "tune/measure/runs.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/median.h"
#include "base/process/child.h"
#include "base/process/host_resources.h"
#include "base/size.h"
#include "base/text.h"
#include "tune/measure/kept.h"

namespace pipewright {

namespace fs = std::filesystem;

std::string ProgramBeside(const std::string& name) {
  return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

std::optional<std::string> OutputOf(const std::vector<std::string>& command,
                                    const TuneBudget& budget, double* others,
                                    const std::string& input) {
  const double busy = BusySeconds();
  const TuneBudget clock;
  ChildResult result = RunChild(command, budget.Limits(), input);
  if (others)
    *others =
        std::max(0.0, (BusySeconds() - busy - result.cpu_seconds) / std::max(clock.Passed(), 1e-3));
  // An interrupt may reach the program before this one.
  if (result.ended || (result.code != 0 && budget.IsOver())) return std::nullopt;
  if (result.code == 0) return std::move(result.out);
  std::string said = result.err.empty() ? result.out : result.err;
  for (const std::string& line : Split(said, '\n'))
    if (line.starts_with("pipewright") && line.find(": warning: ") == std::string::npos &&
        line.find(": note: ") == std::string::npos) {
      said = line;
      break;
    }
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (said.empty()) said = "ended with code " + std::to_string(result.code);
  // Users did not start this program, so what it says comes first, without its name.
  if (const std::string name = fs::path(command[0]).filename().string() + ": ";
      said.starts_with(name))
    said.erase(0, name.size());
  throw Error(said + " (said by " + Join(command, " ") + ")");
}

bool RunsInProcess(const TuneRequest& request, int ranks) {
  return request.in_process || (ranks == 1 && !request.start.given());
}

std::string WhyTooLarge(const TuneRequest& request, double bytes, int64_t memory) {
  if (request.start.given() || bytes <= 0.9 * static_cast<double>(memory)) return "";
  return "tensors would take " + SizeText(static_cast<int64_t>(bytes)) +
         ", more than 90 % of the memory that is here (" + SizeText(memory) + ")";
}

void CheckMpirun(const TuneRequest& request) {
  if ((RunsInProcess(request, request.ranks) && !request.processes) || !request.machines.empty())
    return;
  std::string name = "mpirun";
  for (const std::string& word : Split(request.start.mpirun, ' '))
    if (!word.empty()) {
      name = word;
      break;
    }
  const char* path = std::getenv("PATH");
  std::vector<std::string> files = {name};
  if (name.find('/') == std::string::npos) {
    files.clear();
    for (const std::string& folder : Split(path ? path : "", ':'))
      files.push_back(folder + "/" + name);
  }
  for (const std::string& file : files)
    if (access(file.c_str(), X_OK) == 0) return;
  throw Error(
      name, "is not found, and starts the ranks that tune measures",
      "install Open MPI, name its mpirun (--mpirun), or let ranks be threads (--in-process)");
}

std::vector<std::string> StartOptions(const TuneStart& start, int ranks, bool in_process) {
  std::vector<std::string> words;
  if (!in_process && !start.hosts.empty()) words.insert(words.end(), {"--hosts", start.hosts});
  if (!in_process && !start.mpirun.empty()) words.insert(words.end(), {"--mpirun", start.mpirun});
  words.insert(words.end(), {in_process ? "--in-process" : "-n", std::to_string(ranks)});
  return words;
}

int RanksOnOneHost(const std::string& hosts, int ranks) {
  if (hosts.empty()) return ranks;
  std::map<std::string, int> places;
  for (const std::string& host : Split(hosts, ',')) {
    const size_t colon = host.find(':');
    places[host.substr(0, colon)] +=
        colon == std::string::npos ? 1 : std::max(1, std::atoi(host.c_str() + colon + 1));
  }
  int most = 0;
  for (const auto& [host, count] : places) most = std::max(most, count);
  return std::min(ranks, most);
}

// Returns true if what ranks use is known: on other hosts it is not, and neither is what they use
// here if ssh started them.
static bool IsHere(bool in_process, const TuneStart& start) { return in_process || !start.given(); }

static std::vector<std::string> RunCommand(const TuneRun& run, const std::string& command) {
  std::vector<std::string> words = {ProgramBeside("pipewright-run"), "--color", "never"};
  for (const std::string& word : StartOptions(run.start, run.ranks, run.in_process))
    words.push_back(word);
  words.insert(words.end(), {command, run.package});
  if (!run.job.empty()) words.push_back(run.job);
  words.insert(words.end(), {"--conf", run.conf});
  return words;
}

std::optional<Json> BenchRun(const TuneRun& run, const TuneBudget& budget) {
  std::vector<std::string> command = RunCommand(run, "bench");
  command.insert(command.end(), {"--steps", std::to_string(run.steps), "--json"});
  double others = 0;
  const std::optional<std::string> text = OutputOf(command, budget, &others);
  if (!text) return std::nullopt;
  Json figures = ParseJson(*text, "pipewright-run bench");
  figures["others"] = IsHere(run.in_process, run.start) ? others : 0;
  return figures;
}

std::optional<MeasuredStep> MeasureStep(const TuneRun& run, const std::string& metrics,
                                        const TuneBudget& budget) {
  constexpr int kWarmUp = 6;  // steps, in which modules choose between autograd and lists
  std::vector<std::string> command = RunCommand(run, "train");
  command.insert(command.end(),
                 {"--steps", std::to_string(kWarmUp + run.steps), "--metrics", metrics, "--quiet"});
  MeasuredStep measured;
  if (!OutputOf(command, budget, &measured.others)) return std::nullopt;
  if (!IsHere(run.in_process, run.start)) measured.others = 0;
  std::vector<double> seconds;
  int step = 0;
  for (const std::string& line : Split(ReadFile(metrics), '\n')) {
    if (line.empty()) continue;
    const Json figures = ParseJson(line, metrics);
    if (++step > kWarmUp) seconds.push_back(figures.at("seconds").get<double>());
    // Not every step reports it.
    for (const Json& bytes : figures.value("memory", Json::array()))
      measured.process_bytes = std::max(measured.process_bytes, bytes.get<int64_t>());
  }
  if (seconds.empty())
    throw Error(Join(command, " "), "measured no step after " + std::to_string(kWarmUp),
                "check that the data have enough samples");
  measured.seconds = Median(seconds);
  return measured;
}

double LossIn(const Json& figures, const char* key) {
  const Json& loss = figures.at(key);
  return loss.is_null() ? std::nan("") : loss.get<double>();
}

bool TrainSteps(const TuneRun& run, int steps, const std::string& metrics,
                const std::vector<std::string>& options, const TuneBudget& budget) {
  std::vector<std::string> command = RunCommand(run, "train");
  command.insert(command.end(),
                 {"--steps", std::to_string(steps), "--metrics", metrics, "--quiet"});
  command.insert(command.end(), options.begin(), options.end());
  return OutputOf(command, budget).has_value();
}

double LossOfStep(const std::string& metrics, int step) {
  const std::vector<std::string> lines = Split(ReadFile(metrics), '\n');
  return LossIn(ParseJson(lines.at(static_cast<size_t>(step) - 1), metrics), "loss");
}

std::optional<double> LossOfEvaluation(const TuneRun& run, const std::string& weights,
                                       const std::string& metrics, const TuneBudget& budget) {
  std::vector<std::string> command = RunCommand(run, "eval");
  command.insert(command.end(), {"--steps", "1", "--weights", weights, "--metrics", metrics});
  if (!OutputOf(command, budget)) return std::nullopt;
  return LossIn(ReadJson(metrics), "loss");
}

static std::vector<std::string> InferCommand(const InferRun& run) {
  std::vector<std::string> command = RunCommand(run.run, "infer");
  command.insert(command.end(),
                 {"--input", run.input, "--microbatches", std::to_string(run.microbatches),
                  "--threads", std::to_string(run.threads), "-o", run.output});
  return command;
}

std::optional<MeasuredStep> MeasurePass(const InferRun& run, const TuneBudget& budget) {
  constexpr int kWarmUp = 1;
  const std::string requests = run.folder + "/candidate_requests";
  std::string lines;
  for (int i = 0; i < kWarmUp + run.run.steps; ++i) lines += "steps 1\n";
  WriteFile(requests, lines);
  std::vector<std::string> command = InferCommand(run);
  command.push_back("--on-request");
  MeasuredStep measured;
  const std::optional<std::string> text = OutputOf(command, budget, &measured.others, requests);
  if (!text) return std::nullopt;
  if (!IsHere(run.run.in_process, run.run.start)) measured.others = 0;
  std::vector<double> seconds;
  int passes = 0;
  for (const std::string& line : Split(*text, '\n')) {
    if (!line.starts_with("{") || ++passes <= kWarmUp) continue;
    // Ranks begin together. Clocks of several hosts may differ.
    double longest = 0;
    const Json answer = ParseJson(line, "pipewright-run infer");
    for (const Json& rank : answer.at("ranks")) {
      longest =
          std::max(longest, rank.at("ends").back().get<double>() - rank.at("begin").get<double>());
      measured.process_bytes = std::max(measured.process_bytes, rank.at("memory").get<int64_t>());
    }
    seconds.push_back(longest / 1e6);
  }
  if (seconds.empty()) throw Error(Join(command, " "), "measured no pass: " + *text);
  measured.seconds = Median(seconds);
  return measured;
}

std::optional<double> MeasureDisk(const InferRun& run, const TuneBudget& budget) {
  const std::string report = run.folder + "/candidate_offload.json";
  std::vector<std::string> command = InferCommand(run);
  command.insert(command.end(), {"--offload-report", report});
  if (!OutputOf(command, budget)) return std::nullopt;
  const Json rank = ReadJson(report).at("ranks").at(0);
  const double seconds = rank.contains("seconds") ? rank["seconds"].at("reading").get<double>() : 0;
  return seconds > 0 ? rank.at("payload").get<double>() / seconds : 0;
}

std::optional<std::string> MeasureProfile(const ProfileRun& run, const TuneBudget& budget,
                                          double& others) {
  std::vector<std::string> command = {ProgramBeside("pipewright"), "--color", "never", "profile"};
  for (const std::string& word : StartOptions(run.start, run.ranks, run.in_process))
    command.push_back(word);
  command.insert(
      command.end(),
      {run.package, "--conf", run.conf, "--microbatch-size", std::to_string(run.microbatch),
       "--threads", std::to_string(run.threads), "--repeat", std::to_string(run.repeat), "--json"});
  if (!run.input.empty()) command.insert(command.end(), {"--forward-only", "--input", run.input});
  if (!run.job.empty()) command.insert(command.end(), {"--job", run.job});
  const std::optional<std::string> text = OutputOf(command, budget, &others);
  if (!IsHere(run.in_process, run.start)) others = 0;
  return text;
}

}  // namespace pipewright
