// Text from a language model's package, one token after the other.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/sample.h"
#include "runtime/train.h"

namespace pipewright {

struct GenerateOptions {
  std::vector<std::string> prompts, tokens;  // texts as bytes; or "1,2,3" each
  std::string prompt_file;                   // a further text
  int64_t new_tokens = 64;
  SampleOptions sample;
  uint64_t seed = 0;
  int64_t stop = -1;    // ends a text; -1: none
  int64_t context = 0;  // tokens that the model sees at most; 0: as many as it was exported for
  int logits = 0;       // which output has them
  bool json = false;
};

// The model takes tokens [batch, length] (or [length]) of a fixed or a dynamic size and gives
// logits [batch, length, vocabulary], those of a position from tokens up to it (or [batch,
// vocabulary], of the last position). Of a text longer than the length it sees the end; what is
// shorter is filled up behind. Inputs called attention_mask, position_ids and token_type_ids are
// filled in. Texts beside each other are the rows; with several ranks they flow as microbatches.
// Writes to run.output, or standard output. On every rank; throws the same Error on all of them.
void Generate(const RunOptions& run, const GenerateOptions& options, Transport& transport);

}  // namespace pipewright
