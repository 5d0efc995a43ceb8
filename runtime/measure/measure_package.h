// Measures packages, for commands that do not include torch and MPI.
#pragma once
#include <functional>
#include <string>

#include "runtime/measure/profile.h"

namespace pipewright {

// Runs on `in_process` ranks as threads, or, if that is 0, on the ranks that mpirun started or in
// this process. Calls `check` first and `show` with the profile last, each once, on rank 0.
// `source` describes the origin of the inputs. Throws Error, or under mpirun exits with the code
// that all ranks agree on.
void MeasureOnRanks(const ProfileOptions& options, int in_process,
                    const std::function<void()>& check,
                    const std::function<void(const Profile&, const std::string& source)>& show);

}  // namespace pipewright
