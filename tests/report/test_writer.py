"""The report as a whole: its sections and files, and the errors of unusable input."""

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.studies import ACDC, CE, EVIL, LS, MAX, NACL, Recipe, enlarge, make_study
from segcal.report import write_report

SMALL = (4, 24, 24)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def sections(page: Path) -> set[str]:
    return set(re.findall(r'<section id="(\w+)"', text_of(page)))


def test_sections_of_a_study_that_has_everything(page: Path) -> None:
    html = text_of(page)
    assert sections(page) == {
        "findings", "main", "ranking", "seeds", "reliability", "cases", "ablation", "priors",
        "posthoc", "classes", "logits", "truth", "pictures", "run", "stated_confidence", "absent",
    }  # fmt: skip
    assert "1 of 24 runs did not finish (acdc/ls/seed1)" in html
    assert "loss became NaN in epoch 3 &lt;b&gt;here&lt;/b&gt;" in html
    assert "undef." in html
    assert "published 0.854" in html


def test_files(page: Path) -> None:
    folder = page.parent
    tables = {path.name for path in (folder / "tables").iterdir()}
    for name in ("main", "main_all", "classes_acdc", "ablation", "priors", "posthoc", "ranks",
                 "confidence", "truth_phantom", "seeds_phantom"):  # fmt: skip
        assert {f"{name}.md", f"{name}.tex", f"{name}.csv"} <= tables
    assert {"comparisons.csv", "seeds.csv"} <= tables
    figures = {path.name for path in (folder / "figures").iterdir()}
    for name in ("ranks", "significance", "reliability_acdc", "cases_phantom", "logits_acdc",
                 "truth_phantom", "seeds_phantom", "panel_acdc_best",
                 "panel_phantom_worst"):  # fmt: skip
        assert {f"{name}.svg", f"{name}.png"} <= figures
    assert {p.name for p in folder.iterdir()} == {"index.html", "tables", "figures"}
    assert [p.name for p in folder.parent.iterdir() if p.name.startswith(".")] == []
    assert page.stat().st_size < 3e6


def test_names_are_escaped(page: Path) -> None:
    html = text_of(page)
    assert EVIL not in html
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
    assert EVIL in json.loads(data[1])["datasets"][0]["cases"]
    assert len(re.findall(r"<script", html)) == 2


def test_it_is_self_contained(page: Path) -> None:
    html = re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=\s]+", "", text_of(page))
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", html)
    assert all(link.startswith("#") or link == "" for link in links), links
    assert "default-src 'none'" in html
    assert not re.search(r"@import|url\((?!#)", html)


def test_identifiers_are_unique(page: Path) -> None:
    found = re.findall(r'\bid="([^"]+)"', text_of(page))
    twice = {name for name in found if found.count(name) > 1}
    assert not twice


def test_the_region_changes_the_tables(tmp_path: Path) -> None:
    recipe = Recipe(
        methods=(CE, NACL), datasets=(ACDC,), seeds=(0,), cases=2, shape=SMALL, slices=False,
        logits=False,
    )  # fmt: skip
    study = make_study(tmp_path / "study", recipe)
    default = write_report(study, out=tmp_path / "a")
    assert default == tmp_path / "a" / "index.html"
    other = write_report(study, out=tmp_path / "b", region="boundary")
    main = [(page.parent / "tables" / "main.csv").read_text() for page in (default, other)]
    assert ",foreground," in main[0]
    assert ",boundary," in main[1]
    assert main[0].splitlines()[3] != main[1].splitlines()[3]
    assert " ± " not in (default.parent / "tables" / "main.md").read_text()  # one seed
    with pytest.raises(ValueError, match=r"region.*'foreground', .*'border'"):
        write_report(study, region="border")


def test_the_same_study_gives_the_same_page(tiny: Path, tmp_path: Path) -> None:
    page = write_report(tiny)
    assert write_report(tiny, out=tmp_path / "b").read_bytes() == page.read_bytes()


def test_an_audit_of_one_network_without_extras(tmp_path: Path) -> None:
    recipe = Recipe(
        methods=(CE,), datasets=(ACDC,), seeds=(0,), cases=2, shape=SMALL, kind="audit",
        slices=False, bins=False, logits=False, evil=False,
    )  # fmt: skip
    page = write_report(make_study(tmp_path / "study", recipe))
    expected = {"findings", "main", "volumes", "reliability", "cases", "classes", "run"}
    assert sections(page) == expected
    html = text_of(page)
    assert "over-confident: CE+Dice" in html
    assert "<b>" not in html[html.index("<table") :]  # one method is not the best


def test_a_method_whose_runs_all_failed(tmp_path: Path) -> None:
    recipe = Recipe(
        methods=(CE, LS, NACL), datasets=(ACDC,), seeds=(0,), cases=3, shape=SMALL,
        fail=("acdc/ls/seed0",), slices=False,
    )  # fmt: skip
    page = write_report(make_study(tmp_path / "study", recipe))
    assert "all runs failed" in text_of(page)
    assert "Not ranked, because a dataset has no finished run of them: LS" in text_of(page)
    assert "| LS (α = 0.1) (all runs failed) | – |" in (
        page.parent / "tables" / "main.md"
    ).read_text(encoding="utf-8")


def test_a_study_in_which_everything_failed(tmp_path: Path) -> None:
    recipe = Recipe(methods=(CE,), datasets=(ACDC,), seeds=(0,), fail=("acdc/ce_dice/seed0",))
    study = make_study(tmp_path / "study", recipe)
    assert "1 of 1 run did not finish" in text_of(write_report(study))
    (study / "cases.csv").unlink()
    page = write_report(study)
    assert sections(page) == {"findings", "run"}


