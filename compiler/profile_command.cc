// pipewright profile PACKAGE [options]
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "compiler/measure_package.h"
#include "plan/atomic_file.h"
#include "plan/error.h"
#include "plan/package_files.h"
#include "plan/profile/from_trace.h"
#include "plan/profile/graph.h"
#include "plan/profile/table.h"
#include "plan/text.h"

namespace pipewright {

namespace {

struct Request {
  ProfileOptions measure;
  std::string output, trace, base;
  int in_process = 0;
  bool json = false;
};

// profile.txt -> profile.json, beside it.
std::string JsonPath(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".json").string();
}

// What is written; "": the profile is only printed.
std::string OutputOf(const Request& request) {
  return request.output.empty() && !request.json ? request.measure.package + "/profile.txt"
                                                 : request.output;
}

// Before anything is measured.
void CheckOutputs(const Request& request) {
  const std::string output = OutputOf(request);
  if (output.empty()) return;
  std::vector<std::string> read =
      PackageFiles(request.measure.package, ReadManifest(request.measure.package));
  read.insert(read.end(), {request.measure.input, request.measure.conf, request.trace});
  CheckWritable(output, read);
  CheckWritable(JsonPath(output), read);
}

void Show(const Request& request, const Profile& profile, const std::string& source) {
  const std::string output = OutputOf(request);
  if (!output.empty()) {
    if (!output.ends_with(".json")) WriteFile(output, WriteGraphText(GraphOfProfile(profile)));
    WriteFile(JsonPath(output), WriteProfile(profile));
  }
  if (request.json) {
    std::cout << WriteProfile(profile);
    return;
  }
  std::cout << ProfileTable(profile);
  if (!source.empty())
    std::cout << profile.microbatch << " samples a microbatch, from " << source << "; median of "
              << profile.repeat << " and the distance between the quartiles\n";
  std::cout << "written to " << output
            << (output.ends_with(".json") ? "" : " and " + JsonPath(output)) << "\n";
}

// The conf of a run over one module's worth of stages: what it is grouped by.
Conf ConfOf(const Request& request, const Manifest& manifest) {
  std::string path = request.measure.conf.empty() ? request.measure.package + "/conf/mp_conf.json"
                                                  : request.measure.conf;
  Conf conf = ReadConf(path);
  CheckConf(conf, static_cast<int>(manifest.modules.size()), -1, ModuleEdges(manifest), path);
  return conf;
}

void FromTrace(const Request& request) {
  CheckOutputs(request);
  Manifest manifest = ReadManifest(request.measure.package);
  Conf conf = ConfOf(request, manifest);
  std::string base =
      request.base.empty() ? request.measure.package + "/profile.json" : request.base;
  if (!std::filesystem::exists(base))
    throw Error(base, "there is no profile to take the sizes from",
                "run `pipewright profile " + request.measure.package +
                    " --microbatch B` first, or name one: --base FILE");
  Profile profile = ParseProfile(ReadFile(base), base);
  CheckProfile(profile, manifest, base);
  ApplyTrace(profile, conf, ReadFile(request.trace), request.trace);
  Show(request, profile, "");
}

void Measure(const Request& request) {
  if (!request.trace.empty()) return FromTrace(request);
  MeasureOnRanks(
      request.measure, request.in_process, [&] { CheckOutputs(request); },
      [&](const Profile& profile, const std::string& source) { Show(request, profile, source); });
}

}  // namespace

void AddProfileCommand(CLI::App& app) {
  auto request = std::make_shared<Request>();
  Request& r = *request;
  app.add_option("package", r.measure.package, "folder that `pipewright compile` wrote")
      ->required();
  app.add_option("--microbatch", r.measure.microbatch,
                 "samples a microbatch (default: as many as the inputs have)")
      ->check(CLI::Range(1, 1 << 30).description("at least 1"));
  app.add_option("--repeat", r.measure.repeat, "measurements of each time (20)")
      ->check(CLI::Range(1, 1 << 30).description("at least 1"));
  app.add_option("--warm-up", r.measure.warm_up, "runs before the first measurement (3)")
      ->check(CLI::Range(0, 1 << 30).description("at least 0"));
  app.add_option("--threads", r.measure.threads, "threads of each rank (1)")
      ->check(CLI::Range(1, 1 << 30).description("at least 1"));
  app.add_option("--input", r.measure.input,
                 "safetensors file with a tensor for each input (default: the package's sample)");
  app.add_option("--conf", r.measure.conf,
                 "which rank measures which module, or the conf of the traced run (default: "
                 "PACKAGE/conf/mp_conf.json)");
  app.add_flag("--fine", r.measure.fine, "below the modules: each submodule that their code names");
  app.add_option("--in-process", r.in_process, "ranks as threads of this process, without MPI")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--from-trace", r.trace, "take the times of a run's trace instead of measuring");
  app.add_option("--base", r.base,
                 "with --from-trace: sizes, and what each module is of its stage's time (default: "
                 "PACKAGE/profile.json)");
  app.add_flag("--json", r.json, "print the profile as JSON and nothing else");
  app.add_option("-o,--output", r.output,
                 "graph text to write, the JSON beside it; FILE.json: that alone (default: "
                 "PACKAGE/profile.txt)");
  app.callback([request] { Measure(*request); });
}

}  // namespace pipewright
