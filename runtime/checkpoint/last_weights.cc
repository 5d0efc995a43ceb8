#include "runtime/checkpoint/last_weights.h"

#include <sys/statvfs.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/output_path.h"
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
    warnings.push_back(job.path +
                       " has neither \"save\" nor \"checkpoint\": the trained weights will be lost "
                       "at the end\n  keep them: --save FILE.safetensors");
  if (job.save.empty() || IsStream(job.save)) return warnings;
  struct statvfs disk;
  const std::string folder = fs::absolute(job.save).parent_path().string();
  if (statvfs(folder.c_str(), &disk) != 0) return warnings;
  const auto room = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  const int64_t bytes = BytesOfWeights(manifest);
  if (room < bytes)
    warnings.push_back(job.save + " will take " + SizeText(bytes) +
                       " at the end, and its disk has room for " + SizeText(room) + " now");
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

std::string SaveLastWeights(Session& session, const std::string& checkpoint) {
  Transport& transport = session.transport;
  const std::string failure = TrySave(session, session.job.save);
  if (failure.empty()) {
    if (transport.rank() == 0) std::printf("weights saved in %s\n", session.job.save.c_str());
    return "";
  }
  if (!checkpoint.empty())
    return failure + "\n  the checkpoint has the weights: pipewright weights merge " + checkpoint +
           " -o FILE.safetensors";
  std::vector<std::string> tried;
  for (const std::string& folder : {fs::temp_directory_path().string(), std::string("/dev/shm")}) {
    std::string path = folder + "/pipewright-weights-XXXXXX";
    if (transport.rank() == 0) (void)!mkdtemp(path.data());
    path = transport.AllGather(path)[0] + "/" + fs::path(session.job.save).filename().string();
    if (TrySave(session, path).empty())
      return failure + "\n  the weights were saved in " + path + " instead: move them from there";
    std::error_code none;
    if (transport.rank() == 0) fs::remove(fs::path(path).parent_path(), none);
    tried.push_back(folder);
  }
  return failure + "\n  there is no room in " + Join(tried, " and ") +
         " either: the weights are lost";
}

}  // namespace pipewright
