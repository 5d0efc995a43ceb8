// Defines a profile: the measured cost of each part of a package. `pipewright profile` writes it,
// and every search that decides where to cut reads it. Times are in seconds and sizes in bytes, for
// one microbatch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/manifest.h"

namespace pipewright {

// Median and interquartile range of the repetitions after warm-up.
struct ProfileTime {
  double median = 0, spread = 0;
};

// A module, or with --fine a part of one.
struct ProfileNode {
  std::string name;         // module3, or module3.2 for the third part of it
  std::string description;  // its submodules or operations
  int module = -1;          // its number in the package
  int rank = 0;             // the rank that measured it
  ProfileTime forward, backward, input_gradient, weight_gradient;
  double kept = 0;             // made by the forward and held until backward, outputs included
  double kept_for_weight = 0;  // the part of those and of gradients that is held from I to W
  // Inputs that it holds until backward, and from I to W. Their bytes are not counted above. Empty
  // in profiles of earlier versions.
  std::vector<int> held, held_for_weight;
  double peak = 0;             // most bytes alive at once: weights, inputs, all that it makes
  // The same without weights, for a forward that no backward follows; 0 in profiles of earlier
  // versions.
  double forward_only_peak = 0;
  double parameters = 0, trained = 0, buffers = 0;  // `trained`: parameters that take gradients
  std::vector<std::string> weights;                 // names of those that it holds
  // The body measured: "autograd" or "lists" (docs/reference/job.md); "": unknown.
  std::string body;
};

// A tensor or number that leaves a node, or an input of the model.
struct ProfileValue {
  std::string name;
  int producer = -1;           // node; -1: an input of the model
  std::vector<int> consumers;  // nodes, ascending
  double bytes = 0;
  bool gradient = false;  // a gradient of as many bytes comes back
  bool kept = true;       // `producer` holds it until backward and counts it in its own `kept`
};

// A weight that several nodes hold. In different stages, they exchange its gradient.
struct ProfileShared {
  std::vector<int> nodes;  // ascending
  double bytes = 0;
};

struct ProfileLink {
  int from = 0, to = 0;  // ranks
  double latency = 0, bytes_per_second = 0;
  double spread = 0;  // interquartile range of bytes_per_second; 0: not known
};

struct Profile {
  std::string package;
  int64_t microbatch = 0;  // samples
  int repeat = 0;          // measurements of each time
  int threads = 1;         // per rank
  bool fine = false;
  std::vector<ProfileNode> nodes;    // in the order of execution
  std::vector<ProfileValue> values;  // inputs of the model first
  std::vector<ProfileShared> shared;
  std::vector<ProfileLink> links;  // one per ordered pair of ranks; empty: one rank
};

// Returns true if a JSON document is a profile.
bool IsProfile(const Json& json);
// Returns true if a profile is unedited. Throws Error if `text` is not JSON.
bool IsProfileAsWritten(const std::string& text);

std::string WriteProfile(const Profile& profile);
// Throws Error naming `path`, line and column, and what is wrong: keys, ids out of range, values
// that go backwards, numbers that are negative or not finite.
Profile ParseProfile(const std::string& text, const std::string& path);

// Returns (from, to) for every value that one module makes and another uses.
std::vector<std::pair<int, int>> ModuleEdges(const Manifest& manifest);

// Throws Error naming `path` unless the profile is of this package's modules.
void CheckProfile(const Profile& profile, const Manifest& manifest, const std::string& path);

}  // namespace pipewright
