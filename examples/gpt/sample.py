"""Writes a line of text with trained weights: python sample.py trained.safetensors"""
import argparse

import torch
from safetensors.torch import load_model

from model import add_options, build


@torch.no_grad()
def sample(model, prompt, length, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    text = bytearray(prompt.encode())
    # Only the export fixed the sequence length, not the model: the text may start short.
    while len(text) < length:
        window = torch.tensor([list(text[-model.length :])])
        logits = model(window)[0, -1] / temperature
        text.append(torch.multinomial(logits.softmax(0), 1, generator=generator).item())
    return text.decode(errors="replace")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("weights", help="safetensors file with the model's own names")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--bytes", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = build(options).eval()
    load_model(model, options.weights, strict=True)
    text = sample(model, options.prompt, options.bytes, options.temperature, options.seed)
    print(" ".join(text.split()))


if __name__ == "__main__":
    main()
