"""Trains the classifier in one PyTorch process, a JSON line a step: python reference.py job.json"""
import argparse
import pathlib
import sys

from model import build

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import one_process  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    one_process.add_options(parser)
    one_process.run(build().train(), parser.parse_args())


if __name__ == "__main__":
    main()
