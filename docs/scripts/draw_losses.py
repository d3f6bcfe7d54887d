"""Draw docs/images/losses.png: the effect of each loss on the logits across a boundary.

There is no network. The logits of every pixel are free, and each loss is minimized over them: the
result shows what the loss itself demands.

python docs/scripts/draw_losses.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from segcal.losses import NACLLoss, make_loss, neighborhood_prior

OUT = Path(__file__).parents[1] / "images" / "losses.png"
CLASSES, SIZE, ROW, STEPS = 4, 21, 10, 4000
# loss, label, color (Okabe and Ito, safe for color-blind readers), line style
METHODS = [
    (make_loss("ce"), "CE (grows without bound)", "#000000", (0, (1, 1))),
    (make_loss("focal"), "focal, γ = 3 (grows, slowly)", "#999999", "-"),
    (make_loss("ecp"), "ECP, λ = 0.1", "#E69F00", (0, (5, 1))),
    (make_loss("ls"), "LS, α = 0.1", "#0072B2", "-"),
    (make_loss("svls"), "SVLS, σ = 2 (inside: as CE)", "#009E73", "-"),
    (make_loss("mbls"), "MbLS, m = 5", "#CC79A7", (0, (4, 1, 1, 1))),
    (make_loss("nacl"), "NACL, λ = 0.1", "#D55E00", "-"),
    (make_loss("nacl", penalty="l2"), "NACL, λ = 0.1, quadratic", "#D55E00", (0, (2, 1))),
]


def labels() -> Tensor:
    """A round structure whose edge crosses the picture."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    return ((x - 26) ** 2 + (y - ROW) ** 2 < 15.6**2).long().unsqueeze(0)


def free_minimum(loss: nn.Module, target: Tensor) -> Tensor:
    """Logits (K, H, W) after STEPS of Adam from 0, the step size falling to nearly 0."""
    logits = torch.zeros(1, CLASSES, *target.shape[1:], requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / STEPS)
        optimizer.zero_grad()
        loss(logits, target).backward()
        optimizer.step()
    return logits.detach()[0]


def show_map(axes: Axes, values: Tensor, title: str) -> None:
    axes.imshow(values, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
    axes.axhline(ROW, color="white", linewidth=1, linestyle=":")
    axes.set_title(title)
    axes.set_xticks([0, 5, 10, 15, 20])
    axes.set_yticks([])


def main() -> None:
    torch.manual_seed(0)
    target = labels()
    plt.rcParams.update({"font.size": 10, "axes.titlesize": 10.5, "svg.fonttype": "none"})
    figure, axes = plt.subplot_mosaic(
        [["label", "mean", "gaussian"], ["gap", "confidence", "legend"]],
        figsize=(11, 7.2),
        layout="constrained",
        height_ratios=[1, 1.2],
    )
    show_map(axes["label"], target[0].float(), "label (dotted: the row below)")
    show_map(axes["mean"], neighborhood_prior(target, CLASSES)[0, 1], "prior τ of NACL: mean, 3×3")
    smoothed = neighborhood_prior(target, CLASSES, "gaussian", sigma=2.0)
    show_map(axes["gaussian"], smoothed[0, 1], "smoothed label of SVLS: σ = 2")
    bar = figure.colorbar(axes["gaussian"].images[0], ax=axes["gaussian"], shrink=0.9)
    bar.set_label("share of the structure")

    truth = target[0, ROW]
    for loss, label, color, line in METHODS:
        logits = free_minimum(loss, target)[:, ROW]
        style = {"color": color, "linestyle": line, "marker": ".", "label": label}
        style["linewidth"] = 2.4 if isinstance(loss, NACLLoss) else 1.6
        axes["gap"].plot(logits[1] - logits[0], **style)
        axes["confidence"].plot(logits.softmax(0).gather(0, truth.unsqueeze(0))[0], **style)
    for key, title in (
        ("gap", "logit of the structure − logit of the background"),
        ("confidence", "probability of the true class"),
    ):
        axes[key].axvline(int(truth.argmax()) - 0.5, color="#bbbbbb", linewidth=1)
        axes[key].set(title=title, xlabel="pixel along the row", xlim=(5, 16))
        axes[key].grid(alpha=0.25)
    axes["legend"].axis("off")
    handles, names = axes["gap"].get_legend_handles_labels()
    axes["legend"].legend(handles, names, loc="center left", frameon=False)
    figure.suptitle(
        f"What minimizes each loss when every pixel is free (no network, K = {CLASSES} classes)"
    )
    figure.savefig(OUT, dpi=110)
    print(f"drawn: {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT}")


if __name__ == "__main__":
    main()
