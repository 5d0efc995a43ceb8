class Module0(Module):
  __parameters__ = ["embedding.weight", ]
  __buffers__ = []
  training : bool
  __annotations__["embedding.weight"] = Tensor
  def forward(self: __torch__.Module0,
    tokens: Tensor) -> Tensor:
    embedding_weight = getattr(self, "embedding.weight")
    embedding = torch.embedding(embedding_weight, tokens)
    return embedding
