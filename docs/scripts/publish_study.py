"""Publish a finished study in docs/results/NAME.

Copied are the report as one page, its tables and figures, the plan, every row of cases.csv
(compressed, values to six digits), the validation curve of every run and candidate, and the device
and versions of the tested runs. Weights, paths of the machine and panels of pictures (which the
page contains) are left out.

python docs/scripts/publish_study.py STUDY NAME
"""

import gzip
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from segcal.study import read_cases_table

RESULTS = Path(__file__).parents[1] / "results"
# The keys of run.json that are published.
ABOUT = ("device", "processes", "commit", "versions", "data_fingerprint", "compiled")


def publish(study: Path, out: Path) -> None:
    """Replace the folder `out` by the present content of the study."""
    if not (study / "report" / "index.html").is_file():
        raise SystemExit(f"{study}: has no report; run `segcal report {study}` first")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copy(study / "report" / "index.html", out / "report.html")
    shutil.copytree(study / "report" / "tables", out / "tables")
    (out / "figures").mkdir()
    for figure in sorted((study / "report" / "figures").glob("*.png")):
        if not figure.name.startswith("panel_"):
            shutil.copy(figure, out / "figures")
    text = read_cases_table(study / "cases.csv").to_csv(
        index=False, float_format="%.6g", lineterminator="\n", na_rep=""
    )
    with gzip.GzipFile(out / "cases.csv.gz", "wb", mtime=0) as packed:
        packed.write(text.encode())
    (out / "plan.yaml").write_text(_without_paths(study / "plan.yaml"), encoding="utf-8")
    about = json.dumps(_runs(study), indent=1, ensure_ascii=False)
    (out / "runs.json").write_text(about + "\n", encoding="utf-8")


def _without_paths(plan: Path) -> str:
    content = yaml.safe_load(plan.read_text(encoding="utf-8"))
    for dataset in content["datasets"].values():
        dataset.pop("path", None)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _runs(study: Path) -> dict[str, Any]:
    """States, times, devices and validation curves of all runs."""
    content = json.loads((study / "study.json").read_text(encoding="utf-8"))
    runs = content["runs"]
    places: Counter[str] = Counter()
    out = []
    for run in runs:
        folder = study / run["folder"]
        row = {key: run[key] for key in ("run", "state", "error", "seconds")}
        row["error"] = row["error"].replace(str(study.resolve()), "STUDY")
        if (folder / "run.json").is_file():
            about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            places[json.dumps({key: about.get(key) for key in ABOUT})] += 1
            row["training"] = run["training"]
            row["calibrators"] = {
                path.stem.removeprefix("calibrator_"): json.loads(path.read_text())["params"]
                for path in sorted(folder.glob("calibrator_*.json"))
            }
        out.append(row)
    ran_on = [{**json.loads(place), "runs": number} for place, number in places.items()]
    tried = {m["name"]: m["chosen_from"] for m in content["methods"] if m.get("chosen_from")}
    for candidate in (one for each in tried.values() for one in each if "error" in one):
        candidate["error"] = candidate["error"].replace(str(study.resolve()), "STUDY")
    return {"ran_on": ran_on, "runs": out, **({"chosen_from": tried} if tried else {})}


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isidentifier():
        raise SystemExit(__doc__)
    publish(Path(sys.argv[1]), RESULTS / sys.argv[2])
