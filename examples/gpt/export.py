"""Writes the GPT as a torch.export archive: python export.py -o gpt.pt2"""
import argparse

import torch

from model import VOCABULARY, add_options, build


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("-o", "--output", default="gpt.pt2")
    options = parser.parse_args()

    model = build(options).train()
    # An example batch of 1 would make 1 the only batch size that the export accepts.
    tokens = torch.randint(VOCABULARY, (2, options.length))
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(model, (tokens,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, options.output)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{options.output}: {options.layers} blocks, {parameters:,} parameters")


if __name__ == "__main__":
    main()
