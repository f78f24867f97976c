"""The wheel in an environment with its core dependencies alone, and all that is promised without extras."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fedveca import __version__

ROOT = Path(__file__).parents[2]
EXTRAS = ("flwr", "ray", "starlette", "uvicorn", "tensorboard", "mlflow", "wandb", "dp_accounting", "pandas", "pytest")
SLOW_TO_LOAD = ("matplotlib", "sklearn", "rich", "jinja2", "scipy", "PIL", *EXTRAS)


def said(*command: object, cwd: Path, **more: str) -> str:
    """What a command prints; its words on failure."""
    clean = {name: v for name, v in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=clean | more, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def find_needed(requirements: Iterable[str]) -> dict[str, Distribution]:
    """The distributions that these requirements ask for without an extra, and what those need in turn."""
    found: dict[str, Distribution] = {}
    left = [Requirement(text) for text in requirements]
    while left:
        wanted = left.pop()
        applies = [wanted.marker is None or wanted.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)]
        if any(applies) and wanted.name not in found:
            found[wanted.name] = distribution(wanted.name)
            left += [Requirement(text) for text in found[wanted.name].requires or ()]
    return found


def link(installed: Distribution, place: Path) -> None:
    """Puts a distribution of this environment into another one: links take no time, copies of PyTorch minutes."""
    for name in {path.parts[0] for path in installed.files or ()} - {"..", "__pycache__"}:
        if not (place / name).exists():
            (place / name).symlink_to(Path(str(installed.locate_file(name))))


@pytest.mark.slow
def test_importing_it_loads_little() -> None:
    """`import fedveca` loads not even torch; what runs an experiment loads nothing that draws or serves."""
    code = "import sys; import fedveca; print('torch' in sys.modules); from fedveca import run; print(*sys.modules)"
    first, rest = said(sys.executable, "-c", code, cwd=ROOT, PYTHONPATH=str(ROOT / "src")).splitlines()
    assert first == "False"
    assert not {name.partition(".")[0] for name in rest.split()} & {*SLOW_TO_LOAD}


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    said(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    wheel, sdist = next((tmp_path / "dist").glob("*.whl")), next((tmp_path / "dist").glob("*.tar.gz"))
    assert wheel.name == f"fedveca-{__version__}-py3-none-any.whl"
    inside = zipfile.ZipFile(wheel).namelist()
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/fedveca").rglob("*")}
    wanted = {name for name in sources if (ROOT / "src" / name).is_file() and "__pycache__" not in name}
    assert wanted <= {*inside}, sorted(wanted - {*inside})
    assert not [name for name in inside if not name.startswith("fedveca")]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/fedveca/py.typed"} <= names

    said(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    place = Path(said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    metadata = PathDistribution(zipfile.Path(wheel) / f"fedveca-{__version__}.dist-info")  # type: ignore[arg-type]
    for needed in find_needed(metadata.requires or ()).values():
        link(needed, place)
    said(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    assert "No broken requirements" in said(python, "-m", "pip", "check", cwd=tmp_path)
    here = tmp_path / "empty"
    here.mkdir()
    fedveca = python.with_name("fedveca")
    assert "run folder: mine" in said(fedveca, "run", "rounds=2", "--out", "mine", cwd=here)
    assert f"fedveca {__version__}" in said(fedveca, "--version", cwd=here)
    assert "svm-mnist-case3" in said(fedveca, "list", cwd=here)
    said(fedveca, "compare", "rounds=1", "--seeds", "1", "--out", "all", "--quiet", cwd=here)
    assert (here / "all" / "curves.svg").exists()
    code = (
        "import importlib.resources as r, importlib.util as u, fedveca; "
        "assert (r.files('fedveca') / 'py.typed').is_file(); "
        f"print([name for name in {EXTRAS} if u.find_spec(name)], fedveca.__file__)"
    )
    found = said(python, "-c", code, cwd=here)
    assert found.startswith("[] ")
    assert str(tmp_path / "env") in found
    own = (ROOT / "examples" / "custom_arrays.py").read_text()
    assert "test accuracy" in said(python, "-c", own, cwd=here)
