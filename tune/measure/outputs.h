// Compares what inference computed in two ways.
#pragma once
#include <string>

namespace pipewright {

// Returns in which output two files of `infer` differ by more than rounding, and how much, or "" if
// they do not: "\"logits\" differs by 20 %". `narrow`: some of the model is computed with 16-bit
// numbers. Memory does not grow with their size. Throws Error if one cannot be read.
std::string WhyOutputsDiffer(const std::string& path, const std::string& other, bool narrow);

}  // namespace pipewright
