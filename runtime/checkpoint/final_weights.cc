#include "runtime/checkpoint/final_weights.h"

#include <sys/statvfs.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/files/output_path.h"
#include "base/size.h"
#include "base/text.h"
#include "plan/placement/residence.h"
#include "runtime/module/stored_weights.h"

namespace pipewright {

namespace fs = std::filesystem;

static int64_t BytesOfWeights(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const auto& [name, at] : ParametersAndBuffers(manifest))
    bytes += BytesOf(manifest.modules[at.module].held[at.index]);
  return bytes;
}

std::vector<std::string> WarningsOfLoss(const Job& job, const Manifest& manifest) {
  std::vector<std::string> warnings;
  if (job.save.empty() && job.checkpoint.folder.empty())
    warnings.push_back(
        job.path +
        " has neither \"save\" nor \"checkpoint\": the trained weights will be lost "
        "at the end\n  keep them: \"save\": \"FILE.safetensors\" in the job (or --save)");
  const int64_t bytes = BytesOfWeights(manifest);
  auto look = [&](const std::string& output, const std::string& takes) {
    fs::path folder = fs::absolute(output).parent_path();
    while (!fs::exists(folder) && folder.has_relative_path()) folder = folder.parent_path();
    struct statvfs disk;
    if (statvfs(folder.c_str(), &disk) != 0) return;
    const auto room = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    if (room < bytes)
      warnings.push_back(output + takes + ", and its disk has only " + SizeText(room) + " free");
  };
  if (!job.save.empty() && !IsStream(job.save))
    look(job.save, " will take " + SizeText(bytes) + " at the end");
  if (!job.checkpoint.folder.empty())
    look((fs::path(job.checkpoint.folder) / "").string(),
         ": a checkpoint takes more than " + SizeText(bytes));
  return warnings;
}

// Returns why the weights could not be saved there; "" if they were.
static std::string TrySave(Session& session, const std::string& path) {
  try {
    session.Save(path);
    return "";
  } catch (const AgreedError& e) {
    return e.what();
  }
}

std::string SaveFinalWeights(Session& session, const std::string& checkpoint) {
  Transport& transport = session.transport;
  const std::string failure = TrySave(session, session.job.save);
  if (failure.empty()) {
    if (transport.rank() == 0) std::printf("weights saved in %s\n", session.job.save.c_str());
    return "";
  }
  if (!checkpoint.empty())
    return failure + "\n  the checkpoint has the weights: pipewright weights merge " + checkpoint +
           " -o FILE.safetensors";
  return failure + SaveElsewhere(session, fs::path(session.job.save).filename().string());
}

std::string SaveElsewhere(Session& session, const std::string& name) {
  Transport& transport = session.transport;
  std::vector<std::string> tried;
  std::error_code none;  // TMPDIR may name something else than a folder
  const std::string temporary = transport.AllGather(fs::temp_directory_path(none).string())[0];
  for (const std::string& folder : {temporary, std::string("/dev/shm")}) {
    if (folder.empty()) continue;
    std::string path = folder + "/pipewright-weights-XXXXXX";
    if (transport.rank() == 0) (void)!mkdtemp(path.data());
    path = transport.AllGather(path)[0] + "/" + name;
    if (TrySave(session, path).empty())
      return "\n  the weights were saved in " + path + " instead: move them from there";
    if (transport.rank() == 0) fs::remove(fs::path(path).parent_path(), none);
    tried.push_back(folder);
  }
  return "\n  there is no room in " + Join(tried, " and ") +
         " either: the weights of the last step are lost";
}

}  // namespace pipewright
