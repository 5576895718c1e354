import csv
import datetime
import gzip
import io
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tangograd.glm.designs.columns import encode
from tangograd.glm.errors import DataError
from tangograd.glm.tables.readers import open_table, where

SMALL = {"block_bytes": 40, "sample_bytes": 40}  # many blocks of a few lines each


def put(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(table, columns=None):
    return [row for batch in table.batches(columns) for row in batch.records.to_pylist()]


def kinds(table):
    return {field.name: str(field.type) for field in table.schema}


def numbers(count, first=0):
    return "".join(f"{i},{i / 8}\n" for i in range(first, first + count))


class Pieces(io.RawIOBase):
    """A pipe that gives its data in pieces."""

    def __init__(self, pieces):
        self.pieces = iter(pieces)
        self.rest = b""

    def readable(self):
        return True

    def readinto(self, buffer):
        self.rest = self.rest or next(self.pieces, b"")
        piece, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)


def trickle(data):
    return Pieces(data[i : i + 7] for i in range(0, len(data), 7))


class TestCsv:
    def test_rows_in_order_over_many_blocks(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + numbers(500))
        table = open_table(tmp_path / "a.csv", **SMALL)
        assert rows(table) == [{"x": i, "y": i / 8} for i in range(500)]
        batches = list(table.batches())
        assert len(batches) > 50
        sizes = [batch.records.num_rows for batch in batches]
        assert [batch.first_row for batch in batches] == list(np.cumsum([0, *sizes[:-1]]))
        taken = [batch.bytes_read for batch in batches]
        assert taken == sorted(taken)
        assert taken[-1] == table.total_bytes == (tmp_path / "a.csv").stat().st_size
        assert table.rereadable

    @pytest.mark.parametrize("block", [1, 2, 7, 64, 1 << 20])
    def test_any_blocks_give_the_same(self, tmp_path, block):
        text = 'a,b\n1,"x\ny"\n\n2,"p ""q"", r"\n3,5" wide\n4,"\n\n\n"\r\n5,\n6,"z"'
        table = open_table(put(tmp_path / "a.csv", text), block_bytes=block)
        assert [tuple(row.values()) for row in rows(table)] == [
            (1, "x\ny"),
            (2, 'p "q", r'),
            (3, '5" wide'),
            (4, "\n\n\n"),
            (5, None),
            (6, "z"),
        ]

    @pytest.mark.parametrize("seed", range(3))
    def test_quotes_of_all_kinds(self, tmp_path, seed):
        """As the csv module reads them, wherever the blocks end."""
        rng = np.random.default_rng(seed)
        pieces = ["a", '"', "\n", ",", " "]
        texts = ["".join(rng.choice(pieces, size=rng.integers(1, 6))) for _ in range(600)]
        stray = seed > 0  # quotes that are just characters
        lines = []
        for text in texts:
            plain = text.replace(",", "").replace("\n", "").lstrip('"')
            bare = stray and plain and rng.random() < 0.1
            quoted = '"' + text.replace('"', '""') + '"'
            lines.append(f"{plain if bare else quoted},x")
        path = put(tmp_path / "a.csv", "word,other\n" + "\n".join(lines) + "\n")
        with path.open(newline="") as file:
            wanted = [row[0] for row in csv.reader(file)][1:]
        for block in (5, 50, 500):
            table = open_table(path, block_bytes=block, types={"word": pa.string()})
            assert [row["word"] for row in rows(table)] == wanted

    def test_types(self, tmp_path):
        text = (
            "whole,half,word,truth,day,time,empty,big\n"
            "1,1.5,a,true,2020-01-02,2020-01-02 03:04:05,,99999999999999999999\n"
            "-2,2,b,false,2020-01-03,2020-01-02 03:04:06,,1\n"
        )
        table = open_table(put(tmp_path / "a.csv", text))
        assert kinds(table) == {
            "whole": "double",
            "half": "double",
            "word": "string",
            "truth": "bool",
            "day": "date32[day]",
            "time": "timestamp[s]",
            "empty": "double",
            "big": "double",
        }
        assert table.looks_integer == {"whole"}
        assert rows(table, ["whole", "truth", "day", "empty"])[0] == {
            "whole": 1.0,
            "truth": True,
            "day": datetime.date(2020, 1, 2),
            "empty": None,
        }

    def test_missing_values(self, tmp_path):
        text = 'x,word\n1,a\n,\nNA,NA\nNaN,null\nnull,""\n2, b\n'
        table = open_table(put(tmp_path / "a.csv", text))
        assert kinds(table) == {"x": "double", "word": "string"}
        assert [tuple(row.values()) for row in rows(table)] == [
            (1, "a"),
            *[(None, None)] * 4,
            (2, " b"),
        ]

    def test_integers_may_be_followed_by_decimals(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + "1,2\n" * 50 + "1.5,2e-3\n")
        table = open_table(tmp_path / "a.csv", **SMALL)
        assert table.looks_integer == {"x", "y"}
        assert rows(table)[-1] == {"x": 1.5, "y": 0.002}

    def test_text_may_be_followed_by_numbers(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + "a,2\n" * 50 + "1.5,2\n")
        assert rows(open_table(tmp_path / "a.csv", **SMALL))[-1] == {"x": "1.5", "y": 2}

    def test_columns_that_begin_empty_are_numbers(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + ",2\n" * 50 + "1.5,2\n")
        table = open_table(tmp_path / "a.csv", **SMALL)
        assert rows(table)[-1] == {"x": 1.5, "y": 2}
        assert table.looks_integer == {"y"}

    def test_declared_types(self, tmp_path):
        put(tmp_path / "a.csv", "zip,y\n01234,2\nabc,3\n")
        table = open_table(tmp_path / "a.csv", types={"zip": pa.string(), "other": pa.string()})
        assert [row["zip"] for row in rows(table)] == ["01234", "abc"]
        put(tmp_path / "b.csv", "zip,y\n01234,2\n")
        table = open_table(tmp_path / "b.csv", types={"zip": pa.string()})
        assert rows(table) == [{"zip": "01234", "y": 2}]
        assert table.looks_integer == {"y"}

    def test_chosen_columns(self, tmp_path):
        table = open_table(put(tmp_path / "a.csv", "x,y,z\n1,2,3\n"))
        assert [list(row) for row in rows(table, ["z", "x"])] == [["z", "x"]]
        assert rows(table, []) == [{"x": 1}]
        with pytest.raises(
            DataError,
            match="column 'agee' is not in the data; its columns are: age, b. Did you mean 'age'",
        ):
            open_table(put(tmp_path / "b.csv", "age,b\n1,2\n")).batches(["agee"])

    def test_a_wrong_value_in_another_column_does_not_matter(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + "1,2\n" * 50 + "oops,2\n")
        table = open_table(tmp_path / "a.csv", **SMALL)
        assert len(rows(table, ["y"])) == 51

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("bom.csv", b"\xef\xbb\xbfx,y\n1,2\n"),
            ("windows.csv", b"x,y\r\n1,2\r\n"),
            ("bom-windows.txt", b"\xef\xbb\xbfx,y\r\n1,2\r\n"),
            ("no-end.csv", b"x,y\n1,2"),
            ("spaces.csv", b"x, y\n1, 2\n"),
            ("quoted.csv", b'"x","y"\n"1","2"\n'),
            ("blank-lines.csv", b"\n\r\nx,y\n\n1,2\n\n\n"),
            ("tabs.tsv", b"x\ty\n1\t2\n"),
            ("tabs.txt", b"x\ty\n1\t2\n"),
            ("packed.csv.gz", gzip.compress(b"x,y\n1,2\n", mtime=0)),
            ("packed.tsv.gz", gzip.compress(b"x\ty\n1\t2\n", mtime=0)),
            ("packed-without-saying.csv", gzip.compress(b"x,y\n1,2\n", mtime=0)),
            ("members.csv.gz", gzip.compress(b"x,y\n", mtime=0) + gzip.compress(b"1,2\n", mtime=0)),
            ("no-ending", b"x,y\n1,2\n"),
        ],
    )
    @pytest.mark.parametrize("sizes", [{}, {"block_bytes": 1, "sample_bytes": 1}])
    def test_looks(self, tmp_path, name, text, sizes):
        table = open_table(put(tmp_path / name, text), **sizes)
        assert rows(table) == [{"x": 1, "y": 2}]

    def test_gzip_counts_what_is_on_the_disk(self, tmp_path):
        put(tmp_path / "a.csv.gz", gzip.compress(("x,y\n" + numbers(5000)).encode()))
        table = open_table(tmp_path / "a.csv.gz", block_bytes=10_000)
        taken = [batch.bytes_read for batch in table.batches()]
        assert taken[-1] == table.total_bytes == (tmp_path / "a.csv.gz").stat().st_size

    def test_names_in_any_language(self, tmp_path):
        table = open_table(put(tmp_path / "ünï.csv", "größe,年\n1,日本\n"))
        assert rows(table) == [{"größe": 1, "年": "日本"}]

    def test_reading_can_be_left(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + numbers(500))
        batches = open_table(tmp_path / "a.csv", **SMALL).batches()
        next(batches)
        batches.close()  # an open file would be a warning, hence an error

    def test_memory_does_not_grow(self):
        line = ",".join(["0.123456789012345"] * 20) + "\n"
        piece = line.encode() * 500

        names = ",".join(f"x{i}" for i in range(20)) + "\n"
        stream = io.BufferedReader(Pieces([names.encode()] + [piece] * 250))
        before, most, count = pa.total_allocated_bytes(), 0, 0
        for batch in open_table(stream).batches():
            most = max(most, pa.total_allocated_bytes() - before)
            count += batch.records.num_rows
        assert count == 125_000
        assert most < 10e6


