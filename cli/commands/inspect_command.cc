// pipewright inspect PACKAGE [--module K | --find NAME] [--conf F] [--profile F] [--json]
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "cli/numbers.h"
#include "report/inspect.h"

namespace pipewright {

namespace {

struct InspectRequest {
  std::string package, conf, profile, find;
  int module = -1;
  bool json = false;
};

void Inspect(const InspectRequest& request) {
  const PackageView view = ViewPackage(request.package, request.conf, request.profile);
  if (!request.find.empty()) {
    const std::vector<FoundName> found = FindInPackage(view, request.find);
    if (request.json)
      PrintJson(FoundJson(view, found));
    else if (!found.empty())
      std::cout << FoundText(view, found);
    else
      std::cerr << "pipewright: " << request.package << ": no module, submodule, weight or value "
                << "has \"" << request.find << "\" in its name\n";
    if (found.empty()) throw CLI::RuntimeError(kFailure);
    return;
  }
  if (request.module >= 0) {
    const size_t count = view.manifest.modules.size();
    if (static_cast<size_t>(request.module) >= count)
      throw Error("--module", "there is no module " + std::to_string(request.module) + " in " +
                                  request.package + ", which has " + Counted(count, "module"));
    if (request.json) return PrintJson(ModuleJson(view, request.module));
    std::cout << ModuleText(view, request.module);
    return;
  }
  if (request.json) return PrintJson(PackageJson(view));
  std::cout << PackageText(view);
}

}  // namespace

void AddInspectCommand(CLI::App& app) {
  auto request = std::make_shared<InspectRequest>();
  app.add_option("package", request->package, "the package")->required();
  CLI::Option* module =
      app.add_option("--module", request->module, "show only this module: its values and weights")
          ->check(AtLeast(0));
  app.add_option("--find", request->find,
                 "list modules, submodules, weights and values whose name contains this, with "
                 "their module, ranks and file; exit code 1 if there are none")
      ->excludes(module);
  app.add_option("--conf", request->conf,
                 "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--profile", request->profile,
                 "measured times (default: PACKAGE/profile.json, if it exists)");
  app.add_flag("--json", request->json, "print JSON and nothing else");
  app.callback([request] { Inspect(*request); });
}

}  // namespace pipewright
