#include "formats/package/package_confs.h"

#include "base/error.h"
#include "formats/conf.h"

namespace pipewright {

std::map<std::string, std::string> PackageConfs(int modules, int ranks) {
  const std::string mp = WriteConf(GroupModules(modules, ranks));
  Conf dp;
  dp.module_to_stage.assign(static_cast<size_t>(modules), 0);
  dp.stage_to_ranks.emplace_back();
  for (int r = 0; r < ranks; ++r) dp.stage_to_ranks[0].push_back(r);
  return {{"mp_conf.json", mp},
          {"hybrid_conf.json", mp},  // until a profile decides otherwise
          {"dp_conf.json", WriteConf(dp)}};
}

std::map<std::string, std::string> PackageConfs(const std::string& folder, int modules) {
  try {
    const Conf dp = ReadConf(folder + "/conf/dp_conf.json");
    return PackageConfs(modules, static_cast<int>(dp.stage_to_ranks.at(0).size()));
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace pipewright
