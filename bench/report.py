"""Makes tables (Markdown), a picture and a summary (JSON: ratios with their spread) from raw samples.

Results in the folder's summary.json that have no raw samples stay as they are, so that parts can be measured separately.
"""
import argparse
import json
import os
import statistics

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


def spread(values):
    """Returns quartiles as [median, low, high]."""
    if len(values) == 1:
        return values * 3
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return [median, low, high]


def show(three):
    return "–" if three is None else f"{three[0]:.2f} ({three[1]:.2f}–{three[2]:.2f})"


def read_raw(results, prefix):
    folder = os.path.join(results, "raw")
    names = sorted(n for n in os.listdir(folder) if n.startswith(prefix + "-")) if os.path.isdir(folder) else []
    found = []
    for name in names:
        with open(os.path.join(folder, name)) as file:
            found.append(json.load(file))
    return found


def step_ratios(raw):
    """Returns ratios of one model and size by schedule, each [median, low, high] over the rounds or over their turns."""
    rounds = raw["rounds"]
    median = lambda r, name: r["programs"][name]["median"]
    out = {}
    for schedule in rounds[0]["bound"]:
        peers = [name for name in rounds[0]["programs"] if name.startswith(f"peer {schedule} ")]
        best = min(peers, key=lambda name: statistics.median(median(r, name) for r in rounds))
        ours = f"ours {schedule}"
        over = lambda top, bottom: spread([top(r) / bottom(r) for r in rounds])
        turns = lambda top, bottom: spread([t[top] / t[bottom] for r in rounds for t in r["turns"][schedule]])
        replayed = "replayed" in rounds[0]["turns"][schedule][0]  # older samples lack it
        each = "bound_each" in rounds[0]["turns"][schedule][0]
        eager = schedule in rounds[0]["bound_eager"]
        out[schedule] = {
            "ms": spread([median(r, ours) / 1e3 for r in rounds]),
            "ours/bound": turns("mean", "bound"),
            "ours/bound of each action": turns("mean", "bound_each") if each else None,
            "ours/eager bound": over(lambda r: median(r, ours), lambda r: r["bound_eager"][schedule]) if eager else None,
            "peer/ours": over(lambda r: median(r, best), lambda r: median(r, ours)),
            "peer/bound": over(lambda r: median(r, best), lambda r: r["bound"][schedule]),
            "peer/eager bound": over(lambda r: median(r, best), lambda r: r["bound_eager"][schedule]) if eager else None,
            "front": best.split()[-1],
            "predicted/measured": turns("predicted", "mean"),
            "replayed/measured": turns("replayed", "mean") if replayed else None,
            "single by microbatch/ours": over(lambda r: median(r, "single microbatches"), lambda r: median(r, ours)),
            "single whole/ours": over(lambda r: median(r, "single whole"), lambda r: median(r, ours)),
            "ours/with onednn": over(lambda r: median(r, ours), lambda r: median(r, f"onednn {schedule}"))
            if f"onednn {schedule}" in rounds[0]["programs"] else None,
            "ours/our 1f1b": over(lambda r: median(r, ours), lambda r: median(r, "ours 1f1b"))
            if "1f1b" in rounds[0]["bound"] else None,
            "bound/bound of 1f1b": over(lambda r: r["bound"][schedule], lambda r: r["bound"]["1f1b"])
            if "1f1b" in rounds[0]["bound"] else None,
            "split/whole backward": over(lambda r: r["cut"][schedule][-1]["I"] + r["cut"][schedule][-1]["W"],
                                         lambda r: r["cut"][schedule][-1]["B"]),
        }
    return out


