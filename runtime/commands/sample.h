// The next token of a text, from what a language model says about it.
#pragma once
#include <cstdint>
#include <vector>

namespace pipewright {

// Applied in this order, as Hugging Face's generation does.
struct SampleOptions {
  // Logits of tokens that the text has already are divided by it, or multiplied where negative
  // (Keskar et al., CTRL, 1909.05858, section 4.1); 1: unchanged.
  double repetition_penalty = 1;
  double temperature = 0;  // logits are divided by it; 0: the likeliest token, the first of equals
  int64_t top_k = 0;       // of the k likeliest (and their equals); 0: of all
  // Choose among the fewest tokens that together have this probability, likeliest first (Holtzman
  // et al., nucleus sampling, 1904.09751).
  double top_p = 1;
};

// `text`: the tokens so far; `random`: in [0, 1). Throws Error where no logit is a number.
int64_t NextToken(std::vector<float> logits, const std::vector<int64_t>& text,
                  const SampleOptions& options, double random);

// In [0, 1), of token `position` of text `row`: the same on every rank and machine.
double RandomOf(uint64_t seed, uint64_t row, uint64_t position);

}  // namespace pipewright
