"""Imports run one way, room by room (CONTRIBUTING.md, "Rooms")."""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import permutations
from pathlib import Path

from command_line import python, python_in

PACKAGE = Path(__file__).parent.parent / "gpuscale"

# In the order of the data; a module imports from its own room and from those above it here.
ROOMS = (
    *("base", "records", "workload", "analysis", "store", "measure", "judge", "reports"),
    *("campaigns", "plugin", "cli"),
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
    f"measure.{part}" for part in ("evidence", "run_directory", "schedulers", "telemetry.device")
)
# Records are msgspec's everywhere.
COMMON = {"msgspec"}
THIRD_PARTY = {
    "measure.schedulers.slurm": {"ClusterShell"},
    "measure.telemetry.nvml": {"pynvml"},
    "measure.worker": {"torch", "torchvision", "PIL", "lightning", "greenlet"},
    "reports": {"tabulate", "wcwidth"},
    "reports.figures": {"matplotlib"},
    "reports.page": {"jinja2"},
    "plugin": {"pytest", "pytest_benchmark"},
    # Only type checkers see these imports, and a case that is asked for a sample.
    "workload.cases": {"torch", "torchvision", "PIL"},
}


def is_in(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def modules() -> dict[str, Path]:
    """Every module but the package itself, by its name without the package's."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    names = {".".join(path.parts).removesuffix(".__init__"): path for path in paths}
    return {name: PACKAGE / f"{path}.py" for name, path in names.items() if name[:2] != "__"}


def imports_of(path: Path) -> set[str]:
    """Lazy imports and those of type checkers count too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@cache
def imports() -> dict[str, set[str]]:
    """The names that each module imports, of modules or of what is in them."""
    # Here, since every worker of pytest imports this file.
    return {module: imports_of(path) for module, path in modules().items()}


def own_imports_of(module: str) -> set[str]:
    """The modules of gpuscale that a module imports, without the package's name."""
    found = {name.removeprefix("gpuscale.") for name in imports()[module] if "gpuscale." in name}
    return {name if name in imports() else name.rpartition(".")[0] for name in found} & {*imports()}


def test_a_module_imports_only_from_its_own_room_and_those_before_it() -> None:
    rooms = {module: ROOMS.index(module.split(".")[0]) for module in imports()}
    pairs = ((module, name) for module in imports() for name in own_imports_of(module))
    later = [f"{module} imports {name}" for module, name in pairs if rooms[name] > rooms[module]]
    assert later == []


def test_parts_that_stand_apart_import_nothing_of_each_other() -> None:
    joined = [
        f"{module} imports {name}"
        for parts in APART
        for module in imports()
        for name in own_imports_of(module)
        for own, other in permutations(parts, 2)
        if is_in(module, own) and is_in(name, other)
    ]
    assert joined == []


def test_nothing_imports_the_ranks_and_they_import_no_launcher() -> None:
    wrong = []
    for module in imports():
        found = {name for name in own_imports_of(module) if is_in(name, "measure")}
        if is_in(module, RANKS):
            allowed = (RANKS, *RANKS_MAY_IMPORT)
            found = {name for name in found if not any(is_in(name, part) for part in allowed)}
        else:
            found = {name for name in found if is_in(name, RANKS)}
        wrong += [f"{module} imports {name}" for name in found]
    assert wrong == []


def test_a_module_imports_only_the_libraries_of_its_part() -> None:
    wrong = []
    for module, names in imports().items():
        parts = [part for part in THIRD_PARTY if is_in(module, part)]
        allowed = COMMON | (THIRD_PARTY[max(parts, key=len)] if parts else set())
        roots = {name.split(".")[0] for name in names} - sys.stdlib_module_names
        wrong += [f"{module} imports {name}" for name in roots - allowed - {"gpuscale"}]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: own_imports_of(module) - {module} for module in imports()}
    TopologicalSorter(graph).prepare()


def test_every_module_is_in_a_room() -> None:
    assert {module.split(".")[0] for module in imports()} == {*ROOMS}


def loaded_after(*arguments: str) -> set[str]:
    """The top-level modules in `sys.modules` after a command of gpuscale."""
    code = (
        "import sys; from gpuscale.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write('LOADED ' + ' '.join(sorted(m for m in sys.modules)))"
    )
    return set(python("-c", code, *arguments).stderr.split("LOADED ")[1].split())


def test_comparing_showing_and_help_load_no_heavy_library() -> None:
    baseline = PACKAGE.parent / "baselines" / "cte-power.json"
    results = Path(__file__).parent / "data" / "two_cpu_ranks.jsonl"
    for arguments in (["compare", str(baseline), str(results)], ["show", str(baseline)]):
        loaded = loaded_after(*arguments)
        assert "gpuscale.store.files" in loaded
        assert not loaded & {"torch", "pytest", "_pytest", "pynvml", "matplotlib"}
    assert not loaded_after("--help") & {"torch", "pytest", "pynvml", "scipy", "numpy"}


def test_the_plugin_loads_no_machinery_without_gpus_asked_for(tmp_path: Path) -> None:
    test_file = tmp_path / "test_other.py"
    test_file.write_text(
        "import sys\n\n"
        "def test_nothing_is_loaded():\n"
        "    assert 'gpuscale.plugin' in sys.modules\n"
        "    heavy = {'torch', 'scipy', 'pynvml', 'gpuscale.plugin.session', 'gpuscale.records'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    answer = python_in(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", test_file)
    assert answer.returncode == 0, answer.stdout
