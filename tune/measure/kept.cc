#include "tune/measure/kept.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/process/host_resources.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/data/open.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

std::string MachineName() {
  std::string name = "unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) {
      name = line.substr(line.find(':') + 2);
      break;
    }
  return name + ", " + Counted(CoresHere(), "core") + ", " + SizeText(MemoryHere());
}

std::string KeptMeasurements::ToDelete() const {
  std::vector<std::string> there;
  for (const std::string& folder : folders)
    if (std::filesystem::exists(folder)) there.push_back(folder);
  return Join(there, " and ");
}

std::string StampsOf(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    std::error_code none;
    text +=
        std::to_string(std::filesystem::file_size(file, none)) + " " +
        std::to_string(std::filesystem::last_write_time(file, none).time_since_epoch().count()) +
        " ";
  }
  return text;
}

std::string StampsOfData(const Job& job) {
  std::string text = StampsOf(job.data.tokens) + StampsOf(job.data.tensors);
  for (const auto& [name, files] : job.data.arrays) text += StampsOf(files);
  return text + StampsOf({job.data.plugin});
}

std::string StampsOfWeights(const std::string& package, const Manifest& manifest) {
  std::vector<std::string> files;
  for (const ModuleInfo& module : manifest.modules) files.push_back(package + "/" + module.weights);
  return StampsOf(files);
}

KeptMeasurements KeptFor(const TuneRequest& request, const Manifest& manifest) {
  const std::string &package = request.package, &output = request.output;
  std::string code = PIPEWRIGHT_VERSION + ReadFile(package + "/manifest.json");
  for (const ModuleInfo& module : manifest.modules) code += ReadFile(package + "/" + module.code);
  code += StampsOf(manifest.op_libraries);
  std::vector<std::string> folders = {package + "/tuned/measured", output + "/measured"};
  if (!request.model.empty()) folders.erase(folders.begin());  // that package is temporary
  std::string machine = MachineName();
  if (!request.start.hosts.empty()) machine += ", --hosts " + request.start.hosts;
  if (!request.start.mpirun.empty()) machine += ", --mpirun " + request.start.mpirun;
  return {folders, machine, HexHash(code)};
}

// Returns the columns of the job's data, or none and why not.
static std::vector<DataColumn> ColumnsOf(const Job& job, std::string& why) {
  try {
    return OpenSource(job.data)->columns();
  } catch (const std::exception& error) {
    why = error.what();
    return {};
  }
}

std::string WhyNoData(const Job& job) {
  std::string why;
  ColumnsOf(job, why);
  return why;
}

static std::string TrainingPrefix(const Job& job) {
  std::string text;
  const Json whole = job.text.empty() ? Json::object() : ParseJson(job.text, job.path);
  for (const char* key : {"freeze", "body", "matmul"}) text += whole.value(key, Json()).dump();
  for (const auto& [input, column] : job.data.inputs) text += input + "=" + column + " ";
  std::string why;
  for (const DataColumn& column : ColumnsOf(job, why))
    text += column.name + column.dtype + ShapeText(column.shape) + job.data.length;
  return "train-" + HexHash(text) + "-";
}

std::string KeptPrefix(const TuneRequest& request, const Job& job) {
  if (!request.infers()) return TrainingPrefix(job);
  const SafetensorsFile file(request.input);
  std::string text;
  for (const TensorInfo& info : file.header().tensors)
    text += info.name + info.dtype + ShapeText(info.shape);
  return "infer-" + HexHash(text) + "-";
}

// Hosts that share the folder keep theirs apart.
static std::string FileOf(const KeptMeasurements& kept, const std::string& folder,
                          const std::string& name) {
  return folder + "/" + HexHash(kept.machine) + "-" + name + ".json";
}

std::optional<Json> ReadKept(const KeptMeasurements& kept, const std::string& name, int repeat) {
  for (const std::string& folder : kept.folders) {
    try {
      const Json file = ReadJson(FileOf(kept, folder, name));
      if (file.at("machine") == kept.machine && file.at("code") == kept.code &&
          file.at("repeat") >= repeat)
        return file.at("measured");
    } catch (const std::exception&) {
      // It is missing or damaged, and is measured again.
    }
  }
  return std::nullopt;
}

bool WriteKept(const KeptMeasurements& kept, const std::string& name, int repeat,
               const Json& measured) {
  const Json file = {
      {"machine", kept.machine}, {"code", kept.code}, {"repeat", repeat}, {"measured", measured}};
  for (const std::string& folder : kept.folders) {
    try {
      CreateFolders(folder);
      WriteFile(FileOf(kept, folder, name), FormatJson(file));
      return true;
    } catch (const Error&) {
      // The next folder may be writable.
    }
  }
  return false;
}

}  // namespace pipewright
