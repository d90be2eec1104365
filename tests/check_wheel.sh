#!/usr/bin/env bash
# Builds the wheel, installs it in a clean environment elsewhere, and runs tests/wheel_step.py there.
# Usage: tests/check_wheel.sh PYTHON
set -euo pipefail
python=$(realpath --no-symlinks "${1:-python3}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$root"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet "$work"/gdt-*.whl

cp "$root/tests/wheel_step.py" "$work"
cd "$work"
env -u PYTHONPATH venv/bin/python wheel_step.py "$root"
