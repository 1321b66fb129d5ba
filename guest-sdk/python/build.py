"""Makes a component of a function in Python: ``python3 build.py function.py -o function.wasm``.

It needs componentize-py, which it installs into ``.venv`` beside the function, or into the folder that ``WASMILL_TOOLS`` names. It uses nothing but Python itself.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = "componentize-py==0.25.0"
SDK = Path(__file__).resolve().parent
WORLD = "migrating-operator"


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a component of a function in Python.")
    parser.add_argument("function", type=Path, help="the module that defines the function")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the component to write")
    arguments = parser.parse_args()
    function = arguments.function.resolve()
    if not function.is_file():
        sys.exit(f"{arguments.function} is not there")
    contract = next(folder for folder in (SDK / "wit", SDK.parent / "wit") if folder.is_dir())
    tool = componentize_py(function.parent)
    with tempfile.TemporaryDirectory() as folder:
        entry = f"import {function.stem}\nfrom wasmill.component import exports_of\n\nWitWorld, Migration = exports_of({function.stem})\n"
        Path(folder, "wasmill_entry.py").write_text(entry)
        command = [str(tool), "--quiet", "-d", str(contract), "-w", WORLD, "componentize", "--stub-wasi"]
        for path in (function.parent, SDK, folder):
            command += ["-p", str(path)]
        ended = subprocess.run([*command, "wasmill_entry", "-o", str(arguments.output.resolve())])
    if ended.returncode:
        sys.exit(f"{arguments.function} could not be made a component: see above")
    print(f"{arguments.output} ({arguments.output.stat().st_size / 2**20:.1f} MiB)")


def componentize_py(project: Path) -> Path:
    """The tool, installed if need be."""
    tools = os.environ.get("WASMILL_TOOLS")
    environment = Path(tools) / "python" if tools else project / ".venv"
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    marker = environment / f"wasmill-{TOOL}"
    if not marker.exists():
        print(f"installing {TOOL} into {environment}", file=sys.stderr)
        install(environment, scripts)
        marker.touch()
    return scripts / "componentize-py"


def install(environment: Path, scripts: Path) -> None:
    for command in ([sys.executable, "-m", "venv", str(environment)], [str(scripts / "python"), "-m", "pip", "install", "--quiet", TOOL]):
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            lines = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()
            sys.exit(f"{TOOL} is needed and cannot be installed ({lines[-1]}): install Python 3.11 or later with venv and pip (Debian: python3-venv), and let pip reach PyPI")


if __name__ == "__main__":
    main()
