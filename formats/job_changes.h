// Tells how two jobs differ in what their steps compute.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// Returns a text such as "\"loss\" from \"mse\" to \"l1\"" for each key that differs between the
// texts of two job files and of which losses or weights depend: not the number of steps, the order
// of actions, or the files that are written. Keys of objects within have names such as
// "optimizer.lr"; long values are left out.
std::vector<std::string> JobChanges(const std::string& before, const std::string& now);

}  // namespace pipewright
