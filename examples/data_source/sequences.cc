// A custom data source: sequences that count in steps, generated on request.
//
//     c++ -std=c++20 -shared -fPIC -I INCLUDE sequences.cc -o libsequences.so
//
//     "data": {"plugin": "libsequences.so", "options": {"samples": 1000, "length": 16},
//              "inputs": {"tokens": "sequence"}, "target": "next"}
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "formats/data/source.h"

namespace {

class Sequences : public pipewright::DataSource {
 public:
  Sequences(int64_t samples, int64_t length) : samples_(samples), length_(length) {
    if (samples < 1 || length < 1) throw std::invalid_argument("samples and length are needed");
  }
  std::vector<pipewright::DataColumn> columns() const override {
    return {{"sequence", "int64", {length_}}, {"next", "int64", {length_}}};
  }
  int64_t samples() const override { return samples_; }
  int64_t tokens_per_sample() const override { return length_; }
  void Read(int column, int64_t sample, char* to) const override {
    for (int64_t i = 0; i < length_; ++i, to += sizeof(int64_t)) {
      int64_t value = (sample + (i + column) * (1 + sample % 3)) % 256;
      std::memcpy(to, &value, sizeof value);
    }
  }

 private:
  int64_t samples_, length_;
};

}  // namespace

extern "C" pipewright::DataSource* pipewright_open_data(const char* options) {
  nlohmann::json json = nlohmann::json::parse(options);
  if (!json.is_object()) throw std::invalid_argument("options are needed");
  return new Sequences(json.value("samples", 0), json.value("length", 0));
}
