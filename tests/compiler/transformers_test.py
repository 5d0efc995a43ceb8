"""Architectures of HuggingFace transformers, small and randomly initialized, cut in three."""
import sys
import warnings

import torch
from support import CompilerTest, unittest

try:
    import transformers
    import transformers.integrations.moe  # registers its operators
    from transformers import AutoConfig, AutoModel
except ImportError as error:
    print(f"SKIPPED: no transformers ({error})")
    sys.exit(77)

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

SMALL = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
             num_attention_heads=2)
IDS = lambda: torch.randint(3, 64, (2, 7))


class Wrapped(torch.nn.Module):
    """Takes positional tensors, returns logits and loss."""

    def __init__(self, model, names, pick):
        super().__init__()
        self.model, self.names, self.pick = model, names, pick

    def forward(self, *inputs):
        out = self.model(**dict(zip(self.names, inputs)), use_cache=False, return_dict=True) \
            if "pixel_values" not in self.names else \
            self.model(**dict(zip(self.names, inputs)), return_dict=True)
        return tuple(out[name] for name in self.pick)


class Transformers(CompilerTest):
    def through(self, model, names, inputs, pick=("logits", "loss"), tolerance=1e-5,
                dynamic=False):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        dims = None
        if dynamic:
            batch = torch.export.Dim("batch", min=1, max=16)
            dims = ({0: batch},) * len(inputs),
        run = ([torch.cat([x, x[:1]]) for x in inputs], None) if dynamic else None
        self.check(Wrapped(model, names, pick), inputs, ["--split", "equal:3"], modules=3,
                   dynamic=dims, run=run, tolerance=tolerance)

    def test_gpt2(self):
        c = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=3, n_head=2, n_positions=16,
                                    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        ids = IDS()
        for dynamic in (False, True):
            with self.subTest(dynamic=dynamic):
                self.through(transformers.GPT2LMHeadModel(c), ["input_ids", "labels"],
                             [ids, ids.clone()], dynamic=dynamic)

    def test_bert(self):
        c = transformers.BertConfig(**SMALL, max_position_embeddings=16, hidden_dropout_prob=0,
                                    attention_probs_dropout_prob=0)
        ids = IDS()
        self.through(transformers.BertForMaskedLM(c), ["input_ids", "attention_mask", "labels"],
                     [ids, torch.ones_like(ids), ids.clone()])

    def test_t5(self):
        c = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2,
                                  num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)
        ids = IDS()
        self.through(transformers.T5ForConditionalGeneration(c), ["input_ids", "labels"],
                     [ids, ids.clone()])

    def test_llama(self):
        c = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, max_position_embeddings=16)
        ids = IDS()
        for dynamic in (False, True):
            with self.subTest(dynamic=dynamic):
                self.through(transformers.LlamaForCausalLM(c), ["input_ids", "labels"],
                             [ids, ids.clone()], dynamic=dynamic)

    def test_qwen3(self):
        c = transformers.Qwen3Config(**SMALL, num_key_value_heads=1, head_dim=8,
                                     max_position_embeddings=16)
        ids = IDS()
        self.through(transformers.Qwen3ForCausalLM(c), ["input_ids", "labels"],
                     [ids, ids.clone()])

    def test_mixtral(self):
        c = transformers.MixtralConfig(**SMALL, num_key_value_heads=1, num_local_experts=4,
                                       max_position_embeddings=16)
        ids = IDS()
        for implementation in (None, "batched_mm"):
            with self.subTest(implementation):
                c._experts_implementation = implementation
                self.through(transformers.MixtralForCausalLM(c), ["input_ids", "labels"],
                             [ids, ids.clone()], dynamic=implementation is None)

    def test_gpt_oss(self):
        c = transformers.GptOssConfig(**SMALL, num_key_value_heads=1, head_dim=8,
                                      num_local_experts=4, num_experts_per_tok=2,
                                      max_position_embeddings=16)
        ids = IDS()
        self.through(transformers.GptOssForCausalLM(c), ["input_ids", "labels"],
                     [ids, ids.clone()])

    def test_vit(self):
        c = transformers.ViTConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=3,
                                   num_attention_heads=2, image_size=8, patch_size=4,
                                   num_channels=3, hidden_dropout_prob=0,
                                   attention_probs_dropout_prob=0)
        self.through(transformers.ViTForImageClassification(c), ["pixel_values", "labels"],
                     [torch.randn(2, 3, 8, 8), torch.tensor([0, 1])])

    def test_bart(self):
        c = transformers.BartConfig(vocab_size=64, d_model=16, encoder_layers=2, decoder_layers=2,
                                    encoder_attention_heads=2, decoder_attention_heads=2,
                                    encoder_ffn_dim=32, decoder_ffn_dim=32,
                                    max_position_embeddings=16, dropout=0, attention_dropout=0,
                                    activation_dropout=0)
        ids = IDS()
        self.through(transformers.BartForConditionalGeneration(c), ["input_ids", "labels"],
                     [ids, ids.clone()])

    def test_whisper(self):
        c = transformers.WhisperConfig(vocab_size=64, d_model=16, encoder_layers=2,
                                       decoder_layers=2, encoder_attention_heads=2,
                                       decoder_attention_heads=2, encoder_ffn_dim=32,
                                       decoder_ffn_dim=32, num_mel_bins=8,
                                       max_source_positions=10, max_target_positions=16,
                                       pad_token_id=0, decoder_start_token_id=1, bos_token_id=1,
                                       eos_token_id=2, dropout=0, attention_dropout=0,
                                       activation_dropout=0)
        self.through(transformers.WhisperForConditionalGeneration(c),
                     ["input_features", "labels"], [torch.randn(2, 8, 20), IDS()])

    def test_resnet(self):
        c = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 16],
                                      depths=[1, 1, 1, 1], layer_type="basic", num_labels=3)
        self.through(transformers.ResNetForImageClassification(c), ["pixel_values", "labels"],
                     [torch.randn(2, 3, 32, 32), torch.tensor([0, 1])])


class Experts(torch.nn.Module):
    """Uses the operator of transformers alone, for groups of every kind."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.randn((4, 5, 3) if transposed else (4, 3, 5), dtype=dtype)
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
            for transposed in (False, True))

    def forward(self, x, offs):
        x = x[:, ::2]  # not contiguous
        outputs = []
        for w in self.weights:
            w = w.transpose(1, 2) if w.shape[1] == 5 else w  # as most models hold them
            for ends in offs.unbind():
                y = torch.ops.transformers.grouped_mm_fallback(x.to(w.dtype), w, ends)
                outputs += [y, y.sum(1)]  # the gradient of a sum is an expanded scalar
        return outputs


class GroupedMm(CompilerTest):
    def test_bits_of_the_operator_in_python(self):
        groups = [[2, 3, 5, 7], [0, 0, 7, 7], [1, 1, 1, 4], [0, 0, 0, 0]]
        for dtype in (torch.int32, torch.int64):
            with self.subTest(dtype):
                self.check(Experts(), [torch.randn(7, 6), torch.tensor(groups, dtype=dtype)],
                           run=([torch.randn(7, 6), torch.tensor(groups[::-1], dtype=dtype)], None))


if __name__ == "__main__":
    unittest.main()
