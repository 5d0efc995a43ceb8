// Formats a package as text and JSON: all of it, one module, or the things with a name.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "report/view.h"

namespace pipewright {

std::string PackageText(const PackageView& view);
Json PackageJson(const PackageView& view);

// Describe one module with its inputs, outputs and weights.
std::string ModuleText(const PackageView& view, int module);
Json ModuleJson(const PackageView& view, int module);

// A module, submodule, value or weight whose name contains a word.
struct FoundName {
  std::string kind, name;  // kind: module, submodule, value, parameter, buffer, constant
  int module = -1;         // -1: an input of the model
  std::string file;        // in the package
};
std::vector<FoundName> FindInPackage(const PackageView& view, const std::string& word);
std::string FoundText(const PackageView& view, const std::vector<FoundName>& found);
Json FoundJson(const PackageView& view, const std::vector<FoundName>& found);

}  // namespace pipewright
