// Finds the lines of a module's code that were edited after the model was compiled. A package keeps
// a short hash of each line (ModuleInfo::line_hashes), not a second copy of the code.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

// Returns four hexadecimal digits for each line.
std::string LineHashes(std::string_view code);

// Returns the numbers, from 1, of the lines that are new or changed, ascending. A deleted line
// counts as the one now in its place, or as the last one. Empty if `hashes` is empty, as in
// packages of earlier versions.
std::vector<int> EditedLines(std::string_view code, std::string_view hashes);

// Returns text such as "modules/module1.py (lines 12-14, 20)"; only the file if the package has no
// line hashes; "" if it was not edited.
std::string EditedPlace(const std::string& package, const ModuleInfo& module);

// Returns the places of all edited modules, separated by commas.
std::string EditedPlaces(const std::string& package, const Manifest& manifest);

}  // namespace pipewright
