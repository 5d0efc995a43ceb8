// Finds what tune may choose for inference with a file of inputs, as a job says it for training.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "formats/job.h"
#include "formats/manifest.h"
#include "formats/written_buffer.h"
#include "tune/job/request.h"

namespace pipewright {

// Returns the sizes of microbatches into which a run can cut this many rows: the largest of as many
// microbatches as powers of two need, and all rows, between `least` and `most`. Microbatches are as
// equal as possible; none may be smaller than `least`.
std::set<int64_t> SizesOfRows(int64_t rows, int64_t least, int64_t most);

// Returns those for the request's input. Only the largest, with a note, if the outputs of the model
// are not rows of samples, or depend on the microbatches. Throws Error if the rows cannot be cut.
std::set<int64_t> SizesOfInput(const TuneRequest& request, const Manifest& manifest,
                               const std::vector<WrittenBuffer>& written,
                               std::vector<std::string>& notes);

// Returns the job of the plain run: microbatches of the largest of `sizes`.
Job JobOfInput(const TuneRequest& request, const Manifest& manifest,
               const std::set<int64_t>& sizes);

}  // namespace pipewright
