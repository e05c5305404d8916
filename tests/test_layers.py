"""Imports run one way, room by room (CONTRIBUTING.md, "Rooms")."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gpuscale"

# In the order of the data; a module imports from its own room and from those above it here.
ROOMS = (
    "base",
    "records",
    "workload",
    "analysis",
    "store",
    "measure",
    "judge",
    "reports",
    "campaigns",
    "plugin",
    "cli",
)
# Parts of one room that know nothing of each other.
APART = (
    {"measure.launch", "measure.telemetry"},
    {"measure.telemetry", "measure.schedulers"},
    {"judge.compare", "judge.diagnose"},
)
# The ranks see what they share with who starts them, and nothing sees the ranks.
RANKS = "measure.worker"
RANKS_MAY_IMPORT = tuple(
    f"measure.{part}" for part in ("evidence", "run_directory", "schedulers", "smi", "waits")
)
# Records are msgspec's everywhere.
COMMON = {"msgspec"}
THIRD_PARTY = {
    "measure.nvml": {"pynvml"},
    "measure.worker": {"torch", "torchvision", "PIL", "lightning", "greenlet"},
    "reports": {"tabulate", "wcwidth"},
    "reports.exports": {"torch"},
    "reports.figures": {"matplotlib"},
    "reports.page": {"jinja2"},
    "plugin": {"pytest", "pytest_benchmark"},
    # Only type checkers see these imports, and a case that is asked for a sample.
    "workload.cases": {"torch", "torchvision", "PIL"},
}


def modules() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if path not in (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
    )


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            if node.module == "gpuscale":
                found.update(f"gpuscale.{alias.name}" for alias in node.names)
    return found


def modules_imported_by(path: Path) -> set[str]:
    """Lazy imports and those of type checkers count too."""
    names = {module_of(each) for each in modules()}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            deeper = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {n if n.removeprefix("gpuscale.") in names else node.module for n in deeper}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("gpuscale.") for name in found} & names - {module_of(path)}


def own_imports_of(path: Path) -> set[str]:
    """The modules of gpuscale that a module imports, without the package's name."""
    found = (name.removeprefix("gpuscale.") for name in imports_of(path) if "gpuscale." in name)
    return {name for name in found if name.split(".")[0] in ROOMS}


def by_module(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", modules(), ids=by_module)
def test_a_module_imports_only_from_its_own_room_and_those_before_it(path: Path) -> None:
    module = module_of(path)
    allowed = ROOMS[: ROOMS.index(module.split(".")[0]) + 1]
    assert {name.split(".")[0] for name in own_imports_of(path)} <= {*allowed}


@pytest.mark.parametrize("path", modules(), ids=by_module)
def test_parts_that_stand_apart_import_nothing_of_each_other(path: Path) -> None:
    module = module_of(path)
    for parts in APART:
        others = {part for part in parts if not is_in(module, part)}
        if len(others) < len(parts):
            assert not [n for n in own_imports_of(path) for part in others if is_in(n, part)]


@pytest.mark.parametrize("path", modules(), ids=by_module)
def test_nothing_imports_the_ranks_and_they_import_no_launcher(path: Path) -> None:
    found = {name for name in own_imports_of(path) if is_in(name, "measure")}
    if is_in(module_of(path), RANKS):
        allowed = (RANKS, *RANKS_MAY_IMPORT)
        assert all(any(is_in(name, part) for part in allowed) for name in found)
    else:
        assert not [name for name in found if is_in(name, RANKS)]


@pytest.mark.parametrize("path", modules(), ids=by_module)
def test_a_module_imports_only_the_libraries_of_its_part(path: Path) -> None:
    module = module_of(path)
    parts = [part for part in THIRD_PARTY if is_in(module, part)]
    allowed = COMMON | (THIRD_PARTY[max(parts, key=len)] if parts else set())
    roots = {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names
    assert roots - {"gpuscale"} <= allowed


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module_of(path): modules_imported_by(path) for path in modules()}
    TopologicalSorter(graph).prepare()


def test_every_module_is_in_a_room() -> None:
    assert {module_of(path).split(".")[0] for path in modules()} == {*ROOMS}


def loaded_after(*arguments: str) -> set[str]:
    """The top-level modules in `sys.modules` after a command of gpuscale."""
    code = (
        "import sys; from gpuscale.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write('LOADED ' + ' '.join(sorted(m for m in sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(answer.stderr.split("LOADED ")[1].split())


def test_comparing_and_showing_never_load_torch_pytest_or_pynvml() -> None:
    baseline = PACKAGE.parent / "baselines" / "cte-power.json"
    results = Path(__file__).parent / "data" / "two_cpu_ranks.jsonl"
    for arguments in (["compare", str(baseline), str(results)], ["show", str(baseline)]):
        loaded = loaded_after(*arguments)
        assert "gpuscale.store" in loaded
        assert not loaded & {"torch", "pytest", "_pytest", "pynvml", "matplotlib"}


def test_help_loads_no_heavy_library() -> None:
    assert not loaded_after("--help") & {"torch", "pytest", "pynvml", "scipy", "numpy"}


def test_the_plugin_loads_no_machinery_without_gpus_asked_for(tmp_path: Path) -> None:
    test_file = tmp_path / "test_other.py"
    test_file.write_text(
        "import sys\n\n"
        "def test_nothing_is_loaded():\n"
        "    assert 'gpuscale.plugin' in sys.modules\n"
        "    heavy = ('torch', 'scipy', 'pynvml', 'gpuscale.plugin.session', 'gpuscale.records')\n"
        "    assert not [name for name in heavy if name in sys.modules]\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test_file)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout
