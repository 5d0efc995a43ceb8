"""Mixtures of experts of HuggingFace transformers, trained: the bits of PyTorch in one process."""
import json
import sys
import unittest

import torch
from support import ADAMW, Case, token_job

try:
    import transformers
except ImportError as error:
    print(f"SKIPPED: no transformers ({error})")
    sys.exit(77)

transformers.logging.set_verbosity_error()
LENGTH = 16


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def mixtral():
    torch.manual_seed(1)
    config = transformers.MixtralConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2,
        max_position_embeddings=LENGTH, attention_dropout=0.0, sliding_window=None)
    return Logits(transformers.MixtralForCausalLM(config)).train()


class Experts(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(mixtral(), (torch.randint(256, (2, LENGTH)),),
                                      dynamic_shapes=({0: batch},), strict=False)
        torch.export.save(program, cls.folder / "mixtral.pt2")
        cls.package = cls.compile("mixtral.pt2", "mixtral.pkg", "--split", "equal:3")

    def test_training(self):
        # With few tokens for four experts, one of them has none in some microbatches.
        job = token_job(optimizer=ADAMW, microbatches=4, microbatch_size=1, steps=4)
        model = torch.export.load(self.path("mixtral.pt2")).module()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        expected = self.train_pytorch(model, job)
        conf = self.path("conf.json")
        conf.write_text(json.dumps({"module_to_stage_map": [0, 0, 1],
                                    "stage_to_rank_map": {"0": [0], "1": [1]}}))
        one = self.path("one.json")
        one.write_text(json.dumps({"module_to_stage_map": [0, 0, 0],
                                   "stage_to_rank_map": {"0": [0]}}))
        for ranks, schedule, body in ((1, "1f1b", "autograd"), (2, "1f1b", "autograd"),
                                      (2, "zb-h1", "autograd"), (2, "1f1b", "lists")):
            found = self.train(self.package, {**job, "schedule": schedule}, ranks, mpi=ranks == 2,
                               conf=conf if ranks == 2 else one,
                               environment={"PIPEWRIGHT_BODY": body})
            self.assert_same_run(found, expected, f"{ranks} ranks, {schedule}, {body}: ")
        self.assert_learned(found, before, found.gradients)


if __name__ == "__main__":
    unittest.main()
