#include "runtime/exec/same_files.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/files/mapped_file.h"
#include "base/json.h"
#include "base/text.h"

namespace pipewright {

static uint64_t HashOf(const MappedFile& file, bool whole) {
  const uint64_t size = file.bytes().size();
  constexpr uint64_t kSmall = 1 << 20, kPiece = 1 << 20, kBlock = 4096, kBlocks = 64;
  uint64_t hash = Hash("");
  std::string piece;
  auto add = [&](uint64_t at, uint64_t bytes) {
    piece.resize(bytes);
    file.Read(at, piece.data(), bytes);
    hash = Hash(piece, hash);
  };
  if (whole || size <= kSmall)
    for (uint64_t at = 0; at < size; at += kPiece) add(at, std::min(kPiece, size - at));
  else
    for (uint64_t i = 0; i < kBlocks; ++i) add((size - kBlock) * i / (kBlocks - 1), kBlock);
  return hash;
}

Found FoundFile(const std::string& key, const std::string& path, bool whole) {
  const MappedFile file(path);
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(HashOf(file, whole)));
  return {key, path, std::to_string(file.bytes().size()) + " bytes with the hash " + hash,
          "give every host the same file, or name one that all hosts share"};
}

std::vector<Found> FoundEnvironment() {
  static const char* const kNames[] = {"ATEN_CPU_CAPABILITY",
                                       "DNNL_CPU_ISA_HINTS",
                                       "DNNL_DEFAULT_FPMATH_MODE",
                                       "DNNL_MAX_CPU_ISA",
                                       "GLIBC_TUNABLES",  // selects kernels of libm
                                       "MKL_CBWR",
                                       "MKL_DEBUG_CPU_TYPE",
                                       "MKL_DISABLE_FAST_MM",
                                       "MKL_DOMAIN_NUM_THREADS",
                                       "MKL_DYNAMIC",
                                       "MKL_ENABLE_INSTRUCTIONS",
                                       "MKL_NUM_STRIPES",
                                       "NVIDIA_TF32_OVERRIDE",
                                       "OMP_DYNAMIC",
                                       "OMP_THREAD_LIMIT",
                                       "ONEDNN_CPU_ISA_HINTS",
                                       "ONEDNN_DEFAULT_FPMATH_MODE",
                                       "ONEDNN_MAX_CPU_ISA",
                                       "OPENBLAS_CORETYPE",
                                       "PYTORCH_TENSOREXPR",
                                       "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                                       "TORCH_LINEAR_FLATTEN_3D",
                                       "TORCH_MKLDNN_MATMUL_MIN_DIM",
                                       "TORCH_MKLDNN_MATMUL_MIN_SIZE"};
  std::vector<Found> found;
  for (const char* name : kNames) {
    const char* value = std::getenv(name);
    found.push_back({std::string("environment/") + name, name,
                     value ? Quote(value) : std::string("no value"),
                     std::string("it changes how numbers are computed: set it to the same value on "
                                 "every host, as with mpirun -x ") +
                         name});
  }
  return found;
}

std::vector<Found> AgreeOn(Transport& transport, const std::vector<Found>& mine) {
  Json own = Json::array();
  for (const Found& found : mine) own.push_back({found.key, found.name, found.what, found.cure});
  const std::vector<std::string> all =
      transport.AllGather(own.dump(-1, ' ', false, Json::error_handler_t::replace));
  auto rank_name = [&](int rank) {
    const std::vector<std::string>& hosts = transport.hosts();
    const bool several = std::any_of(hosts.begin(), hosts.end(),
                                     [&](const std::string& host) { return host != hosts[0]; });
    return "rank " + std::to_string(rank) + (several ? " on " + hosts[rank] : "");
  };
  std::map<std::string, std::pair<int, Found>> first;  // by key
  for (int rank = 0; rank < transport.size(); ++rank)
    for (const Json& entry : Json::parse(all[rank])) {
      const Found found{entry[0], entry[1], entry[2], entry[3]};
      const auto [at, fresh] = first.emplace(found.key, std::pair(rank, found));
      const auto& [other, its] = at->second;
      if (fresh || its.what == found.what) continue;
      throw AgreedError(its.name + ": not the same on every rank: " + rank_name(other) + " found " +
                        its.what + ", " + rank_name(rank) + " " + found.what +
                        (found.name == its.name ? "" : " (" + found.name + ")") + "\n  " +
                        its.cure);
    }
  std::vector<Found> found;
  for (auto& [key, entry] : first) found.push_back(std::move(entry.second));
  return found;
}

}  // namespace pipewright
