"""The packages that decide can be imported, and so tested, without torch."""

import importlib.util
import pkgutil
import subprocess
import sys

import pytest

PURE = ("base", "config", "protocol", "kv", "trace", "schedule", "speculate", "routing", "parallel.planning")


@pytest.mark.parametrize("package", PURE)
def test_no_module_of_a_pure_package_brings_torch_along(package: str) -> None:
    spec = importlib.util.find_spec(f"lineclear.{package}")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    modules = [each.name for each in pkgutil.walk_packages(spec.submodule_search_locations, f"lineclear.{package}.")]
    assert modules
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
