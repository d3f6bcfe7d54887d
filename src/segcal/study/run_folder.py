"""The folder of a run: its lock, what it was told, where it ran, and its log."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from segcal.config import TrainConfig, changed_keys, check_config, read_yaml, to_yaml
from segcal.core.errors import PathError
from segcal.core.files import write_text
from segcal.core.locks import LOCK, folder_lock
from segcal.core.provenance import git_commit, versions

CONFIG, ABOUT, LOG = "config.yaml", "run.json", "log.jsonl"
# More epochs continue a run; the data may have moved, and its fingerprint tells if it changed.
# How a step is launched does not change what it computes.
FREE_TO_CHANGE = ("epochs", "data.path", "cuda_graph")


class RunFolder:
    """A run's folder, held by this process until it is left.

    Args:
        path: the folder; made if it is missing.
        resume: whether files may be there already.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        self.resume = resume
        self.run_id = ""
        self._held = ExitStack()

    def check(
        self, config: TrainConfig, fingerprint: str, cases: Mapping[str, Sequence[str]]
    ) -> None:
        """Refuse a folder that another run fills, or that was told something else.

        `cases` are the names in each part of the data: weights that saw a case must not meet it
        again as one to validate on.
        """
        if self.path.exists() and not self.path.is_dir():
            raise PathError(self.path, "is a file, not a folder")
        taken = self.path.is_dir() and any(p.name != LOCK for p in self.path.iterdir())
        if not taken:
            return
        if not (self.path / CONFIG).is_file() or not (self.path / ABOUT).is_file():
            raise PathError(self.path, "holds files but no run; choose another --out")
        if not self.resume:
            raise PathError(
                self.path, "is not empty; continue it with --resume, or choose another --out"
            )
        old = check_config(read_yaml(self.path / CONFIG), str(self.path / CONFIG))
        for key in changed_keys(old, config):
            if key not in FREE_TO_CHANGE:
                raise PathError(
                    self.path,
                    f"was started with another `{key}`; give the old value, or another --out",
                )
        if config.epochs < old.epochs:
            raise PathError(
                self.path,
                f"was started for {old.epochs} epochs, which may become more, not {config.epochs}",
            )
        about = self._about()
        if about.get("data_fingerprint") != fingerprint:
            raise PathError(self.path, f"was started on other data than {config.data.path}")
        seen = about.get("cases")
        for part, names in seen.items() if isinstance(seen, dict) else ():
            moved = sorted(set(names) ^ set(cases.get(part, ())))
            if moved:
                raise PathError(
                    self.path,
                    f"was started with other {part} cases than {config.data.path} has now, such as "
                    f"{moved[0]}; bring its splits back, or choose another --out",
                )

    def hold(self) -> Self:
        """Make the folder and take its lock."""
        self._held.enter_context(folder_lock(self.path))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def describe(self, config: TrainConfig, about: dict[str, Any]) -> None:
        """Write config.yaml and run.json; a resumed run keeps its identity."""
        found = self._about() if (self.path / ABOUT).is_file() else {}
        self.run_id = str(found.get("run_id") or uuid.uuid4().hex)
        content = {
            "run_id": self.run_id,
            "started": found.get("started") or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **about,
            "commit": git_commit(),
            "versions": versions(),
        }
        write_text(self.path / ABOUT, json.dumps(content, indent=1) + "\n")
        write_text(self.path / CONFIG, to_yaml(config))

    def log(self, row: dict[str, Any]) -> None:
        """Append one line to log.jsonl."""
        with (self.path / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def trim_log(self, epochs: int) -> list[dict[str, Any]]:
        """Keep the lines of the first `epochs` epochs: the others will be written again."""
        path = self.path / LOG
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
            except ValueError:  # the line that a kill cut off
                continue
            if row.get("epoch", epochs) < epochs:
                rows.append(row)
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def _about(self) -> dict[str, Any]:
        try:
            content = json.loads((self.path / ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PathError(self.path, f"has a damaged {ABOUT} ({error})") from error
        return content if isinstance(content, dict) else {}
