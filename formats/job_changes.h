// Tells how two jobs differ in what their steps compute.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// Compares the texts of two job files. Returns a text such as "\"loss\" from \"mse\" to \"l1\"" for
// each difference that losses or weights depend on; the number of steps (unless the learning rate
// depends on it), the order of actions and the files that are written do not count. Nested keys
// have names such as "optimizer.lr". Long values are left out.
std::vector<std::string> ChangedJobKeys(const std::string& before, const std::string& now);

}  // namespace pipewright
