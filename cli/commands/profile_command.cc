// pipewright profile PACKAGE [options]
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/output_path.h"
#include "base/files/overwrite.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "cli/numbers.h"
#include "cli/rank_arguments.h"
#include "formats/job.h"
#include "formats/package/package_files.h"
#include "formats/profile/from_trace.h"
#include "formats/profile/graph.h"
#include "formats/profile/table.h"
#include "runtime/measure/measure_package.h"
#include "runtime/watch/supervise.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

struct ProfileRequest {
  ProfileOptions measure;
  SuperviseOptions start;  // of ranks by mpirun
  std::string hosts;
  std::string output, trace, base;
  int in_process = 0;
  bool json = false, force = false;
  bool writes = false;  // `output` is given
};

// Output files; "" means not written.
struct Outputs {
  std::string text, json;  // profile.txt, and profile.json beside it
};

Outputs OutputsOf(const ProfileRequest& request) {
  std::string path = request.output;
  if (!request.writes && !request.json) path = request.measure.package + "/profile.txt";
  if (!request.writes && request.json) return {};
  if (path.ends_with(".json")) return {"", path};
  return {path, IsStream(path) ? "" : fs::path(path).replace_extension(".json").string()};
}

std::string WrittenTo(const Outputs& outputs) {
  const bool both = !outputs.text.empty() && !outputs.json.empty();
  return "written to " + outputs.text + (both ? " and " : "") + outputs.json + "\n";
}

// Returns the conf file of the run whose trace is read.
std::string ConfFile(const ProfileRequest& request) {
  return ConfOfRun(request.measure.package, request.measure.conf);
}

std::string TextOf(const Profile& profile) { return WriteGraphText(GraphOfProfile(profile)); }

// Throws Error if an existing output was not written by `profile`, or was edited since then.
void CheckOwn(const Outputs& outputs) {
  std::error_code none;
  std::string before;  // the JSON as it was written
  try {
    if (fs::is_regular_file(outputs.json, none)) {
      const std::string json = ReadFile(outputs.json);
      if (IsProfileAsWritten(json)) before = json;
    }
  } catch (const Error&) {
  }
  for (const std::string& path : {outputs.text, outputs.json})
    if (!path.empty())
      CheckOverwrite(
          path, "already exists, and is not what an earlier profile wrote",
          "name another file, or replace it with --force", [&](const std::string& text) {
            return !before.empty() &&
                   (path == outputs.json || text == TextOf(ParseProfile(before, outputs.json)));
          });
}

// Checks the outputs before anything is measured.
void CheckOutputs(const ProfileRequest& request) {
  if (request.writes && request.output.empty())
    throw Error("output", "its name is empty", "name a file");
  const Outputs outputs = OutputsOf(request);
  std::vector<std::string> read =
      PackageFiles(request.measure.package, ReadManifest(request.measure.package));
  read.insert(read.end(),
              {request.measure.input, request.measure.job, request.trace, request.base});
  if (!request.trace.empty()) read.push_back(ConfFile(request));
  if (!request.measure.job.empty()) {
    const DataJob data = ReadJob(request.measure.job).data;
    read.insert(read.end(), data.tokens.begin(), data.tokens.end());
    read.insert(read.end(), data.tensors.begin(), data.tensors.end());
    for (const auto& [name, files] : data.arrays)
      read.insert(read.end(), files.begin(), files.end());
  }
  for (const std::string& path : {outputs.text, outputs.json})
    if (!path.empty()) CheckWritable(path, read);
  if (!request.force) CheckOwn(outputs);
}

void Show(const ProfileRequest& request, const Profile& profile, const std::string& source) {
  const Outputs outputs = OutputsOf(request);
  if (!outputs.text.empty()) WriteFile(outputs.text, TextOf(profile));
  if (!outputs.json.empty()) WriteFile(outputs.json, WriteProfile(profile));
  if (request.json) {
    std::cout << WriteProfile(profile);
    if (request.writes) std::cerr << WrittenTo(outputs);
    return;
  }
  if (IsStandardOutput(outputs.text)) return;  // prints only the graph text
  std::cout << ProfileTable(profile);
  if (!source.empty())
    std::cout << profile.microbatch << " samples per microbatch, from " << source
              << "; median and interquartile range of " << profile.repeat << " measurements\n";
  std::cout << WrittenTo(outputs);
}

// Returns the conf by which the run grouped the modules.
Conf ConfOf(const ProfileRequest& request, const Manifest& manifest) {
  const std::string path = ConfFile(request);
  Conf conf = ReadConf(path);
  CheckConf(conf, static_cast<int>(manifest.modules.size()), -1, ModuleEdges(manifest), path);
  return conf;
}

void FromTrace(const ProfileRequest& request) {
  CheckOutputs(request);
  Manifest manifest = ReadManifest(request.measure.package);
  Conf conf = ConfOf(request, manifest);
  std::string base =
      request.base.empty() ? request.measure.package + "/profile.json" : request.base;
  if (!std::filesystem::exists(base))
    throw Error(base, "does not exist, and the sizes come from this profile",
                "run `pipewright profile " + request.measure.package +
                    " --microbatch-size B` first, or name one: --base FILE");
  Profile profile = ParseProfile(ReadFile(base), base);
  CheckProfile(profile, manifest, base);
  if (const int64_t asked = request.measure.microbatch; asked > 0 && asked != profile.microbatch)
    throw Error("--microbatch-size " + std::to_string(asked),
                base + " has " + Counted(profile.microbatch, "sample") + " per microbatch",
                "measure the sizes of the run: pipewright profile " + request.measure.package +
                    " --microbatch-size " + std::to_string(asked));
  ApplyTrace(profile, conf, ReadFile(request.trace), request.trace);
  Show(request, profile, "");
}

