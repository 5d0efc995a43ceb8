// Reads a package with its conf and profile, for everything that displays a package.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "formats/profile/profile.h"

namespace pipewright {

struct PackageView {
  std::string package;
  Manifest manifest;
  std::string conf_path;
  std::optional<Conf> conf;        // checked against the manifest
  std::optional<Profile> profile;  // this package's
  std::vector<bool> edited;        // by module: its code is not as `compile` wrote it
  std::vector<std::string> missing;  // sentences: what is missing, and how to get it
};

// `conf` and `profile` are files, or "" for those in the package. Throws Error if a given file does
// not fit; lists one in the package that is absent or does not fit in `missing`.
PackageView ViewPackage(const std::string& package, const std::string& conf = "",
                        const std::string& profile = "");

// Return -1 and no ranks if there is no conf.
int StageOf(const PackageView& view, int module);
std::vector<int> RanksOf(const PackageView& view, int module);
int CountStages(const PackageView& view);
int CountRanks(const PackageView& view);

// Returns the bytes of one microbatch's value: from the profile, or else from a shape without
// dynamic sizes.
std::optional<int64_t> ValueBytes(const PackageView& view, int value);
int64_t ElementsOf(const WeightInfo& weight);

struct ModuleSize {
  int64_t parameters = 0, bytes = 0;  // elements of parameters; bytes of all that it holds
};
ModuleSize SizeOf(const ModuleInfo& module);

// Seconds for one microbatch.
struct ModuleTime {
  double forward = 0, backward = 0;
};
std::optional<ModuleTime> TimeOf(const PackageView& view, int module);

// A value that leaves the stage that makes it.
struct Crossing {
  int value = -1;
  int from = -1;        // stage
  std::vector<int> to;  // stages, ascending
};
std::vector<Crossing> CrossingsOf(const PackageView& view);

// Returns the shape with the names of dynamic sizes: "[s0, 64]".
std::string ValueShapeText(const ValueInfo& value);

}  // namespace pipewright
