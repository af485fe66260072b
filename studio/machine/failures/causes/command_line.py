"""Failures of the command line: programs that are not found, scripts that may not run, shells that are not set up."""

from __future__ import annotations

from studio.machine.failures.failure import Failure, Remedy, said

OPEN, CLOSE = "'\"«“‘", "'\"»”’"
IN_CMD = (
    r"n.est pas reconnu|no se reconoce como|não é reconhecido como|non è riconosciuto|nie jest rozpozna|"
    r"wordt niet herkend|не является внутренней|不是内部或外部|不是內部或外部|は、内部コマンド|은\(는\) 내부"
)
"""What cmd.exe says behind the name, from French to Korean."""
IN_BASH = (
    r"(?:Befehl|Kommando) nicht gefunden|commande introuvable|orden no encontrada|no se encontró la orden|"
    r"comando não encontrado|comando non trovato|nie znaleziono polecenia|команда не найдена|未找到命令|找不到命令|"
    r"コマンドが見つかりません|명령어를 찾을 수"
)
"""What bash says behind it."""
IN_POWERSHELL = r"Die Benennung|Le terme|El término|O termo|Il termine|Termin|Имя|无法将|無法辨識|用語|용어"
"""What PowerShell says before it."""

OF_ANOTHER = (
    r"'(?P<command>(?-i:[A-Z][A-Z0-9]*_[A-Z0-9_]+)|export|source|sudo|apt|apt-get|chmod|ls|rm|"
    r"\\\\)' is not recognized",
    r"The term '(?P<command>(?-i:[A-Z][A-Z0-9]*_[A-Z0-9_]+)=?[^'\n]{0,80}|export|source|sudo|apt|apt-get)' "
    r"is not recognized",
    rf"[{OPEN}](?P<command>(?-i:[A-Z][A-Z0-9]*_[A-Z0-9_]+)|export|source|sudo)[{CLOSE}] ?(?:{IN_CMD})",
    r"\bsh: (?:\d+: |line \d+: )?(?P<command>source|\[\[|pushd|set -o pipefail): (?:command )?not found",
    r"syntax error near unexpected token|Syntax error: \"\(\" unexpected|Missing expression after unary operator",
)
"""What belongs to the shell of another system: Linux writes a variable before the command, Windows does not."""

SHELL_SAYS = r"^(?:[^\s:]*\b(?:ba|da|z|k)?sh(?:\.exe)?: (?:(?:line )?\d+: )?|[\d:,. -]*\b(?-i:ERROR):? +)?"
"""What stands before a program's name at the beginning of a line: nothing, a shell's own name, a log's level."""

UNPARSED = said(
    r"error: argument (?P<name>-[^:\n]{1,80}): "
    r"invalid (?:dict|NoneType|Optional\S*|Union\S*|typing\.\S+|Literal\S*) value"
)
"""What argparse says of an option whose declared kind no word can have."""

