"""What pip's output means: one reason each, the server and the proxy by name, and never a password."""

from __future__ import annotations

import pytest

from studio.installer import pip_errors

RETRY = "WARNING: Retrying (Retry(total=0)) after connection broken by '{}': /simple/torch/\n"
NONE = "ERROR: No matching distribution found for torch\n"
OS_ERROR = "ERROR: Could not install packages due to an OSError: "


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (OS_ERROR + "[Errno 28] No space left on device", "install.disk"),
        (OS_ERROR + "[WinError 112] Es steht nicht genug Speicherplatz auf dem Datenträger", "install.disk"),
        (OS_ERROR + "[WinError 5] 拒绝访问。: 'c:\\\\studio\\\\.venv\\\\Lib\\\\~orch'", "install.held"),
        (OS_ERROR + "[WinError 32] Der Prozess kann nicht auf die Datei zugreifen", "install.held"),
        (OS_ERROR + "[WinError 225] file contains a virus", "install.held"),
        (
            OS_ERROR
            + "[Errno 2] No such file: 'C:\\\\x'\nHINT: This error might have occurred since this system "
            "does not have Windows Long Path support enabled. See https://pip.pypa.io/warnings/enable-long-paths",
            "install.path_too_long",
        ),
        (OS_ERROR + "[WinError 206] 文件名或扩展名太长。", "install.path_too_long"),
        (
            RETRY.format("SSLError(SSLCertVerificationError(CERTIFICATE_VERIFY_FAILED))"),
            "install.certificate",
        ),
        (
            RETRY.format("ProxyError('Cannot connect to proxy.', NewConnectionError('refused'))") + NONE,
            "install.no_proxy",
        ),
        (RETRY.format("NewConnectionError('[WinError 10061]')") + NONE, "install.no_network"),
        (RETRY.format("NameResolutionError(getaddrinfo failed)") + NONE, "install.no_network"),
        (
            "WARNING: The repository located at mirror is not a trusted or secure host and is being ignored.\n"
            + NONE,
            "install.untrusted_index",
        ),
        (NONE, "install.failed"),
        (OS_ERROR + "[WinError 52] another number that begins with 5", "install.failed"),
        ("", "install.failed"),
    ],
)
def test_each_output_has_one_meaning(words, id):
    assert pip_errors.find_meaning(words) == id


def test_the_reason_is_the_last_error_that_says_something():
    words = "ERROR: Cannot install tiny==1 and tiny==2\nERROR: ResolutionImpossible: for help visit a page\n"
    assert pip_errors.find_reason(words) == "Cannot install tiny==1 and tiny==2"
    assert pip_errors.find_reason("Traceback\nOSError: gone\n") == "OSError: gone"
    assert pip_errors.find_reason("") == "-"


def test_servers_and_proxies_are_named_without_passwords():
    words = "Looking in indexes: http://me:****@127.0.0.1:9/simple, https://mirror/simple\n" + NONE
    assert pip_errors.find_index(words) == "http://127.0.0.1:9/simple, https://mirror/simple"
    assert pip_errors.find_index(NONE) == ""
    assert pip_errors.find_proxy({"HTTPS_PROXY": "http://me:secret@proxy:8080"}) == "http://proxy:8080"
    assert pip_errors.find_proxy({}) == ""


@pytest.mark.parametrize(
    ("environment", "configuration", "offline"),
    [
        ({}, "global.index-url='https://mirror/simple'", False),
        ({"PIP_NO_INDEX": "1"}, "", True),
        ({"PIP_NO_INDEX": "0"}, ":env:.no-index='0'", False),
        ({}, "global.no-index='true'", True),
    ],
)
def test_no_index_is_taken_from_the_environment_and_the_configuration(environment, configuration, offline):
    assert pip_errors.is_offline(environment, configuration) is offline
