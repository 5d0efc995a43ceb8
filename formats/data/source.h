// Defines the interface of data sources, both built-in ones and those that users write in shared
// libraries. Includes nothing of pipewright or torch.
//
// A library has one function
//
//     extern "C" pipewright::DataSource* pipewright_open_data(const char* options);
//
// where `options` is the JSON of the job's data.options. Exceptions that it throws (std::exception)
// are reported with the library's name. Every rank opens its own source and reads from one thread;
// all must give the same samples.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

// A tensor that every sample has.
struct DataColumn {
  std::string name;
  std::string dtype;           // torch's name: int64, float32, uint8, ...
  std::vector<int64_t> shape;  // the shape of one sample
};

class DataSource {
 public:
  virtual ~DataSource() = default;
  virtual std::vector<DataColumn> columns() const = 0;
  virtual int64_t samples() const = 0;
  // Returns the number that the metric `tokens_per_second` counts.
  virtual int64_t tokens_per_sample() const { return 1; }
  // Copies column `column` of `sample` (from 0) to `to`: contiguous, little-endian.
  virtual void Read(int column, int64_t sample, char* to) const = 0;
};

}  // namespace pipewright
