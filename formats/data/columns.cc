// A part of open.h: samples from the columns of files.
#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/data/npy.h"
#include "formats/data/open.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

namespace {

// The rows of one tensor in one file.
struct Rows {
  const MappedFile* file = nullptr;
  uint64_t begin = 0;  // bytes
  int64_t first = 0;   // the first row's sample
};

const TensorInfo& TensorAt(const SafetensorsHeader& header, const std::string& name,
                           const std::string& path) {
  if (const TensorInfo* info = header.Find(name)) return *info;
  std::vector<std::string> names;
  for (const TensorInfo& info : header.tensors) names.push_back(info.name);
  throw NoTensor(path, name, names);
}

class Columns : public DataSource {
 public:
  explicit Columns(const std::vector<ColumnFiles>& columns) {
    for (const ColumnFiles& column : columns) Add(column);
    for (size_t c = 1; c < columns.size(); ++c)
      if (counts_[c] != counts_[0])
        throw Error(columns[c].files[0], "\"" + columns[c].column + "\" has " +
                                             Counted(counts_[c], "sample") + ", \"" +
                                             columns[0].column + "\" has " +
                                             std::to_string(counts_[0]));
  }

  std::vector<DataColumn> columns() const override { return columns_; }
  int64_t samples() const override { return counts_.empty() ? 0 : counts_[0]; }
  void Read(int column, int64_t sample, char* to) const override {
    const std::vector<Rows>& parts = parts_[column];
    auto after = std::upper_bound(parts.begin(), parts.end(), sample,
                                  [](int64_t s, const Rows& rows) { return s < rows.first; });
    const Rows& rows = *std::prev(after);
    uint64_t bytes = row_bytes_[column];
    rows.file->Read(rows.begin + static_cast<uint64_t>(sample - rows.first) * bytes, to, bytes);
  }

 private:
  const MappedFile& Map(const std::string& path) {
    auto& file = files_[path];
    if (!file) file = std::make_unique<MappedFile>(path);
    return *file;
  }

  void Add(const ColumnFiles& column) {
    DataColumn info{column.column, "", {}};
    int64_t count = 0;
    std::vector<Rows> parts;
    for (const std::string& path : column.files) {
      const MappedFile& file = Map(path);
      std::string dtype;
      std::vector<int64_t> shape;
      uint64_t begin = 0;
      if (path.size() > 4 && path.substr(path.size() - 4) == ".npy") {
        NpyHeader header = ParseNpyHeader(file.bytes(), path);
        dtype = header.dtype, shape = header.shape, begin = header.data_begin;
      } else {
        if (!headers_.count(path)) headers_[path] = ParseSafetensorsHeader(file.bytes(), path);
        const SafetensorsHeader& header = headers_[path];
        const TensorInfo& tensor = TensorAt(header, column.tensor, path);
        dtype = FindDtype(tensor.dtype)->torch, shape = tensor.shape;
        begin = header.data_begin + tensor.begin;
        if (dtype.empty()) throw Error(path, "torch has no type " + tensor.dtype);
      }
      if (shape.empty())
        throw Error(path,
                    "\"" + column.column + "\" is a scalar; its first dimension must be samples");
      int64_t rows = shape[0];
      shape.erase(shape.begin());
      if (parts.empty())
        info.dtype = dtype, info.shape = shape;
      else if (info.dtype != dtype || info.shape != shape)
        throw Error(path, "\"" + column.column + "\" is " + dtype + " with rows of " +
                              ShapeText(shape) + ", in " + column.files[0] + " " + info.dtype +
                              " with rows of " + ShapeText(info.shape));
      if (rows > 0) parts.push_back({&file, begin, count});
      count += rows;
    }
    row_bytes_.push_back(TensorBytes(*FindDtype(info.dtype), info.shape, column.column));
    columns_.push_back(std::move(info));
    counts_.push_back(count);
    parts_.push_back(std::move(parts));
  }

  std::map<std::string, std::unique_ptr<MappedFile>> files_;
  std::map<std::string, SafetensorsHeader> headers_;
  std::vector<DataColumn> columns_;
  std::vector<int64_t> counts_;
  std::vector<uint64_t> row_bytes_;
  std::vector<std::vector<Rows>> parts_;  // by column
};

}  // namespace

std::shared_ptr<DataSource> OpenColumns(const std::vector<ColumnFiles>& columns) {
  return std::make_shared<Columns>(columns);
}

}  // namespace pipewright
