"""Writes the classifier as a torch.export archive: python export.py -o digits.pt2"""
import argparse

import torch

from model import build


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="digits.pt2")
    options = parser.parse_args()
    # An example batch of 1 would make 1 the only batch size that the export accepts.
    images = torch.rand(2, 1, 8, 8)
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(
        build().train(), (images,), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, options.output)
    print(options.output)


if __name__ == "__main__":
    main()