FAILURES = (
    Failure(
        "launcher_rank",
        said(r"unrecognized arguments: (?P<name>--local[-_]rank(?:=\d+)?)"),
        (Remedy("torchrun_instead"),),
        code="D255",
    ),
    Failure("shell_syntax", said(*OF_ANOTHER), (Remedy("this_shell"),), code="K18"),
    Failure(
        "windows_lines",
        said(
            r"\^M: bad interpreter|\$'\\r': command not found|\r: No such file|: invalid option(?: name)?: pipefail\r"
        ),
        (Remedy("unix_lines"),),
        code="K19",
    ),
    Failure(
        # A bare < or > belongs to the shell: it reads or writes a file of that name.
        "sign_for_shell",
        said(
            r"pip3? install [^\n\"']*\w[<>]=?\d[^\n]*\n"
            r"[^\n]{0,80}(?:cannot find the file specified|No such file or directory)",
            r"\b(?:ba|z)?sh: (?:line \d+: )?(?:=?\d[\d.]*: No such file or directory|no such file or directory: =?\d)",
        ),
        (Remedy("quote_requirement"),),
        code="K86",
    ),
    Failure(
        # It comes with NVIDIA's driver, and into a container with the card.
        "smi_absent",
        said(
            r"exec: \\?\"nvidia-smi\\?\": executable file not found",
            r"(?:^|[\s:])nvidia-smi: (?:command )?not found\s*$",
            r"'nvidia-smi' is not recognized|The term 'nvidia-smi' is not recognized",
            r"No such file or directory: '?nvidia-smi\b",
        ),
        (Remedy("smi_driver"), Remedy("smi_container")),
        code="C91",
    ),
    Failure(
        "command_missing",
        said(
            r"'(?P<command>[\w.-]+)' is not recognized as (?:an internal|the name|a name)",
            r"FileNotFoundError: \[WinError 2\][^\n'\"]*$(?!\s*\[end of output\])",
            # cmd's sentence in an encoding that was lost on the way.
            r"^'(?P<command>[\w.-]+)' [\ufffd?]{2,}",
            r"(?:^|[\s:])(?<!- )(?P<command>(?!\d+:)[\w.-]+): (?:command )?not found\s*$",
            r"The term '(?P<command>[\w.-]+)' is not recognized",
            r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<command>[\w-]+)'",
            r"127 \(command not found\)",
            r"\b(?P<command>git|nvcc|cmake|ninja|ffmpeg|conda|npm|torchrun|deepspeed|ollama|"
            r"llamafactory-cli|huggingface-cli|uv)(?:\.exe)? "
            r"(?:executable )?(?:was )?not found(?! in the package registry)",
            # Words of other meanings, too: a graph has nodes, a cluster has them, Python has these packages.
            rf"{SHELL_SAYS}(?P<command>make|node|accelerate|tensorboard)(?:\.exe)? (?:executable )?(?:was )?not found"
            r"(?=\s*$|[.,;:!(]| in (?:\$?PATH|your)\b)",
            r"Failed to (?:execute|find) '?(?P<command>git|nvcc|cmake|ninja|make)'?",
            r"command '(?P<command>[\w+-]+)' failed: No such file",
            r"^make(?:\[\d+\])?: (?:\S*/)?(?P<command>[\w.+-]+): (?:No such file or directory|Command not found)",
            r"exec: \\?\"(?P<command>[\w./-]+)\\?\": executable file not found",
            r"requires the '(?P<command>[\w-]+)' command, but it",
            r"Cannot find command '(?P<command>[\w-]+)'",
            rf"[{OPEN}](?P<command>[\w.-]+)[{CLOSE}] ?(?:{IN_CMD})",
            r"Der Befehl [\"'](?P<command>[\w.-]+)[\"'] ist entweder falsch geschrieben",
            rf"(?P<command>[\w.-]+)\s?[:\uff1a] ?(?:{IN_BASH})",
            r"command not found: (?P<command>[\w.-]+)",
            r"ObjectNotFound: \((?P<command>[\w.-]+):String\)",
            rf"(?:{IN_POWERSHELL}) ?[{OPEN}](?P<command>[\w.-]+)[{CLOSE}]",
        ),
        (Remedy("install_command", needs=("command",)), Remedy("activate_environment")),
        code="K14",
        unless=said(
            r"[\\/]bin[\\/]+nvcc['\"]|flash_attn was requested",
            r"No such file or directory: '(?:gcc|cc|x86_64-linux-gnu-gcc)'",
            r"\w\.exe: command not found",
            r"nvidia-smi(?:\\?['\"])?: (?:command|executable file) not found",
            r"'nvidia-smi' is not recognized|: 'nvidia-smi'$",
            r"'wsl(?:\.exe)?' is not recognized|ObjectNotFound: \(wsl(?:\.exe)?:String\)",
            *OF_ANOTHER,
        ),
    ),
    Failure(
        "option_valueless",
        said(
            r"error: argument (?P<name>-[^:\n]{1,80}): (?P<says>expected (?:one|at least one|\d+) arguments?[^\n]*)",
        ),
        (Remedy("give_option_value"), Remedy("option_help")),
        code="D256",
    ),
    Failure(
        "options_exclude",
        said(r"error: argument (?P<first>-[^:\n]{1,80}): not allowed with argument (?P<second>-\S+)"),
        (Remedy("one_option"),),
        code="D257",
    ),
    Failure(
        # As argparse says it; which command's own options these are stands before "error:".
        "argument_value",
        said(
            r"error: argument (?P<name>-[^:\n]{1,80}): (?P<says>(?:invalid (?:choice|[\w.<>]+ value)|"
            r"ignored explicit argument)[^\n]*)"
        ),
        (Remedy("option_help"), Remedy("newer_options")),
        code="K70",
        unless=UNPARSED,
    ),
    Failure(
        # A parser that takes a type's name for what turns a word into a value.
        "parser_types",
        UNPARSED,
        (Remedy("upgrade_all"), Remedy("settings_file")),
        code="D241",
    ),
    Failure(
        "path_signs",
        said(r"WinError 123\b", r"os error 123\b", r"\[Errno 22\] Invalid argument: '[^'\n]+'"),
        (Remedy("other_signs"),),
        code="K71",
        unless=said(r"WinError 123\b[^\n]*[\\/.]triton", r"cc_cmd"),
    ),
    Failure(
        "python_alias",
        said(
            r"Python (?:was not found|wurde nicht gefunden)[^\n]*Microsoft Store",
            r"Microsoft Store[^\n]{0,200}(?:App ?(?:Execution|execution) [Aa]lias|App-Ausführungsaliase)",
            r"[Pp]ython[^\n]{0,60}WindowsApps[^\n]{0,80}(?:cannot access|9009)|9009[^\n]{0,60}python",
        ),
        (Remedy("full_python_own"), Remedy("alias_off")),
        code="K40",
    ),
    Failure(
        "execution_policy",
        said(
            r"about_Execution_Policies",
            r"\bPSSecurityException\b",
            r"running scripts is disabled on this system",
        ),
        (Remedy("allow_scripts"),),
        code="K41",
    ),
    Failure(
        # PowerShell translates the sentence, not the name behind it.
        "script_blocked",
        said(r"\bScriptContainedMaliciousContent\b", r"has been blocked by your antivirus software"),
        (Remedy("trust_script"), Remedy("script_by_hand")),
        code="K90",
    ),
    Failure(
        "conda_shell",
        said(
            r"Run 'conda init' before 'conda activate'",
            r"Your shell has not been properly configured to use 'conda activate'",
            r"EnvironmentNameNotFound|EnvironmentLocationNotFound|Could not find conda environment",
        ),
        (Remedy("conda_init"),),
        code="K42",
    ),
)
