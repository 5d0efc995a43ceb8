// Reads the "optimizer" object of a job: the algorithm, the learning rates, and the parameters it
// applies to.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/manifest.h"

namespace pipewright {

// The learning rate of a step is lr times a factor: a linear warm-up, then one of these.
struct RateJob {
  enum Kind { kConstant, kCosine, kLinear, kPolynomial, kStep } kind = kConstant;
  int64_t warmup = 0;  // steps
  int64_t steps = 0;   // step at which the end is reached, including warm-up; 0: the run's
  double end = 0;      // the factor at that step
  double power = 1;    // kPolynomial
  double gamma = 0.1;  // kStep: multiplies the factor every `every` steps
  int64_t every = 1;

  // Returns true if the factor depends on `steps`.
  bool HasLength() const { return kind == kCosine || kind == kLinear || kind == kPolynomial; }
};

struct OptimizerJob {
  enum Kind { kSgd, kAdam, kAdamW, kRmsprop, kAdagrad, kMuon } kind = kSgd;
  std::string type = "sgd";  // its name in the job
  double lr = 1e-3;
  double weight_decay = 0;
  double momentum = 0, dampening = 0;  // SGD, RMSprop and Muon (momentum)
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW, RMSprop (eps), Adagrad (eps)
  bool amsgrad = false;
  double ns_coefficients[3] = {3.4445, -4.7750, 2.0315};  // Muon
  int ns_steps = 5;
  enum AdjustLr { kOriginal, kMatchRmsAdamW } adjust_lr = kOriginal;
  double alpha = 0.99;  // RMSprop
  bool centered = false;
  double lr_decay = 0, initial_accumulator = 0;  // Adagrad
  double clip_norm = 0;                          // the limit for all gradients together; 0: none
  bool master_weights = false;                   // train 16-bit parameters through 32-bit copies
  // Keeps states between steps in files below a folder ("": the default for temporary files)
  // instead of in memory.
  bool state_on_disk = false;
  std::string state_folder = "";

  // Parameters with a name that matches any of the patterns; the first matching group applies.
  struct Group {
    std::vector<std::string> match;
    std::optional<double> lr, weight_decay;
  };
  std::vector<Group> groups;

  // Muon is for the matrices between layers. This optimizer trains parameters that are not
  // two-dimensional, and those that match the patterns (embeddings, the head).
  std::shared_ptr<const OptimizerJob> others;
  std::vector<std::string> others_match;
  RateJob rate;
};

// Reads the object. `steps` is the length of a schedule that names none; 0: that of the run. Throws
// Error naming the key.
OptimizerJob ReadOptimizer(const Json& in, const std::string& where, int64_t steps);

// Returns the type, for Muon with that of the other optimizer. A run can only be resumed with the
// same text.
std::string OptimizerText(const OptimizerJob& job);

// Returns the rates of a run of `steps` steps: their length is known.
RateJob RateOfRun(const RateJob& rate, int64_t steps);
// Returns the factor of the learning rate at `step`, from 0. The length must be known.
double RateFactor(const RateJob& rate, int64_t step);

// Returns the optimizer with learning rate and weight decay of a parameter, given all its names and
// whether it is a matrix of real numbers.
OptimizerJob OptimizerFor(const OptimizerJob& job, const std::vector<std::string>& names,
                          bool matrix);

// Returns all names of a state-dict entry; tied ones have several.
std::vector<std::string> NamesOf(const Manifest& manifest, const std::string& name);
// Returns true if any name matches any pattern; patterns are as in a shell: * ? [a-z].
bool MatchesAny(const std::vector<std::string>& patterns, const std::vector<std::string>& names);

// Freezes the matching parameters; values that depend on no trained parameter then carry no
// gradients. Throws Error (`where` names the job's key) for a pattern that matches no parameter and
// if nothing would be left to train.
void Freeze(Manifest& manifest, const std::vector<std::string>& patterns, const std::string& where);
// Returns a line for each module that holds trainable parameters but outputs no value with a
// gradient.
std::vector<std::string> UntrainedModules(const Manifest& manifest);
// Throws Error unless every pattern of every group matches a parameter.
void CheckGroups(const Manifest& manifest, const OptimizerJob& job, const std::string& where);

}  // namespace pipewright
