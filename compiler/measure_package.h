// Measures packages for commands that know nothing of torch and MPI.
#pragma once
#include <functional>
#include <string>

#include "runtime/profile/profile.h"

namespace pipewright {

// On `in_process` ranks that are threads; 0: on those that mpirun started, or in this process.
// Calls `check` before, and `show` with the profile, each once, on rank 0. `source`: where the
// inputs came from. Throws Error, or under mpirun ends the program's command with the code that
// all ranks agree on.
void MeasureOnRanks(const ProfileOptions& options, int in_process,
                    const std::function<void()>& check,
                    const std::function<void(const Profile&, const std::string& source)>& show);

}  // namespace pipewright
