"""The names of the package; the commands do not wait for scikit-learn."""

import subprocess
import sys

import pytest

from tangograd import glm


def test_public_names():
    assert all(getattr(glm, name) is not None for name in glm.__all__)
    assert set(glm.__all__) == set(dir(glm))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = glm.nothing


def test_a_fit_of_a_table_needs_no_scikit_learn(tmp_path):
    """Nor SciPy's distributions, which scikit-learn imports: a second of each run, and 40 MB."""
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(300)))
    code = (
        "import sys\nfrom tangograd.cli import app\n"
        f"app(['fit', {str(tmp_path / 'a.csv')!r}, '--target', 'y', '--family', 'binomial',"
        " '--holdout', '0.3', '--quiet', '--json'], standalone_mode=False)\n"
        "print({'sklearn', 'scipy.stats'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert '"auc"' in done.stdout, done.stderr
    assert done.stderr.splitlines()[-1] == "set()"
