// Compares what inference computed in two ways.
#pragma once
#include <string>

namespace pipewright {

// Returns in which output two files of `infer` differ by more than rounding, and how much, or "" if
// they do not: "\"logits\" differs by 20 %". `narrow`: some of the model is computed with 16-bit
// numbers. Memory does not grow with their size. Throws Error if one cannot be read.
std::string WhyOutputsDiffer(const std::string& path, const std::string& other, bool narrow);

// Returns the norm of the differences between two files of numbers with the same names, such as
// gradients, divided by the norm of those in `other`. NaN if any number is NaN in one of them only.
double DifferenceOf(const std::string& path, const std::string& other);

}  // namespace pipewright
