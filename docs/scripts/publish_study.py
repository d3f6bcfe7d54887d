"""Publish a finished study in docs/results/NAME.

Written are study.json without the paths of the machine (with the validation curve and the fitted
temperature of every run), the plan, every row of cases.csv (compressed, values to six digits), the
tables of the study's own region as Markdown, and the figures that a page shows.
`segcal report docs/results/NAME --out DIR` writes the whole report again.

python docs/scripts/publish_study.py STUDY NAME [METRIC …]   # rows of these metrics only
python docs/scripts/publish_study.py --add STUDY NAME        # runs that docs/results/NAME lacks
python docs/scripts/publish_study.py --tables                # all published tables from their rows

With --add, runs that are already published stay as they are, whatever STUDY says of them. The
tables are written again; tables and figures that need more than the rows stay those of the runs
that were published first, and the tables state it.
"""

import json
import lzma
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from segcal.metrics import REGIONS
from segcal.report import write_report
from segcal.study import read_cases_table

RESULTS = Path(__file__).parents[1] / "results"
# Row by row in this order, the compressed file is a fifth smaller.
ORDER = ["metric", "region", "dataset", "method", "seed", "label", "case"]


def publish(study: Path, out: Path, metrics: list[str]) -> None:
    """Replace the folder `out` by the present content of the study."""
    if not (study / "report" / "index.html").is_file():
        raise SystemExit(f"{study}: has no report; run `segcal report {study}` first")
    table = read_cases_table(study / "cases.csv")
    if metrics:
        table = table[table["metric"].isin(metrics)]
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / out.name
        _copy_report(study / "report", draft)
        _write_rows(table, draft)
        (draft / "plan.yaml").write_text(_without_paths(study / "plan.yaml"), encoding="utf-8")
        _write_json(_study_file(study), draft)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(draft, out)


def _copy_report(report: Path, out: Path) -> None:
    other_regions = tuple(f"_{region}" for region in REGIONS)
    for path in sorted((report / "tables").iterdir()):
        if path.suffix == ".md" and not path.stem.endswith(other_regions):
            _copy(path, out / "tables")
    pages = "".join(page.read_text(encoding="utf-8") for page in RESULTS.glob("*.md"))
    for path in sorted((report / "figures").iterdir()):
        if f"{out.name}/figures/{path.name}" in pages:
            _copy(path, out / "figures")


def _copy(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder)