class TestPlaces:
    def test_lines(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + numbers(100))
        found = [
            where(batch, i)
            for batch in open_table(tmp_path / "a.csv", **SMALL).batches()
            for i in range(batch.records.num_rows)
        ]
        assert found == [f"a.csv, line {line}" for line in range(2, 102)]

    @pytest.mark.parametrize("block", [1, 9, 1 << 20])
    def test_lines_with_empty_and_quoted_ones(self, tmp_path, block):
        text = '\n"x\n",y\n\n1,"a\n\nb"\n2,\r\n\n\n3,4\n4,5'
        table = open_table(put(tmp_path / "a.csv", text), block_bytes=block)
        found = [
            where(batch, i) for batch in table.batches() for i in range(batch.records.num_rows)
        ]
        assert found == [f"a.csv, line {line}" for line in (5, 8, 11, 12)]

    def test_rows_of_parquet(self, tmp_path):
        pq.write_table(pa.table({"x": np.arange(100.0)}), tmp_path / "a.parquet")
        batches = list(open_table(tmp_path / "a.parquet", block_bytes=5).batches())
        assert len(batches) == 7
        assert where(batches[2], 3) == "a.parquet, row 34"
        assert batches[2].records["x"][3].as_py() == 33


class TestBadCsv:
    """Every error names the file, the place and what to do."""

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("abc,1.5", r"line 102, column 'x': 'abc' is not a number, .*--levels"),
            ("0x10,1.5", r"line 102, column 'x': '0x10' is not a number"),
            ("1,true", r"line 102, column 'y': 'true' is not a number"),
            ('1,"a\nb"', r"line 102, column 'y': 'a\\nb' is not a number"),
            ("1", r"line 102: 1 field where the header has 2: '1'; correct or delete"),
            ("1,2,3", r"line 102: 3 fields where the header has 2: '1,2,3'"),
            ('1,"2" ,3"', r"line 102: 3 fields .* is a quote missing"),
            ("1," + "9," * 500, r"line 102: 502 fields .*9,9…'"),
        ],
    )
    @pytest.mark.parametrize("block", [1, 40, 1 << 20])
    def test_wrong_line(self, tmp_path, line, message, block):
        text = "x,y\n" + numbers(100) + line + "\n" + numbers(100) + "bad too\n"
        table = open_table(put(tmp_path / "a.csv", text), block_bytes=block, sample_bytes=99)
        with pytest.raises(DataError, match=r"^a\.csv, " + message):
            rows(table)

    @pytest.mark.parametrize("sample", [10, 1 << 20])
    def test_wrong_line_within_the_first_rows_or_after(self, tmp_path, sample):
        put(tmp_path / "a.csv", "x,y\n" + numbers(30) + "1\n" + numbers(30))
        with pytest.raises(DataError, match=r"a\.csv, line 32: 1 field where the header has 2"):
            rows(open_table(tmp_path / "a.csv", sample_bytes=sample))

    def test_wrong_line_on_standard_input(self):
        text = "x,y\n" + numbers(100) + "1,abc\n" + numbers(100)
        table = open_table(io.BytesIO(text.encode()), **SMALL)
        with pytest.raises(DataError, match="standard input, line 102, column 'y': 'abc' is not"):
            rows(table)

    def test_other_types(self, tmp_path):
        put(tmp_path / "a.csv", "x,day\n" + "true,2020-01-01\n" * 50 + "maybe,2020-01-01\n")
        table = open_table(tmp_path / "a.csv", **SMALL)
        with pytest.raises(DataError, match="line 52, column 'x': 'maybe' is not of type bool"):
            rows(table)

    @pytest.mark.parametrize(
        ("end", "message"),
        [
            ("1", "line 102: 1 field where the header has 2: '1'; the file ends here and may be"),
            ('1,"abc', "line 102: a quote is opened and not closed before the end"),
            ('1,"abc\n2,3\n4,5\n', "line 102: a quote is opened and not closed before the end"),
        ],
    )
    @pytest.mark.parametrize("sizes", [SMALL, {}])
    def test_cut_off(self, tmp_path, end, message, sizes):
        put(tmp_path / "a.csv", "x,y\n" + numbers(100) + end)
        with pytest.raises(DataError, match=rf"a\.csv, {message}"):
            rows(open_table(tmp_path / "a.csv", **sizes))

    def test_quote_that_swallows_the_file(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + numbers(100) + '1,"2\n' + numbers(30_000))
        with pytest.raises(DataError, match=r"a\.csv, line 102: .* 128 kB: is a quote"):
            rows(open_table(tmp_path / "a.csv", block_bytes=1000, sample_bytes=1000))

    @pytest.mark.parametrize("sample", [40, 1 << 20])
    def test_not_utf8(self, tmp_path, sample):
        text = b"word,y\n" + b"a,1\n" * 30 + "Zürich,1\n".encode("latin-1") + b"a,1\n" * 9
        put(tmp_path / "a.csv", text)
        with pytest.raises(
            DataError, match="line 32, column 'word': the text is not UTF-8 .*'Zürich'.*iconv"
        ):
            rows(open_table(tmp_path / "a.csv", sample_bytes=sample))

    def test_no_line_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tangograd.glm.tables.csv_files.LONGEST_RECORD", 1000)
        put(tmp_path / "a.csv", "x,y\n" + numbers(9) + "1" * 3000)
        with pytest.raises(DataError, match=r"a\.csv, line 11: no end of the record within"):
            rows(open_table(tmp_path / "a.csv", **SMALL))
        put(tmp_path / "a.csv", "x,y\n" + "1" * 3000)
        with pytest.raises(DataError, match=r"a\.csv, line 2: no end of the record within"):
            open_table(tmp_path / "a.csv", **SMALL)

    def test_carriage_return_alone(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n" + numbers(100) + "1,2\r3,4\n")
        # pyarrow takes it for a line end, and so do rows that come out right
        assert len(rows(open_table(tmp_path / "a.csv", **SMALL))) == 102
        put(tmp_path / "a.csv", "x,y\n" + numbers(100) + "1,2\r3\n")
        with pytest.raises(DataError, match="line 102: a carriage return without a line feed"):
            rows(open_table(tmp_path / "a.csv", **SMALL))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"a\.csv is empty; a CSV file begins with a line of column names"),
            ("\n\n", r"a\.csv is empty"),
            ("x,y\n", r"a\.csv: there are column names but no rows"),
            ("x,y", r"a\.csv: there are column names but no rows"),
            ("x,y\n\n\n", r"a\.csv: there are column names but no rows"),
            ("x,y,x\n1,2,3\n", r"more than one column is named 'x'"),
            ("x,,y\n1,2,3\n", r"column 2 has no name; .*to_csv\(index=False\)"),
            ("x,y,\n1,2,3\n", r"column 3 has no name"),
            ("1.5,2\n1,2\n", r"first line holds numbers where column names are expected"),
            ("x;y\n1,5;2\n", r"separated by semicolons; save it with commas"),
            ("x" * (1 << 18) + ",y\n1,2\n", r"a field of more than 128 kB"),
            ("x\ry\r1\r2\r", r"carriage return without a line feed"),
            ('"x,y\n1,2\n', r"the first line, of column names, has no end"),
            ("x," * (1 << 19) + "y\n1,2\n", r"the first line, of column names, has no end"),
            (b"\xe9t\xe9,y\n1,2\n", r"line 1: the column names are not UTF-8"),
            ("x,y\n1,2\n".encode("utf-16"), r"a\.csv is UTF-16 text: save it as UTF-8"),
            (b"\x89PNG\x00\x01\x02", r"a\.csv holds binary data"),
            (b"PK\x03\x04\x14\x00", r"a\.csv is an Excel or zip file: save its sheet as CSV"),
            (b"\xd0\xcf\x11\xe0\xa1", r"a\.csv is an old Excel file"),
            (b"BZh91AY&SY", r"a\.csv is compressed with bzip2: .* only gzip"),
            (b"\x28\xb5\x2f\xfd\x00", r"a\.csv is compressed with zstd"),
            (b"\xfd7zXZ\x00", r"a\.csv is compressed with xz"),
            (b"ARROW1\x00\x00", r"a\.csv is an Arrow"),
            (b"SQLite format 3\x00", r"a\.csv is an SQLite database"),
            (b"\x80\x05\x95\x00", r"a\.csv is a Python pickle, which is never opened"),
            (gzip.compress(b"PAR1 and so on", mtime=0), r"a\.csv is a Parquet file"),
            (gzip.compress(b"", mtime=0), r"a\.csv is empty"),
            (b"\x1f\x8bgarbage", r"a\.csv: the gzip data are damaged or cut off"),
        ],
    )
    def test_files_that_cannot_be_opened(self, tmp_path, text, message):
        with pytest.raises(DataError, match=message):
            open_table(put(tmp_path / "a.csv", text))

    @pytest.mark.parametrize("damage", ["cut", "changed"])
    def test_gzip_damaged_midway(self, tmp_path, damage):
        rng = np.random.default_rng(0)
        text = "x\n" + "\n".join(map(str, rng.normal(size=5000)))
        whole = bytearray(gzip.compress(text.encode()))
        half = len(whole) // 2
        if damage == "cut":
            del whole[half:]
        else:
            whole[half : half + 20] = bytes(20)
        put(tmp_path / "a.csv.gz", bytes(whole))
        with pytest.raises(DataError, match=r"a\.csv\.gz: the gzip data are damaged or cut off"):
            rows(open_table(tmp_path / "a.csv.gz", **SMALL))

    def test_gzip_cut_off_says_so(self, tmp_path):
        put(tmp_path / "a.csv.gz", gzip.compress(("x,y\n" + numbers(9)).encode())[:-9])
        with pytest.raises(DataError, match="damaged or cut off .* copy or compress them again"):
            rows(open_table(tmp_path / "a.csv.gz"))

    def test_missing_file(self, tmp_path):
        with pytest.raises(DataError, match="there is no file or folder '.*none.csv'"):
            open_table(tmp_path / "none.csv")


