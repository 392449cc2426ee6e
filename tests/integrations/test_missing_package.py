"""Without transformers or onnx a command ends in one line, and an import fails with it."""

import importlib
import re
import runpy
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["studies.pretrained.__main__", "studies.pretrained.dinov2_onnx", "integrations.huggingface"]
)
def test_a_missing_package_is_one_line_that_names_the_extra(module, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lra.integrations.", "lra.studies.pretrained."))]:
        monkeypatch.delitem(sys.modules, name)
    for package in ("transformers", "onnx"):
        monkeypatch.setitem(sys.modules, package, None)
    package, extra = ("onnx", "onnx") if module.endswith("dinov2_onnx") else ("transformers", "hf")
    line = re.escape(f"{package} is not installed, or too old: pip install '.[{extra}]'")
    if module.startswith("studies"):
        with pytest.raises(SystemExit, match=f"^lra: {line}$"):
            runpy.run_module(f"lra.{module}", run_name="__main__")
    with pytest.raises(ImportError, match=f"^{line}$"):
        importlib.import_module(f"lra.{module}")
