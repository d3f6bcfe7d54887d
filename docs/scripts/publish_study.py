"""Publish a finished study in docs/results/NAME.

Written are study.json without the paths of the machine (with the validation curve and the fitted
temperature of every run), the plan, every row of cases.csv (compressed, values to six digits), the
tables as Markdown, the paired tests as CSV, and the figures that need more than the rows or that
the results page shows. `segcal report docs/results/NAME --out DIR` writes the report again.

python docs/scripts/publish_study.py STUDY NAME [METRIC …]   # rows of these metrics only
"""

import json
import lzma
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from segcal.study import read_cases_table

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = ("reliability_*.png", "seeds_*.png", "training_*.png")
TABLES = ("*.md", "comparisons.csv", "seeds.csv")


def publish(study: Path, out: Path, metrics: list[str]) -> None:
    """Replace the folder `out` by the present content of the study."""
    if not (study / "report" / "index.html").is_file():
        raise SystemExit(f"{study}: has no report; run `segcal report {study}` first")
    shutil.rmtree(out, ignore_errors=True)
    for kind, patterns in (("tables", TABLES), ("figures", FIGURES)):
        (out / kind).mkdir(parents=True)
        for pattern in patterns:
            for path in sorted((study / "report" / kind).glob(pattern)):
                shutil.copy(path, out / kind)
    table = read_cases_table(study / "cases.csv")
    if metrics:
        table = table[table["metric"].isin(metrics)]
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n", na_rep="")
    (out / "cases.csv.xz").write_bytes(lzma.compress(text.encode()))
    (out / "plan.yaml").write_text(_without_paths(study / "plan.yaml"), encoding="utf-8")
    about = json.dumps(_study_file(study), ensure_ascii=False, separators=(",", ":"))
    (out / "study.json").write_text(about + "\n", encoding="utf-8")


def _without_paths(plan: Path) -> str:
    content = yaml.safe_load(plan.read_text(encoding="utf-8"))
    for dataset in content["datasets"].values():
        dataset.pop("path", None)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _study_file(study: Path) -> dict[str, Any]:
    """study.json without folders and paths, with the parameters of the calibrators."""
    content: dict[str, Any] = json.loads((study / "study.json").read_text(encoding="utf-8"))
    del content["table_bytes"]
    for run in content["runs"]:
        files = sorted((study / run.pop("folder")).glob("calibrator_*.json"))
        run["calibrators"] = {
            path.stem.removeprefix("calibrator_"): json.loads(path.read_text())["params"]
            for path in files
        }
    tried = (one for method in content["methods"] for one in method.get("chosen_from", ()))
    for part in (*content["runs"], *tried):
        part["error"] = part.get("error", "").replace(str(study.resolve()), "STUDY")
    return content


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[2].isidentifier():
        raise SystemExit(__doc__)
    publish(Path(sys.argv[1]), RESULTS / sys.argv[2], sys.argv[3:])
