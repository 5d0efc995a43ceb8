// Saves and loads the weights of a run under the names of the original model's state dict.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "formats/weights/checkpoint.h"
#include "runtime/exec/transport.h"
#include "runtime/stage/stage.h"

namespace pipewright {

// Writes one file with every parameter and persistent buffer, as safetensors' save_model does: of
// tied names the alphabetically first is kept, the others are metadata. Rank 0 writes; the others
// send it one tensor at a time. Collective; throws the same Error on every rank.
// `edited`: what EditedCode says, kept in the metadata; "": nothing.
void SaveWeights(const std::string& path, const Manifest& manifest, const Conf& conf,
                 const TorchStages& stages, Transport& transport, const std::string& edited);
// Writes the last step's gradients of trained parameters under the same names.
void SaveGradients(const std::string& path, const Manifest& manifest, const Conf& conf,
                   const TorchStages& stages, Transport& transport);

// Reads the weights of this rank's modules from the package, but not those that `on_disk` names
// ([module][held]). Throws Error.
void LoadPackageWeights(const std::string& package, const Manifest& manifest, TorchStages& stages,
                        const std::vector<std::vector<bool>>& on_disk);

// Returns true if a run takes this weight from a file of weights: not what belongs to the package's
// code, nor a buffer that the file leaves out because another tensor of the file shares its memory.
bool IsTakenFrom(const Checkpoint& checkpoint, const Manifest& manifest, const WeightInfo& weight);

// Copies the weights of this rank's modules from anything OpenCheckpoint takes, but not those that
// `on_disk` names ([module][held]; empty: none). Throws Error naming what is missing or of another
// shape.
struct LoadedWeights {
  std::vector<std::string> foreign;  // names that are left out, which the package does not have
  std::string edited;                // EditedCode of the run that wrote the file
};
LoadedWeights LoadWeights(const std::string& path, const Manifest& manifest, TorchStages& stages,
                          const std::vector<std::vector<bool>>& on_disk = {});

// Checks that all copies of a weight, shared or replicated, have the same bits, except those
// selected by `on_disk` ([module][held]). Collective; throws Error.
void CheckSharedCopies(const Manifest& manifest, const Conf& conf, const TorchStages& stages,
                       const std::vector<std::vector<bool>>& on_disk, Transport& transport);

}  // namespace pipewright
