// Registers the operators that packages use besides PyTorch's: reproducible random ones, and
// markers.
#pragma once
#include <cstdint>

namespace pipewright {

// The key of random numbers. Together with the operation's id it determines them: they are the same
// on every rank, for every placement, and when recomputed.
struct RandomKey {
  uint64_t seed = 0, step = 0, microbatch = 0;
};

// Belongs to the calling thread; threads on which autograd runs backward for it must not draw.
// Set before a module runs; also makes sure that the operators are registered:
//   pipewright::dropout(Tensor input, float p, bool train, int id) -> Tensor
//   pipewright::feature_dropout, alpha_dropout, feature_alpha_dropout: the same arguments
//   pipewright::native_dropout: the same arguments, gives (Tensor, mask)
//   pipewright::scaled_dot_product_attention(query, key, value, attn_mask, p, is_causal, scale,
//       enable_gqa, train, id) -> Tensor      without training or p: PyTorch's own
//   pipewright::generator(Device device, int id) -> Generator?  for PyTorch's random operators
//   pippy::_pipe_split() -> ()                                  does nothing: torch's marker
//   pipewright::pipe_split() -> ()                              the same, kept by TorchScript
void SetRandomKey(const RandomKey& key);
RandomKey CurrentRandomKey();

}  // namespace pipewright
