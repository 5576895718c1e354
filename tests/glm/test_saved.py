import dataclasses
import errno
import hashlib
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from tangograd.glm.errors import DataError
from tangograd.glm.fitted import Fitted
from tangograd.glm.saved import FORMAT, fitted_from_dict, fitted_to_dict, load, save

TRICKY = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, 2**53 + 2.0, 1 + 2**-52, 1.0]


def fitted(**changes):
    """A multinomial model of three classes and two coefficients each."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    values = {
        "family": "multinomial",
        "link": "logit",
        "names": ("intercept", "âge"),
        "estimates": rng.normal(size=4) * 10.0 ** rng.integers(-200, 200, size=4),
        "rows": 1000,
        "weight": 1000.5,
        "dispersion": 1.0,
        "log_likelihood": -123.456,
        "deviance": 246.912,
        "null_deviance": 300.1,
        "progressive": True,
        "parameters": {"power": 1.5},
        "classes": ("no", "yes", "maybe"),
        "standard_errors": rng.exponential(size=4),
        "robust_errors": rng.exponential(size=4),
        "covariance_kind": "full",
        "covariance": root @ root.T,
        "excess": 1.07,
        "alpha": 0.01,
        "passes": 2,
        "converged": True,
        "notes": ("Column 'b' is constant.", "A second note."),
        "trace_rows": np.array([10, 100, 1000]),
        "trace_loss": rng.normal(size=3),
    }
    return Fitted(**(values | changes))


REGRESSION = {
    "classes": None,
    "estimates": np.array([0.5, -2.0]),
    "standard_errors": None,
    "robust_errors": None,
    "covariance_kind": "none",
    "covariance": None,
}


def same(a, b):
    for part in dataclasses.fields(Fitted):
        one, other = getattr(a, part.name), getattr(b, part.name)
        assert type(one) is type(other), part.name
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, part.name
            assert one.shape == other.shape, part.name
            assert one.tobytes() == other.tobytes(), part.name
        else:
            assert one == other, part.name


def write(path, contents, **changes):
    """A file that ``save`` could have written, of any model."""
    canonical = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    document = {
        "format": FORMAT,
        "version": 1,
        "sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "model": contents,
    }
    path.write_text(json.dumps(document | changes))
    return path


class TestFiles:
    def test_comes_back_exactly(self, tmp_path):
        payload = {
            "numbers": TRICKY,
            "nested": {"a": [[1, 2.0], []], "b": {}, "é\ud800": "ü\n\u2028"},
            "others": [True, False, None, 10**30, -1],
        }
        save(tmp_path / "m", payload)
        back = load(tmp_path / "m")
        assert back == payload
        assert repr(back) == repr(payload)  # so -0.0 is not 0.0, nor 1.0 1

    def test_numbers_that_are_not_finite(self, tmp_path):
        save(tmp_path / "m", {"a": [math.nan, math.inf, -math.inf]})
        a = load(tmp_path / "m")["a"]
        assert math.isnan(a[0])
        assert a[1:] == [math.inf, -math.inf]

    def test_is_standard_json(self, tmp_path):
        save(tmp_path / "m", {"a": math.nan})

        def refuse(constant):
            raise AssertionError(constant)

        document = json.loads((tmp_path / "m").read_text(), parse_constant=refuse)
        assert (document["format"], document["version"]) == ("tangograd-glm", 1)

    def test_order_is_kept(self, tmp_path):
        save(tmp_path / "m", {"y": {"b": 1, "a": 2}, "x": 3})
        back = load(tmp_path / "m")
        assert (list(back), list(back["y"])) == (["y", "x"], ["b", "a"])

    @pytest.mark.parametrize(
        ("payload", "place"),
        [
            ({"a": [1, np.ones(2)]}, r"payload\['a'\]\[1\] is ndarray"),
            ({"a": {1: 2}}, r"payload\['a'\] is dict"),
            ({"a": {"$float": "nan"}}, r"payload\['a'\] is dict"),
            ({"a": b"x"}, r"payload\['a'\] is bytes"),
            ({"a": print}, r"payload\['a'\] is builtin"),
        ],
    )
    def test_other_things_are_refused_before_writing(self, tmp_path, payload, place):
        with pytest.raises(TypeError, match=place):
            save(tmp_path / "m", payload)
        assert list(tmp_path.iterdir()) == []

    def test_full_disk_keeps_the_old_model(self, tmp_path, monkeypatch):
        path = tmp_path / "model.json"
        save(path, {"a": 1})
        before = path.read_bytes()
        whole = Path.write_text

        def half(self, text, **options):
            whole(self, text[: len(text) // 2], **options)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_text", half)
        with pytest.raises(OSError, match="No space left"):
            save(path, {"a": 2})
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_folder_that_cannot_be_written(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            save(tmp_path / "none" / "model.json", {})


class TestBadFiles:
    @pytest.mark.parametrize("path", ["none.json", "."])
    def test_missing(self, tmp_path, path):
        with pytest.raises(DataError, match="there is no model file"):
            load(tmp_path / path)

    @pytest.mark.parametrize("version", [0, 2, 999, "1", 1.0, True, None])
    def test_version(self, tmp_path, version):
        write(tmp_path / "m", {}, version=version)
        with pytest.raises(DataError, match=rf"version {version!r}, .* reads version 1: .*again"):
            load(tmp_path / "m")

    @pytest.mark.parametrize(
        "text", ["[]", "1", '"tangograd-glm"', "{}", '{"format": "onnx", "version": 1}', "null"]
    )
    def test_other_formats(self, tmp_path, text):
        (tmp_path / "m").write_text(text)
        with pytest.raises(DataError, match="is not a model of tangograd"):
            load(tmp_path / "m")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x00\x01\xff",
            b"a,b\n1,2\n",
            b'{"format": "tangograd-glm", "version": 1, "model": NaN}',
            b'{"format": "x", "format": "tangograd-glm"}',
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"1" * 5000,
        ],
        ids=["empty", "binary", "csv", "nan", "twice", "deep list", "deep object", "huge number"],
    )
    def test_not_json(self, tmp_path, data):
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(DataError, match="damaged, cut off or not a model"):
            load(tmp_path / "m")

    def test_cut_off_anywhere(self, tmp_path):
        save(tmp_path / "m", fitted_to_dict(fitted()))
        whole = (tmp_path / "m").read_bytes().rstrip()
        for length in range(0, len(whole), 97):
            (tmp_path / "cut").write_bytes(whole[:length])
            with pytest.raises(DataError, match="damaged"):
                load(tmp_path / "cut")

    def test_any_changed_digit_is_seen(self, tmp_path):
        save(tmp_path / "m", {"estimates": [1.5, 2.25], "names": ["a", "b"]})
        whole = bytearray((tmp_path / "m").read_bytes())
        for i, byte in enumerate(whole):
            if chr(byte).isdigit():
                whole[i] = ord("7") if byte != ord("7") else ord("3")
                (tmp_path / "m").write_bytes(whole)
                with pytest.raises(DataError):
                    load(tmp_path / "m")
                whole[i] = byte

    @pytest.mark.parametrize("protocol", range(2, 6))
    def test_pickles_are_not_opened(self, tmp_path, protocol):
        class Trap:
            def __reduce__(self):
                return Path.touch, (tmp_path / "ran",)

        (tmp_path / "m").write_bytes(pickle.dumps(Trap(), protocol))
        with pytest.raises(DataError, match="could run code"):
            load(tmp_path / "m")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"sha256": "0" * 64}, "checksum"),
            ({"sha256": None}, "checksum"),
            ({"more": 1}, "its parts"),
            ({"model": [1]}, "not an object"),
        ],
    )
    def test_changed_parts(self, tmp_path, changes, why):
        write(tmp_path / "m", {"a": 1}, **changes)
        with pytest.raises(DataError, match=why):
            load(tmp_path / "m")

    @pytest.mark.parametrize("tag", [1, "none", ["nan"], {}])
    def test_bad_tag(self, tmp_path, tag):
        with pytest.raises(DataError, match=r"\$float"):
            load(write(tmp_path / "m", {"a": {"$float": tag}}))

    def test_nested_too_deeply(self, tmp_path):
        deep = "[" * 900 + "]" * 900
        canonical = f'{{"a":{deep}}}'
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        (tmp_path / "m").write_text(
            f'{{"format":"{FORMAT}","version":1,"sha256":"{digest}","model":{canonical}}}'
        )
        with pytest.raises(DataError, match="nested|recursion"):
            load(tmp_path / "m")


class TestFitted:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            REGRESSION,
            REGRESSION | {"parameters": {}, "notes": ()},
            {"trace_rows": np.empty(0, np.int64), "trace_loss": np.empty(0)},
            {"covariance_kind": "diagonal", "covariance": None},
            {"robust_errors": None},
            {"estimates": np.array(TRICKY[:4])},
            {"classes": (1, 2, 3)},
            {"classes": (1.0, 2.5, 3.0)},
            {"classes": ("1", 2, 2.5)},
            {"classes": (False, True), "names": ("a", "b", "c", "d")},
            {"trace_rows": np.array([1, 2, 2**62])},
        ],
    )
    def test_comes_back_exactly(self, tmp_path, changes):
        model = fitted(**changes)
        save(tmp_path / "m", fitted_to_dict(model))
        back = fitted_from_dict(load(tmp_path / "m"))
        same(model, back)
        if model.classes is not None:
            assert [type(c) for c in back.classes] == [type(c) for c in model.classes]

    def test_unknown_statistics_come_back(self, tmp_path):
        model = fitted(
            standard_errors=np.array([1.0, np.nan, np.inf, 2.0]), log_likelihood=-math.inf
        )
        save(tmp_path / "m", fitted_to_dict(model))
        same(model, fitted_from_dict(load(tmp_path / "m")))

    def test_numpy_scalars_become_plain(self):
        model = fitted(classes=tuple(np.array([3, 5, 9])), rows=np.int64(7), weight=np.float64(7.5))
        back = fitted_from_dict(fitted_to_dict(model))
        assert back.classes == (3, 5, 9)
        assert [type(v) for v in (*back.classes, back.rows, back.weight)] == [int] * 4 + [float]

    def test_every_field_is_required(self):
        plain = fitted_to_dict(fitted())
        assert plain.keys() == {part.name for part in dataclasses.fields(Fitted)}
        for name in plain:
            with pytest.raises(DataError, match=f"field '{name}' is missing"):
                fitted_from_dict({key: value for key, value in plain.items() if key != name})

    @pytest.mark.parametrize(
        ("field", "value", "why"),
        [
            ("eval", "print()", "is not known"),
            ("family", 3, "is not text"),
            ("family", "", "is not text"),
            ("link", None, "is not text"),
            ("names", "ab", "is not a list"),
            ("names", [], "is empty"),
            ("names", ["a"], None),
            ("names", ["a", 1], "is not text"),
            ("estimates", None, "is not a list"),
            ("estimates", [1.0, 2.0, 3.0], "has length 3 where there are 4 coefficients"),
            ("estimates", [1.0, 2.0, 3.0, "4"], "is not a number"),
            ("estimates", [1.0, 2.0, 3.0, True], "is not a number"),
            ("estimates", [1.0, 2.0, 3.0, math.nan], "is not finite"),
            ("estimates", [1.0, 2.0, 3.0, [4.0]], "is not a number"),
            ("estimates", [1.0, 2.0, 3.0, 10**400], "is too large"),
            ("rows", -1, "is not a count"),
            ("rows", 1.5, "is not a count"),
            ("rows", True, "is not a count"),
            ("weight", -1.0, "is negative"),
            ("weight", math.inf, "is not finite"),
            ("dispersion", "1", "is not a number"),
            ("log_likelihood", None, "is not a number"),
            ("deviance", [], "is not a number"),
            ("progressive", 1, "is not true or false"),
            ("parameters", [], "is not an object"),
            ("parameters", {"power": math.nan}, "is not finite"),
            ("parameters", {"power": "1"}, "is not a number"),
            ("classes", ["a"], "fewer than two"),
            ("classes", ["a", "b", "a"], "twice"),
            ("classes", ["a", "b", None], "has a label"),
            ("classes", ["a", "b", math.nan], "is not finite"),
            ("standard_errors", [1.0], "has length 1"),
            ("standard_errors", None, "does not go with"),
            ("robust_errors", [1.0] * 5, "has length 5"),
            ("covariance_kind", "half", "is 'half', not one of full, diagonal, none"),
            ("covariance_kind", "diagonal", None),
            ("covariance", None, "does not go with"),
            ("covariance", [[1.0] * 4] * 3, "is not a square matrix"),
            ("covariance", [[1.0]], "has length 1"),
            ("covariance", [1.0] * 4, "is not a list"),
            ("excess", "1", "is not a number"),
            ("alpha", -0.1, "is negative"),
            ("passes", "2", "is not a count"),
            ("converged", None, "is not true or false"),
            ("notes", [1], "is not text"),
            ("trace_rows", [1, 2, 2], "does not increase"),
            ("trace_rows", [1, 2, 2**63], "is too large"),
            ("trace_rows", [1.0, 2.0, 3.0], "is not a count"),
            ("trace_loss", [1.0], "another length"),
        ],
    )
    def test_wrong_fields_are_named(self, field, value, why):
        plain = fitted_to_dict(fitted()) | {field: value}
        expected = f"field '{field}' .*{why}" if why else "field"
        with pytest.raises(DataError, match=expected):
            fitted_from_dict(plain)

    def test_errors_without_covariance(self):
        plain = fitted_to_dict(fitted(**REGRESSION))
        with pytest.raises(DataError, match="'standard_errors' does not go with"):
            fitted_from_dict(plain | {"standard_errors": [1.0, 2.0]})
        with pytest.raises(DataError, match="'robust_errors' does not go with"):
            fitted_from_dict(plain | {"robust_errors": [1.0, 2.0]})

    def test_what_could_not_be_read_is_not_written(self):
        with pytest.raises(DataError, match="'estimates' is not finite"):
            fitted_to_dict(fitted(estimates=np.array([1.0, 2.0, 3.0, np.inf])))
