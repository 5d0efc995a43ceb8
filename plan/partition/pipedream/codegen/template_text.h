// Templates of generated text.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// Replaces %(name)s by its value; %% is a percent sign. Lines that an empty value leaves behind go:
// at most one empty line stays within a class, two outside. Throws Error naming `where`, the
// template, for a name that is not in `values`, or one that is `needed` and missing.
std::string FillTemplate(const std::string& text, const std::map<std::string, std::string>& values,
                         const std::string& where, const std::vector<std::string>& needed);

}  // namespace pipewright
