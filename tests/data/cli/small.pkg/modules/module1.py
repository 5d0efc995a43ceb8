class Module1(Module):
  __parameters__ = ["head.weight", "head.bias", ]
  __buffers__ = []
  training : bool
  __annotations__["head.weight"] = Tensor
  __annotations__["head.bias"] = Tensor
  def forward(self: __torch__.Module1,
    embedding: Tensor) -> Tensor:
    relu = torch.relu(embedding)
    head_weight = getattr(self, "head.weight")
    head_bias = getattr(self, "head.bias")
    linear = torch.linear(relu, head_weight, head_bias)
    return linear
