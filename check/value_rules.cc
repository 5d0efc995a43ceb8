// Rules of `check` about values: token ids, class numbers, sizes of samples.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "base/error.h"
#include "base/size.h"
#include "base/text.h"
#include "check/rules.h"
#include "formats/weights/safetensors.h"
#include "runtime/data/data.h"
#include "runtime/module/module_code.h"
#include "runtime/module/table_uses.h"
#include "runtime/optimizer/loss.h"
#include "runtime/trial/shapes.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

// Limits that keep reading short: bytes of an input in all and per batch, and samples.
constexpr int64_t kMostBytes = int64_t{1} << 30, kBatchBytes = int64_t{1} << 24;
constexpr int64_t kMostSamples = 1000000;

// An input of the model, by index, whose values are row numbers of a table.
struct TableInput {
  int input;
  std::string table;
  int64_t rows;
};

std::vector<TableInput> FindTables(const std::string& package, const Manifest& manifest) {
  std::vector<TableInput> found;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    auto place = [&](int id) {
      return std::find(manifest.inputs.begin(), manifest.inputs.end(), id);
    };
    if (module.skipped || std::none_of(module.inputs.begin(), module.inputs.end(), [&](int id) {
          return place(id) != manifest.inputs.end();
        }))
      continue;
    const CompiledText code = CompileModule(package, manifest, static_cast<int>(m));
    for (const TableUse& use : TableUses(*torch::jit::toGraphFunction(*code.forward).graph())) {
      const auto input = place(module.inputs[use.input - 1]);
      const auto held = std::find_if(module.held.begin(), module.held.end(),
                                     [&](const WeightInfo& one) { return one.name == use.table; });
      if (input != manifest.inputs.end() && held != module.held.end())
        found.push_back({static_cast<int>(input - manifest.inputs.begin()), use.table,
                         held->shape[0]});
    }
  }
  return found;
}

void CheckTable(const TableInput& table, const at::Tensor& values, int64_t first,
                const std::string& name) {
  const at::Tensor wrong = values.lt(0).logical_or(values.ge(table.rows));
  if (!wrong.any().item<bool>()) return;
  const int64_t row = wrong.reshape({wrong.size(0), -1}).any(1).nonzero()[0][0].item<int64_t>();
  const int64_t value = values[row].masked_select(wrong[row])[0].item<int64_t>();
  throw Error(name, "sample " + std::to_string(first + row) + ": " + std::to_string(value) +
                        " is not in the table " + table.table + " of " +
                        std::to_string(table.rows) + " rows, 0 to " +
                        std::to_string(table.rows - 1));
}

// Calls `check` with the values of the first `samples` samples, in batches, and the number of the
// batch's first sample. Returns how many samples were read. `input` is as in Data::Rows.
int64_t ForRows(const Data& data, int input, int64_t samples,
                const std::function<void(const at::Tensor& values, int64_t first)>& check) {
  const int64_t bytes =
      std::max<int64_t>(1, 8 * c10::multiply_integers(data.Spec(input, 1, -1).sizes));
  const int64_t most =
      std::min({samples, kMostSamples, std::max<int64_t>(1, kMostBytes / bytes)});
  const int64_t batch = std::max<int64_t>(1, kBatchBytes / bytes);
  std::vector<int64_t> rows;
  for (int64_t first = 0; first < most; first += batch) {
    rows.clear();
    for (int64_t row = first; row < std::min(most, first + batch); ++row) rows.push_back(row);
    check(data.Rows(input, rows.data(), static_cast<int64_t>(rows.size())), first);
  }
  return most;
}

// Returns the number of samples in the first `minibatches` minibatches of an epoch; 0: all of them.
int64_t CountSamples(const Job& job, const Data& data, int64_t minibatches) {
  const Sampler sampler(job, /*shuffle=*/false, data);
  const int64_t all = sampler.per_epoch();
  int64_t samples = 0;
  for (int64_t b = 0; b < (minibatches > 0 ? std::min(minibatches, all) : all); ++b)
    samples += sampler.Samples(b);
  return samples;
}

