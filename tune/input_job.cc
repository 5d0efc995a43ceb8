#include "tune/input_job.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "plan/schedules/table.h"
#include "tune/allowed.h"

namespace pipewright {

namespace {

// Returns the rows of each input that has any.
std::vector<int64_t> InputRows(const TuneRequest& request, const Manifest& manifest) {
  const SafetensorsFile file(request.input);
  std::vector<int64_t> rows;
  for (int id : manifest.inputs) {
    const TensorInfo& info = file.At(manifest.values[static_cast<size_t>(id)].name);
    rows.push_back(info.shape.empty() ? 0 : info.shape[0]);
  }
  if (rows.empty() || rows[0] < 1)
    throw Error(request.input, "has no rows for the model's first input",
                "give it at least one: each row is a sample");
  return rows;
}

// Returns why all rows are one microbatch, or "" if they need not be.
std::string WhyWhole(const TuneRequest& request, const Manifest& manifest,
                     const std::vector<WrittenBuffer>& written) {
  if (!written.empty()) return "forward writes to " + written[0].name;
  const std::vector<int64_t> rows = InputRows(request, manifest);
  if (std::count(rows.begin(), rows.end(), rows[0]) != static_cast<int64_t>(rows.size()))
    return "not every input has a row for each sample";
  const ValueInfo& first = manifest.values[static_cast<size_t>(manifest.inputs[0])];
  for (int id : manifest.outputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    if (!value.dtype.empty() && !first.shape.empty() &&
        (value.shape.empty() || value.shape[0] != first.shape[0]))
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
  const int64_t rows = InputRows(request, manifest)[0];
  const auto [least, most] = SamplesAllowed(manifest);
  std::set<int64_t> sizes = SizesOfRows(rows, least, most);
  if (sizes.empty())
    throw Error(request.input,
                "its " + Counted(rows, "row") + " cannot be cut into microbatches of " +
                    std::to_string(least) +
                    (most > least ? " to " + std::to_string(most) : std::string()) +
                    " samples, which the model was exported for",
                "give it a multiple of that");
  if (const std::string why = WhyWhole(request, manifest, written);
      !why.empty() && sizes.size() > 1) {
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
  job.minibatch_size = InputRows(request, manifest)[0];
  job.microbatch_size = *sizes.rbegin();
  job.microbatches =
      static_cast<int>((job.minibatch_size + job.microbatch_size - 1) / job.microbatch_size);
  return job;
}

}  // namespace pipewright
