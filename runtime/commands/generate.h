// Generates text with a language model's package, token by token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/commands/run_options.h"
#include "runtime/commands/sample.h"

namespace pipewright {

struct GenerateOptions {
  std::vector<std::string> prompts, tokens;  // prompts as bytes, or each as "1,2,3"
  std::string prompt_file;                   // file with another prompt
  int64_t new_tokens = 64;
  SampleOptions sample;
  uint64_t seed = 0;
  int64_t stop = -1;    // token that ends a text; -1: none
  int64_t context = 0;  // maximum tokens that the model sees; 0: as many as it was exported for
  int logits = 0;       // index of the output with the logits
  bool json = false;
};

// The model takes tokens [batch, length] (or [length]), of a fixed or a dynamic size, and returns
// logits [batch, length, vocabulary], those of a position computed from tokens up to it (or [batch,
// vocabulary], of the last position). The model sees the end of a text that is longer than its
// length; a shorter text is padded at the end. Inputs named attention_mask, position_ids and
// token_type_ids are filled in. Several texts form the rows of a batch; with several ranks they
// flow as microbatches. Writes to run.output or standard output. Must be called on every rank;
// throws the same Error on all of them.
void Generate(const RunOptions& run, const GenerateOptions& options, Transport& transport);

}  // namespace pipewright
