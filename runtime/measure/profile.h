// Measures a package, on one rank or on those that will run it.
#pragma once
#include <string>

#include "formats/profile/profile.h"
#include "runtime/exec/transport.h"
#include "runtime/stage/stage.h"

namespace pipewright {

struct ProfileOptions {
  std::string package;
  std::string conf;        // with several ranks: assigns modules to ranks; empty: conf/mp_conf.json
  std::string input;       // a safetensors file with a tensor per input; empty: see samples.h
  // A job for training: modules are measured with its data (without `input`), its frozen
  // parameters, body and matmul. Empty: as the package is.
  std::string job;
  int64_t microbatch = 0;  // samples; 0: as in the inputs
  int repeat = 20, warm_up = 3;
  int threads = 1;
  bool fine = false;  // measure submodules of a module separately
  // Measure only the forward of each module, as `infer` computes it, with the weights of one module
  // in memory at a time. Other times and the bytes for a backward are 0.
  bool forward_only = false;
  std::string device;  // of every rank, as in SessionOptions; empty: cpu
  DeviceLinks links = DeviceLinks::kAuto;
  bool share_devices = false;
};

// Runs the modules one after the other, each on the (first) rank that the conf assigns to it while
// the others wait; then measures the links, through which values would travel in a run. Returns the
// same profile on every rank. Collective. `source` describes the origin of the inputs.
Profile MeasurePackage(const ProfileOptions& options, Transport& transport, std::string& source);

}  // namespace pipewright
