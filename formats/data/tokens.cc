// A part of open.h: samples from a file of tokens.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "formats/data/open.h"

namespace pipewright {

namespace {

class Tokens : public DataSource {
 public:
  Tokens(const std::vector<std::string>& paths, int width, int64_t length)
      : width_(static_cast<size_t>(width)), length_(length) {
    for (const std::string& path : paths) {
      auto file = std::make_unique<MappedFile>(path);
      if (file->bytes().size() % width_)
        throw Error(path, "its size is not a multiple of " + std::to_string(width_) +
                              " bytes, the tokens' dtype");
      int64_t tokens = static_cast<int64_t>(file->bytes().size() / width_);
      first_.push_back(samples_);
      samples_ += tokens > 0 ? (tokens - 1) / length_ : 0;
      files_.push_back(std::move(file));
    }
  }

  std::vector<DataColumn> columns() const override {
    return {{"tokens", "int64", {length_}}, {"target", "int64", {length_}}};
  }
  int64_t samples() const override { return samples_; }
  int64_t tokens_per_sample() const override { return length_; }
  void Read(int column, int64_t sample, char* to) const override {
    size_t file = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), sample) -
                                      first_.begin() - 1);
    int64_t token = (sample - first_[file]) * length_ + column;
    const char* from = files_[file]->bytes().data() + static_cast<size_t>(token) * width_;
    for (int64_t i = 0; i < length_; ++i, from += width_, to += sizeof(int64_t)) {
      int64_t wide = 0;
      std::memcpy(&wide, from, width_);  // both are little-endian
      std::memcpy(to, &wide, sizeof wide);
    }
  }

 private:
  size_t width_;
  int64_t length_, samples_ = 0;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<int64_t> first_;  // first sample of each file; for an empty one, of the next
};

}  // namespace

std::shared_ptr<DataSource> OpenTokens(const std::vector<std::string>& files, int width,
                                       int64_t length) {
  return std::make_shared<Tokens>(files, width, length);
}

}  // namespace pipewright
