"""Published numbers: which file belongs to a study, and which cell a number belongs to."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.plain_studies import write_plain
from segcal.report import write_report
from segcal.report.published_numbers import SHIPPED, PublishedNumbers, find_published
from segcal.study import Dataset, Method, read_study

VALUES = {(m, 0, "x"): {"dsc": 0.5, "ece": 0.25} for m in ("a", "b")}
METHODS = [{"name": "a", "paper": "ours"}, {"name": "b"}]
CONTENT = {"source": "A. Author, 2020", "methods": {"ours": {"d": {"dsc": 0.625}}}}


def study(folder: Path, **extra: Any) -> Path:
    return write_plain(folder, VALUES, methods=METHODS, **extra)


def found(folder: Path) -> PublishedNumbers:
    published = find_published(read_study(folder))
    assert published is not None
    return published


def test_numbers_of_the_nacl_paper() -> None:
    content = yaml.safe_load((SHIPPED / "nacl_miccai2023.yaml").read_text(encoding="utf-8"))
    paper = PublishedNumbers.model_validate(content)
    assert len(paper.methods) == 16
    assert all(set(of) == {"flare", "acdc", "brats"} for of in paper.methods.values())

    def value(key: str, source: str, metric: str, region: str = "foreground") -> float | None:
        method, dataset = Method(name="m", paper=key), Dataset(name="d", source=source)
        return paper.value(method, dataset, metric, region)

    assert value("NACL .1", "brats", "hd95_voxel") == 5.78
    assert value("prior gaussian", "acdc", "cece") == 0.053
    assert value("nacl_patch5", "flare", "dsc") == 0.875
    assert value("NACL .1", "acdc", "dsc", "all") == 0.854
    assert value("NACL .1", "acdc", "ece", "all") is None  # measured in the foreground
    assert value("NACL .1", "msd", "dsc") is None
    assert value("NACL .1", "acdc", "brier") is None
    assert (paper.other_unit("hd95_mm"), paper.other_unit("hd95_voxel")) == ("voxel", "")


def test_a_file_in_the_study_is_found_and_shown(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert find_published(read_study(folder)) is None
    (folder / "published.yaml").write_text(yaml.safe_dump(CONTENT))
    table = write_report(folder).parent / "tables" / "main.md"
    assert "| a (published) | 0.625 |" in table.read_text(encoding="utf-8")
    assert "A. Author, 2020" in table.read_text(encoding="utf-8")


def test_a_study_names_its_file(tmp_path: Path) -> None:
    folder = study(tmp_path, published="numbers.yaml")
    with pytest.raises(ValueError, match=r"numbers.yaml: does not exist; .*nacl_miccai2023"):
        find_published(read_study(folder))
    (folder / "numbers.yaml").write_text(yaml.safe_dump(CONTENT))
    assert found(folder).source == "A. Author, 2020"


def test_a_method_that_the_file_does_not_have(tmp_path: Path) -> None:
    folder = study(tmp_path)
    content = {**CONTENT, "methods": {"our": {}}}
    (folder / "published.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=r"published.yaml: has no method 'ours'.*'our'"):
        write_report(folder)
    assert not (folder / "report").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [("a: [", "is not YAML"), ("source: x", "`methods`"), ("x", "expected keys and values"),
     (json.dumps({**CONTENT, "method": {}}), "has no key `method`")],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, content: str, problem: str) -> None:
    folder = study(tmp_path)
    (folder / "published.yaml").write_text(content)
    with pytest.raises(ValueError, match=f"published.yaml: {problem}|{problem}"):
        find_published(read_study(folder))