// Starts the ranks with mpirun, and exits.
[[noreturn]] void StartRanks(const ProfileRequest& request) {
  SuperviseOptions start = request.start;
  start.program = "pipewright";
  if (!request.hosts.empty()) start.hosts = Split(request.hosts, ',');
  std::vector<std::string> words = Split(ReadFile("/proc/self/cmdline"), '\0');
  words.pop_back();  // each word ends with a null
  start.command = RankArguments(words, {{"-n", true}, {"--hosts", true}, {"--mpirun", true}});
  throw CLI::RuntimeError(Supervise(start));
}

void Measure(const ProfileRequest& request) {
  if (!request.trace.empty()) return FromTrace(request);
  if (request.start.ranks > 0) StartRanks(request);
  MeasureOnRanks(
      request.measure, request.in_process, [&] { CheckOutputs(request); },
      [&](const Profile& profile, const std::string& source) { Show(request, profile, source); });
}

void AddRanks(CLI::App& app, ProfileRequest& r) {
  auto* threads = app.add_option("--in-process", r.in_process,
                                 "run N ranks as threads of this process, without MPI")
                      ->check(InRange(1, 1024))
                      ->type_name("N");
  auto* processes = app.add_option("-n", r.start.ranks, "number of ranks to start with mpirun")
                        ->check(AtLeast(1))
                        ->type_name("N")
                        ->excludes(threads);
  app.add_option("--hosts", r.hosts,
                 "hosts to start ranks on with mpirun: NAME:RANKS,NAME:RANKS,...")
      ->needs(processes);
  app.add_option("--mpirun", r.start.mpirun, "mpirun command, with any options of its own")
      ->capture_default_str()
      ->needs(processes);
}

}  // namespace

void AddProfileCommand(CLI::App& app) {
  auto request = std::make_shared<ProfileRequest>();
  ProfileRequest& r = *request;
  app.add_option("package", r.measure.package, "folder that `pipewright compile` wrote")
      ->required();
  app.add_option("--microbatch-size", r.measure.microbatch,
                 "samples per microbatch (default: as many as the inputs have)")
      ->check(AtLeast(1));
  app.add_option("--repeat", r.measure.repeat, "measurements of each time (default: 20)")
      ->check(AtLeast(1));
  app.add_option("--warmup", r.measure.warm_up, "runs before the first measurement (default: 3)")
      ->check(AtLeast(0));
  // Names in earlier versions.
  app.add_option("--microbatch", r.measure.microbatch)->check(AtLeast(1))->group("");
  app.add_option("--warm-up", r.measure.warm_up)->check(AtLeast(0))->group("");
  app.add_option("--threads", r.measure.threads, "threads per rank (default: 1)")
      ->check(AtLeast(1));
  app.add_option("--input", r.measure.input,
                 "safetensors file with a tensor for each input (default: the package's sample)");
  auto* job = app.add_option("--job", r.measure.job,
                             "job file for training: measure with its data (unless --input is "
                             "given), frozen parameters, body and matmul");
  app.add_option("--conf", r.measure.conf,
                 "conf that assigns modules to ranks; with --from-trace: that of the traced run "
                 "(default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--device", r.measure.device,
                 "where ranks compute: cpu, auto (an accelerator for each rank if the host has "
                 "any), a type such as cuda, or one device such as cuda:0 (default: cpu)");
  app.add_option_function<std::string>(
         "--links",
         [&r](const std::string& name) {
           r.measure.links = name == "nccl"  ? DeviceLinks::kNccl
                             : name == "mpi" ? DeviceLinks::kMpi
                                             : DeviceLinks::kAuto;
         },
         "links to measure between devices: nccl, mpi (through host memory), or auto (nccl between "
         "CUDA devices)")
      ->check(CLI::IsMember({"auto", "nccl", "mpi"}))
      ->default_str("auto");
  app.add_flag("--share-devices", r.measure.share_devices,
               "let several ranks of a host compute on one device");
  auto* fine = app.add_flag("--fine", r.measure.fine,
                            "measure separately each submodule that the code of a module names");
  auto* forward = app.add_flag("--forward-only", r.measure.forward_only,
                               "measure only the forward, as infer computes it, with the weights "
                               "of one module in memory at a time")
                      ->excludes(fine)
                      ->excludes(job);
  AddRanks(app, r);
  app.add_option("--from-trace", r.trace,
                 "take the times from the trace of a run instead of measuring")
      ->excludes(forward)
      ->excludes(job);
  app.add_option("--base", r.base,
                 "with --from-trace: profile that gives the sizes, and each module's share of its "
                 "stage's time (default: PACKAGE/profile.json)");
  app.add_flag("--json", r.json, "print the profile as JSON and nothing else");
  auto* output = app.add_option("-o,--output", r.output,
                                "graph text to write, with JSON beside it; FILE.json: JSON only; a "
                                "pipe or /dev/stdout: text only (default: PACKAGE/profile.txt)");
  app.add_flag("--force", r.force,
               "also replace files that were edited, or that profile did not write");
  app.callback([request, output] {
    request->writes = output->count() > 0;
    if (request->json && IsStandardOutput(request->output))
      throw UsageError("-o " + request->output, "is also where --json prints",
                       "leave out one of them");
    Measure(*request);
  });
}

}  // namespace pipewright
