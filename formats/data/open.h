// Opens data sources, both built-in ones and those in shared libraries.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/data/source.h"

namespace pipewright {

struct DataJob;

// Opens the source that a job's "data" describes. Throws Error for invalid files, names and sizes.
// Token files have the columns "tokens" and "target".
std::shared_ptr<DataSource> OpenSource(const DataJob& job);

// Opens token files. With T = `length`, sample w of a file has the tokens w*T to w*T+T-1, and as
// its target the tokens w*T+1 to w*T+T; both are int64. `width`: bytes of a token. Samples of a
// file come after those of the files before it; none spans two files.
std::shared_ptr<DataSource> OpenTokens(const std::vector<std::string>& files, int width,
                                       int64_t length);

// A tensor whose rows are samples, or the rows of one tensor in each of several files.
struct ColumnFiles {
  std::string column;              // its name in the job
  std::string tensor;              // in each file; not used for .npy, which hold one
  std::vector<std::string> files;  // .npy, else safetensors
};
std::shared_ptr<DataSource> OpenColumns(const std::vector<ColumnFiles>& columns);

// Opens the source in a shared library (see source.h).
std::shared_ptr<DataSource> OpenPlugin(const std::string& library, const std::string& options);

// Returns the order of `count` samples in epoch `epoch`: ascending by splitmix64(splitmix64(seed +
// 0x9E3779B97F4A7C15 * (epoch + 1)) xor sample), or 0, 1, 2, ... without `shuffle`.
std::vector<int64_t> EpochOrder(int64_t count, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace pipewright
