// The sources that are built in, and those in shared libraries.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/data/source.h"

namespace pipewright {

struct DataJob;

// The source that a job's "data" describes. Throws Error for files, names and sizes that do not
// hold. Token files have the columns "tokens" and "target".
std::shared_ptr<DataSource> OpenSource(const DataJob& job);

// Token files: sample w of a file is its tokens w*T to w*T+T-1, and one further as the target; both
// int64. `width`: bytes of a token. Files follow each other; no sample spans two.
std::shared_ptr<DataSource> OpenTokens(const std::vector<std::string>& files, int width,
                                       int64_t length);

// Tensors whose rows are samples: each column is one tensor, or the same of several files, row
// after row.
struct ColumnFiles {
  std::string column;              // its name in the job
  std::string tensor;              // in each file; not used for .npy, which hold one
  std::vector<std::string> files;  // .npy, else safetensors
};
std::shared_ptr<DataSource> OpenColumns(const std::vector<ColumnFiles>& columns);

// A shared library (see source.h).
std::shared_ptr<DataSource> OpenPlugin(const std::string& library, const std::string& options);

// The order of `count` samples in epoch `epoch`: ascending by splitmix64(splitmix64(seed +
// 0x9E3779B97F4A7C15 * (epoch + 1)) xor sample), or 0, 1, 2, ... without shuffle.
std::vector<int64_t> EpochOrder(int64_t count, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace pipewright
