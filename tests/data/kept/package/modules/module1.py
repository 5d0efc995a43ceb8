# Module 1 of model.pt2: second
# TorchScript: this text is what runs. Change it freely, but keep what enters, what leaves and
# what the class declares.
#   in   relu: float32 [s11, 12]
#   out  mul: float32 [s11, 10]
class Module1(Module):
  __parameters__ = [
    "second.weight",
    "second.bias",
    "embed.weight",
  ]
  __buffers__ = [
    "scale",
  ]
  training : bool
  __annotations__["second.weight"] = Tensor
  __annotations__["second.bias"] = Tensor
  __annotations__["embed.weight"] = Tensor
  scale : Tensor
  def forward(self: __torch__.Module1,
    relu: Tensor) -> Tensor:
    # second  make.py:14: return s.second(h) @ s.embed.weight.t() * s.scale
    second_weight = getattr(self, "second.weight")
    second_bias = getattr(self, "second.bias")
    linear_1 = torch.linear(relu, second_weight, second_bias)
    # (the model itself)
    embed_weight = getattr(self, "embed.weight")
    t = torch.t(embed_weight)
    matmul = torch.matmul(linear_1, t)
    scale = self.scale
    mul = torch.mul(matmul, scale)
    return mul