// Returns the types and sizes of all values for one microbatch of this data.
std::vector<TensorSpec> SpecsOf(const std::string& package, const Manifest& manifest,
                                const Job& job, const Data& data) {
  std::vector<TensorSpec> inputs;
  for (size_t i = 0; i < manifest.inputs.size(); ++i)
    inputs.push_back(data.Spec(static_cast<int>(i), job.microbatch_size, -1));
  return InferShapes(package, manifest, inputs);
}

}  // namespace

void CheckValues(const CheckRequest& request, const Job& job, const Manifest& manifest,
                 CheckResult& result) {
  const std::string& package = request.package;
  auto check = [&](const DataJob& source, const std::string& where, int64_t minibatches) {
    const std::unique_ptr<Data> data = OpenData(source, manifest, where);
    if (data->has_lengths())
      return Skip(result, "values", where + ": samples have lengths, and padding may be anything");
    const int64_t samples = CountSamples(job, *data, minibatches);
    // Shuffled data may reach every sample; in order, samples after the last step are never read.
    const int64_t reached = source.shuffle ? data->samples() : samples;
    auto read = [&](int input, const std::string& name,
                    const std::function<void(const at::Tensor&, int64_t)>& look) {
      if (!at::isIntegralType(data->Spec(input, 1, -1).type, /*includeBool=*/false)) return;
      int64_t count = reached;
      const bool passes =
          Passes(result, "values", [&] { count = ForRows(*data, input, reached, look); });
      if (!passes && samples < reached) result.findings.back().severity = Severity::kWarning;
      if (count < reached)
        Skip(result, "values", name + ": samples from " + std::to_string(count) + " on");
    };
    for (const TableInput& table : FindTables(package, manifest)) {
      const std::string name = data->InputName(table.input);
      read(table.input, name, [&](const at::Tensor& values, int64_t first) {
        CheckTable(table, values, first, name);
      });
    }
    if (std::none_of(job.losses.begin(), job.losses.end(),
                     [](const LossJob& loss) { return loss.HasClasses(); }))
      return;
    const std::vector<TensorSpec> specs = SpecsOf(package, manifest, job, *data);
    for (size_t k = 0; k < job.losses.size(); ++k) {
      const LossJob& loss = job.losses[k];
      const int target = -1 - static_cast<int>(k);
      const std::string name = data->TargetName(static_cast<int>(k));
      const TensorSpec& output = specs[manifest.outputs[static_cast<size_t>(loss.output)]];
      if (!loss.HasClasses() || !output.known) continue;
      const int64_t classes =
          CountClasses(loss, output, data->Spec(target, job.microbatch_size, -1), name);
      read(target, name, [&](const at::Tensor& values, int64_t) {
        CheckClasses(loss, values, classes, name);
      });
    }
  };
  Passes(result, "values", [&] {
    check(job.data, job.path + ": data", request.eval ? 0 : job.steps * job.accumulate);
  });
  if (!request.eval && job.validation.every > 0)
    Passes(result, "values", [&] {
      check(job.validation.data, job.path + ": validation.data", job.validation.steps);
    });
}

void CheckInputValues(const CheckRequest& request, const Manifest& manifest, CheckResult& result) {
  const SafetensorsFile file(request.input);
  for (const TableInput& table : FindTables(request.package, manifest)) {
    const std::string& name = manifest.values[manifest.inputs[static_cast<size_t>(table.input)]].name;
    const TensorInfo* info = file.Find(name);
    if (!info || info->shape.empty()) continue;
    if (static_cast<int64_t>(info->end - info->begin) > kMostBytes) {
      Skip(result, "values", name + ": more than " + SizeText(kMostBytes));
      continue;
    }
    at::Tensor values = at::empty(info->shape, DtypeOfSafetensors(info->dtype));
    file.Read(*info, 0, static_cast<char*>(values.data_ptr()), values.nbytes());
    if (!at::isIntegralType(values.scalar_type(), /*includeBool=*/false)) continue;
    Passes(result, "values", [&] {
      CheckTable(table, values.to(at::kLong), 0, request.input + ": " + Quote(name));
    });
  }
}

}  // namespace pipewright
