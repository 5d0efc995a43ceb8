"""Trains the GPT in one PyTorch process and prints a JSON line a step: python reference.py job.json"""
import argparse
import pathlib
import sys

from model import add_options, build

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import one_process  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    one_process.add_options(parser)
    options = parser.parse_args()
    one_process.run(build(options).train(), options)


if __name__ == "__main__":
    main()