def _write_rows(table: pd.DataFrame, out: Path) -> None:
    table = table.astype({"value": float}).sort_values(ORDER, kind="stable", na_position="first")
    text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n", na_rep="")
    (out / "cases.csv.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _write_json(content: dict[str, Any], out: Path) -> None:
    about = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (out / "study.json").write_text(about + "\n", encoding="utf-8")


def add(study: Path, out: Path) -> None:
    """Add the runs of a study that `out` does not have, and write its tables again."""
    old = json.loads((out / "study.json").read_text(encoding="utf-8"))
    new = _study_file(study)
    known = {run["run"] for run in old["runs"]}
    runs = [run for run in new["runs"] if run["run"] not in known and run["state"] == "done"]
    fingerprints = {one["name"]: one["fingerprint"] for one in (*old["datasets"], *new["datasets"])}
    if any(one["fingerprint"] != fingerprints[one["name"]] for one in old["datasets"]):
        raise SystemExit(f"{study}: was trained on other data than {out}")
    if not runs:
        raise SystemExit(f"{study}: {out} has all its runs")
    used = {run[key] for run in runs for key in ("method", "dataset")}
    for key in ("methods", "datasets"):
        names = {one["name"] for one in old[key]}
        old[key] += [one for one in new[key] if one["name"] not in names and one["name"] in used]
    old["methods"].sort(key=lambda one: one["group"] == "posthoc")
    order = {method["name"]: place for place, method in enumerate(old["methods"])}
    claims = {one["claim"]: one for one in old["hypotheses"]}
    for one in new["hypotheses"]:
        if claims.get(one["claim"], one) != one:
            raise SystemExit(f"{study}: decides {one['claim']!r} by another rule than {out}")
        if one["claim"] not in claims and {one["method"], one["other"]} <= order.keys():
            old["hypotheses"].append(one)
    old["runs"] = sorted(
        [*old["runs"], *runs], key=lambda r: (r["dataset"], order[r["method"]], r["seed"])
    )
    trained = sum(run["training"] is not None for run in runs)
    *earlier, where = new["environment"]["trained"]
    if earlier and where["runs"] != trained:
        raise SystemExit(f"{study}: it is unknown which of its commits the runs to add are from")
    old["environment"]["trained"].append({**where, "runs": trained})
    rows, added = read_cases_table(out / "cases.csv.xz"), read_cases_table(study / "cases.csv")
    added = added[added["run"].isin([run["run"] for run in runs])]
    if missing := set(rows["metric"].unique()) - set(added["metric"].unique()):
        raise SystemExit(f"{study}: has no rows of {', '.join(sorted(missing))}")
    added = added[added["metric"].isin(rows["metric"].unique())]
    plan = yaml.safe_load((out / "plan.yaml").read_text(encoding="utf-8"))
    own = yaml.safe_load((study / "plan.yaml").read_text(encoding="utf-8"))
    plan["methods"] = {**own["methods"], **plan["methods"]}
    plan["seeds"] = sorted({run["seed"] for run in old["runs"]})
    plan["hypotheses"] = old["hypotheses"]
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / out.name
        draft.mkdir()
        _write_rows(pd.concat([rows.astype(object), added.astype(object)]), draft)
        _write_json(old, draft)
        (draft / "plan.yaml").write_text(_dump(plan), encoding="utf-8")
        _copy_report(write_report(draft, out=Path(folder) / "report").parent, draft)
        for path in out.glob("tables/*"):
            if not (draft / "tables" / path.name).exists():
                _mark_as_earlier(path)
        shutil.copytree(draft, out, dirs_exist_ok=True)


def rewrite_tables(out: Path) -> list[Path]:
    """Write the tables that need only the rows again; the names of the others."""
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(out, out=Path(folder) / "report").parent
        tables = sorted(out.glob("tables/*"))
        for path in tables:
            if (report / "tables" / path.name).is_file():
                shutil.copy(report / "tables" / path.name, path)
        return [path for path in tables if not (report / "tables" / path.name).is_file()]


def _mark_as_earlier(table: Path) -> None:
    """State that a table, which needs more than the rows, does not have the runs added since."""
    note = "*Of the runs that were published first.*\n\n"
    text = table.read_text(encoding="utf-8")
    if not text.startswith(note):
        table.write_text(note + text, encoding="utf-8")


def _without_paths(plan: Path) -> str:
    content = yaml.safe_load(plan.read_text(encoding="utf-8"))
    for dataset in content["datasets"].values():
        dataset.pop("path", None)
    return _dump(content)


def _dump(plan: dict[str, Any]) -> str:
    return str(yaml.safe_dump(plan, sort_keys=False, allow_unicode=True))


def _study_file(study: Path) -> dict[str, Any]:
    """study.json without folders and paths, with the parameters of the calibrators."""
    content: dict[str, Any] = json.loads((study / "study.json").read_text(encoding="utf-8"))
    del content["table_bytes"]
    content["runs"] = [run for run in content["runs"] if run["state"] != "missing"]
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
    words = [word for word in sys.argv[1:] if word != "--add"]
    if words == ["--tables"]:
        for published in sorted(RESULTS.glob("*/study.json")):
            kept = rewrite_tables(published.parent)
            print(f"{published.parent}: {len(kept)} tables need more than the rows")
        raise SystemExit
    if len(words) < 2 or not words[1].isidentifier():
        raise SystemExit(__doc__)
    if "--add" in sys.argv:
        add(Path(words[0]), RESULTS / words[1])
    else:
        publish(Path(words[0]), RESULTS / words[1], words[2:])
