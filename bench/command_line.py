"""The command line that all measuring programs share."""
import argparse
import os

from report import RESULTS


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--build", default="build", help="build folder")
    made.add_argument("--repetitions", type=int, default=7)
    made.add_argument("--nice", type=int, default=0, help="priority of all programs (below 0: as root)")
    made.add_argument("--results", default=RESULTS)
    return made


def parse(made):
    """Parses the options, sets the priority, and makes the folder for raw samples."""
    options = made.parse_args()
    options.build = os.path.abspath(options.build)
    os.nice(options.nice)
    os.makedirs(os.path.join(options.results, "raw"), exist_ok=True)
    return options
