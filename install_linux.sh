#!/usr/bin/env bash
# Installs Finetune Studio for this user and makes a launcher for the application menu; safe to run again.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
root=$PWD

# Version managers put shims on the PATH that may answer 127, so every candidate is run before it is taken.
python=
for name in python3.12 python3.13 python3.11 python3.14 python3 python; do
  if "$name" -c 'import sys; sys.exit(not (3, 8) <= sys.version_info[:2])' >/dev/null 2>&1; then
    python=$name
    break
  fi
done
if [ -z "$python" ]; then
  echo "No Python was found. Install it first, for example: sudo apt install python3 python3-venv" >&2
  exit 2
fi

# Started by a double click there is no terminal: a page in the browser shows how far it is, and becomes the studio.
page=
if [ ! -t 0 ] && [ ! -t 1 ] && [ -n "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ]; then
  page=--page
fi
"$python" launch.py install $page "$@"

# The menu starts the studio without a terminal; what it says goes to its log in the workspace.
quoted=${root//\\/\\\\\\\\}
quoted=${quoted//\"/\\\\\"}
quoted=${quoted//\$/\\\\\$}
quoted=${quoted//\`/\\\\\`}
quoted=${quoted//%/%%}
entry=${XDG_DATA_HOME:-$HOME/.local/share}/applications/finetune-studio.desktop
mkdir -p "$(dirname "$entry")"
cat >"$entry" <<ENTRY
[Desktop Entry]
Type=Application
Name=Finetune Studio
Comment=Fine-tune language models on this machine
Comment[zh_CN]=在这台机器上微调语言模型
Exec="$quoted/.venv/bin/python" "$quoted/launch.py" --page
Icon=$root/assets/icons/studio.svg
Terminal=false
Categories=Development;Science;
ENTRY
chmod +x "$entry"
echo "Made a launcher: $entry"
