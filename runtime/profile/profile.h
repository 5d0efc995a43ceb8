// A package measured, on one rank or on those that will run it.
#pragma once
#include <string>

#include "plan/profile/profile.h"
#include "runtime/exec/transport.h"

namespace pipewright {

struct ProfileOptions {
  std::string package;
  std::string conf;        // with several ranks: who measures what; empty: conf/mp_conf.json
  std::string input;       // a safetensors file with a tensor for each input; empty: see samples.h
  int64_t microbatch = 0;  // samples; 0: as the inputs have them
  int repeat = 20, warm_up = 3;
  int threads = 1;
  bool fine = false;  // below the modules, as far as their code names submodules
};

// Modules run one after the other, each on the (first) rank that the conf gives it while the others
// wait, on values that travel as in a run; then the links are measured. The same profile on every
// rank. Collective. `source` says where the inputs came from.
Profile MeasurePackage(const ProfileOptions& options, Transport& transport, std::string& source);

}  // namespace pipewright
