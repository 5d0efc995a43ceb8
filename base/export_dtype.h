// Maps the numbers that archives of torch.export give to element types.
#pragma once
#include <cstdint>
#include <string>

namespace pipewright {

// Returns PyTorch's name, such as "float32", for a number of ScalarType in torch/_export/serde/
// schema.py (schema major 8). Throws Error naming `where` for unknown numbers.
std::string DtypeOfExport(int64_t number, const std::string& where);

}  // namespace pipewright