class TestStandardInput:
    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    @pytest.mark.parametrize("sizes", [SMALL, {}])
    def test_reads_once(self, monkeypatch, pack, sizes):
        class Stdin:
            buffer = io.BytesIO(pack(("x,y\n" + numbers(300)).encode()))

        monkeypatch.setattr(sys, "stdin", Stdin)
        table = open_table("-", **sizes)
        assert not table.rereadable
        assert table.total_bytes is None
        assert table.schema.names == ["x", "y"]
        assert rows(table) == [{"x": i, "y": i / 8} for i in range(300)]
        with pytest.raises(DataError, match="standard input can be read only once"):
            table.batches()
        assert not Stdin.buffer.closed

    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_slow_pipe(self, pack):
        stream = trickle(pack(("x,y\n" + numbers(300)).encode()))
        table = open_table(io.BufferedReader(stream, 16), **SMALL)
        batches = list(table.batches())
        assert sum(batch.records.num_rows for batch in batches) == 300
        assert where(batches[-1], 0).startswith("standard input, line ")

    def test_raw_pipe(self):
        assert len(rows(open_table(trickle(("x,y\n" + numbers(300)).encode())))) == 300

    def test_real_pipe(self):
        reading, writing = os.pipe()
        with open(reading, "rb") as stream, open(writing, "wb") as other:
            other.write(b"x,y\n1,2\n")
            other.close()
            assert rows(open_table(stream)) == [{"x": 1, "y": 2}]

    def test_parquet_is_refused(self, tmp_path):
        pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match="Parquet file, which cannot be read as a stream"):
            open_table(io.BytesIO((tmp_path / "a.parquet").read_bytes()))

    def test_empty(self):
        with pytest.raises(DataError, match="standard input is empty"):
            open_table(io.BytesIO(b""))


