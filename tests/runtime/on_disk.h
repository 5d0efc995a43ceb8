// Makes a rank whose weights are on disk, without a session.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan_text.h"
#include "runtime/module/module_weights.h"
#include "runtime/stage/offload.h"
#include "tests/runtime/small_package.h"

namespace pipewright {

// Both stages on one rank, with their weights on disk.
struct OnDisk {
  std::string package;
  SessionOptions options;
  Job job = SmallJob();
  RunPlan run;
  Plan none;
  std::vector<bool> recompute = {true, true};
  std::map<int, LoadedModule> modules;
  std::vector<Action> list = ReadPlan("0LOAD,1LOAD,0F0,0EVICT,1F0,1EVICT\n", "plan").ranks[0];
  at::Device device = at::kCPU;
  std::unique_ptr<ShapeCache> shapes;

  // `second`: the weight of the second stage; that of the first is {1, 2, 3}.
  explicit OnDisk(const std::string& name, const std::vector<float>& second = {4, 5, 6})
      : package(SmallPackage(name, {0, 0}, second)) {
    options.package = package;
    run.manifest = SmallManifest();
    run.conf = {{0, 1}, false, {{0}, {0}}, {}};
    run.on_disk = {{true}, {true}};
    shapes = std::make_unique<ShapeCache>(package, run.manifest);
    for (int m : {0, 1}) {
      WeightOptions weights;
      weights.left_out = {true};
      modules[m] = LoadModuleWith(package, run.manifest, m, weights);
    }
  }
  OffloadedWeights Open(Transport& transport, const std::vector<std::vector<int>>& ids) {
    return OffloadedWeights({options, job, run, none, recompute, *shapes, transport, device}, ids,
                            {list}, modules);
  }
};

}  // namespace pipewright
