# Module 0 of model.pt2: embed, first, norm
# TorchScript: this text is what runs. Change it freely, but keep what enters, what leaves and
# what the class declares.
#   in   token: int64 [s11]
#   in   x: float32 [s11, 6]
#   out  relu: float32 [s11, 12]
class Module0(Module):
  __parameters__ = [
    "embed.weight",
    "first.weight",
    "first.bias",
    "norm.weight",
    "norm.bias",
  ]
  __buffers__ = [
    "norm.num_batches_tracked",
    "norm.running_mean",
    "norm.running_var",
  ]
  training : bool
  __annotations__["embed.weight"] = Tensor
  __annotations__["first.weight"] = Tensor
  __annotations__["first.bias"] = Tensor
  __annotations__["norm.num_batches_tracked"] = Tensor
  __annotations__["norm.weight"] = Tensor
  __annotations__["norm.bias"] = Tensor
  __annotations__["norm.running_mean"] = Tensor
  __annotations__["norm.running_var"] = Tensor
  def forward(self: __torch__.Module0,
    token: Tensor,
    x: Tensor) -> Tensor:
    # embed  make.py:13: h = torch.relu(s.norm(s.first(s.embed(token) + x)))
    embed_weight = getattr(self, "embed.weight")
    embedding = torch.embedding(embed_weight, token)
    # (the model itself)
    add = torch.add(embedding, x)
    # first
    first_weight = getattr(self, "first.weight")
    first_bias = getattr(self, "first.bias")
    linear = torch.linear(add, first_weight, first_bias)
    # norm
    training = self.training
    _0 = int(training)
    norm_num_batches_tracked = getattr(self, "norm.num_batches_tracked")
    add_ = torch.add_(norm_num_batches_tracked, _0)
    norm_weight = getattr(self, "norm.weight")
    norm_bias = getattr(self, "norm.bias")
    norm_running_mean = getattr(self, "norm.running_mean")
    norm_running_var = getattr(self, "norm.running_var")
    batch_norm = torch.batch_norm(linear, norm_weight, norm_bias, norm_running_mean, norm_running_var, training, 0.1, 1e-05, False)
    relu = torch.relu(batch_norm)
    return relu
