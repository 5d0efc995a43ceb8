#include "tune/runs.h"

#include <filesystem>

#include "base/error.h"
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
      {ProgramBeside("pipewright"), "--color", "never", "profile", package, "--conf", conf,
       "--in-process", std::to_string(ranks), "--microbatch-size", std::to_string(microbatch),
       "--threads", std::to_string(threads), "--repeat", std::to_string(repeat), "--json"});
  return ParseProfile(text, "pipewright profile");
}

}  // namespace pipewright
