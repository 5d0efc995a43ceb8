#include "cli/rank_arguments.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace pipewright {

std::vector<std::string> RankArguments(const std::vector<std::string>& command_line,
                                       const std::vector<StartOption>& left_out) {
  std::vector<std::string> words = {std::filesystem::read_symlink("/proc/self/exe")};
  for (size_t i = 1; i < command_line.size(); ++i) {
    std::string name = command_line[i].substr(0, command_line[i].find('='));
    if (name.size() > 2 && name.starts_with("-n") &&
        std::isdigit(static_cast<unsigned char>(name[2])))
      name = "-n";  // -n3 is -n 3
    const auto at = std::find_if(left_out.begin(), left_out.end(),
                                 [&](const StartOption& option) { return name == option.name; });
    if (at == left_out.end())
      words.push_back(command_line[i]);
    else if (at->has_value && name == command_line[i])
      ++i;
  }
  return words;
}

}  // namespace pipewright