def test_a_study_of_priors_alone(tmp_path: Path) -> None:
    mean = replace(MAX, name="prior_mean", title="mean", sharp=1.4, paper="prior mean")
    recipe = Recipe(
        methods=(mean, MAX), seeds=(0,), datasets=(ACDC,), cases=2, shape=SMALL, slices=False,
        bins=False, extra={"published": "nacl_miccai2023"},
    )  # fmt: skip
    page = write_report(make_study(tmp_path / "study", recipe))
    assert {"priors", "ranking"} <= sections(page)  # compared with each other
    assert "main" not in sections(page)
    text = (page.parent / "tables" / "priors.md").read_text(encoding="utf-8")
    assert "| mean (published) | 0.854 | 2.55 | 0.048 | 0.061 |" in text


def test_other_splits_have_their_own_files(tmp_path: Path) -> None:
    recipe = Recipe(
        methods=(CE,), datasets=(ACDC,), seeds=(0,), cases=2, shape=SMALL, extra={"split": "val"}
    )
    study = make_study(tmp_path / "study", recipe)
    run = study / "runs" / "acdc" / "ce_dice" / "seed0"
    assert "pictures" not in sections(write_report(study))
    (run / "slices.npz").rename(run / "slices_val.npz")
    assert "pictures" in sections(write_report(study))


@pytest.mark.slow
def test_a_thousand_cases_in_seconds(tmp_path: Path) -> None:
    recipe = Recipe(
        methods=(CE, NACL), datasets=(ACDC,), seeds=(0,), cases=4, shape=SMALL, evil=False
    )
    small = make_study(tmp_path / "small", recipe)
    study = enlarge(tmp_path / "large", small, 1000)
    start = time.process_time()
    page = write_report(study)
    assert time.process_time() - start < 20  # of one core; about 5
    assert "ACDC (1000 cases)" in text_of(page)
    assert page.stat().st_size < 3e6


def test_no_torch_is_imported(study: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from segcal.study import read_study; import segcal.report.writer; "
        f"read_study(__import__('pathlib').Path({str(study)!r})); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


# Errors.


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "segcal", "report", *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_command(tiny: Path, tmp_path: Path) -> None:
    study = tiny
    done = report(study, "--out", tmp_path / "there", "--region", "all")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"report: {tmp_path / 'there' / 'index.html'}\n"
    assert (tmp_path / "there" / "index.html").is_file()
    done = report(study, "--region", "nowhere")
    assert done.returncode == 2
    assert "region" in done.stderr
    assert "'foreground'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_single_run(tmp_path: Path) -> None:
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match="is a single run") as raised:
        write_report(tmp_path)
    assert all(command in str(raised.value) for command in ("evaluate", "predict", "audit"))


def test_not_a_study(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"study\.json"):
        write_report(tmp_path)
    with pytest.raises(ValueError, match="nowhere: "):
        write_report(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files")
def test_an_unwritable_folder_is_named(study: Path) -> None:
    with pytest.raises(ValueError, match="/proc/page: cannot be written"):
        write_report(study, out=Path("/proc/page"))


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "JSON"), ('{"format": "other"}', "`format`"),
     ('{"format": "segcal-study", "version": 2}', "`version`"),
     ('{"format": "segcal-study", "version": 1, "methods": []}', "`datasets`")],
)  # fmt: skip
def test_a_study_file_that_is_wrong(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(ValueError, match=words) as raised:
        write_report(tmp_path)
    assert str(tmp_path / "study.json") in str(raised.value)
    assert not (tmp_path / "report").exists()


def test_broken_files_are_named_and_nothing_is_left(tiny: Path) -> None:
    run = tiny / "runs" / "acdc" / "ce_dice" / "seed0"
    table = (tiny / "cases.csv").read_text()
    (tiny / "cases.csv").write_text(table.replace("ece,", "ece,x", 1))
    with pytest.raises(ValueError, match=r"cases.csv: .*`value`.*numbers"):
        write_report(tiny)
    (tiny / "cases.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"cases.csv: .*column"):
        write_report(tiny)
    (tiny / "cases.csv").write_text(table)
    shutil.copy(run / "bins.npz", run / "keep")
    (run / "bins.npz").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"bins.npz: .*calibration bins.*npz"):
        write_report(tiny)
    shutil.move(run / "keep", run / "bins.npz")
    np.savez(run / "slices.npz", cases=np.array(["<script>alert(1)</script>", "acdc_000"]))
    with pytest.raises(ValueError, match=r"slices.npz: .*slices"):
        write_report(tiny)
    assert sorted(p.name for p in tiny.iterdir()) == ["cases.csv", "runs", "study.json"]


def test_a_run_outside_the_study(tiny: Path) -> None:
    study = json.loads((tiny / "study.json").read_text())
    study["runs"][0]["folder"] = "../elsewhere"
    (tiny / "study.json").write_text(json.dumps(study))
    with pytest.raises(ValueError, match=r"study.json: .*\.\./elsewhere"):
        write_report(tiny)


def test_other_folders_are_not_replaced(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"mine: holds thesis.tex"):
        write_report(tiny, out=out)
    assert (out / "thesis.tex").read_text() == "years of work"
    (out / "thesis.tex").unlink()
    write_report(tiny, out=out)
    (out / "tables" / "main.md").write_text("old")
    write_report(tiny, out=out)  # an earlier report is replaced
    assert (out / "tables" / "main.md").read_text() != "old"
