"""What the user asks of a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


class UsageError(ValueError):
    """The options do not go together, or are not known; the text says what to write instead."""


@dataclass(frozen=True)
class FitOptions:
    """The options of ``tangograd fit``; its help explains them.

    Attributes:
        data: a file, a folder, or ``"-"``; ``None`` if there is an example.
        example: the name of one.
        levels: a JSON file.
        report: a file, instead of that beside the model.
        no_report: write none.
        command: as it was typed, for the report.
    """

    data: str | None = None
    example: str | None = None
    target: str | None = None
    family: str | None = None
    link: str | None = None
    power: float | None = None
    dispersion: float | None = None
    formula: str | None = None
    exposure: str | None = None
    offset: str | None = None
    weights: str | None = None
    exclude: tuple[str, ...] = ()
    holdout: float = 0.1
    passes: int = 1
    polish: bool | None = None
    na: str | None = None
    levels: Path | None = None
    alpha: float | None = None
    no_intercept: bool = False
    fisher: str = "expected"
    robust: bool = False
    level: float = 0.95
    output: Path | None = None
    report: Path | None = None
    no_report: bool = False
    seed: int = 0
    command: str = ""

    def checked(self) -> FitOptions:
        """These, with what an example brings along where nothing else is said.

        Raises:
            UsageError: they do not go together.
        """
        from tangograd.glm.commands.examples import EXAMPLES

        if (self.data is None) == (self.example is None):
            raise UsageError(
                "name the DATA to learn from (a file, a folder, or - for standard input)"
                + (", or --example NAME" if self.data is None else " or an --example, not both")
            )
        if self.family and "-" in self.family:
            return replace(self, family=self.family.replace("-", "_")).checked()
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in allowed:
                raise UsageError(f"--{name} is one of {', '.join(allowed)}; got {value!r}")
        if not 0 < self.level < 1:
            raise UsageError(f"--level is between 0 and 1, such as 0.95; got {self.level:g}")
        if not 0 <= self.holdout < 1:
            raise UsageError(f"--holdout is a share from 0 to below 1; got {self.holdout:g}")
        if self.alpha is not None and not 0 <= self.alpha < float("inf"):
            raise UsageError(f"--alpha is 0 or positive; got {self.alpha:g}")
        if self.data == "-" and (self.passes > 1 or self.polish):
            raise UsageError(
                "standard input can be read only once: for --passes and --polish save it to a file"
            )
        self._check_files()
        if self.example is None:
            return self._with_target()
        if self.example not in EXAMPLES:
            raise UsageError(f"--example is one of {', '.join(EXAMPLES)}; got {self.example!r}")
        example = EXAMPLES[self.example]
        brought: dict[str, Any] = {"target": example.target} | example.options
        if self.formula is not None and "~" in self.formula:
            del brought["target"]
        unsaid = {name: value for name, value in brought.items() if getattr(self, name) is None}
        return replace(self, **unsaid)._with_target()

    def _with_target(self) -> FitOptions:
        if self.target is None and not (self.formula and "~" in self.formula):
            raise UsageError(
                "name the target: --target y, or a formula that begins with it (y ~ …)"
            )
        return self

    def _check_files(self) -> None:
        if self.output is None:
            if self.report is not None:
                raise UsageError("--report belongs to a model: name its file too (-o MODEL)")
            return
        for file in (self.output, self.report, self.report_file):
            if file is None:
                continue
            if file.is_dir():
                raise UsageError(f"{file} is a folder: name a file to write, such as model.json")
            if self.data is not None and file.resolve() == Path(self.data).resolve():
                raise UsageError(f"{file} is the data, which would be lost: write to another file")
        if self.report_file == self.output:
            raise UsageError(f"{self.output} cannot hold both the model and its report")

    @property
    def report_file(self) -> Path | None:
        """Where the report goes, if anywhere."""
        if self.output is None or self.no_report:
            return None
        if self.report is None and self.output.name:
            return self.output.with_suffix(".html")
        return self.report

    @property
    def parameters(self) -> dict[str, float]:
        """Of the family."""
        given = {"power": self.power, "dispersion": self.dispersion}
        return {name: value for name, value in given.items() if value is not None}


CHOICES: dict[str, tuple[str, ...]] = {
    "family": (
        "gaussian",
        "binomial",
        "multinomial",
        "poisson",
        "gamma",
        "negative_binomial",
        "tweedie",
    ),
    "na": ("drop", "indicator"),
    "fisher": ("expected", "sampled"),
}
