#include "cli/commands/tune_runs.h"

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/process/child.h"
#include "base/text.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// Returns the path of a program in this program's folder: an installation keeps both in one folder.
std::string ProgramBeside(const std::string& name) {
  return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// Runs a command and returns what it printed. If it fails, throws Error with the first line of its
// own message.
std::string OutputOf(const std::vector<std::string>& command) {
  ChildResult result = RunChild(command);
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
  throw Error(Join(command, " "), said);
}

// Rewrites paths of data files, which are relative to the folder of their job.
void MoveDataPaths(Json& data, const fs::path& from, const fs::path& to) {
  auto move = [&](Json& file) {
    if (file.is_string())
      file = fs::proximate(fs::absolute(from / file.get<std::string>()), fs::absolute(to))
                 .lexically_normal()
                 .string();
  };
  auto move_all = [&](Json& files) {
    if (!files.is_array()) return move(files);
    for (Json& file : files) move(file);
  };
  for (const char* key : {"tokens", "tensors", "plugin"})
    if (data.contains(key)) move_all(data[key]);
  if (data.contains("arrays"))
    for (auto& [name, files] : data["arrays"].items()) move_all(files);
}

}  // namespace

double MeasureStep(const TuneRun& run) {
  std::vector<std::string> command = {ProgramBeside("pipewright-run"), "--color", "never"};
  const std::string ranks = std::to_string(run.ranks);
  if (run.in_process || run.ranks == 1)
    command.insert(command.end(), {"--in-process", ranks});
  else
    command.insert(command.end(), {"-n", ranks});
  command.insert(command.end(), {"bench", run.package, run.job, "--conf", run.conf, "--steps",
                                 std::to_string(run.steps), "--json"});
  const Json figures = ParseJson(OutputOf(command), "pipewright-run bench");
  return figures.at("step").at("median").get<double>() / 1e6;
}

Profile MeasureProfile(const std::string& package, const std::string& conf, int ranks,
                       int64_t microbatch, int threads, int repeat) {
  const std::string text = OutputOf(
      {ProgramBeside("pipewright"), "--color", "never", "profile", package, "--conf", conf, "--in-process",
       std::to_string(ranks), "--microbatch-size", std::to_string(microbatch), "--threads",
       std::to_string(threads), "--repeat", std::to_string(repeat), "--json"});
  return ParseProfile(text, "pipewright profile");
}

std::string ChangedJob(const std::string& from, const std::string& to, const JobChanges& changes) {
  Json job = ReadJson(from);
  const fs::path folder = fs::path(from).parent_path(), target = fs::path(to).parent_path();
  MoveDataPaths(job["data"], folder, target);
  if (job.contains("validation")) MoveDataPaths(job["validation"]["data"], folder, target);
  for (const char* key : {"plan", "costs", "memory", "microbatch_size", "recompute"})
    job.erase(key);
  job["schedule"] = changes.schedule;
  job["microbatches"] = changes.microbatches;
  job["minibatch_size"] = changes.samples;
  if (changes.recompute) job["recompute"] = true;
  return FormatJson(job);
}

}  // namespace pipewright
