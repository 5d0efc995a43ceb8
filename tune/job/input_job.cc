#include "tune/job/input_job.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "plan/schedules/table.h"
#include "tune/job/allowed.h"

namespace pipewright {

namespace {

// The input whose rows are the samples.
struct Samples {
  const ValueInfo* input = nullptr;
  int64_t rows = 0;
};

bool IsDynamic(const ValueInfo& value) {
  return !value.shape.empty() &&
         value.shape[0].find_first_not_of("0123456789") != std::string::npos;
}

// Returns the first input with a dynamic number of rows or, if the model has none, with rows, as
// `profile` does.
Samples SamplesIn(const SafetensorsFile& file, const Manifest& manifest) {
  Samples samples;
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    const TensorInfo& info = file.At(value.name);
    if (info.shape.empty() || (samples.input && (IsDynamic(*samples.input) || !IsDynamic(value))))
      continue;
    samples = {&value, info.shape[0]};
  }
  if (samples.rows < 1)
    throw Error(file.path(), "has no rows for the model's inputs",
                "give it at least one: each row is a sample");
  return samples;
}

// Returns why `infer` cannot cut the inputs, all of which it would, or "" if it can.
std::string WhyUncut(const SafetensorsFile& file, const Manifest& manifest,
                     const Samples& samples) {
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    const TensorInfo& info = file.At(value.name);
    const bool known = !value.shape.empty() && !samples.input->shape.empty();
    if (info.shape.empty() || info.shape[0] != samples.rows ||
        (known && value.shape[0] != samples.input->shape[0]))
      return "input \"" + value.name + "\" does not have a row for each sample";
  }
  return "";
}

// Returns why all rows are one microbatch, or "" if they need not be.
std::string WhyWhole(const Manifest& manifest, const std::vector<WrittenBuffer>& written,
                     const Samples& samples) {
  if (!written.empty()) return "forward writes to " + written[0].name;
  for (int id : manifest.outputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    if (!value.dtype.empty() && !samples.input->shape.empty() &&
        (value.shape.empty() || value.shape[0] != samples.input->shape[0]))
      return "output \"" + value.name + "\" does not have a row for each sample";
  }
  return "";
}

}  // namespace

std::set<int64_t> SizesOfRows(int64_t rows, int64_t least, int64_t most) {
  std::set<int64_t> sizes;
  auto add = [&](int64_t wanted) {
    // `infer` is given the number of microbatches, and makes them as equal as possible.
    const int64_t count = (rows + wanted - 1) / wanted, size = (rows + count - 1) / count;
    if (size >= least && size <= most && rows - (count - 1) * size >= least) sizes.insert(size);
  };
  for (int64_t size = 1; size < rows; size *= 2) add(size);
  if (most < rows) add(most);
  add(rows);
  return sizes;
}

std::set<int64_t> SizesOfInput(const TuneRequest& request, const Manifest& manifest,
                               const std::vector<WrittenBuffer>& written,
                               std::vector<std::string>& notes) {
  const SafetensorsFile file(request.input);
  const Samples samples = SamplesIn(file, manifest);
  const auto [least, most] = SamplesAllowed(manifest, *samples.input);
  std::set<int64_t> sizes = SizesOfRows(samples.rows, least, most);
  const bool open = sizes.size() > 1;
  const std::string uncut = WhyUncut(file, manifest, samples);
  if (!uncut.empty()) std::erase_if(sizes, [&](int64_t size) { return size != samples.rows; });
  if (sizes.empty())
    throw Error(request.input,
                "its " + Counted(samples.rows, "row") + " cannot be cut into microbatches of " +
                    std::to_string(least) +
                    (most > least ? " to " + std::to_string(most) : std::string()) +
                    " samples, which the model was exported for" +
                    (uncut.empty() ? "" : ", since " + uncut),
                uncut.empty() ? "give it a multiple of that" : "give it as many rows");
  const std::string why = uncut.empty() ? WhyWhole(manifest, written, samples) : uncut;
  if (!why.empty() && open) {
    notes.push_back("the microbatch stays at " + Counted(*sizes.rbegin(), "sample") + ": " + why);
    sizes = {*sizes.rbegin()};
  }
  return sizes;
}

Job JobOfInput(const TuneRequest& request, const Manifest& manifest,
               const std::set<int64_t>& sizes) {
  Job job;
  job.path = request.input;
  job.schedule = kForwardSchedule;
  job.losses.clear();
  job.minibatch_size = SamplesIn(SafetensorsFile(request.input), manifest).rows;
  job.microbatch_size = *sizes.rbegin();
  job.microbatches =
      static_cast<int>((job.minibatch_size + job.microbatch_size - 1) / job.microbatch_size);
  return job;
}

}  // namespace pipewright
