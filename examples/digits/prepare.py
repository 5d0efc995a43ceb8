"""Writes scikit-learn's digits as safetensors, for training and for testing."""
import argparse
import pathlib

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits

TEST = 256  # samples kept for testing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=".", type=pathlib.Path)
    options = parser.parse_args()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    save = lambda name, rows: save_file(
        {"images": images[rows].contiguous(), "labels": labels[rows].contiguous()},
        options.folder / name)
    save("digits.safetensors", slice(None, -TEST))
    save("digits_test.safetensors", slice(-TEST, None))
    print(f"{len(labels) - TEST} digits to train with, {TEST} to test with")


if __name__ == "__main__":
    main()