class TestParquet:
    def test_rows_in_order(self, tmp_path):
        x = np.random.default_rng(0).normal(size=1000)
        pq.write_table(pa.table({"x": x, "y": x > 0}), tmp_path / "a.parquet", row_group_size=70)
        table = open_table(tmp_path / "a.parquet", block_bytes=30)
        batches = list(table.batches())
        assert np.concatenate([b.records["x"].to_numpy() for b in batches]).tolist() == x.tolist()
        taken = [batch.bytes_read for batch in batches]
        assert taken == sorted(taken)
        assert taken[-1] == table.total_bytes == (tmp_path / "a.parquet").stat().st_size
        assert table.rereadable
        assert len(rows(table)) == 1000

    @pytest.mark.parametrize(
        ("column", "kind", "whole", "value"),
        [
            (pa.array([1], pa.int8()), "double", True, 1.0),
            (pa.array([2**64 - 1], pa.uint64()), "double", True, 2.0**64),
            (pa.array([2**60 + 1], pa.int64()), "double", True, 2.0**60),
            (pa.array([1.5], pa.float32()), "double", False, 1.5),
            (pa.array([np.float16(1.5)], pa.float16()), "double", False, 1.5),
            (pa.array(["1.25"]).cast(pa.decimal128(9, 2)), "double", False, 1.25),
            (pa.array(["125"]).cast(pa.decimal128(9, 0)), "double", True, 125.0),
            (pa.array(["a"]), "string", False, "a"),
            (pa.array(["a"], pa.large_string()), "string", False, "a"),
            (pa.array(["a"]).dictionary_encode(), "string", False, "a"),
            (pa.array([True]), "bool", False, True),
            (pa.array([None]), "double", False, None),
            (
                pa.array([datetime.date(2020, 1, 1)]),
                "date32[day]",
                False,
                datetime.date(2020, 1, 1),
            ),
        ],
    )
    def test_types(self, tmp_path, column, kind, whole, value):
        pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
        table = open_table(tmp_path / "a.parquet")
        assert kinds(table) == {"x": kind}
        assert table.looks_integer == ({"x"} if whole else set())
        assert rows(table) == [{"x": value}]

    def test_texts_keep_their_dictionaries(self, tmp_path):
        """Which are made anew where rows have few of a file's many levels."""
        texts = [f"t{i % 500}" for i in range(1000)]
        pq.write_table(pa.table({"x": texts}), tmp_path / "a.parquet")
        found = []
        for batch in open_table(tmp_path / "a.parquet", block_bytes=20).batches():
            column = batch.records.column("x")
            assert column.type == pa.dictionary(pa.int32(), pa.string())
            assert len(column.dictionary) == 500 > len(column)
            levels = encode(column)
            assert len(levels.labels) <= len(column)
            found += [levels.labels[code] for code in levels.codes]
        assert found == texts

    def test_declared_types(self, tmp_path):
        pq.write_table(pa.table({"x": [1, 2], "y": ["1", "b"]}), tmp_path / "a.parquet")
        table = open_table(tmp_path / "a.parquet", types={"x": pa.string()})
        assert rows(table) == [{"x": "1", "y": "1"}, {"x": "2", "y": "b"}]
        table = open_table(tmp_path / "a.parquet", types={"y": pa.float64()})
        with pytest.raises(DataError, match=r"a\.parquet, rows 1 to 2, column 'y': .*'b'"):
            rows(table)

    def test_chosen_columns(self, tmp_path):
        pq.write_table(pa.table({"x": [1], "x.y": [2], "z": [3]}), tmp_path / "a.parquet")
        table = open_table(tmp_path / "a.parquet")
        assert [list(row.items()) for row in rows(table, ["z", "x"])] == [[("z", 3), ("x", 1)]]
        assert rows(table, ["x.y"]) == [{"x.y": 2}]
        assert rows(table, []) == [{"x": 1}]

    def test_ending_does_not_matter(self, tmp_path):
        pq.write_table(pa.table({"x": [1]}), tmp_path / "data")
        assert rows(open_table(tmp_path / "data")) == [{"x": 1}]

    def test_wide_tables_come_in_small_batches(self, tmp_path):
        wide = pa.table({f"x{i}": np.zeros(3000) for i in range(200)})
        pq.write_table(wide, tmp_path / "a.parquet")
        batch = next(open_table(tmp_path / "a.parquet", block_bytes=10_000).batches())
        assert batch.records.num_rows == 150  # 240 kB

    @pytest.mark.parametrize(("group", "sizes"), [(1000, [250] * 8), (2000, [286] * 6 + [284])])
    def test_batches_of_a_group_are_alike(self, tmp_path, monkeypatch, group, sizes):
        """A rest would cost as much as any other to prepare."""
        monkeypatch.setattr("tangograd.glm.tables.parquet_files.MOST_ROWS", 300)
        table = pa.table({"x": np.arange(2000.0), "name": ["a", "b"] * 1000})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=group)
        found = list(open_table(tmp_path / "a.parquet").batches())
        assert [batch.records.num_rows for batch in found] == sizes
        values = np.concatenate([batch.records.column("x").to_numpy() for batch in found])
        np.testing.assert_array_equal(values, np.arange(2000.0))

    @pytest.mark.parametrize("text", [False, True])
    def test_small_groups_do_not_make_small_batches(self, tmp_path, monkeypatch, text):
        """Numbers are not cut where groups end; texts are, but the first may be a small one."""
        monkeypatch.setattr("tangograd.glm.tables.parquet_files.MOST_ROWS", 300)
        table = pa.table({"x": np.arange(2010.0)} | ({"name": ["a"] * 2010} if text else {}))
        sizes = [10, 1000, 1000] if text else [10] * 201
        with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
            start = 0
            for size in sizes:
                writer.write_table(table.slice(start, size))
                start += size
        found = [batch.records.num_rows for batch in open_table(tmp_path / "a.parquet").batches()]
        assert sum(found) == 2010
        assert len(found) <= (11 if text else 7)

    @pytest.mark.parametrize("keep", [0, 3, 4, 100, -1])
    def test_cut_off(self, tmp_path, keep):
        pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "a.parquet")
        put(tmp_path / "a.parquet", (tmp_path / "a.parquet").read_bytes()[:keep])
        with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file, or damaged or cut"):
            open_table(tmp_path / "a.parquet")

    def test_damaged_within(self, tmp_path):
        x = np.random.default_rng(0).normal(size=10_000)
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"x": x}), path, write_page_checksum=True, row_group_size=1000)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        table = open_table(put(path, bytes(data)))
        with pytest.raises(DataError, match=r"a\.parquet: .*damaged or cut off after row \d"):
            rows(table)

    @pytest.mark.parametrize(
        ("columns", "names", "message"),
        [
            ([[1], [2]], ["x", "x"], "more than one column is named 'x'"),
            ([[1], [2]], ["x", ""], "column 2 has no name"),
            ([[], []], ["x", "y"], "there are column names but no rows"),
        ],
    )
    def test_bad_columns(self, tmp_path, columns, names, message):
        table = pa.table([pa.array(column, pa.int64()) for column in columns], names=names)
        pq.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / "a.parquet")

    def test_csv_named_parquet(self, tmp_path):
        with pytest.raises(DataError, match="not a Parquet file"):
            open_table(put(tmp_path / "a.parquet", "x,y\n1,2\n"))

    def test_reading_can_be_left(self, tmp_path):
        pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "a.parquet")
        batches = open_table(tmp_path / "a.parquet", block_bytes=1).batches()
        next(batches)
        batches.close()


