"""Every script of docs/, benchmarks/ and studies/ can be imported; where its framework is missing it is skipped."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {  # by script of the speed benchmark, which installs each in an environment of its own
    "blazefl": "blazefl",
    "fedjax": "fedjax",
    "fedlab": "fedlab",
    "fluke": "fluke",
    "nvflare": "nvflare",
    "nvflare_client": "nvflare",
    "pfl": "pfl",
    "vision": "torchvision",
}
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for room in ("benchmarks", "studies", "docs")
    for path in (ROOT / room).rglob("*.py")
    if ".envs" not in path.parts and path.name != "__init__.py"
)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 35
    assert {"docs/pictures.py", "studies/paper/claims.py", "benchmarks/speed/peers/pfl.py"} <= {*SCRIPTS}


@pytest.mark.parametrize("script", [s for s in SCRIPTS if not s.endswith("__main__.py")])
def test_it_can_be_imported(script: str) -> None:
    framework = FRAMEWORKS.get(Path(script).stem) if "/peers/" in script else None
    if framework and importlib.util.find_spec(framework) is None:
        pytest.skip(f"needs {framework}, which has an environment of its own")
    if script.startswith("docs/"):
        runpy.run_path(str(ROOT / script), run_name="imported")
    else:
        importlib.import_module(script.removesuffix(".py").replace("/", "."))


@pytest.mark.parametrize(
    "package",
    [
        "benchmarks.speed",
        "studies.corrected",
        "studies.robustness",
        "studies.privacy",
        "studies.personal",
        "studies.theory",
    ],
)
def test_it_says_how_it_is_used(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [package, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(package, run_name="__main__")
    assert "--out" in capsys.readouterr().out


def test_every_benchmark_is_described() -> None:
    """benchmarks/README.md names every script, and studies/README.md every study."""
    text = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    for path in (ROOT / "benchmarks").rglob("*.py"):
        if path.name != "__init__.py" and not {".envs", "peers"} & {*path.parts}:
            assert f"`{path.relative_to(ROOT / 'benchmarks').as_posix()}`" in text, path
    text = (ROOT / "studies" / "README.md").read_text("utf-8")
    for path in (ROOT / "studies").glob("*/"):
        if path.name != "__pycache__":
            assert f"`{path.name}/`" in text, path
