// pipewright diff A B [--json]
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "report/differences.h"

namespace pipewright {

namespace {

struct DiffRequest {
  std::string first, second;
  bool json = false;
};

void Diff(const DiffRequest& request) {
  const Differences found = FindDifferences(request.first, request.second);
  if (request.json)
    PrintJson(DifferencesJson(found));
  else
    std::cout << DifferencesText(found, request.first, request.second);
  if (!found.list.empty()) throw CLI::RuntimeError(kFailure);
}

}  // namespace

void AddDiffCommand(CLI::App& app) {
  auto request = std::make_shared<DiffRequest>();
  app.add_option("first", request->first, "a package, conf, plan, job or trace")->required();
  app.add_option("second", request->second, "another one of the same kind")->required();
  app.add_flag("--json", request->json, "print JSON and nothing else");
  app.callback([request] { Diff(*request); });
}

}  // namespace pipewright
