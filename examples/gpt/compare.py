"""Prints two loss curves side by side: python compare.py metrics.jsonl pytorch.jsonl"""
import argparse
import json


def read(path):
    with open(path) as lines:
        return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipewright")
    parser.add_argument("pytorch")
    parser.add_argument("--rows", type=int, default=20)
    options = parser.parse_args()
    ours, theirs = read(options.pipewright), read(options.pytorch)
    if ours.keys() != theirs.keys():
        raise SystemExit(f"not the same steps: {len(ours)} and {len(theirs)}")

    def row(step):
        width = round(8 * max(ours[step], 0))
        print(f"{step:6} {ours[step]:11.6f} {theirs[step]:11.6f} "
              f"{abs(ours[step] - theirs[step]):11.2e}  {'#' * min(width, 48)}")

    print(f"{'step':>6} {'pipewright':>11} {'PyTorch':>11} {'difference':>11}  loss")
    steps = sorted(ours)
    every = max(1, len(steps) // options.rows)
    for step in steps:
        if step == 1 or step % every == 0:
            row(step)
    worst = max(steps, key=lambda s: abs(ours[s] - theirs[s]))
    same = sum(ours[s] == theirs[s] for s in steps)
    print(f"Largest difference over {len(steps)} steps: {abs(ours[worst] - theirs[worst]):.2e} "
          f"(step {worst}); {same} steps equal to the last bit.")


if __name__ == "__main__":
    main()
