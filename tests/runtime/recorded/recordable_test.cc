#include "runtime/recorded/operators.h"

#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>

namespace pipewright {

// Functions that read a tensor's memory directly cannot be recorded, nor can functions that have
// not been reviewed.
TEST(IsRecordable, Operators) {
  const std::vector<std::pair<std::string, std::string>> codes = {
      {"torch.linear(x, x)", ""},
      {"torch.cross_entropy_loss(x, x)", ""},
      {"torch.cat(torch.chunk(x, x.size(0)) + [x])", ""},
      {"torch.einsum('ab,cb->ac', [x, x]).view([x.size(0), -1]).to(7)", ""},
      {"x[:, 1:].masked_fill(x[:, 1:] > 0, 1.)", ""},
      {"torch.tensor_split(x, torch.ones([2], dtype=4))[0]", "aten::tensor_split"},
      {"torch.ctc_loss(x, x, x, x)", "aten::ctc_loss"},
      {"torch.histogramdd(x, [2, 2])[0]", "aten::histogramdd"},
      {"torch.quantile(x, 0.5)", "aten::quantile"},
      {"torch.embedding_bag(x, x, x)[0]", "aten::embedding_bag"},
      {"torch._pack_padded_sequence(x, x, True)[0]", "aten::_pack_padded_sequence"}};
  for (const auto& [code, refused] : codes) {
    torch::jit::Module script("m");
    script.define("def forward(self, x):\n  return " + code + "\n");
    std::string found;
    for (const torch::jit::Node* node : script.get_method("forward").graph()->nodes())
      if (!IsRecordable(*node)) found += node->kind().toQualString();
    EXPECT_EQ(found, refused) << code;
  }
}

}  // namespace pipewright
