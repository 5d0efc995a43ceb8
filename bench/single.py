"""One PyTorch process without a pipeline. Answers requests on standard input with lines of JSON.

    steps N PARTS   runs N training steps, with the minibatch in PARTS parts: {"begin", "ends": microseconds, "losses"}
"""
import argparse
import json
import sys

import torch

import models
from peer import LR, microseconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--size", required=True)
    parser.add_argument("--microbatches", type=int, default=models.MICROBATCHES)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    model = models.build(options.model, options.size, 1).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = models.batch(options.model, options.size, options.microbatches)
    for line in sys.stdin:
        _, steps, parts = line.split()
        answer = {"begin": microseconds(), "ends": []}
        for _ in range(int(steps)):
            optimizer.zero_grad(set_to_none=True)
            losses = []
            for xs, ys in zip(x.tensor_split(int(parts)), y.tensor_split(int(parts))):
                loss = models.loss(model(xs), ys)
                (loss / int(parts)).backward()
                losses.append(loss.item())
            optimizer.step()
            answer["ends"].append(microseconds())
        answer["losses"] = losses
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
