"""Validation curves of runs, from their logs; runs of one method (METHOD/seedN) share a colour:

python docs/scripts/training_curves.py OUT.png RUN…
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def main(out: str, *runs: str) -> None:
    figure, (dsc, ece) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    colours: dict[str, str] = {}
    for run in runs:
        rows = [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
        rows = [row for row in rows if "val" in row]
        epochs = [row["epoch"] for row in rows]
        method = Path(run).parent.name
        label = method if method not in colours else None
        colour = colours.setdefault(method, f"C{len(colours)}")
        for axis, metric in ((dsc, "dsc"), (ece, "ece")):
            values = [row["val"][metric] for row in rows]
            axis.plot(epochs, values, color=colour, linewidth=0.9, label=label)
    for axis, name in ((dsc, "validation DSC"), (ece, "validation ECE, foreground")):
        axis.axvline(50, color="0.7", linewidth=0.8)
        axis.set(xlabel="epoch (the rate falls to a tenth at 50)", ylabel=name)
        axis.spines[["top", "right"]].set_visible(False)
    dsc.set_ylim(bottom=0.8)
    dsc.legend(frameon=False)
    figure.savefig(out, dpi=130)


if __name__ == "__main__":
    main(*sys.argv[1:])