class TestFolders:
    def test_csv_in_the_order_of_names(self, tmp_path):
        put(tmp_path / "b.csv", "y,x\n20,2\n")
        put(tmp_path / "a.csv", "x,y\n" + numbers(50))
        put(tmp_path / "c.csv.gz", gzip.compress(b"x,y\n3.5,30\n", mtime=0))
        put(tmp_path / "d.txt", "x,y\n")
        put(tmp_path / "_SUCCESS", "")
        put(tmp_path / ".hidden.parquet", "")
        table = open_table(tmp_path, **SMALL)
        assert rows(table)[50:] == [{"x": 2, "y": 20}, {"x": 3.5, "y": 30}]
        batches = list(table.batches())
        assert [where(b, 0) for b in batches[-2:]] == ["b.csv, line 2", "c.csv.gz, line 2"]
        assert [b.first_row for b in batches[-2:]] == [0, 0]
        taken = [batch.bytes_read for batch in batches]
        assert taken == sorted(taken)
        assert taken[-1] == table.total_bytes - 4  # without d.txt's header

    def test_types_are_those_of_the_first_file_with_rows(self, tmp_path):
        put(tmp_path / "a.csv", "x,y\n")
        put(tmp_path / "b.csv", "x,y\n1,2\n")
        put(tmp_path / "c.csv", "x,y\n1,2\nabc,3\n")
        table = open_table(tmp_path)
        assert table.looks_integer == {"x", "y"}
        with pytest.raises(DataError, match=r"c\.csv, line 3, column 'x': 'abc' is not a number"):
            rows(table)

    def test_parquet(self, tmp_path):
        pq.write_table(pa.table({"x": pa.array([], pa.null()), "y": [""][:0]}), tmp_path / "0.pq")
        pq.write_table(pa.table({"x": [1], "y": ["a"]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"y": pa.array([None]), "x": [2.5]}), tmp_path / "2.parquet")
        table = open_table(tmp_path)
        assert rows(table) == [{"x": 1, "y": "a"}, {"x": 2.5, "y": None}]
        assert table.total_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())

    def test_parquet_types_differ(self, tmp_path):
        pq.write_table(pa.table({"x": [1]}), tmp_path / "1.parquet")
        pq.write_table(pa.table({"x": ["a"]}), tmp_path / "2.parquet")
        with pytest.raises(
            DataError, match="'x' is of type int64 in 1.parquet and of type string in 2.parquet"
        ):
            open_table(tmp_path)
        table = open_table(tmp_path, types={"x": pa.string()})
        assert rows(table) == [{"x": "1"}, {"x": "a"}]

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({}, "holds no data files"),
            ({"_SUCCESS": "", ".a.csv": "x\n1"}, "holds no data files"),
            ({"a.csv": "x,y\n1,2\n", "b.csv": "x,z\n1,2\n"}, r"b\.csv lacks column 'y', which a"),
            ({"a.csv": "x,y\n1,2\n", "b.csv": "x,y,z\n1,2,3\n"}, r"b\.csv has column 'z', which a"),
            (
                {"a.csv": "x\n1\n", "b.parquet": ""},
                r"both a\.csv and b\.parquet; .* all CSV or all",
            ),
            ({"a.csv": "x\n1\n", "notes.md": ""}, r"'notes\.md' is neither CSV nor Parquet"),
            ({"a.csv": "x,y\n", "b.csv": "x,y\n"}, r"the 2 files from a\.csv on: .* no rows"),
            ({"a.csv": "x,y\n1,2\n", "b.csv": ""}, r"b\.csv is empty"),
        ],
    )
    def test_bad_folders(self, tmp_path, files, message):
        for name, text in files.items():
            put(tmp_path / name, text)
        with pytest.raises(DataError, match=message):
            open_table(tmp_path)

    def test_folder_within(self, tmp_path):
        (tmp_path / "year=2020").mkdir()
        with pytest.raises(DataError, match="'year=2020' is a folder; move it elsewhere"):
            open_table(tmp_path)


def test_agrees_with_pyarrow_at_default_sizes(tmp_path):
    rng = np.random.default_rng(0)
    wanted = pa.table({"a": rng.normal(size=60_000), "b": rng.choice(["x", "yy", "z,"], 60_000)})
    path = tmp_path / "a.csv"
    pa_csv.write_csv(wanted, path)
    batches = list(open_table(Path(path)).batches())
    assert len(batches) > 1
    assert pa.Table.from_batches([batch.records for batch in batches]).equals(wanted)