def step_table(steps):
    lines = ["| model | schedule | ours, ms | ÷ bound | ÷ bound by each action's own time | ÷ eager bound | peer ÷ ours "
             "| peer ÷ bound | predicted ÷ measured | by each action's own time | ÷ our 1F1B | predicted |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for (model, size, schedule), r in steps:
        lines.append(f"| {model} {size} | {schedule} | {r['ms'][0]:.1f} | {show(r['ours/bound'])} | "
                     f"{show(r.get('ours/bound of each action'))} | {show(r['ours/eager bound'])} | {show(r['peer/ours'])} "
                     f"{r['front']} | {show(r['peer/bound'])} | {show(r['predicted/measured'])} | {show(r['replayed/measured'])} | "
                     f"{show(r['ours/our 1f1b'])} | {show(r['bound/bound of 1f1b'])} |")
    return lines


def single_table(steps):
    chosen = [(model, size, r) for (model, size, schedule), r in steps if schedule == "1f1b"]
    onednn = any(r["ours/with onednn"] for *_, r in chosen)
    lines = ["| model | 1F1B on 2 ranks, ms | one process of 2 threads, by microbatch ÷ ours | whole batch ÷ ours | "
             "(I + W) ÷ B |" + (" ours ÷ ours with \"matmul\": \"onednn\" |" if onednn else ""),
             "|---|---|---|---|---|" + "---|" * onednn]
    for model, size, r in chosen:
        lines.append(f"| {model} {size} | {r['ms'][0]:.1f} | {show(r['single by microbatch/ours'])} | "
                     f"{show(r['single whole/ours'])} | {show(r['split/whole backward'])} |" +
                     (f" {show(r['ours/with onednn'])} |" if onednn else ""))
    return lines


def draw_steps(steps, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(3, 3, figsize=(12, 9))
    for model, size in dict.fromkeys(key[:2] for key, _ in steps):
        axis = axes[MODELS.index(model)][SIZES.index(size)]
        ratios = {key[2]: r for key, r in steps if key[:2] == (model, size)}
        for offset, color, label, bars in ((-0.2, "#1f6f8b", "pipewright", "ours/bound"),
                                           (0.2, "#d08c3a", "torch.distributed.pipelining", "peer/bound")):
            values = [ratios[s][bars] for s in ratios]
            places = [i + offset for i in range(len(values))]
            errors = [[v[0] - v[1] for v in values], [v[2] - v[0] for v in values]]
            axis.bar(places, [v[0] for v in values], 0.38, color=color, label=label, yerr=errors, capsize=2, error_kw={"lw": 0.8})
            for place, value in zip(places, values):
                axis.text(place, value[2] + 0.03, f"{value[0]:.2f}", ha="center", fontsize=7)
        axis.axhline(1, color="black", lw=0.8)
        axis.set_xticks(range(len(ratios)), list(ratios), fontsize=7)
        axis.margins(y=0.15)
        axis.set_title(f"{model} {size}", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel("step ÷ bound", fontsize=8)
    handles, labels = next((a.get_legend_handles_labels() for a in axes.flat if a.has_data()))
    figure.legend(handles, labels, loc="lower center", ncol=2, frameon=False)
    figure.suptitle("Training step on 2 ranks of one thread, against the bound of our stages' own times", fontsize=11)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path, dpi=110)


MODELS = ["mlp", "gpt", "conv"]
SIZES = ["tiny", "small", "medium"]
SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb1p", "zbv"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", default=RESULTS)
    options = parser.parse_args()
    summary_file = os.path.join(options.results, "summary.json")
    summary, text = {}, []
    if os.path.exists(summary_file):
        with open(summary_file) as file:
            summary = json.load(file)
    for raw in read_raw(options.results, "training_step"):
        for schedule, ratios in step_ratios(raw).items():
            summary.setdefault("training_step", {})[f"{raw['model']} {raw['size']} {schedule}"] = ratios
    steps = [(tuple(case.split()), ratios) for case, ratios in summary.get("training_step", {}).items()]
    steps.sort(key=lambda step: (MODELS.index(step[0][0]), SIZES.index(step[0][1]), SCHEDULES.index(step[0][2])))
    if steps:
        text += ["## Training step", "", *step_table(steps), "", *single_table(steps), ""]
        draw_steps(steps, os.path.join(options.results, "training_step.png"))
        text += ["![Training step](training_step.png)", ""]
    for part in ("predictions", "layers", "host", "transport", "start", "compile", "growth", "offload"):
        for raw in read_raw(options.results, part):
            summary.setdefault("tables", {}).setdefault(part, {})[raw["title"]] = raw["table"]
            summary.setdefault(part, {}).update(raw["ratios"])
        for title, table in summary.get("tables", {}).get(part, {}).items():
            text += [f"## {title}", "", *table, ""]
    with open(summary_file, "w") as file:
        json.dump(summary, file, indent=1)
        file.write("\n")
    with open(os.path.join(options.results, "README.md"), "w") as file:
        file.write("# Results\n\nWritten by `make bench`; [performance.md](../../docs/internals/performance.md) says "
                   "what they mean. Ratios\nare medians over the rounds, with their quartiles.\n\n" + "\n".join(text))


if __name__ == "__main__":
    main()
