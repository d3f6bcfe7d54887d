"""The numbers that the paper published, to print beside ours.

B. Murugesan, S. Adiga Vasudeva, B. Liu, H. Lombaert, I. Ben Ayed, J. Dolz: Trust your neighbours:
Penalty-based constraints for model calibration, MICCAI 2023, Tables 1 to 3. Calibration there is
measured on the true foreground; Hausdorff distances are in voxels.
"""

import re

from segcal.metrics import base_metric

CITATION = (
    "B. Murugesan, S. Adiga Vasudeva, B. Liu, H. Lombaert, I. Ben Ayed, J. Dolz, “Trust your "
    "neighbours: Penalty-based constraints for model calibration”, MICCAI 2023, Tables 1–3"
)
SOURCES = ("flare", "acdc", "brats")
METRICS = ("dsc", "hd95", "ece", "cece")
REGION = "foreground"

# Row -> FLARE, ACDC, BraTS, four values each in the order of METRICS.
_NUMBERS = {
    "ce+dsc": ".846 5.54 .058 .034  .828 3.14 .137 .084  .777 6.96 .178 .122",
    "fl": ".834 6.65 .053 .059  .620 7.30 .153 .179  .848 9.00 .097 .119",
    "ecp": ".860 5.30 .037 .027  .782 4.44 .130 .094  .808 8.71 .138 .099",
    "ls": ".860 5.33 .055 .049  .809 3.30 .083 .093  .820 7.78 .112 .108",
    "svls": ".857 5.72 .039 .036  .824 2.81 .091 .083  .801 8.44 .146 .111",
    "mbls": ".836 5.75 .046 .041  .827 2.99 .103 .081  .838 7.94 .127 .095",
    "nacl": ".868 4.88 .033 .031  .854 2.55 .048 .061  .850 5.78 .112 .097",
    "softmax": ".862 5.14 .043 .030  .840 2.66 .068 .071  .802 8.28 .145 .104",
    "l2": ".851 5.48 .065 .054  .871 1.78 .059 .080  .851 7.90 .078 .091",
    "patch5": ".875 5.96 .032 .031  .813 3.50 .078 .077  .735 7.45 .119 .092",
    "mean": ".868 4.88 .033 .031  .854 2.55 .048 .061  .850 5.78 .112 .097",
    "gaussian": ".860 5.40 .033 .032  .876 2.92 .042 .053  .813 7.01 .140 .106",
    "max": ".859 4.95 .038 .036  .876 1.74 .046 .054  .833 8.25 .114 .094",
    "min": ".854 5.42 .034 .033  .881 1.80 .040 .053  .836 7.23 .104 .092",
    "median": ".867 5.90 .033 .032  .835 3.29 .075 .075  .837 7.53 .095 .089",
    "mode": ".854 5.41 .035 .034  .876 1.62 .045 .056  .808 8.21 .135 .113",
}
# Other ways to write a row: of the paper's tables, and of our losses and options.
_ALIASES = {
    "ce+dice": "ce+dsc", "ce_dice": "ce+dsc", "cedice": "ce+dsc", "cedsc": "ce+dsc",
    "focal": "fl", "ours": "nacl", "constraint on s": "softmax", "constrain softmax": "softmax",
    "nacl_softmax": "softmax", "l2-penalty": "l2", "quadratic": "l2", "nacl_l2": "l2",
    "patch size: 5": "patch5", "patch 5": "patch5", "patch_5": "patch5", "nacl_patch5": "patch5",
    "5x5": "patch5", "5×5": "patch5",
}  # fmt: skip


def row_of(key: str | None) -> str | None:
    """The row of the paper's tables that a key means, or None.

    Keys are the row's name with or without its hyper-parameter.

    Example:
        >>> row_of("NACL .1"), row_of("FL γ3"), row_of("prior gaussian"), row_of("something else")
        ('nacl', 'fl', 'gaussian', None)
    """
    if key is None:
        return None
    text = " ".join(key.lower().removeprefix("prior").replace("prior_", "").split())
    for name in (text, text.split(" ")[0] if text else ""):
        if name in _NUMBERS:
            return name
        if name in _ALIASES:
            return _ALIASES[name]
    for alias, name in _ALIASES.items():
        if " " in alias and text.startswith(alias):
            return name
    return None


def published(key: str | None, source: str, metric: str, region: str) -> float | None:
    """The paper's value, or None where it has none for this source, metric and region."""
    row, base = row_of(key), base_metric(metric)
    if row is None or source not in SOURCES or base not in METRICS:
        return None
    if base in ("ece", "cece") and region != REGION:
        return None
    values = [float(v) for v in re.split(r"\s+", _NUMBERS[row])]
    return values[SOURCES.index(source) * len(METRICS) + METRICS.index(base)]
