"""Imports run one way (docs/design.md, "Layers")."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gpuscale"

LAYERS = {
    "errors": 0,
    "foreign_texts": 0,
    "units": 0,
    "host": 0,
    "strategies": 0,
    "printable": 0,
    "step_report": 0,
    # The table of counters, without what samples them.
    "telemetry.fields": 0,
    "records": 1,
    "statistics": 2,
    "scaling": 2,
    "budget": 2,
    "projection": 2,
    "typical_step": 2,
    "environment_diff": 2,
    "cases": 2,
    "command_case": 2,
    "log_formats": 2,
    "injections": 2,
    "history": 2,
    "run_directory": 2,
    "run_defaults": 2,
    "clusters": 2,
    "recording": 3,
    "compare": 3,
    "diagnose": 3,
    "store": 3,
    "launch": 3,
    "telemetry": 3,
    # The names and numbers that reports and figures share.
    "reports.phrases": 3,
    "reports": 4,
    "figures": 4,
    # The files of clusters, read as those of results are, and the jobs made of them.
    "clusters.profile": 4,
    "clusters.job_script": 5,
    "night": 4,
    "selftest": 4,
    "largest_batch": 4,
    "page": 5,
    "plugin": 5,
    "exports": 5,
    "cli": 6,
}
# The ranks stand beside the layers: they see what is below 3, and nothing sees them.
WORKER_MAY_IMPORT = 2
# Records are msgspec's everywhere.
COMMON = {"msgspec"}
THIRD_PARTY = {
    "launch": {"torch"},
    "figures": {"matplotlib"},
    "reports": {"tabulate", "wcwidth"},
    "exports": {"torch"},
    "telemetry": {"pynvml"},
    "page": {"jinja2"},
    "plugin": {"pytest", "pytest_benchmark"},
    "worker": {"torch", "torchvision", "PIL", "pynvml", "lightning", "greenlet"},
}
# Imports that only type checkers see, and those of a case that is asked for a sample.
TYPE_ONLY = {"cases": {"torch", "torchvision", "PIL"}}


def modules() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if path not in (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
    )


def part_of(path: Path) -> str:
    return part_named(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))


def part_named(module: str) -> str:
    name = module.removeprefix("gpuscale.")
    return name if name in LAYERS else name.split(".")[0]


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


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_layers_below_its_own(path: Path) -> None:
    part = part_of(path)
    for name in imports_of(path):
        if not name.startswith("gpuscale."):
            continue
        other = part_named(name)
        if other == part or other == "__version__":
            continue
        assert other != "worker", f"{path} imports {name}: nothing imports the ranks"
        if part == "worker":
            assert LAYERS[other] <= WORKER_MAY_IMPORT, f"{path} imports {name}"
        elif LAYERS[other] == LAYERS[part] == 2:
            # The others stand alone.
            stands_on = {
                "scaling": {"statistics"},
                "budget": {"scaling", "statistics"},
                "projection": {"budget", "scaling", "statistics"},
                "typical_step": {"budget", "scaling", "statistics"},
                "history": {"scaling", "statistics", "environment_diff"},
                "run_defaults": {"cases", "command_case"},
                "command_case": {"cases", "log_formats"},
            }
            assert other in stands_on.get(part, set()), f"{path} imports {name}"
        elif LAYERS[other] == LAYERS[part] == 5 or LAYERS[other] == LAYERS[part] == 3:
            pytest.fail(f"{path} imports {name} of its own layer")
        else:
            assert LAYERS[other] < LAYERS[part], f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_the_libraries_of_its_layer(path: Path) -> None:
    part = part_of(path)
    allowed = COMMON | THIRD_PARTY.get(part, set()) | TYPE_ONLY.get(part, set())
    roots = {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names
    assert roots - {"gpuscale"} <= allowed


def test_only_the_modules_named_after_it_import_pynvml() -> None:
    users = {path for path in modules() if "pynvml" in imports_of(path)}
    # A rank asks only how many GPUs there are, where torch sees none.
    ranks = PACKAGE / "worker" / "machine.py"
    assert users == {ranks, *(PACKAGE / "telemetry").glob("nvml*.py")}


def test_every_part_of_the_package_has_its_layer() -> None:
    assert {part_of(path) for path in modules()} == {*LAYERS, "worker"}


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
