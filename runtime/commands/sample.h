// Chooses the next token of a text from a language model's logits.
#pragma once
#include <cstdint>
#include <vector>

namespace pipewright {

// Applied in this order, as Hugging Face's generation does.
struct SampleOptions {
  // Logits of tokens already in the text are divided by it, or multiplied if negative
  // (Keskar et al., CTRL, 1909.05858, section 4.1); 1: unchanged.
  double repetition_penalty = 1;
  double temperature = 0;  // logits are divided by it; 0: the likeliest token, the first on a tie
  int64_t top_k = 0;       // choose among the k likeliest (and ties); 0: all
  // Choose among the fewest tokens that together have this probability, likeliest first (Holtzman
  // et al., nucleus sampling, 1904.09751).
  double top_p = 1;
};

// Returns the next token. `text`: the tokens so far; `random`: in [0, 1). Throws Error if no logit
// is finite.
int64_t NextToken(std::vector<float> logits, const std::vector<int64_t>& text,
                  const SampleOptions& options, double random);

// Returns a random number in [0, 1) for token `position` of text `row`, the same on every rank and
// machine.
double RandomOf(uint64_t seed, uint64_t row, uint64_t position);

}  // namespace pipewright
