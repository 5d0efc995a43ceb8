// Fills in templates of generated text.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// Replaces %(name)s by its value; %% is a percent sign. Removes empty lines that empty values
// leave: at most one stays within a class, two outside. Throws Error naming `where`, the template,
// for a name that is not in `values`, and for a `needed` one that the template lacks.
std::string FillTemplate(const std::string& text, const std::map<std::string, std::string>& values,
                         const std::string& where, const std::vector<std::string>& needed);

}  // namespace pipewright
